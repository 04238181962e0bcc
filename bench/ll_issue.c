/* SPDX-License-Identifier: Apache-2.0
 *
 * How the operations of `tern-bench ll` are issued: whole or in two phases, of one lane or of all together,
 * as calls or as replays of a captured graph. */
#include "bench_ll.h"

static enum tern_status dispatch_all(struct ll_bench *b, struct ll_seat *seat, uint32_t phase)
{
    for (uint32_t k = 0; k < b->shape.options->ll.lanes; k++) {
        struct tern_ll_dispatch_args *a = &seat->lanes[k].dispatch;
        a->phase = phase;
        TERN_TRY(tern_ll_dispatch(seat->ep, a, seat->stream));
    }
    return TERN_OK;
}

static enum tern_status combine_all(struct ll_bench *b, struct ll_seat *seat, uint32_t phase)
{
    for (uint32_t k = 0; k < b->shape.options->ll.lanes; k++) {
        struct tern_ll_combine_args *a = &seat->lanes[k].combine;
        a->phase = phase;
        TERN_TRY(tern_ll_combine(seat->ep, a, seat->stream));
    }
    return TERN_OK;
}

static enum tern_status issue_unit(struct ll_bench *b, struct ll_seat *seat, int unit)
{
    int hook = b->shape.options->ll.hook != 0;
    switch (unit) {
    case UNIT_DISPATCH:
        TERN_TRY(dispatch_all(b, seat, hook ? TERN_LL_SEND : TERN_LL_BOTH));
        return hook ? dispatch_all(b, seat, TERN_LL_RECEIVE) : TERN_OK;
    case UNIT_COMBINE:
        TERN_TRY(combine_all(b, seat, hook ? TERN_LL_SEND : TERN_LL_BOTH));
        return hook ? combine_all(b, seat, TERN_LL_RECEIVE) : TERN_OK;
    case UNIT_DISPATCH_SEND:
        return dispatch_all(b, seat, TERN_LL_SEND);
    case UNIT_DISPATCH_RECEIVE:
        return dispatch_all(b, seat, TERN_LL_RECEIVE);
    case UNIT_COMBINE_SEND:
        return combine_all(b, seat, TERN_LL_SEND);
    case UNIT_COMBINE_RECEIVE:
        return combine_all(b, seat, TERN_LL_RECEIVE);
    default:
        TERN_TRY(issue_unit(b, seat, UNIT_DISPATCH));
        return issue_unit(b, seat, UNIT_COMBINE);
    }
}

enum tern_status ll_issue(struct ll_bench *b, int i, int step)
{
    struct ll_seat *seat = &b->seats[i];
    if (seat->rank == (int)b->shape.options->ll.mask) {
        return TERN_OK;
    }
    return b->shape.options->ll.graph ? tern_graph_launch(seat->comm, seat->graphs[step], seat->stream)
                                      : issue_unit(b, seat, step);
}

static enum tern_status capture_step(struct ll_bench *b, struct ll_seat *seat, int step)
{
    int times = step < UNIT_MANY ? 1 : (int)ROUNDS_IN_A_ROW;
    TERN_TRY(tern_graph_begin(seat->comm, seat->stream));
    enum tern_status status = TERN_OK;
    for (int n = 0; status == TERN_OK && n < times; n++) {
        status = issue_unit(b, seat, step % UNIT_MANY);
    }
    enum tern_status ended = tern_graph_end(seat->comm, seat->stream, &seat->graphs[step]);
    return status != TERN_OK ? status : ended;
}

/* In the order of enum ll_unit every lane is, at each capture, in a state that allows the unit. */
enum tern_status ll_capture(struct ll_bench *b)
{
    for (int i = 0; i < b->party->num_local; i++) {
        int takes_part = b->seats[i].rank != (int)b->shape.options->ll.mask;
        for (int step = 0; takes_part && step < NUM_LL_STEPS; step++) {
            if (b->shape.options->ll.hook || step <= UNIT_PAIR || step >= UNIT_MANY) {
                TERN_TRY(capture_step(b, &b->seats[i], step));
            }
        }
    }
    return TERN_OK;
}

enum tern_status ll_synchronize(struct ll_bench *b)
{
    TERN_TRY(party_synchronize(b->party)); /* first, because objects know nothing of graphs */
    for (int i = 0; i < b->party->num_local; i++) {
        TERN_TRY(tern_ep_synchronize(b->seats[i].ep));
    }
    return TERN_OK;
}
