/* SPDX-License-Identifier: Apache-2.0
 *
 * Giving up, and telling everybody. Peers that stores reach get their word by the machine; all others by a
 * signal, which a kernel of one warp a peer posts and sees complete. Rings and queues of this rank would
 * refuse it, for their waits end with the word that this rank gives up by: the kernels have copies of them
 * that know no such word, and the network's deadline. A queue that is dead is no reason to leave a peer
 * waiting: the next one is tried. */
#include "kernels/kernels.h"
#include "pgas/pgas.h"

#include <string.h>

/* Everything that was told of one rank, at once: nobody waits for somebody else's deadline. */
struct telling {
    struct tern_network *n;
    struct tern_stream *stream;
    struct tern_net view; /* as it was at first, which other threads do not renew */
};

static int by_request(const struct tern_network *n, int r)
{
    return n->routes[r] != NET_ROUTE_P2P && n->routes[r] != NET_ROUTE_NONE;
}

static enum tern_status post(const struct telling *t, int peer, uint32_t queue)
{
    struct machine *m = t->n->machine;
    struct net_args args;
    struct launch launch = {TERN_KERNEL_net_ops, 1, 32, 0, &args, sizeof args};
    memset(&args, 0, sizeof args);
    args.net = t->view;
    args.num_requests = args.num_each = 1;
    args.group = GROUP_WARP;
    args.one.kind = NET_REQUEST_SIGNAL;
    args.one.op = TERN_SIGNAL_SET;
    args.one.flags = NET_REQUEST_PLAIN; /* it is complete when the kernel has ended */
    args.one.width = 8;
    args.one.peer = peer;
    args.one.queue = queue;
    args.one.remote = t->n->heap->bases[t->n->comm->rank] + PGAS_ABORT;
    args.one.value = 1 + (uint64_t)t->n->comm->rank;
    args.one.result = &t->n->host_device->told[peer];
    return m->ops->launch(m, &launch, t->stream);
}

/* By one queue to all that have not been told: how many are left. A deadline is not waited for twice. */
static enum tern_status tell_by(const struct telling *t, uint32_t queue, int *num_left)
{
    struct tern_network *n = t->n;
    struct net_result *told = n->host->told;
    struct first_failure first = {TERN_OK, ""};
    for (int r = 0; r < n->comm->num_ranks && first.status == TERN_OK; r++) {
        if (by_request(n, r) && told[r].status != TERN_OK && told[r].status != TERN_TIMEOUT) {
            terni_first_add(&first, post(t, r, queue));
        }
    }
    terni_first_add(&first, n->machine->ops->stream_synchronize(n->machine, t->stream));
    *num_left = 0;
    for (int r = 0; r < n->comm->num_ranks; r++) {
        *num_left += by_request(n, r) && told[r].status != TERN_OK && told[r].status != TERN_TIMEOUT;
    }
    return terni_first_end(&first);
}

static enum tern_status tell_by_requests(struct tern_network *n, struct tern_stream *stream)
{
    struct telling t = {n, stream, n->first};
    struct net_result *told = n->host->told;
    int num_left = 0;
    t.view.record = NULL;
    if (n->courier != NULL) {
        t.view.rings = terni_pgas_rings_calm(n);
    }
    if (n->nics != NULL) {
        TERN_TRY(terni_pgas_nics_calm(n, stream, &t.view.queues));
    }
    for (int r = 0; r < n->comm->num_ranks; r++) {
        told[r].status = by_request(n, r) ? TERN_BAD_STATE : TERN_OK;
        num_left += by_request(n, r);
    }
    for (uint32_t q = 0; q < n->num_queues && num_left != 0; q++) {
        TERN_TRY(tell_by(&t, q, &num_left));
    }
    for (int r = 0; r < n->comm->num_ranks; r++) {
        if (told[r].status != TERN_OK) {
            return TERN_FAIL((enum tern_status)told[r].status,
                             "rank %d gives up, and rank %d could not be told: %s", n->comm->rank, r,
                             tern_status_string((enum tern_status)told[r].status));
        }
    }
    return TERN_OK;
}

static enum tern_status tell_all(struct tern_network *n)
{
    struct machine *m = n->machine;
    struct tern_stream *stream = m->ops->own_stream(m);
    struct first_failure first = {TERN_OK, ""};
    for (int r = 0; r < n->comm->num_ranks; r++) {
        if (n->routes[r] == NET_ROUTE_P2P) { /* that one cannot be told is no reason to let others wait */
            uint64_t *word = (uint64_t *)(void *)(n->heap->bases[r] + PGAS_ABORT);
            terni_first_add(&first, m->ops->store(m, word, 1 + (uint64_t)n->comm->rank, stream));
        }
    }
    if (n->nics != NULL || n->courier != NULL) {
        terni_first_add(&first, tell_by_requests(n, stream));
    }
    terni_first_add(&first, m->ops->stream_synchronize(m, stream));
    return terni_first_end(&first);
}

enum tern_status terni_pgas_abort(struct tern_network *n)
{
    /* One thread tells, with results and copies that there are once; who comes meanwhile adds nothing.
     * Pairs with the release below, of the thread that told before; and in one order with the load in
     * terni_key_block_replace: lists that the copies of queues name stay. */
    if (__atomic_exchange_n(&n->is_telling, 1, __ATOMIC_SEQ_CST)) {
        return TERN_OK;
    }
    enum tern_status status = tell_all(n);
    /* Pairs with the exchange above. */
    __atomic_store_n(&n->is_telling, 0, __ATOMIC_RELEASE);
    return status;
}
