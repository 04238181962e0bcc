/* SPDX-License-Identifier: Apache-2.0
 *
 * tuning: how many blocks, warps and stages an operation takes on a device, computed from what the device
 * has. Results never depend on it. */
#ifndef TERN_TUNING_H
#define TERN_TUNING_H

#include "ep/layout.h"
#include "machine/machine.h"

struct geometry {
    int num_blocks, num_threads;
    uint32_t num_stages, shared_bytes, table_bytes;
};

/* `sms` as asked for, 0: fallback; never more than `most`. */
int terni_tuning_blocks(uint32_t sms, uint32_t fallback, int most);

/* Workers and the settler, at most num_sms blocks together (2 at least); counters take (ranks + experts)
 * words a warp. */
enum tern_status terni_tuning_route(const struct machine_info *info, uint32_t num_ranks, uint32_t num_experts,
                                    uint32_t num_tokens, uint32_t num_sms, struct geometry *g);
/* stage_bytes: of one token. */
enum tern_status terni_tuning_dispatch(const struct machine_info *info, int bulk, int cast,
                                       uint32_t stage_bytes, uint32_t table_bytes, struct geometry *g);
/* stage_bytes: of one batch of chunks; 0 for the plain variant. */
enum tern_status terni_tuning_combine(const struct machine_info *info, int bulk, uint32_t stage_bytes,
                                      uint32_t table_bytes, struct geometry *g);
/* A block of a low-latency operation. */
enum tern_status terni_tuning_low_latency(const struct machine_info *info, uint32_t shared_bytes,
                                          struct geometry *g);
/* What it would have on its way home. */
struct ll_depth terni_tuning_ll_depth(const struct machine_info *info);
/* In how many parts, of *part_chunks chunks each, combine cuts a token so that `warps` are busy alike. */
uint32_t terni_tuning_parts(uint32_t num_tokens, uint32_t chunks, uint32_t warps, uint32_t *part_chunks);

#endif
