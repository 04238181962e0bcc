/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's operations. Put and get over loads and stores are the machine's own copies, which have engines
 * for it; everything about a word is a request to the kernel net_ops, so that it has the semantics that
 * kernels have. A call that blocks takes the network's own stream and waits for it.
 *
 * A wait that blocks is many short ones: between them the device is free for whatever the word waits for,
 * and the stream never holds up another that shares a queue of the device with it. */
#include "kernels/kernels.h"
#include "pgas/pgas.h"

#include <string.h>

enum { SLICE_NS = 2000000 }; /* of a wait that blocks */

static struct tern_stream *stream_of(const struct pgas_call *c)
{
    return c->is_blocking ? c->network->stream : c->stream;
}

static enum tern_status end(const struct pgas_call *c)
{
    const struct machine *m = c->network->machine;
    return c->is_blocking ? m->ops->stream_synchronize(c->network->machine, c->network->stream) : TERN_OK;
}

static enum tern_status check_queue(const struct pgas_call *c)
{
    return c->queue < c->network->num_queues
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "queue %u, where the network has %u", c->queue,
                           c->network->num_queues);
}

/* Of an operation on no bytes, whose addresses nobody looks at. */
static enum tern_status check_peer(const struct pgas_call *c)
{
    TERN_TRY(check_queue(c));
    return c->peer >= 0 && c->peer < c->network->comm->num_ranks
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "peer %d is none of %d ranks", c->peer,
                           c->network->comm->num_ranks);
}

/* Where this rank reaches `bytes` at a symmetric address of the peer. */
static enum tern_status find(const struct pgas_call *c, const void *remote, size_t bytes, void **at)
{
    const struct tern_comm *comm = c->network->comm;
    uint64_t left = 0;
    TERN_TRY(check_queue(c));
    TERN_TRY(terni_peer_pointer(comm, remote, c->peer, at));
    if (*at == NULL) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "nothing leads from rank %d to rank %d, which is in another domain", comm->rank,
                         c->peer);
    }
    left = terni_window_left(comm, remote);
    if (bytes > left) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%zu bytes at %p, where its window has %llu", bytes, remote,
                         (unsigned long long)left);
    }
    return TERN_OK;
}

static enum tern_status check_word(const void *word, uint32_t width)
{
    if (width != 4 && width != 8) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "width is %u; a word has 4 or 8 bytes", width);
    }
    return terni_check_aligned("the word", word, width);
}

/* One request, by `threads` threads that are one group. One that blocks has its result on return. */
static enum tern_status request(const struct pgas_call *c, const struct net_args *args, int threads)
{
    struct machine *m = c->network->machine;
    struct launch launch = {TERN_KERNEL_net_ops, 1, threads, 0, args, sizeof *args};
    TERN_TRY(m->ops->launch(m, &launch, stream_of(c)));
    return end(c);
}

/* The same, and what the kernel says of it is the status. */
static enum tern_status perform(const struct pgas_call *c, const struct net_args *args, int threads)
{
    enum tern_status status;
    TERN_TRY(request(c, args, threads));
    status = c->is_blocking ? (enum tern_status)c->network->host->result.status : TERN_OK;
    return status == TERN_OK ? TERN_OK
                             : TERN_FAIL(status, "rank %d: the device refused the operation on rank %d at %p",
                                         c->network->comm->rank, c->peer, args->one.remote);
}

/* A request that blocks tells its status by its result, not by the record, which is for kernels. */
static enum tern_status prepare(const struct pgas_call *c, struct net_args *args)
{
    memset(args, 0, sizeof *args);
    TERN_TRY(terni_network_view(c->network, &args->net)); /* windows may have come or gone */
    args->num_requests = args->num_each = 1;
    args->group = GROUP_WARP;
    args->one.peer = c->peer;
    args->one.queue = c->queue;
    if (c->is_blocking) {
        args->one.result = &c->network->host_device->result;
        args->net.record = NULL;
    }
    return TERN_OK;
}

enum tern_status terni_pgas_put(const struct pgas_call *c, void *remote, const void *local, size_t bytes)
{
    struct machine *m = c->network->machine;
    void *at = NULL;
    if (bytes == 0) {
        return check_peer(c);
    }
    TERN_TRY(find(c, remote, bytes, &at));
    TERN_TRY(m->ops->copy(m, at, local, bytes, stream_of(c)));
    return end(c);
}

enum tern_status terni_pgas_get(const struct pgas_call *c, void *local, const void *remote, size_t bytes)
{
    struct machine *m = c->network->machine;
    void *at = NULL;
    if (bytes == 0) {
        return check_peer(c);
    }
    TERN_TRY(find(c, remote, bytes, &at));
    TERN_TRY(m->ops->copy(m, local, at, bytes, stream_of(c)));
    return end(c);
}

enum tern_status terni_pgas_signal(const struct pgas_call *c, void *remote, int signal, uint32_t width,
                                   uint64_t value)
{
    struct net_args args;
    void *at = NULL;
    if (signal != TERN_SIGNAL_ADD && signal != TERN_SIGNAL_SET) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "signal %d is no enum tern_signal", signal);
    }
    TERN_TRY(check_word(remote, width));
    TERN_TRY(find(c, remote, width, &at));
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_SIGNAL;
    args.one.op = (uint32_t)signal;
    args.one.width = width;
    args.one.remote = remote;
    args.one.value = value;
    return perform(c, &args, 32);
}

