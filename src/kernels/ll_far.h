/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency across domains: which ranks are far, and how one word of any rank's window is set. What a
 * kernel of one domain stores into a peer's window, a kernel of several stores into a near rank's, and
 * signals to a far one. No word is ever added to, so near ranks may set in one epoch what far ranks set in
 * another.
 *
 * Everything about far ranks is in front of the arguments, and found from the frame: so what is common to
 * both kinds of kernels takes the arguments that it takes in one domain, whose kernels are compiled without
 * any of this. */
#ifndef TERN_LL_FAR_H
#define TERN_LL_FAR_H

#include <assert.h>

#include "kernels/ll_far_args.h"
#include "net/route_try.h"

/* Nonzero in kernels of objects that span domains. */
#ifndef LL_WITH_FAR
#define LL_WITH_FAR 0
#endif

/* Nonzero in kernels of railed objects, which have no masks; combines of theirs are summed. */
#ifndef LL_WITH_RAIL
#define LL_WITH_RAIL 0
#endif

/* Nonzero in combines whose rows go over blanks (ll_blanks.h), in one domain and without masks. */
#ifndef LL_WITH_BLANKS
#define LL_WITH_BLANKS 0
#endif

static_assert(offsetof(struct ll_dispatch_inter_args, d.f) == offsetof(struct ll_far_frame, f),
              "ll_far_of finds what is far from the frame of a dispatch");
static_assert(offsetof(struct ll_combine_inter_args, c.f) == offsetof(struct ll_far_frame, f),
              "ll_far_of finds what is far from the frame of a combine");

TERN_DEVICE const struct ll_far *ll_far_of(const struct op_frame *f)
{
    const char *frame = (const char *)f - offsetof(struct ll_far_frame, f);
    return &((const struct ll_far_frame *)(const void *)frame)->far;
}

/* Whether rank d is of another domain. */
TERN_DEVICE int ll_is_far(const struct op_frame *f, int d)
{
    return LL_WITH_FAR && (uint32_t)(d - ll_far_of(f)->first) >= (uint32_t)ll_far_of(f)->num_near;
}

/* Rank s among all, far ones first: from the next domain on, beginning with the one that has this rank's
 * place; then near ones from the next rank on. So no two ranks send to the same one at the same time, as long
 * as they have as much for each. */
TERN_DEVICE uint32_t ll_turn_of(const struct op_frame *f, uint32_t s)
{
    const struct ll_far *far = ll_far_of(f);
    const int near = far->num_near, others = f->num_ranks - near;
    int turn = (int)s - far->first;
    if (turn >= 0 && turn < near) {
        turn = (int)s - f->rank - 1;
        return (uint32_t)(others + (turn < 0 ? turn + near : turn));
    }
    turn -= turn < 0 ? near - f->num_ranks : near;
    turn -= f->rank - far->first;
    return (uint32_t)(turn < 0 ? turn + others : turn);
}

/* Railed: the rank of domain e that has the place there that rank s has in its own. */
TERN_DEVICE int ll_on_rail(const struct op_frame *f, int e, int s)
{
    int near = ll_far_of(f)->num_near;
    return e * near + s % near;
}

/* Railed: the rank of this domain by which rows of far rank s come, and by which those for it go. */
TERN_DEVICE int ll_relay_of(const struct op_frame *f, int s)
{
    return ll_far_of(f)->first + s % ll_far_of(f)->num_near;
}

TERN_DEVICE uint32_t ll_domain_of(const struct op_frame *f, uint32_t rank)
{
    return rank / (uint32_t)ll_far_of(f)->num_near;
}

/* What is rarely called. One copy of it is enough on the cpu machine; on GPUs a call would take a stack. */
#ifdef __CUDACC__
#define LL_DEVICE_RARE TERN_DEVICE
#else
#define LL_DEVICE_RARE static __attribute__((noinline, unused))
#endif

LL_DEVICE_RARE void ll_set_far_word(const struct op_frame *f, int d, uint64_t *own, uint64_t value)
{
    (void)route_signal(&ll_far_of(f)->net, d, 0, own, sizeof(*own), TERN_SIGNAL_SET, value);
}

/* Word i behind an offset in the window of any rank. A word that says who is lost, or late, is not waited
 * for: if it does not arrive, a deadline does. */
TERN_DEVICE void ll_set_word(const struct op_frame *f, int d, uint64_t offset, int i, uint64_t value)
{
    if (ll_is_far(f, d)) {
        ll_set_far_word(f, d, (uint64_t *)(f->own + offset) + i, value);
    } else {
        st_relaxed_sys_u64((uint64_t *)(f->ep_bases[d] + offset) + i, value);
    }
}

/* A fault is told in the same way (fault.h). */
#if LL_WITH_FAR
#define OP_SET_WORD ll_set_word
#endif

#endif
