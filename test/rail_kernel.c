/* SPDX-License-Identifier: Apache-2.0
 *
 * One operation on a rank's streams: block 0 sends messages that say what they are, the others read them,
 * either in the order of the streams, as who forwards does, or token by token, as home does. The cpu machine
 * runs it; where there is nvcc, it is compiled for GPUs, too. */
#define OP_FIRST_RANK(f) ((f)->first_rank)

#include "rail_kernel.h"

#include "kernels/rail_home.h"
#include "kernels/rail_poster.h"

TERN_DEVICE struct rail rail_of(const struct rail_test_args *p)
{
    struct rail r = {&p->rail, &p->f, p->number};
    return r;
}

/* Message words written by a warp, to shared memory or to the ring. */
TERN_DEVICE void write_message(const struct rail_test_args *p, uint32_t *to, int peer, uint32_t i)
{
    for (uint32_t w = (uint32_t)lane(); w < p->rail.stride / 4; w += 32) {
        to[w] = RAIL_TEST_WORD(p->rail.world.net.rank, peer, p->number, i, w);
    }
}

TERN_DEVICE void check_message(const struct rail_test_args *p, const uint32_t *from, uint32_t x, uint32_t i,
                               uint32_t begin, uint32_t end)
{
    uint32_t wrong = 0;
    for (uint32_t w = begin + (uint32_t)lane(); w < end; w += 32) {
        wrong += from[w] != RAIL_TEST_WORD(rail_peer(&p->f, (int)rail_domain(&p->rail, x)),
                                           p->rail.world.net.rank, p->number, i, w);
    }
    if (wrong != 0) {
        (void)atom_add_acqrel_gpu_u32(p->wrong, wrong); /* pairs with the end of the kernel */
    }
    if (TERN_HAS_BULK && p->bulk) {
        fence_proxy_async_shared(); /* these reads of the stage come before the next message */
    }
    sync_warp();
    if (lane() == 0) {
        (void)atom_add_acqrel_gpu_u32(p->seen + x * p->max_messages + i, 1); /* likewise */
    }
}

TERN_DEVICE int send_piece(const struct rail_test_args *p, struct poster_producer *w,
                           const struct rail_piece *piece)
{
    struct rail r = rail_of(p);
    uint32_t x = piece->stream / p->rail.num_channels, c = piece->stream % p->rail.num_channels;
    char *stage = shared_memory() + (uint32_t)warp() * p->rail.stride;
    for (uint32_t k = 0; k < piece->num; k++) {
        char *at = rail_out_ring(&r, piece->stream) + piece->offset + k * p->rail.stride;
        uint32_t i = rail_number(&p->rail, c, piece->first + k);
        write_message(p, (uint32_t *)(p->bulk ? stage : at), rail_peer(&p->f, (int)rail_domain(&p->rail, x)),
                      i);
        if (TERN_HAS_BULK && p->bulk) {
            fence_proxy_async_shared();
            sync_warp();
            if (lane() == 0) {
                RAIL_PROXY_FENCE();
                bulk_store(at, stage, p->rail.stride);
            }
            bulk_commit();
            bulk_wait(0);
            sync_warp();
        }
    }
    return p->posts ? poster_leave(w, 0, POSTER_PUT, piece) : rail_put(&r, group_of(GROUP_WARP), piece);
}

/* Streams first, first + step, ... are this warp's. */
TERN_DEVICE struct rail_hand hand_of(const struct rail_test_args *p, const uint32_t *counts, uint32_t first,
                                     uint32_t step, int sends)
{
    uint32_t stream = first + (uint32_t)lane() * step, C = p->rail.num_channels;
    uint32_t num = 0;
    if (stream < rail_streams(&p->rail)) {
        num = rail_share(&p->rail, counts[stream / C], stream % C);
    }
    return rail_hand_of(&p->rail, num != 0 ? stream : 0, num, sends);
}

TERN_DEVICE int send_all(const struct rail_test_args *p, struct poster_producer *w)
{
    struct rail r = rail_of(p);
    struct rail_hand h = hand_of(p, p->to, (uint32_t)warp(), RAIL_TEST_WARPS, 1);
    struct rail_piece piece;
    enum rail_found found = rail_take(&r, &h, 1, &piece);
    while (found == RAIL_PIECE && send_piece(p, w, &piece)) {
        found = rail_take(&r, &h, 1, &piece);
    }
    return found == RAIL_OVER;
}

/* Block 0: warps that send, and the poster if pieces leave by one. */
TERN_DEVICE int send_block(const struct rail_test_args *p)
{
    struct poster poster =
        poster_at(shared_memory() + RAIL_TEST_WARPS * (p->rail.stride + sizeof(uint64_t)), RAIL_TEST_WARPS);
    struct poster_producer w = poster_producer_of(&poster, (uint32_t)warp());
    int ok = 1;
    if (p->posts && tid() == 0) {
        poster_init(&poster);
    }
    sync_block();
    if (warp() < RAIL_TEST_WARPS) {
        ok = send_all(p, &w);
        if (p->posts) {
            poster_end(&w);
        }
    } else if (p->posts) {
        struct rail r = rail_of(p);
        poster_prepare(&poster, &r, r.p, (uint32_t)lane() * 2,
                       POSTER_PUT); /* the others it finds by itself */
        ok = poster_serve(poster.shared, poster.num_boxes);
    }
    return ok;
}

