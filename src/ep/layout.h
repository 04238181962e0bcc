/* SPDX-License-Identifier: Apache-2.0
 *
 * layout: a configuration checked and completed (shape), and where every byte of an EP object lives. One
 * cursor walks each of the three areas once; offsets and totals come from the same walk. Pure functions. */
#ifndef TERN_LAYOUT_H
#define TERN_LAYOUT_H

#include "core/core.h"
#include "kernels/ll_args.h"

enum { EP_NET_TEAMS = 1 }; /* device teams of the object's network */

struct ep_shape {
    uint32_t num_ranks, num_experts, experts_a_rank;
    uint32_t max_topk, max_tokens, max_row_bytes, max_routes;
    uint32_t num_sms, timeout_ms, transfer, copy_engine, dispatch_drain;
    uint32_t push_wish;     /* enum tern_push */
    uint32_t combine_push;  /* combines in rank layout are to push: as was wished, or as it suits */
    uint64_t staging_bytes; /* rounded; 0: none */
    uint64_t max_rows;      /* rank layout */
    uint32_t ll_tokens, ll_hidden, ll_lanes; /* low latency; all 0: none */
    uint32_t ll_mask;
    uint32_t ll_rail; /* one network copy a (token, domain); 0 in one domain */
    uint32_t domain_ranks, num_domains, domain_experts; /* of one: all ranks, 1, all experts */
    uint32_t transport, net_queues;                     /* to other domains */
    uint64_t net_ring_bytes;
    uint32_t net_streams; /* to one rail peer, one way; several may share a queue */
    uint32_t ring_bytes;  /* of a stream */
    uint32_t ring_hold;   /* of that, what one operation may keep for the next to give back */
    uint32_t limits_out;  /* net_ring_bytes was given: it limits the rows of a low-latency combine too */
};

/* Offsets of one route's arrays, from the start of its slot. */
struct route_layout {
    uint64_t token_rows, ids, rank_sets, bases, rank_offsets, expert_counts, expert_offsets, num_rows,
        overflow;
    uint64_t message_of, token_of, num_out, num_in, far_bases, run; /* of several domains */
    uint64_t bytes;
};
struct route_host_layout {
    uint64_t ticket, epoch, bad_id, num_rows, rank_counts, expert_counts, expert_offsets;
    uint64_t bytes;
};

/* One lane of low-latency operations; bytes of one of two copies, and of this rank's own memory. */
struct ll_layout {
    uint64_t entry_words, entry_bytes, arrival_bytes, row_stride, home_stride, buffer_bytes;
    uint64_t word_rows, word_bytes;     /* rows in words: of a source, and of one copy; 0: there are none */
    uint64_t blank_bytes;               /* places of rows over blanks, likewise */
    uint64_t ahead_bytes;               /* of weights ahead of a combine, likewise */
    uint64_t id_bytes, all_id_bytes;    /* there: ids of a source, and of all, behind which rows begin */
    uint64_t rows_out_bytes;            /* to other domains, likewise; 0: there are none */
    uint32_t out_slots, recycles;       /* rows of a combine in them; there may be more */
    uint64_t rank_chunks;               /* of a dispatch's rows for a far rank */
    uint64_t chunk_bytes;               /* of the counters of all, in device memory */
    uint64_t ids, totals, plan, pushes; /* from the start of the lane's device memory */
    uint64_t numbers, places, homes;    /* likewise, of far ranks */
    uint64_t tails;                     /* likewise, railed, with the next five */
    uint64_t tail_bytes;                /* of a message */
    uint64_t messages, domain_bytes;    /* in a copy of the buffer: where they begin; of one domain's */
    uint64_t message_words, part_place; /* the first of each, behind those that there are else */
    uint64_t bytes;
    uint64_t wait_bytes, verdict_bytes; /* of what a reset zeroes */
};

