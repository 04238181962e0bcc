/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains. Every domain that a token has rows in adds them, in order, and rounds the sum; home
 * adds the sums of all domains, its own among them, in their order onto the biases, and rounds again. So the
 * bits do not depend on where home is. Blocks have roles:
 *
 *   forwarders  for each message of another domain, the token's rows of this domain are added, and the sum
 *               goes home by the stream that the message came from
 *   home        the rows of this domain are added for this rank's own tokens, and the messages that bring the
 *               other domains' sums
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

/* All threads of a block. 0: the operation is to be abandoned. */
TERN_DEVICE int combine_line(const struct combine_inter_args *p, const struct op_table *table, uint64_t epoch,
                             int forwards)
{
    struct line l = line_of(p, table, epoch);
    if ((uint32_t)warp() == p->num_lines * (l.adders + 2)) {
        return poster_serve(&p->rail, &p->c.f, epoch, l.post.to.shared, l.post.to.num_boxes);
    }
    if (l.worker < l.adders) {
        if (forwards) {
            line_add(&l, 0);
        } else {
            line_add(&l, 1);
        }
        return 1;
    }
    if (l.worker == l.adders) {
        return forwards ? forward_loads(&l) : home_loads(&l);
    }
    return forwards ? forward_closes(&l) : home_closes(&l);
}

/* groups: of 32 targets, or domains, that a warp looks after; one in a line. */
TERN_DEVICE void combine_inter_body(const struct combine_inter_args *p, const int way, const int groups)
{
    const int bulk = way != COMBINE_PLAIN;
    const struct op_frame *f = &p->c.f;
    uint64_t begin = stamp_now(), epoch = op_epoch(f);
    struct op_table table = op_table_at(shared_memory(), COMBINE_COLUMNS, f->num_ranks);
    struct rail rail = {&p->rail, f, epoch};
    int forwards = (uint32_t)bid() < p->roles.forwarders;
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
            ok = combine_line(p, &table, epoch, forwards);
        } else {
            struct mixer m = mixer_of(p, &table, epoch, bulk);
            ok = forwards ? mix_forward(&m, bulk, groups) : mix_home(&m, bulk, groups);
        }
    }
    inter_leave(&rail, &table, p->far.num_in, p->far.num_out, ok, begin);
}

#endif
