/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency, rows of a combine in lines. As in ll_in_words.h what says that bytes are here comes with them,
 * in one access of 16 bytes, but it takes two of the sixteen: eight lanes make a line of 128 bytes, in which
 * 112 are a row's. Lane j of the eight has 16 bytes of the row and sends 14; the last one has none, and sends
 * the last two bytes of each of the seven others: a channel of each, so sums are added as they travel. A
 * row's lines need no copy that ends, no fence and no word of their own, for a seventh more bytes.
 *
 * A tag of 16 bits comes again. It counts the combines whose rows come in lines, of each of the two copies;
 * all ranks count alike. In a place that no row comes to an old tag may remain, so each such combine wipes a
 * part of one place, as far as it awaits no row there. All of a place has been wiped, or written,
 * LL_MAX_PARTS combines later at the latest, or twice as many where the count begins anew; and a tag comes
 * again after four times as many. */
#ifndef TERN_LL_LINES_H
#define TERN_LL_LINES_H

#include "kernels/ll_frame.h"

/* Bytes of a row that a warp's lanes have in a piece of 16 each. */
enum { LL_VECS = LL_WITH_LINES ? 4 * LL_LINE_DATA : 512 };

/* 1 to 65535: what is wiped, or was never written, has none of them. */
TERN_DEVICE uint32_t ll_line_tag(const struct ll_glance *g) { return 1 + g->lined % LL_LINE_TAGS; }

/* A place, in this heap. */
TERN_DEVICE char *ll_line_place(const struct ll_lane *l, char *heap, uint64_t epoch, uint64_t place)
{
    const struct ll_lines *lines = &l->lines;
    return heap + lines->at + (epoch & 1) * lines->bytes + place * lines->place_bytes;
}

/* Where a lane's 16 bytes are in the LL_VECS of a row: the last one of eight has none, which is past every
 * row. */
TERN_DEVICE uint32_t ll_line_data_at(void)
{
    uint32_t j = (uint32_t)lane() % 8;
    return j == 7 ? 1u << 30 : (uint32_t)lane() / 8 * LL_LINE_DATA + j * 16;
}

/* Whether this lane has an access in them, of a row that has so many bytes: lines are sent whole. */
TERN_DEVICE int ll_is_in_line(uint32_t begin, uint32_t bytes)
{
    return begin + (uint32_t)lane() / 8 * LL_LINE_DATA < bytes;
}

/* All lanes: to travel. */
TERN_DEVICE struct vec16 ll_pack_line(struct vec16 v, uint32_t tag)
{
    int j = lane() % 8, first = lane() - j;
    uint32_t rest = j < 7 ? v.w[3] >> 16 : tag;
    uint32_t pair = rest | shfl_u32(rest, (lane() + 1) & 31)
                               << 16; /* in the even ones; the last has the tag */
    struct vec16 last;
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        last.w[i] = shfl_u32(pair, first + 2 * i);
    }
    v.w[3] = (v.w[3] & 0xffffu) | tag << 16;
    return j < 7 ? v : last;
}

/* All lanes: each one's 16 bytes, of what has travelled. */
TERN_DEVICE struct vec16 ll_unpack_line(struct vec16 v)
{
    int j = lane() % 8;
    uint32_t rest = 0;
    TERN_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t pair = shfl_u32(v.w[i], lane() - j + 7);
        rest = j / 2 == i ? pair : rest;
    }
    v.w[3] = (v.w[3] & 0xffffu) | (j & 1 ? rest & 0xffff0000u : rest << 16);
    return v;
}

/* A lane's access of the LL_VECS from `begin` on, where a row's lines begin. */
TERN_DEVICE uint64_t *ll_line_at(const char *lines, uint32_t begin)
{
    return (uint64_t *)(uintptr_t)(lines + begin / LL_LINE_DATA * LL_LINE + (uint32_t)lane() * 16);
}

/* Behind it, the same of the q-th LL_VECS that follow. */
enum { LL_NEXT_LINES = 4 * LL_LINE / (int)sizeof(uint64_t) };

TERN_DEVICE void ll_store_line(uint64_t *at, struct vec16 v)
{
    st_tagged_sys(at, v.w[0] | (uint64_t)v.w[1] << 32, v.w[2] | (uint64_t)v.w[3] << 32);
}

/* 1: what is there has the tag. */
TERN_DEVICE int ll_look_line(const uint64_t *at, uint32_t tag, struct vec16 *v)
{
    uint64_t low, high = ld_tag_sys(at, &low);
    v->w[0] = (uint32_t)low;
    v->w[1] = (uint32_t)(low >> 32);
    v->w[2] = (uint32_t)high;
    v->w[3] = (uint32_t)(high >> 32);
    return (uint32_t)(high >> 48) == tag;
}

/* What this operation wipes. */
struct ll_part {
    uint32_t place, begin;
};

TERN_DEVICE struct ll_part ll_part_of(const struct ll_lane *l, const struct ll_glance *g)
{
    const struct ll_lines *lines = &l->lines;
    uint32_t parts = LL_PARTS(lines->place_bytes), n = g->lined % (parts * lines->places);
    struct ll_part part = {n / parts, n % parts * LL_WIPED};
    return part;
}

/* One warp of the rank whose heap it is: wipes it, but the first so many bytes of the place, which a row
 * takes. Peers write there in the next operation but one, after they have seen this rank enter the next. */
TERN_DEVICE void ll_wipe(const struct op_frame *f, const struct ll_lane *l, uint64_t epoch,
                         struct ll_part part, uint32_t taken)
{
    char *place = ll_line_place(l, f->own, epoch, part.place);
    uint32_t end = part.begin + LL_WIPED;
    end = end < l->lines.place_bytes ? end : l->lines.place_bytes;
    for (uint32_t i = part.begin + (uint32_t)lane() * 16; i < end; i += 512) {
        if (i >= taken) {
            st_tagged_sys((uint64_t *)(void *)(place + i), 0, 0);
        }
    }
}

/* The warp that wipes: not the speaker, who is the last of all. */
TERN_DEVICE int ll_is_wiper(void) { return bid() == nblk() - 1 && warp() == 0; }

#endif