struct ep_layout {
    /* the window, in the object's heap */
    uint64_t control; /* where the object's part of it begins: behind the words of its network */
    uint64_t done, abort, message, counts, pieces, pushed, drained, ends, staging, window_bytes;
    uint64_t ll_entries, ll_arrivals, ll_buffers, ll_words, ll_blanks,
        ll_ahead;                                /* of all lanes, with two copies each */
    uint64_t ll_heard, ll_alive;                 /* masks */
    uint64_t row_tails, block_tails, rail_words; /* other domains, with the next six */
    uint64_t rows_in, rows_out, row_bytes;       /* bytes: of one */
    uint64_t blocks_in, blocks_out, block_bytes; /* likewise */
    uint64_t rails;
    uint64_t ll_entries_out, ll_rows_out; /* of all lanes, each with its two copies */
    uint64_t control_bytes;               /* from control on, zeroed by a reset */
    uint64_t net_bytes;                   /* all that is for other domains */
    /* device memory */
    uint64_t state, cells, finished, runs, rail_state, ll_states, ll_waits, ll_peers, ll_verdicts, ll_chunks,
        routes, ll_lanes, device_bytes;
    uint64_t state_bytes; /* from state on: with the running route's words, zeroed by a reset */
    struct route_layout route;
    struct ll_layout ll;
    /* host memory */
    uint64_t record, latest, route_hosts, ll_bad_ids, ll_news, ll_view, host_bytes;
    struct route_host_layout route_host;
};

/* TERN_INVALID_ARGUMENT with the field and its value. timeout_ms and transfer stay 0 if the config has 0.
 * domain_ranks: 0 is all. */
enum tern_status terni_shape_init(const struct tern_ep_config *config, int num_ranks, uint32_t domain_ranks,
                                  struct ep_shape *shape);
/* Bytes at the front of staging that pushed rows come to, of so many bytes each: an area a source. */
uint64_t terni_push_staging(const struct ep_shape *shape, uint32_t row_bytes);
/* Words of units of rows that one rank pushes. */
uint32_t terni_push_words(const struct ep_shape *shape);
void terni_layout_init(const struct ep_shape *shape, struct ep_layout *layout);
/* int32_t of a forward block's entry (kernels/inter_args.h), for routes of so many choices. */
uint32_t terni_entry_ints(const struct ep_shape *shape, uint32_t layout, uint32_t topk);
/* Low latency: bytes of a row's header on its way, and of its scales; of the longest row with both. */
uint32_t terni_ll_header_bytes(uint32_t topk, uint32_t is_railed);
uint32_t terni_ll_scale_bytes(uint32_t cast, uint32_t hidden);
uint32_t terni_ll_row_bytes(const struct ep_shape *shape);
/* Likewise over blanks (kernels/ll_row_blanks.h). */
uint32_t terni_ll_blank_row_bytes(const struct ep_shape *shape);
/* Low latency: bytes of a row of a combine on its way, whose compression is an enum tern_ll_compression. */
uint32_t terni_ll_sent_bytes(uint32_t compression, uint32_t hidden);
/* Shared memory of a block: where what receiving needs begins, where the stages begin, and all of it. */
uint32_t terni_ll_place_offset(const struct ep_shape *shape);
uint32_t terni_ll_stage_offset(const struct ep_shape *shape);
uint32_t terni_ll_shared_bytes(const struct ep_shape *shape, uint32_t row_bytes);
/* Of the ids of so many tokens a rank, where rows go in words; behind the others. */
uint32_t terni_ll_ids_bytes(const struct ep_shape *shape, uint32_t tokens, uint32_t topk);
/* Beside what an operation needs: who is gone, and how long each was waited for. */
uint32_t terni_ll_watch_bytes(const struct ep_shape *shape);
/* A combine's rows on their way, in a block's shared memory: how much there is and how much is wanted. */
struct ll_depth {
    uint32_t warps, chunk_bytes, most_chunks; /* of a warp that sends rows as they are */
    uint32_t most_rows;                       /* of a block that makes them */
    uint32_t shared_bytes;
};
/* A stage is a chunk or a row; `words_offset`: behind the stages, what looks after them; `bytes`: of both. */
struct ll_room {
    uint32_t stage_bytes, stages, words_offset, bytes;
};
struct ll_room terni_ll_chunk_room(const struct ep_shape *shape, const struct ll_depth *depth,
                                   uint32_t row_bytes);
struct ll_room terni_ll_row_room(const struct ep_shape *shape, const struct ll_depth *depth,
                                 uint32_t sent_bytes);
/* The most rows a rank can receive. */
enum tern_status terni_shape_max_rows(const struct ep_shape *shape, int layout, uint32_t alignment,
                                      uint64_t *rows);

static inline uint64_t align_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

#endif
