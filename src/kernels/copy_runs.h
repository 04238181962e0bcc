/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between a caller's tensors and staging windows: which of a column's there are, and copies of them by
 * loads and stores. How many there are is read on the device, so that static shapes need no host. */
#ifndef TERN_COPY_RUNS_H
#define TERN_COPY_RUNS_H

#include "kernels/copy.h"

/* Whether bulk copies can take it. */
TERN_DEVICE int copy_is_whole(const struct copy_column *c)
{
    uint64_t any = (uint64_t)(uintptr_t)c->src | (uint64_t)(uintptr_t)c->dst | (uint64_t)c->src_stride |
                   (uint64_t)c->dst_stride | c->row_bytes;
    return (any & 15) == 0;
}

struct row_range {
    int64_t begin, end;
};

/* Rows of group g that somebody wrote, below the capacity. */
TERN_DEVICE struct row_range group_rows(const struct copy_args *p, uint32_t g)
{
    struct row_range r = {0, p->num_rows[0]};
    if (p->num_groups) {
        r.begin = p->expert_offsets[g];
        r.end = p->padding ? p->expert_offsets[g + 1] : r.begin + p->expert_counts[g];
    }
    r.end = r.end < (int64_t)p->capacity ? r.end : (int64_t)p->capacity;
    return r;
}

/* The same without this rank's own, which lie together: what is before them, or behind them. */
TERN_DEVICE struct row_range other_rows(const struct copy_args *p, struct row_range r, int behind)
{
    int64_t at = p->own_rows[behind];
    if (behind) {
        r.begin = at > r.begin ? at : r.begin;
    } else {
        r.end = at < r.end ? at : r.end;
    }
    return r;
}

/* How many ranges of rows a column has. */
TERN_DEVICE uint32_t num_ranges(const struct copy_args *p, const struct copy_column *c)
{
    return c->all ? 1 : (p->num_groups ? p->num_groups : 1) * (p->own_rows ? 2 : 1);
}

TERN_DEVICE struct row_range range_of(const struct copy_args *p, const struct copy_column *c, uint32_t i)
{
    struct row_range r = {0, (int64_t)p->capacity};
    if (!c->all) {
        r = group_rows(p, p->own_rows ? i / 2 : i);
        r = p->own_rows ? other_rows(p, r, (int)(i & 1)) : r;
    }
    return r;
}

/* A range as pieces of at most `most` bytes. Rows without gaps on both sides are one run of bytes. */
struct copy_run {
    const char *src;
    char *dst;
    int64_t src_stride, dst_stride;
    int64_t bytes, pieces; /* of a run, of which there is one a row, or one in all */
    int64_t all;           /* pieces */
};

/* A division of 64 bits takes some hundred instructions. */
TERN_DEVICE int64_t copy_quotient(int64_t n, int64_t by)
{
    return ((uint64_t)(n | by) >> 32) == 0 ? (int64_t)((uint32_t)n / (uint32_t)by) : n / by;
}

TERN_DEVICE struct copy_run run_of(const struct copy_column *c, struct row_range rows, uint32_t most)
{
    struct copy_run r;
    int dense = c->src_stride == c->row_bytes && c->dst_stride == c->row_bytes;
    int64_t num = rows.end > rows.begin ? rows.end - rows.begin : 0;
    r.src = c->src + rows.begin * c->src_stride;
    r.dst = c->dst + rows.begin * c->dst_stride;
    r.src_stride = c->src_stride;
    r.dst_stride = c->dst_stride;
    r.bytes = dense ? num * c->row_bytes : c->row_bytes;
    r.pieces = copy_quotient(r.bytes + most - 1, most);
    r.all = dense ? r.pieces : num * r.pieces;
    return r;
}

struct copy_one {
    const char *src;
    char *dst;
    uint32_t bytes;
};

TERN_DEVICE struct copy_one piece_of(const struct copy_run *r, int64_t u, uint32_t most)
{
    int64_t row = r->all == r->pieces ? 0 : copy_quotient(u, r->pieces), at = (u - row * r->pieces) * most;
    struct copy_one one;
    one.src = r->src + row * r->src_stride + at;
    one.dst = r->dst + row * r->dst_stride + at;
    one.bytes = (uint32_t)(r->bytes - at < most ? r->bytes - at : most);
    return one;
}

/* All warps of the grid. */
TERN_DEVICE void copy_column_plain(const struct copy_args *p, const struct copy_column *c)
{
    for (uint32_t i = 0; i < num_ranges(p, c); i++) {
        struct copy_run r = run_of(c, range_of(p, c, i), COPY_PIECE);
        for (int64_t u = bid() * nwarps() + warp(); u < r.all; u += nblk() * nwarps()) {
            struct copy_one one = piece_of(&r, u, COPY_PIECE);
            copy_piece(one.dst, one.src, one.bytes);
        }
    }
}

#endif
