/* SPDX-License-Identifier: Apache-2.0
 *
 * Railed low-latency dispatch, sending: a token's row into the out-box once for each other domain that has
 * an expert of it, as a message to the rank there that is on this rank's rail (ll_far_args.h). Behind the
 * row are its slots at all ranks of that domain, by which it is spread there. Messages are counted by
 * domain, as rows are by rank: all of them, and those of the tokens before the block's. */
#ifndef TERN_LL_SEND_RAIL_H
#define TERN_LL_SEND_RAIL_H

#include "kernels/ll_rail.h"
#include "kernels/ll_send_far.h"

/* One warp: message `m` for domain e, the row at `row` with these slots. */
TERN_DEVICE void ll_add_message(const struct ll_sender *s, uint32_t e, uint32_t m, const char *row,
                                const int32_t *slots)
{
    const struct ll_dispatch_args *p = s->p;
    const struct ll_far *far = ll_far_of(&p->f);
    const uint32_t *begins = ll_far_begins(s);
    uint32_t bytes = ll_message_bytes(p);
    uint32_t first = ll_chunk_of(m), rows = ll_chunk_rows(begins[e + 1] - begins[e], first);
    uint64_t *count = &far->chunks[e * far->rank_chunks + m / LL_CHUNK];
    char *out = ll_rows_out(&p->f, s->epoch) + (uint64_t)(begins[e] + first) * bytes;
    int32_t *tail = (int32_t *)(out + (m - first) * bytes + p->row_bytes);
    int there = ll_on_rail(&p->f, (int)e, p->f.rank);
    uint32_t turn = m / LL_CHUNK + (uint32_t)there;
    struct queue_near *near = ll_near(s);
    ll_open_chunk(count, s->epoch);
    ll_copy_row(out + (m - first) * bytes, row, p->row_bytes);
    for (int d = lane(); d < far->num_near; d += 32) {
        tail[d] = slots[d];
    }
    ll_bring_near(&p->f, there, turn, near);
    if (ll_count_row(count, rows)) {
        uint32_t own = far->rail.domain; /* at the other rank, by this rank's address of the same place */
        ll_put_rows(&p->f, &p->lane, s->epoch, there, turn, near, ll_message_at(p, s->epoch, own, first), out,
                    rows * bytes, ll_message_word(p, own, first));
    }
}

/* All warps, after the stage is whole: its messages, a warp each. */
TERN_DEVICE void ll_start_rails(const struct ll_sender *s, uint32_t stage)
{
    const struct ll_far *far = ll_far_of(&s->p->f);
    const int32_t *messages = ll_staged_messages(s, stage);
    const int32_t *slots = s->slots + stage * (uint32_t)s->p->f.num_ranks;
    const char *row = s->stages + stage * s->p->row_bytes;
    uint32_t domains = far->rail.num_domains;
    int turn = 0;
    for (uint32_t e0 = 0; e0 < domains; e0 += 32) {
        uint32_t e = e0 + (uint32_t)lane();
        int32_t m = e < domains ? messages[e] : -1;
        for (uint32_t left = warp_ballot(m >= 0); left; left &= left - 1) {
            int from = TERN_FFS(left) - 1;
            uint32_t number = shfl_u32((uint32_t)m, from);
            e = e0 + (uint32_t)from;
            if (turn == warp()) {
                ll_add_message(s, e, number, row, slots + e * (uint32_t)far->num_near);
            }
            turn = turn + 1 < nwarps() ? turn + 1 : 0;
        }
    }
}

/* The first warp, for the lane's choice of the staged token: numbers of its messages. */
TERN_DEVICE void ll_number_messages(const struct ll_sender *s, uint32_t stage)
{
    const struct op_frame *f = &s->p->f;
    int32_t *messages = ll_staged_messages(s, stage);
    uint32_t domains = ll_far_of(f)->rail.num_domains, e = domains + (uint32_t)lane(); /* no other lane's */
    for (uint32_t i = (uint32_t)lane(); i < domains; i += 32) {
        messages[i] = -1;
    }
    sync_warp();
    if (s->token.id >= 0 && ll_is_far(f, (int)s->token.rank)) {
        e = ll_domain_of(f, s->token.rank);
    }
    if (TERN_FFS(match_any_u32(e)) - 1 == lane() && e < domains) {
        messages[e] = (int32_t)ll_messages_before(s)[e]++;
    }
    sync_warp();
}

#endif
