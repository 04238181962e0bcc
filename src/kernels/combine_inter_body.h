/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains. Every domain that a token has rows in adds them, in order, and rounds the sum; home
 * adds the sums of all domains, its own among them, in their order onto the biases, and rounds again. So the
 * bits do not depend on where home is. Blocks have roles:
 *
 *   forwarders  for each message of another domain, the token's rows of this domain are added, and the sum
 *               goes home by the stream that the message came from
 *   home        the rows of this domain are added for this rank's own tokens, and the messages that bring the
 *               other domains' sums; lines that have forwarded all help
 *
 * By bulk copies, and with up to 32 targets and domains, warps are in lines (combine_line.h,
 * line_forward.h, line_home.h). Elsewhere every warp is one by itself (combine_mix.h, combine_home.h). There
 * home may wait because it has nothing then that others wait for: rows of this domain lie still, and the
 * messages of the tokens before are given back (rail_home.h says why that ends). A forwarder that has rows in
 * its stages only looks for the next piece. All blocks run at once.
 *
 * A message is a row, weights[topk] and a trailer. Shared memory, where warps are by themselves, is as inside
 * a domain; behind it, a note for each stage of a forwarder. */
#ifndef TERN_COMBINE_INTER_BODY_H
#define TERN_COMBINE_INTER_BODY_H

#include "kernels/combine_home.h"
#include "kernels/line_forward.h"
#include "kernels/line_home.h"

enum combine_way { COMBINE_PLAIN, COMBINE_BULK, COMBINE_LINE };

/* A warp of a line, but for a closer's poster_end. 0: the operation is to be abandoned. */
TERN_DEVICE int combine_work(struct line *l, int home)
{
    if (l->worker < l->adders) {
        if (home) {
            line_add(l, 1);
        } else {
            line_add(l, 0);
        }
        return 1;
    }
    if (l->worker == l->adders) {
        return home ? home_loads(l) : forward_loads(l);
    }
    return home ? home_closes(l) : forward_closes(l);
}

/* The arguments, in shared memory. */
TERN_DEVICE struct combine_inter_args *combine_near_args(const struct combine_inter_args *p)
{
    return (struct combine_inter_args *)(void *)(shared_memory() + p->args_offset);
}

/* Lines that have forwarded all are at home, too. box, lap: the closer's next letter. A function of its own:
 * it would take registers from the others' code. All threads but the poster's. */
TERN_APART int combine_joins(const struct combine_inter_args *p, uint64_t epoch, uint32_t box, uint32_t lap)
{
    struct op_table table = op_table_at(shared_memory(), COMBINE_COLUMNS, p->c.f.num_ranks);
    struct line l = line_of(p, &table, epoch, 1);
    line_init(&l, 1);
    sync_part(nthr() - 32);
    l.post.box = box;
    l.post.lap = lap;
    int ok = combine_work(&l, 1);
    if (l.worker > l.adders) {
        poster_end(&l.post);
    }
    return ok;
}

/* The poster's warp: a stream for each lane; of a forwarder's block, as its lines have them; at home some of
 * all, as every line has letters of any. */
TERN_DEVICE void combine_prepare_poster(const struct line *l, int home)
{
    const struct combine_inter_args *p = l->m.p;
    const uint32_t lines = p->num_lines, blocks = p->roles.forwarders, streams = rail_streams(&p->rail);
    uint32_t turn = (uint32_t)lane() / lines, stream = (uint32_t)lane() * (streams < 32 ? 32 : streams) / 32;
    if (!home) {
        stream = rail_first_stream(&p->rail, (uint32_t)bid(), blocks, (uint32_t)lane() % lines, lines) +
                 turn * blocks * lines;
    }
    poster_prepare(&l->post.to, &l->m.rail, &combine_near_args(p)->rail, stream,
                   home ? POSTER_RELEASE : POSTER_PUT);
}

/* All threads of a block. Forwarders are done when their last messages are with the poster, long before they
 * have come home; then they help there. 0: the operation is to be abandoned. */
TERN_DEVICE int combine_line(const struct combine_inter_args *p, const struct op_table *table, uint64_t epoch)
{
    const int home = combine_is_home(p);
    struct line l = line_of(p, table, epoch, home);
    int ok;
    line_init(&l, 0);
    inter_bring_near(combine_near_args(p), p, sizeof(*p));
    sync_block();
    if (line_is_poster(&l)) {
        combine_prepare_poster(&l, home);
        return poster_serve(l.post.to.shared, l.post.to.num_boxes);
    }
    ok = combine_work(&l, home);
    if (!home && !sync_part_or(nthr() - 32, !ok)) {
        return combine_joins(combine_near_args(p), epoch, l.post.box, l.post.lap);
    }
    if (l.worker > l.adders) {
        poster_end(&l.post);
    }
    return ok;
}

/* groups: of 32 targets, or domains, that a warp looks after; one in a line. */
TERN_DEVICE void combine_inter_body(const struct combine_inter_args *p, const int way, const int groups)
{
    const int bulk = way != COMBINE_PLAIN;
    const struct op_frame *f = &p->c.f;
    uint64_t begin = stamp_now(), epoch = op_epoch(f);
    struct op_table table = op_table_at(shared_memory(), COMBINE_COLUMNS, f->num_ranks);
    struct rail rail = {&p->rail, f, epoch};
    if (bid() == 0) {
        op_announce(f, epoch, MESSAGE_COLUMNS + 2 * COMBINE_COLUMNS);
    }
    int ok = op_await(f, epoch, &table);
    if (ok) {
        if (bulk) {
            /* The peers' rows, seen through their ready signals, come before asynchronous reads. */
            fence_proxy_async_global();
        }
        if (way == COMBINE_LINE) {
            ok = combine_line(p, &table, epoch);
        } else {
            int home = combine_is_home(p);
            struct mixer m = mixer_of(p, &table, epoch, bulk, home);
            ok = home ? mix_home(&m, bulk, groups) : mix_forward(&m, bulk, groups);
        }
    }
    inter_leave(&rail, &table, p->far.num_in, p->far.num_out, ok, begin);
}

#endif
