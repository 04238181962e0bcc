/* SPDX-License-Identifier: Apache-2.0
 *
 * tuning: how many blocks, warps and stages an operation takes on a device, computed from what the device
 * has. Results never depend on it. */
#ifndef TERN_TUNING_H
#define TERN_TUNING_H

#include "ep/layout.h"
#include "kernels/rail_args.h"
#include "machine/machine.h"

struct geometry {
    int num_blocks, num_threads;
    uint32_t num_stages, shared_bytes, table_bytes;
};

/* `sms` as asked for, 0: fallback; never more than `most`. */
int terni_tuning_blocks(uint32_t sms, uint32_t fallback, int most);

/* Workers and the settler, at most num_sms blocks together (2 at least); counters take (ranks + experts)
 * words a warp, across domains as many more as there are domains. */
enum tern_status terni_tuning_route(const struct machine_info *info, const struct ep_shape *shape,
                                    uint32_t num_tokens, struct geometry *g);
/* Warps of a block of dispatch that send ids, weights, sources and thin columns, and bytes of a thin row, at
 * most. */
enum { DISPATCH_COURIERS = 2, DISPATCH_THIN_BYTES = 512 };
/* stage_bytes: of one token; couriers: warps of a block beside g->num_threads, which send ids, weights and
 * sources. */
enum tern_status terni_tuning_dispatch(const struct machine_info *info, int bulk, int cast,
                                       uint32_t stage_bytes, uint32_t table_bytes, uint32_t couriers,
                                       struct geometry *g);
/* stage_bytes: of one batch of chunks; 0 for the plain variant. */
enum tern_status terni_tuning_combine(const struct machine_info *info, int bulk, uint32_t stage_bytes,
                                      uint32_t table_bytes, struct geometry *g);
/* Combine of rows that are pushed: by push_blocks of the blocks; all have as many warps. */
enum { COMBINE_BATCH_BYTES = 4096, PUSH_FEWEST_BLOCKS = 2 };
struct push_geometry {
    struct geometry all;
    uint32_t push_blocks, num_pushers;
    uint32_t num_stages, stage_bytes, warp_bytes, boxes_offset; /* kernels/ep_args.h */
};
/* Whether pushing is the faster way for so many tokens, ranks and processors, and such rows: those of the
 * configuration, and that it also is with as many processors as there are. */
int terni_tuning_pushes(const struct ep_shape *shape);
int terni_tuning_pushes_by(int num_blocks);
enum tern_status terni_tuning_push(const struct machine_info *info, uint32_t stage_bytes,
                                   uint32_t table_bytes, int num_blocks, struct push_geometry *x);
/* Dispatch whose rows leave staging meanwhile; num_blocks 0: nothing leaves, and no block drains. */
enum { DRAIN_FEWEST_BLOCKS = 2 };
struct drain_geometry {
    struct geometry all; /* of all blocks */
    uint32_t drain_blocks, num_senders, counters_offset, num_drainers;
    uint32_t num_stages, ring_bytes, warp_bytes; /* kernels/ep_args.h */
    uint32_t helpers, help_stages, help_bytes, slice_bytes;
};
enum tern_status terni_tuning_drain(const struct machine_info *info, int cast, uint32_t stage_bytes,
                                    uint32_t table_bytes, uint32_t num_ranks, int num_blocks,
                                    struct drain_geometry *x);
/* Across domains: as these, and at the end of shared memory what forwarders have taken, arguments, a poster's
 * boxes and a note for each stage; dispatch's forwarders have as many stages or more. */
struct inter_geometry {
    struct geometry all;
    uint32_t forward_stages, taken_offset, rail_offset, poster_offset, notes_offset;
};
/* Shared memory of a poster for so many warps, or lines. */
uint32_t terni_tuning_poster_bytes(uint32_t producers);
enum tern_status terni_tuning_dispatch_inter(const struct machine_info *info, int bulk, int cast,
                                             uint32_t stage_bytes, uint32_t table_bytes,
                                             struct inter_geometry *g);
enum tern_status terni_tuning_combine_inter(const struct machine_info *info, int bulk, uint32_t most_warps,
                                            uint32_t stage_bytes, uint32_t table_bytes, struct geometry *g);
/* Combine by lines (combine_line.h); a slot holds `piece` bytes for each adder. num_stages: slots of a line.
 */
struct line_geometry {
    struct geometry all;
    uint32_t lines, adders, piece, line_bytes, bars_offset, poster_offset, args_offset;
};
enum tern_status terni_tuning_combine_line(const struct machine_info *info, uint32_t row_bytes,
                                           uint32_t table_bytes, struct line_geometry *g);
/* How it shares its blocks out, 2 at least. */
struct inter_roles terni_tuning_line_roles(uint32_t num_streams, uint32_t num_domains, uint32_t lines,
                                           uint32_t num_blocks);
/* How many streams to each rail peer keep the warps of so many blocks busy. */
uint32_t terni_tuning_streams(uint32_t num_blocks, uint32_t num_domains);
/* Of a rail peer's queues those that puts go by; the others are for credits. */
uint32_t terni_tuning_put_queues(uint32_t num_streams, uint32_t num_queues);
/* How an operation shares its blocks, of `warps` each, out; has_rails: of dispatch. */
struct inter_roles terni_tuning_roles(uint32_t num_streams, uint32_t warps, uint32_t num_blocks,
                                      int has_rails);
/* A block of a low-latency operation. */
enum tern_status terni_tuning_low_latency(const struct machine_info *info, const struct ep_shape *shape,
                                          uint32_t shared_bytes, struct geometry *g);
/* What it would have on its way home. */
struct ll_depth terni_tuning_ll_depth(const struct machine_info *info, const struct ep_shape *shape);
/* In how many parts, of *part_chunks chunks each, combine cuts a token so that `warps` are busy alike. */
uint32_t terni_tuning_parts(uint32_t num_tokens, uint32_t chunks, uint32_t warps, uint32_t *part_chunks);

#endif
