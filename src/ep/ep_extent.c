/* SPDX-License-Identifier: Apache-2.0
 *
 * See ep_extent.h. */
#include <stdio.h>

#include "ep/ep_extent.h"

/* Of rows equally far apart, as columns of one matrix are: whether an output's lie in an input's gaps. */
static int alternate(const struct extent *in, const struct extent *out)
{
    if (in->stride <= 0 || in->stride != out->stride) {
        return 0;
    }
    uint64_t stride = (uint64_t)in->stride;
    uint64_t at = out->first >= in->first ? (out->first - in->first) % stride
                                          : stride - 1 - (in->first - out->first - 1) % stride;
    return at >= in->row_bytes && at + out->row_bytes <= stride;
}

static const char *name_of(const struct extent *e, char *text, size_t bytes)
{
    if (e->index < 0) {
        return e->what;
    }
    snprintf(text, bytes, "%s[%d]", e->what, e->index);
    return text;
}

/* Apart from who looks, so that a call that is right pays for looking only. */
__attribute__((noinline)) static enum tern_status judge(const struct extent *in, const struct extent *out)
{
    char in_name[32], out_name[32];
    if (alternate(in, out)) {
        return TERN_OK;
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT,
                     "%s, %llu bytes at 0x%llx, overlaps %s, %llu bytes at 0x%llx: it is written while that "
                     "is read",
                     name_of(out, out_name, sizeof(out_name)), (unsigned long long)(out->end - out->first),
                     (unsigned long long)out->first, name_of(in, in_name, sizeof(in_name)),
                     (unsigned long long)(in->end - in->first), (unsigned long long)in->first);
}

enum tern_status terni_extents_check(const struct extents *x)
{
    for (const struct extent *out = x->outs; out < x->out; out++) {
        for (const struct extent *in = x->ins; in < x->in; in++) {
            if (in->first < out->end && out->first < in->end) {
                TERN_TRY(judge(in, out));
            }
        }
    }
    return TERN_OK;
}
