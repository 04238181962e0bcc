/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between a caller's tensors and staging windows, for tensors that are in no window. How many rows is
 * read on the device, so that static shapes need no host. */
#include "kernels/ep_args.h"
#include "kernels/kernels.h"
#include "simt/simt.h"

TERN_DEVICE void copy_row(char *dst, const char *src, uint32_t bytes)
{
    uint64_t either = (uint64_t)(uintptr_t)dst | (uint64_t)(uintptr_t)src | bytes;
    if ((either & 15) == 0) {
        for (uint32_t i = (uint32_t)lane() * 16; i < bytes; i += 512 * 4) {
            struct vec16 v[4];
            TERN_UNROLL
            for (int q = 0; q < 4; q++) {
                if (i + (uint32_t)q * 512 < bytes) {
                    v[q] = ld_stream_vec16(src + i + q * 512);
                }
            }
            TERN_UNROLL
            for (int q = 0; q < 4; q++) {
                if (i + (uint32_t)q * 512 < bytes) {
                    st_vec16(dst + i + q * 512, v[q]);
                }
            }
        }
        return;
    }
    for (uint32_t i = (uint32_t)lane(); i < bytes; i += 32) {
        dst[i] = src[i];
    }
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

TERN_DEVICE void copy_range(const struct copy_column *c, struct row_range rows)
{
    int64_t step = nblk() * nwarps();
    for (int64_t r = rows.begin + bid() * nwarps() + warp(); r < rows.end; r += step) {
        copy_row(c->dst + r * c->dst_stride, c->src + r * c->src_stride, c->row_bytes);
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
            copy_range(&p->columns[c], group_rows(p, g));
        }
    }
}
