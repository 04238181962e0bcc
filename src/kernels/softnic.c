/* SPDX-License-Identifier: Apache-2.0
 *
 * A software NIC (net/softnic.h). A warp is an engine: its first lane looks at one queue pair after the
 * other, decodes, does what is small and completes; all lanes copy what is not. */
#include "kernels/kernels.h"
#include "net/softnic_complete.h"
#include "net/softnic_move.h"

/* The queue pairs of an engine are first, first + step, ... */
struct engine {
    uint32_t first, step, num;
    uint64_t random;
};

/* Below n; xorshift64*. */
TERN_DEVICE uint32_t engine_draw(struct engine *e, uint32_t n)
{
    uint64_t s = e->random;
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    e->random = s;
    return (uint32_t)((s * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
}

/* An entry whose copy the warp has to make. */
struct engine_work {
    struct softnic_qp *qp;
    struct wqe_op op;
    struct nic_refusal refusal;
    struct softnic_copy copy;
};

TERN_DEVICE void engine_complete(struct engine *e, const struct softnic_args *p, struct engine_work *w,
                                 uint32_t syndrome)
{
    int hold = p->hold_one_in != 0 && engine_draw(e, p->hold_one_in) == 0;
    softnic_complete(w->qp, w->qp->fetched - w->op.blocks, &w->op, &w->refusal, syndrome, hold);
}

/* 1: a copy is left in *w, after which the entry completes. 0: the NIC is to end. One lane. */
TERN_DEVICE int engine_find(struct engine *e, const struct softnic_args *p, struct engine_work *w)
{
    for (;;) {
        uint32_t syndrome;
        if (ld_relaxed_sys_u64(p->stop) != 0) {
            return 0;
        }
        w->qp = &p->qps[e->first + engine_draw(e, e->num) * e->step];
        if (softnic_look(w->qp) == 0) {
            softnic_release(w->qp);
            spin();
            continue;
        }
        syndrome = softnic_fetch(w->qp, &w->op, &w->refusal);
        w->copy.bytes = 0;
        if (syndrome == SYNDROME_NONE) {
            syndrome = softnic_do(w->qp, w->qp->fetched - w->op.blocks, &w->op, &w->copy, &w->refusal);
        }
        if (w->copy.bytes != 0) {
            return 1;
        }
        engine_complete(e, p, w, syndrome);
    }
}

/* All lanes have the first lane's copy. */
TERN_DEVICE void engine_copy(const struct engine_work *w)
{
    struct softnic_copy c;
    c.to = (char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)w->copy.to, 0);
    c.from = (const char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)w->copy.from, 0);
    c.at = shfl_u64(w->copy.at, 0);
    c.mask = shfl_u64(w->copy.mask, 0);
    c.bytes = shfl_u64(w->copy.bytes, 0);
    softnic_do_copy(&c, (uint32_t)lane(), 32);
    sync_warp(); /* the first lane completes what all have copied */
}

TERN_KERNEL(softnic, struct softnic_args, p)
{
    struct engine e;
    struct engine_work w = {0};
    e.first = (uint32_t)(bid() * nwarps() + warp());
    e.step = (uint32_t)(nblk() * nwarps());
    e.num = e.first < p->num_qps ? (p->num_qps - e.first - 1) / e.step + 1 : 0;
    e.random = (p->seed ^ e.first * 0x9e3779b97f4a7c15ull) | 1;
    while (e.num != 0) {
        int found = lane() == 0 ? engine_find(&e, p, &w) : 0;
        if (!shfl_u32((uint32_t)found, 0)) {
            return;
        }
        engine_copy(&w);
        if (lane() == 0) {
            engine_complete(&e, p, &w, SYNDROME_NONE);
        }
    }
}
