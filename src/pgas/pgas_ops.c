/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's operations. Put and get over loads and stores are the machine's own copies, which have engines
 * for it; everything about a word, and all that goes by a ring or a queue, is a request to the kernel
 * net_ops, so that it has the semantics that kernels have. A call that blocks takes the network's own stream
 * and waits for it.
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
    if (!c->is_blocking) {
        return TERN_OK;
    }
    TERN_TRY(m->ops->stream_synchronize(c->network->machine, c->network->stream));
    return terni_pgas_fault(c->network, PGAS_CALL);
}

static enum tern_status check_queue(const struct pgas_call *c)
{
    return c->queue < c->network->num_queues
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "queue %u, where the network has %u", c->queue,
                           c->network->num_queues);
}

/* Peer and queue: of an operation on no bytes nobody looks at more. */
static enum tern_status check_peer(const struct pgas_call *c)
{
    TERN_TRY(check_queue(c));
    return c->peer >= 0 && c->peer < c->network->comm->num_ranks
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "peer %d is none of %d ranks", c->peer,
                           c->network->comm->num_ranks);
}

/* Whether the machine's copies lead to the peer, or else requests that a kernel performs. */
static int is_by_copy(const struct pgas_call *c) { return c->network->routes[c->peer] == NET_ROUTE_P2P; }

/* Where this rank reaches `bytes` at a symmetric address of the peer; what is not by copy only has to be in a
 * window: *at is its own. */
static enum tern_status find(const struct pgas_call *c, const void *remote, size_t bytes, void **at)
{
    const struct tern_comm *comm = c->network->comm;
    uint64_t left = 0;
    TERN_TRY(check_peer(c));
    if (c->network->routes[c->peer] == NET_ROUTE_NONE) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "nothing leads from rank %d to rank %d, which is in another domain", comm->rank,
                         c->peer);
    }
    TERN_TRY(terni_peer_pointer(comm, remote, is_by_copy(c) ? c->peer : comm->rank, at));
    left = terni_window_left(comm, remote);
    if (bytes > left) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%zu bytes at %p, where its window has %llu", bytes, remote,
                         (unsigned long long)left);
    }
    return TERN_OK;
}

/* Once the peer is known to be one. */
static enum tern_status check_atomic(const struct pgas_call *c, int is_atomic)
{
    return is_atomic && is_by_copy(c) && c->network->comm->lacks_atomics[c->peer]
               ? terni_pgas_refuse_atomic(c->network, c->peer, "")
               : TERN_OK;
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

/* A request that blocks has a record of its own beside that of kernels: end() makes a sentence of it. */
static enum tern_status prepare(const struct pgas_call *c, struct net_args *args)
{
    memset(args, 0, sizeof *args);
    TERN_TRY(terni_network_view(c->network, &args->net)); /* windows may have come or gone */
    args->num_requests = args->num_each = 1;
    args->group = GROUP_WARP;
    args->one.peer = c->peer;
    args->one.queue = c->queue;
    if (c->is_blocking) {
        args->net.record = &c->network->host_device->records[PGAS_CALL];
        args->net.claim += PGAS_CALL;
        args->one.result = &c->network->host_device->result;
        args->one.flags = NET_REQUEST_PLAIN;
    }
    return TERN_OK;
}

/* A NIC is to move local memory: by the bounce area, if that lies where it does not reach. */
static void add_bounce(const struct pgas_call *c, struct net_args *args, const void *local, size_t bytes)
{
    if (c->network->routes[c->peer] == NET_ROUTE_QUEUE &&
        terni_window_left(c->network->comm, local) < bytes) {
        args->one.flags |= NET_REQUEST_BOUNCE;
        terni_pgas_bounce(c->network, &args->bounce);
    }
}

/* A put or a get by a request: plain also on a stream, for what comes there later may use the local
 * memory. */
static enum tern_status move_by_request(const struct pgas_call *c, uint32_t kind, void *remote, void *local,
                                        size_t bytes)
{
    struct net_args args;
    TERN_TRY(prepare(c, &args));
    args.one.kind = kind;
    args.one.flags = NET_REQUEST_PLAIN;
    args.one.remote = remote;
    args.one.local = local;
    args.one.bytes = bytes;
    add_bounce(c, &args, local, bytes);
    return request(c, &args, 32);
}

enum tern_status terni_pgas_put(const struct pgas_call *c, void *remote, const void *local, size_t bytes)
{
    struct machine *m = c->network->machine;
    void *at = NULL;
    if (bytes == 0) {
        return check_peer(c);
    }
    TERN_TRY(find(c, remote, bytes, &at));
    if (!is_by_copy(c)) {
        return move_by_request(c, NET_REQUEST_PUT, remote, (void *)(uintptr_t)local, bytes);
    }
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
    if (!is_by_copy(c)) {
        return move_by_request(c, NET_REQUEST_GET, (void *)(uintptr_t)remote, local, bytes);
    }
    TERN_TRY(m->ops->copy(m, local, at, bytes, stream_of(c)));
    return end(c);
}

static enum tern_status check_signal(const struct pgas_call *c, const struct pgas_signal *s)
{
    void *at = NULL;
    if (s->signal != TERN_SIGNAL_ADD && s->signal != TERN_SIGNAL_SET) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "signal %d is no enum tern_signal", s->signal);
    }
    TERN_TRY(check_word(s->word, s->width));
    TERN_TRY(find(c, s->word, s->width, &at));
    return check_atomic(c, s->signal == TERN_SIGNAL_ADD);
}