/* Where a message can be looked at: in the ring, or in shared memory. */
TERN_DEVICE const uint32_t *fetch(const struct rail_test_args *p, const char *at, uint32_t *turn)
{
    char *stage = shared_memory() + (uint32_t)warp() * p->rail.stride;
    uint64_t *bar = (uint64_t *)(void *)(shared_memory() + RAIL_TEST_WARPS * p->rail.stride) + warp();
    if (!TERN_HAS_BULK || !p->bulk) {
        return (const uint32_t *)(const void *)at;
    }
    if (lane() == 0) {
        RAIL_PROXY_FENCE();
        mbar_expect(bar, p->rail.stride);
        bulk_load(stage, at, p->rail.stride, bar);
    }
    while (!mbar_test(bar, *turn & 1)) {
        spin();
    }
    sync_warp();
    (*turn)++;
    return (const uint32_t *)(const void *)stage;
}

TERN_DEVICE int read_streams(const struct rail_test_args *p, uint32_t *turn)
{
    struct rail r = rail_of(p);
    uint32_t first = (uint32_t)(bid() - 1) * RAIL_TEST_WARPS + (uint32_t)warp();
    struct rail_hand h = hand_of(p, p->from, first, p->readers * RAIL_TEST_WARPS, 0);
    struct rail_piece piece;
    int ok = 1;
    enum rail_found found = rail_take(&r, &h, 1, &piece);
    while (ok && found == RAIL_PIECE) {
        uint32_t x = piece.stream / p->rail.num_channels, c = piece.stream % p->rail.num_channels;
        for (uint32_t k = 0; k < piece.num; k++) {
            const char *at = rail_arrived_ring(&p->rail, piece.stream) + piece.offset + k * p->rail.stride;
            check_message(p, fetch(p, at, turn), x, rail_number(&p->rail, c, piece.first + k), 0,
                          p->rail.stride / 4);
        }
        sync_warp();
        int failed = 0;
        for (uint32_t k = 0; k < piece.num && lane() == 0; k++) {
            struct rail_letter l = {
                rail_stream_of(&p->rail, p->rail.taken[piece.stream], rail_share(&p->rail, p->from[x], c)),
                piece.stream, piece.first + k};
            failed |= !rail_finish(&r, &l, 1, 1);
        }
        ok = !warp_any(failed);
        found = rail_take(&r, &h, 1, &piece);
    }
    return ok && found == RAIL_OVER;
}

/* A warp reads one half of each of a token's messages. */
TERN_DEVICE int read_part(const struct rail_test_args *p, uint32_t t, uint32_t part, uint32_t *turn)
{
    struct rail r = rail_of(p);
    uint32_t half = p->rail.stride / 8, num = (uint32_t)p->rail.world.num_domains - 1;
    int ok = 1;
    for (uint32_t x = 0; x < num && ok; x++) {
        int32_t i = p->slots[t * num + x];
        if (i < 0) {
            continue;
        }
        struct rail_letter l = rail_letter_of(&p->rail, x, (uint32_t)i, p->from[x]);
        ok = !warp_any(lane() == 0 && !rail_await(&r, &l));
        sync_warp();
        if (ok) {
            const uint32_t *at = fetch(p, rail_letter_at(&p->rail, &l), turn);
            check_message(p, at, x, (uint32_t)i, part * half, part * half + half);
            sync_warp();
            ok = !warp_any(lane() == 0 && !rail_finish(&r, &l, 1, RAIL_TEST_PARTS));
        }
    }
    return ok;
}

TERN_DEVICE int read_tokens(const struct rail_test_args *p, uint32_t *turn)
{
    uint32_t units = p->num_tokens * RAIL_TEST_PARTS, step = p->readers * RAIL_TEST_WARPS;
    int ok = 1;
    for (uint32_t u = (uint32_t)(bid() - 1) * RAIL_TEST_WARPS + (uint32_t)warp(); u < units && ok;
         u += step) {
        ok = read_part(p, u / RAIL_TEST_PARTS, u % RAIL_TEST_PARTS, turn);
    }
    return ok;
}

/* Block 0, when all blocks have left this operation. */
TERN_DEVICE void advance(const struct rail_test_args *p)
{
    uint32_t all = (uint32_t)nblk();
    while (tid() == 0 && atom_add_acqrel_gpu_u32(p->left, 0) < all) { /* pairs with the addition below */
        spin();
    }
    sync_block();
    for (uint32_t s = (uint32_t)tid(); s < rail_streams(&p->rail); s += (uint32_t)nthr()) {
        uint32_t x = s / p->rail.num_channels;
        rail_advance(&p->rail, s, p->to[x], p->from[x]);
    }
}

TERN_KERNEL(rail_operation, struct rail_test_args, p)
{
    uint32_t turn = 0;
    int ok = 1;
    int works = warp() < RAIL_TEST_WARPS;
    if (TERN_HAS_BULK && p->bulk && works && lane() == 0) {
        mbar_init((uint64_t *)(void *)(shared_memory() + RAIL_TEST_WARPS * p->rail.stride) + warp(), 1);
        fence_mbar_init();
    }
    sync_warp();
    if (bid() == 0) {
        ok = send_block(p);
    } else if (!p->stops && works) {
        ok = p->home ? read_tokens(p, &turn) : read_streams(p, &turn);
    }
    if (sync_block_or(!ok) && tid() == 0) {
        p->results[bid() != 0] = 0;
    }
    sync_block();
    if (tid() == 0) {
        (void)atom_add_acqrel_gpu_u32(p->left, 1); /* pairs with the look of block 0 */
    }
    if (bid() == 0) {
        advance(p);
    }
}