enum tern_status terni_pgas_atomic(const struct pgas_call *c, void *remote, const struct pgas_atomic *a,
                                   void *old)
{
    struct net_args args;
    void *at = NULL;
    if (a->amo < TERN_AMO_ADD || a->amo > TERN_AMO_FETCH) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "amo %d is no enum tern_amo", a->amo);
    }
    TERN_TRY(check_word(remote, a->width));
    TERN_TRY(c->is_blocking || old == NULL ? TERN_OK : terni_check_aligned("old", old, a->width));
    TERN_TRY(find(c, remote, a->width, &at));
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_ATOMIC;
    args.one.op = (uint32_t)a->amo;
    args.one.width = a->width;
    args.one.remote = remote;
    args.one.value = a->value;
    args.one.compare = a->compare;
    if (!c->is_blocking && old != NULL) {
        args.one.local = old;
        args.one.num_old_bytes = a->width;
    }
    TERN_TRY(perform(c, &args, 32));
    if (c->is_blocking && old != NULL) {
        *(uint64_t *)old = c->network->host->result.value;
    }
    return TERN_OK;
}

enum tern_status terni_pgas_quiet(const struct pgas_call *c, int queue)
{
    struct net_args args;
    struct pgas_call call = *c;
    call.queue = queue < 0 ? 0 : (uint32_t)queue;
    if (queue < -1 || c->peer < -1 || c->peer >= c->network->comm->num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "peer %d and queue %d: -1 is all, and there are %d ranks",
                         c->peer, queue, c->network->comm->num_ranks);
    }
    TERN_TRY(check_queue(&call));
    TERN_TRY(prepare(&call, &args));
    args.one.kind = NET_REQUEST_QUIET;
    return perform(&call, &args, 32);
}

static void fill_wait(struct net_request *q, const struct pgas_wait *w)
{
    q->kind = NET_REQUEST_WAIT;
    q->op = (uint32_t)w->compare;
    q->width = w->width;
    q->remote = (void *)(uintptr_t)w->word;
    q->value = w->value;
}

/* Fails with the sentence that a kernel's record would give. */
static enum tern_status tell(const struct pgas_call *c, const struct pgas_wait *w, uint64_t elapsed_ns)
{
    const struct net_result *result = &c->network->host->result;
    struct tern_net_record r;
    memset(&r, 0, sizeof r);
    r.fault = NET_FAULT_WAIT;
    r.status = (int32_t)result->status;
    r.width = w->width;
    r.compare = (uint32_t)w->compare;
    r.word = (uint64_t)(uintptr_t)w->word;
    r.expected = w->value;
    r.seen = result->value;
    r.elapsed_ns = elapsed_ns;
    return terni_pgas_state(c->network, &r);
}

static enum tern_status wait_here(const struct pgas_call *c, const struct pgas_wait *w, uint64_t timeout_ns)
{
    struct tern_network *n = c->network;
    uint64_t begin = terni_clock_ns(), elapsed = 0;
    struct net_args args;
    TERN_TRY(prepare(c, &args));
    fill_wait(&args.one, w);
    do {
        uint64_t left = timeout_ns - elapsed;
        args.one.timeout_ns = left < SLICE_NS ? left : SLICE_NS;
        TERN_TRY(request(c, &args, 32));
        elapsed = terni_clock_ns() - begin;
    } while (n->host->result.status == TERN_TIMEOUT && elapsed < timeout_ns);
    return n->host->result.status == TERN_OK ? TERN_OK : tell(c, w, elapsed);
}

enum tern_status terni_pgas_wait(const struct pgas_call *c, const struct pgas_wait *w)
{
    uint64_t timeout_ns = (uint64_t)(w->timeout_ms != 0 ? w->timeout_ms : c->network->timeout_ms) * 1000000u;
    struct net_args args;
    if (w->compare < TERN_COMPARE_EQ || w->compare > TERN_COMPARE_LT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "compare %d is no enum tern_compare", w->compare);
    }
    TERN_TRY(check_word(w->word, w->width));
    if (c->is_blocking) {
        return wait_here(c, w, timeout_ns);
    }
    TERN_TRY(prepare(c, &args));
    fill_wait(&args.one, w);
    args.one.timeout_ns = timeout_ns;
    return request(c, &args, 32);
}

enum tern_status terni_pgas_barrier(const struct pgas_call *c, const struct tern_net_team *team)
{
    struct net_args args;
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_BARRIER;
    args.team = *team;
    args.group = team->num_ranks <= 32 ? GROUP_WARP : GROUP_BLOCK;
    return request(c, &args, team->num_ranks <= 32 ? 32 : 256);
}

enum tern_status terni_pgas_abort(struct tern_network *n)
{
    struct machine *m = n->machine;
    struct tern_stream *stream = m->ops->own_stream(m);
    enum tern_status status = TERN_OK, one;
    for (int r = 0; r < n->comm->num_ranks; r++) {
        char *base = n->heap->bases[r];
        if (base != NULL) { /* that one cannot be told is no reason to let the others wait */
            one = m->ops->store(m, (uint64_t *)(void *)(base + PGAS_ABORT), 1 + (uint64_t)n->comm->rank,
                                stream);
            status = status == TERN_OK ? one : status;
        }
    }
    one = m->ops->stream_synchronize(m, stream);
    return status == TERN_OK ? one : status;
}