static void fill_signal(struct net_request *q, const struct pgas_signal *s)
{
    q->op = (uint32_t)s->signal;
    q->width = s->width;
    q->value = s->value;
}

enum tern_status terni_pgas_signal(const struct pgas_call *c, const struct pgas_signal *s)
{
    struct net_args args;
    TERN_TRY(check_signal(c, s));
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_SIGNAL;
    args.one.remote = s->word;
    fill_signal(&args.one, s);
    return request(c, &args, 32);
}

/* One request where a kernel moves the bytes, else the signal behind a put. */
enum tern_status terni_pgas_put_signal(const struct pgas_call *c, void *remote, const void *local,
                                       size_t bytes, const struct pgas_signal *s)
{
    struct net_args args;
    void *at = NULL;
    TERN_TRY(check_signal(c, s));
    if (bytes == 0 || is_by_copy(c)) { /* a copy comes to its end, or the stream ends */
        TERN_TRY(terni_pgas_put(c, remote, local, bytes));
        return terni_pgas_signal(c, s);
    }
    TERN_TRY(find(c, remote, bytes, &at));
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_PUT_SIGNAL;
    args.one.flags = NET_REQUEST_PLAIN;
    args.one.remote = remote;
    args.one.local = (void *)(uintptr_t)local;
    args.one.bytes = bytes;
    args.one.word = s->word;
    fill_signal(&args.one, s);
    add_bounce(c, &args, local, bytes);
    return request(c, &args, 32);
}

enum tern_status terni_pgas_put_inline(const struct pgas_call *c, void *remote, uint64_t value,
                                       uint32_t width)
{
    struct net_args args;
    void *at = NULL;
    TERN_TRY(check_word(remote, width));
    TERN_TRY(find(c, remote, width, &at));
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_PUT_INLINE;
    args.one.remote = remote;
    args.one.value = value;
    args.one.width = width;
    return request(c, &args, 32);
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
    TERN_TRY(check_atomic(c, a->amo != TERN_AMO_FETCH));
    TERN_TRY(prepare(c, &args));
    args.one.kind = NET_REQUEST_ATOMIC;
    args.one.op = (uint32_t)a->amo;
    args.one.width = a->width;
    args.one.remote = remote;
    args.one.value = a->value;
    args.one.compare = a->compare;
    if (old == NULL) {
        args.one.flags |= NET_REQUEST_NO_OLD;
    } else if (!c->is_blocking) {
        args.one.local = old;
        args.one.num_old_bytes = a->width;
    }
    TERN_TRY(request(c, &args, 32));
    if (c->is_blocking && old != NULL) {
        *(uint64_t *)old = c->network->host->result.value;
    }
    return TERN_OK;
}

enum tern_status terni_pgas_quiet(const struct pgas_call *c, int queue)
{
    struct net_args args;
    struct pgas_call call = *c;
    call.queue = queue == -1 ? TERN_ALL_QUEUES : (uint32_t)queue;
    if (queue < -1 || c->peer < -1 || c->peer >= c->network->comm->num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "peer %d and queue %d: -1 is all, and there are %d ranks",
                         c->peer, queue, c->network->comm->num_ranks);
    }
    TERN_TRY(queue == -1 ? TERN_OK : check_queue(&call));
    if (c->is_blocking && c->network->courier == NULL && c->network->nics == NULL) {
        return TERN_OK; /* loads and stores of kernels that have ended */
    }
    TERN_TRY(prepare(&call, &args));
    args.one.kind = NET_REQUEST_QUIET;
    return request(&call, &args, 32);
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
    args.one.flags = 0;
    args.net.record = NULL; /* that a slice is over is no failure */
    do {
        uint64_t left = timeout_ns - elapsed;
        args.one.timeout_ns = left < SLICE_NS ? left : SLICE_NS;
        TERN_TRY(request(c, &args, 32));
        elapsed = terni_clock_ns() - begin;
    } while (n->host->result.status == TERN_TIMEOUT && elapsed < timeout_ns);
    return n->host->result.status == TERN_OK ? TERN_OK : tell(c, w, elapsed);
}

static enum tern_status check_wait(const struct pgas_wait *w)
{
    if (w->compare < TERN_COMPARE_EQ || w->compare > TERN_COMPARE_LT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "compare %d is no enum tern_compare", w->compare);
    }
    return check_word(w->word, w->width);
}

enum tern_status terni_pgas_wait(const struct pgas_call *c, const struct pgas_wait *w)
{
    uint64_t timeout_ns = (uint64_t)(w->timeout_ms != 0 ? w->timeout_ms : c->network->timeout_ms) * 1000000u;
    struct net_args args;
    TERN_TRY(check_wait(w));
    if (c->is_blocking) {
        return wait_here(c, w, timeout_ns);
    }
    TERN_TRY(prepare(c, &args));
    fill_wait(&args.one, w);
    args.one.timeout_ns = timeout_ns;
    return request(c, &args, 32);
}

enum tern_status terni_pgas_test(const struct pgas_call *c, const struct pgas_wait *w, int *is_met)
{
    struct net_args args;
    TERN_TRY(check_wait(w));
    TERN_TRY(prepare(c, &args));
    fill_wait(&args.one, w);
    args.one.kind = NET_REQUEST_TEST;
    args.one.flags = 0;
    TERN_TRY(request(c, &args, 32));
    *is_met = (int)c->network->host->result.value;
    return TERN_OK;
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
