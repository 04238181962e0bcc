/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between a caller's tensors and staging windows: which of a column's there are, how their pieces are
 * dealt out to warps, and copies of them by loads and stores. How many there are is read on the device, so
 * that static shapes need no host. */
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

/* ---- Pieces of all ranges, dealt out to warps by turns ---- */

/* Those that bulk copies can take, all others, or both. */
enum { COPY_WHOLE, COPY_OTHERS, COPY_EVERY };

TERN_DEVICE int copy_wants(const struct copy_column *c, int which)
{
    return which == COPY_EVERY || copy_is_whole(c) == (which == COPY_WHOLE);
}

/* A warp's way through them. Expert layout has a range an expert, often of fewer pieces than there are warps:
 * each lane looks one up, as to go from range to range would be a way to memory for each. */
struct copy_walk {
    const struct copy_args *p;
    uint32_t most;          /* bytes of a piece */
    int which;              /* columns: COPY_* */
    uint32_t column, range; /* where the next 32 ranges begin */
    struct copy_run run;    /* this lane's range */
    int64_t before, all;    /* pieces of the lanes before this one; of all lanes */
    int64_t next;           /* the warp's next piece, counted from the first lane's first */
};

TERN_DEVICE struct copy_walk copy_walk_of(const struct copy_args *p, uint32_t most, int which)
{
    struct copy_walk w = {0};
    w.p = p;
    w.most = most;
    w.which = which;
    w.next = bid() * nwarps() + warp();
    return w;
}

/* All lanes: the next 32 ranges of a column. 0: there are none. */
TERN_DEVICE int copy_walk_on(struct copy_walk *w)
{
    const struct copy_args *p = w->p;
    while (w->column < p->num_columns && (!copy_wants(&p->columns[w->column], w->which) ||
                                          w->range >= num_ranges(p, &p->columns[w->column]))) {
        w->column++;
        w->range = 0;
    }
    if (w->column == p->num_columns) {
        return 0;
    }
    const struct copy_column *c = &p->columns[w->column];
    uint32_t i = w->range + (uint32_t)lane();
    struct row_range rows = {0, 0};
    if (i < num_ranges(p, c)) {
        rows = range_of(p, c, i);
    }
    w->run = run_of(c, rows, w->most);
    int64_t upto = w->run.all;
    TERN_UNROLL
    for (int d = 1; d < 32; d *= 2) {
        int64_t more = (int64_t)shfl_u64((uint64_t)upto, lane() < d ? lane() : lane() - d);
        upto += lane() < d ? 0 : more;
    }
    w->before = upto - w->run.all;
    w->all = (int64_t)shfl_u64((uint64_t)upto, 31);
    w->range += 32;
    return 1;
}

/* All lanes: the warp's next piece. 0: there is none, and never will be. */
TERN_DEVICE int copy_walk_take(struct copy_walk *w, struct copy_one *one)
{
    while (w->next >= w->all) {
        w->next -= w->all;
        w->all = 0;
        if (!copy_walk_on(w)) {
            return 0;
        }
    }
    int mine = w->next >= w->before && w->next - w->before < w->run.all;
    int src = TERN_FFS(warp_ballot(mine)) - 1;
    struct copy_one its = piece_of(&w->run, mine ? w->next - w->before : 0, w->most);
    one->src = (const char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)its.src, src);
    one->dst = (char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)its.dst, src);
    one->bytes = shfl_u32(its.bytes, src);
    w->next += nblk() * nwarps();
    return 1;
}

/* All warps of the grid, by loads and stores. */
TERN_DEVICE void copy_columns_plain(const struct copy_args *p, int which)
{
    struct copy_walk w = copy_walk_of(p, COPY_PIECE, which);
    struct copy_one one;
    while (copy_walk_take(&w, &one)) {
        copy_piece(one.dst, one.src, one.bytes);
    }
}

#endif
