/* SPDX-License-Identifier: Apache-2.0
 *
 * Which bytes the tensors of a call take. Blocks of a kernel write outputs while others still read inputs, so
 * no output may have a byte of an input. Every call looks, and on the host's way to a launch: a tensor costs
 * some 20 instructions, a pair of them ten. */
#ifndef TERN_EP_EXTENT_H
#define TERN_EP_EXTENT_H

#include "core/core.h"

struct extent {
    uintptr_t first, end; /* its first byte, and behind its last */
    int64_t stride;       /* between rows of row_bytes in one piece; 0: it has no such rows */
    uint32_t row_bytes;
    int index; /* of `what`; -1: there is one */
    const char *what;
};

/* Of a call with at most all payloads and weights in; out, scales, ids, weights and sources besides. */
struct extents {
    struct extent *in, *out; /* behind the latest */
    struct extent ins[TERN_MAX_PAYLOADS + 1], outs[TERN_MAX_PAYLOADS + 4];
};

static inline void extents_begin(struct extents *x)
{
    x->in = x->ins;
    x->out = x->outs;
}

/* Rows at data. Products wrap: who finds a place for rows refuses what no memory can hold. The next one's
 * place; without bytes, this one. */
static inline struct extent *extent_rows(struct extent *e, const char *what, int index, const void *data,
                                         uint64_t rows, uint32_t row_bytes, int64_t stride)
{
    if (!data || rows == 0) {
        return e;
    }
    uint64_t way = (rows - 1) * (uint64_t)stride; /* from the first row to the last */
    e->first = (uintptr_t)data + (stride < 0 ? way : 0);
    e->end = (uintptr_t)data + row_bytes + (stride < 0 ? 0 : way);
    e->stride = stride;
    e->row_bytes = row_bytes;
    e->index = index;
    e->what = what;
    return e + 1;
}

/* Bytes in one piece. */
static inline struct extent *extent_bytes(struct extent *e, const char *what, const void *data,
                                          uint64_t bytes)
{
    if (!data || bytes == 0) {
        return e;
    }
    e->first = (uintptr_t)data;
    e->end = (uintptr_t)data + bytes;
    e->stride = 0;
    e->index = -1;
    e->what = what;
    return e + 1;
}

/* TERN_INVALID_ARGUMENT if an output has a byte of an input. Rows of the one may lie between rows of the
 * other if both are equally far apart; else ranges from first to last byte are what counts. */
enum tern_status terni_extents_check(const struct extents *x);

#endif
