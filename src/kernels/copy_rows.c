/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between a caller's tensors and staging windows, for tensors that are in no window. How many rows is
 * read on the device, so that static shapes need no host. */
#include "kernels/copy.h"
#include "kernels/kernels.h"

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

/* All warps of the grid. Rows without gaps on both sides are one run of bytes. */
TERN_DEVICE void copy_range(const struct copy_column *c, struct row_range rows)
{
    int dense = c->src_stride == c->row_bytes && c->dst_stride == c->row_bytes;
    int64_t num = rows.end > rows.begin ? rows.end - rows.begin : 0;
    int64_t run = dense ? num * c->row_bytes : c->row_bytes; /* bytes */
    int64_t pieces = (run + COPY_PIECE - 1) / COPY_PIECE;    /* of a run */
    int64_t all = dense ? pieces : num * pieces;
    for (int64_t u = bid() * nwarps() + warp(); u < all; u += nblk() * nwarps()) {
        int64_t row = rows.begin + (dense ? 0 : u / pieces);
        int64_t at = (dense ? u : u % pieces) * COPY_PIECE;
        int64_t bytes = run - at < COPY_PIECE ? run - at : COPY_PIECE;
        copy_piece(c->dst + row * c->dst_stride + at, c->src + row * c->src_stride + at, (uint32_t)bytes);
    }
}

TERN_KERNEL(copy_rows, struct copy_args, p)
{
    struct row_range whole = {0, (int64_t)p->capacity};
    for (uint32_t c = 0; c < p->num_columns; c++) {
        if (p->columns[c].all) {
            copy_range(&p->columns[c], whole);
            continue;
        }
        for (uint32_t g = 0; g == 0 || g < p->num_groups; g++) {
            struct row_range rows = group_rows(p, g);
            if (p->own_rows) {
                copy_range(&p->columns[c], other_rows(p, rows, 0));
                rows = other_rows(p, rows, 1);
            }
            copy_range(&p->columns[c], rows);
        }
    }
}
