/* SPDX-License-Identifier: Apache-2.0
 *
 * A step of two engines of a software NIC, of one by a warp, of the other by a thread (together_kernel.h). */
#include "net/softnic_together.h"
#include "together_kernel.h"

TERN_DEVICE struct softnic_engine engine_of(struct together_side *side)
{
    struct softnic_engine e = {&side->args, &side->qp, 1, 1, side->random, &side->clock};
    return e;
}

/* What is posted is decoded. */
TERN_DEVICE void look(struct together_side *side, const struct together_args *p)
{
    struct softnic_engine e = engine_of(side);
    struct softnic_work *w = &side->work;
    if (lane() == 0) {
        w->qp = &side->qp;
        for (int i = 0; i < 2; i++) {
            (void)softnic_place(&w->hand.local, side->qp.keys, p->keys[0][i]);
            (void)softnic_place(&w->hand.remote, side->qp.remote_keys, p->keys[1][i]);
        }
        softnic_clear(&w->hand.list);
        (void)softnic_find_entries(&e, w, p->now);
    }
    sync_warp();
    softnic_bring(w, (uint32_t)lane(), 32);
    sync_warp();
    softnic_decode(w, (uint32_t)lane(), 32);
    sync_warp();
}

/* One warp, with what it has taken from `first` on: the early list. 0: there is none. */
TERN_DEVICE int list_early(struct together_side *side, uint64_t first)
{
    struct softnic_work *w = &side->work;
    if (!softnic_list_together(w, first, (uint32_t)(side->qp.num_taken - first), 1)) {
        return 0;
    }
    if (lane() == 0) {
        side->early = w->hand.list;
        softnic_clear(&w->hand.list);
    }
    sync_warp();
    return 1;
}

/* The thread stops where the first list ends that has to be done before it can go on. */
TERN_KERNEL(together, struct together_args, p)
{
    struct together_side *by_warp = &p->sides[TOGETHER_WARP], *by_thread = &p->sides[TOGETHER_THREAD];
    struct softnic_engine e = engine_of(by_warp), other = engine_of(by_thread);
    look(by_warp, p);
    look(by_thread, p);
    const uint64_t first = by_warp->qp.num_taken;
    int took = softnic_take_together(&e, &by_warp->work, p->now), made = 0, early = 0;
    if (took && p->is_early && by_warp->qp.flights != NULL) {
        early = list_early(by_warp, first);
        sync_warp(); /* all have looked */
    }
    if (lane() == 0) {
        softnic_take_off(&other, &by_thread->work, p->now);
        softnic_find_arrivals(&by_thread->work, p->then);
        (void)softnic_arrive_all(&by_thread->work);
        if (took) {
            softnic_find_arrivals(&by_warp->work, p->then);
        }
    }
    sync_warp();
    if (took) {
        made = (early && softnic_arrive_moved(&by_warp->work)) ||
               softnic_list_together(&by_warp->work, by_warp->qp.num_arrived, by_warp->work.num, 0);
    }
    if (lane() == 0) {
        p->results[0] = (uint32_t)took;
        p->results[1] = (uint32_t)made;
        p->results[2] = (uint32_t)early;
    }
}
