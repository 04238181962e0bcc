/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency, rows over blanks. A place where a row is to come is blank: all of its words are 0. A row on
 * its way has no such word, so whoever looks for it takes each word that is not blank for one that has
 * come, and puts the blank back. A row needs no copy that ends, no fence and no word of its own, and its
 * pieces may be taken as they come, in any order.
 *
 * That no word is 0: words travel with their bits changed by a key that is none of them. It is ~0 unless the
 * row has that word, and then another, which a dispatch's row brings along: its taker knows it from there. Of
 * a combine's rows the word ~0 is two NaNs, for which two others go: their sums are the same.
 *
 * Who puts a blank back does so in the operation that the place is of, before it ends; peers write there two
 * operations later, after they have seen this rank enter the next one (ll_args.h). What an operation that was
 * given up leaves behind, a reset zeroes. As words may come apart, accesses promise no more than each word
 * whole. There are no masks: no verdict on a row that is here in part. */
#ifndef TERN_LL_BLANKS_H
#define TERN_LL_BLANKS_H

#include "kernels/ll_frame.h"

/* No word of most rows. */
#define LL_KEY 0xffffffffu

/* Where places begin, in this heap. */
TERN_DEVICE char *ll_places(const struct ll_lane *l, char *heap, uint64_t epoch)
{
    return heap + l->blanks + (epoch & 1) * l->blank_bytes;
}

TERN_DEVICE uint64_t ll_place_stride(uint32_t row_bytes) { return LL_ROUNDED(row_bytes, LL_BLANK_ALIGN); }

/* Whether a part of 16 bytes has not come, or not whole. */
TERN_DEVICE int ll_has_blank(struct vec16 v)
{
    return v.w[0] == 0 || v.w[1] == 0 || v.w[2] == 0 || v.w[3] == 0;
}

TERN_DEVICE struct vec16 ll_with_key(struct vec16 v, uint32_t key)
{
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        v.w[i] ^= key;
    }
    return v;
}

/* Two BF16 values, both NaN, for which the key leaves no bit: two others. */
TERN_DEVICE struct vec16 ll_other_nans(struct vec16 v)
{
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        v.w[i] = v.w[i] == LL_KEY ? 0x7fff7fffu : v.w[i];
    }
    return v;
}

/* One thread, which has taken what was there. */
TERN_DEVICE void ll_put_blank(char *at)
{
    struct vec16 blank = {{0, 0, 0, 0}};
    st_words_sys(at, blank);
}

#endif
