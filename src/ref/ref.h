/* SPDX-License-Identifier: Apache-2.0
 *
 * The naive reference: what a route, a dispatch and a combine mean, in plain C, one row and one channel after
 * another, in the words of tern.h. It shares no code with the kernels, not even the conversions between
 * formats, so that each checks the other. Tests and tern-bench compare every byte with it.
 *
 * Dispatch and combine take the very argument structures of tern.h, one a rank, with host pointers in place
 * of device pointers, and do to host memory what the kernels do to device memory: bytes that the operation
 * does not define are left alone. Streams, events, num_sms and the `size` fields play no part.
 *
 * A reference that gets no memory ends the program. Compile with -ffp-contract=off: one rounding an
 * operation. */
#ifndef TERN_REF_H
#define TERN_REF_H

#include "tern/tern.h"

/* One batch: the ids of all ranks. An id outside 0 .. num_experts - 1 is no choice. */
struct ref_world {
    int num_ranks;
    uint32_t num_experts; /* of all ranks; a multiple of num_ranks */
    uint32_t topk;
    uint32_t idx_bytes;             /* 4 or 8: the type of out_topk_idx */
    const uint32_t *num_tokens;     /* [num_ranks] */
    const int64_t *const *topk_idx; /* [num_ranks], each [num_tokens, topk] */
    int domain_ranks; /* of a domain, which divides num_ranks; 0: all. Combine alone depends on it */
};

/* What a row of an output is. */
struct ref_row {
    int32_t rank; /* where its token comes from; -1: a padding row */
    int32_t token;
    int32_t choice; /* expert layout: position among the token's ids; rank layout: -1 */
};

/* What one rank receives. */
struct ref_route {
    int rank;
    uint32_t layout;         /* enum tern_layout */
    uint64_t num_rows;       /* padding included */
    uint64_t num_tokens;     /* (token, rank) pairs */
    struct ref_row *rows;    /* [num_rows] */
    int32_t *rank_counts;    /* [num_ranks] pairs */
    int32_t *rank_offsets;   /* [num_ranks + 1] first row of each source rank; rank layout only, else NULL */
    int32_t *expert_counts;  /* [local experts] choices */
    int32_t *expert_offsets; /* [local experts + 1] aligned first row; expert layout only, else NULL */
    int64_t **row_of;        /* [num_ranks] sources: row or -1 of [token], expert layout [token, topk] */
};

/* Numbers. BF16 and E4M3 are bit patterns. */
float terni_ref_bf16_value(uint16_t bits);
uint16_t terni_ref_bf16(float value); /* nearest, ties to even; NaN: 0x7fff */
float terni_ref_e4m3_value(uint8_t bits);
uint8_t terni_ref_e4m3(float value); /* nearest, ties to even, at most 448 in size; NaN: 0x7f */
/* Bytes of the scales of one row of `channels` under a cast (enum tern_cast but NONE). */
uint32_t terni_ref_scale_bytes(uint32_t cast, uint32_t channels);
/* One BF16 row into E4M3 bytes and scales. */
void terni_ref_cast(uint32_t cast, const uint16_t *in, uint32_t channels, uint8_t *out, void *scales);

/* What one BF16 row is after the journey home under a compression (enum tern_ll_compression). */
void terni_ref_compress(uint32_t compression, const uint16_t *in, uint32_t channels, float *out);

/* expert_alignment 0 means 1. */
void terni_ref_route_init(struct ref_route *route, const struct ref_world *world, uint32_t layout,
                          uint32_t expert_alignment, int rank);
void terni_ref_route_fini(struct ref_route *route, const struct ref_world *world);
/* Row of a token of rank `source` at route->rank, or -1. `choice` is ignored in rank layout. */
int64_t terni_ref_route_row(const struct ref_route *route, const struct ref_world *world, int source,
                            uint32_t token, uint32_t choice);

/* Writes the outputs of args[route->rank] from the inputs of all args[num_ranks]. Returns the rows, padding
 * included, that had no room. */
uint64_t terni_ref_dispatch(const struct ref_world *world, const struct ref_route *route,
                            const struct tern_dispatch_args *args);
/* Writes the outputs of args[rank] from the inputs of all args[num_ranks]; routes[r] is what rank r received.
 */
void terni_ref_combine(const struct ref_world *world, const struct ref_route *routes,
                       const struct tern_combine_args *args, int rank);

/* Low latency: the row of every choice of a batch. */
struct ref_ll {
    const struct ref_world *world;
    uint32_t max_tokens;
    int32_t **row_of;            /* [num_ranks] sources, each [tokens, topk]: row among its expert's, or -1 */
    int32_t *counts;             /* [num_experts, num_ranks] rows from each source */
    const unsigned char *masked; /* [num_ranks] nonzero: left out by all ranks; NULL: none */
    int rail_ranks; /* of a domain, with ll_rail: other domains send one row a token home, if weights are
                       given at dispatch; 0, as after init: every rank sends its own. Combine alone depends
                       on it */
};
void terni_ref_ll_init(struct ref_ll *ll, const struct ref_world *world, uint32_t max_tokens);
/* The rows again, as they are if the ranks in `masked`, which is kept, are left out of the dispatch. A rank
 * that is added to `masked` afterwards is left out of combines only. */
void terni_ref_ll_mask(struct ref_ll *ll, const unsigned char *masked);
void terni_ref_ll_fini(struct ref_ll *ll);
/* Writes the outputs of args[rank] from the inputs of all args[num_ranks]. Ids are those of the world; phases
 * and lanes play no part. */
void terni_ref_ll_dispatch(const struct ref_ll *ll, const struct tern_ll_dispatch_args *args, int rank);
void terni_ref_ll_combine(const struct ref_ll *ll, const struct tern_ll_dispatch_args *dispatch,
                          const struct tern_ll_combine_args *args, int rank);

#endif
