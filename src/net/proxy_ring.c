/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's end of a ring: requests in order, cut into operations that the engine can carry, and the words
 * that tell kernels how far things are.
 *
 * The engine promises no order between operations, so it is made here: an atomic is posted when the ring's
 * earlier puts and gets have completed, which means that they are in the peer's memory. Stores and atomics
 * keep their order by the engine's own promise, so signals follow each other without waiting.
 *
 * A request's slot is free once the engine has taken all of it, not before: an engine that is full for now
 * leaves the ring as it is. Puts that continue each other, here and there, become one operation. */
#include "net/proxy_parts.h"

#include <stdio.h>
#include <string.h>

static void raise_consumed(struct ring_side *ring)
{
    /* Pairs with the acquire in ring_has_room: the slots have been read. */
    __atomic_store_n(&ring->words->consumed, ring->consumed, __ATOMIC_RELEASE);
}

static void raise_done(struct ring_side *ring)
{
    /* Pairs with the acquire in ring_flush: results and bytes that were asked for are here. */
    __atomic_store_n(&ring->words->done, ring->done | (uint64_t)ring->syndrome << 56, __ATOMIC_RELEASE);
}

/* The request after `behind` others that are not consumed yet; NULL: it is not whole, or not to be taken. */
static const struct ring_slot *peek(const struct ring_side *ring, uint64_t behind)
{
    uint64_t ticket = ring->consumed + behind + 1;
    const struct ring_slot *slot = &ring->slots[(ticket - 1) & (ring->view.depth - 1)];
    if (ticket - ring->done > ring->view.depth) {
        return NULL; /* its place in `left` is in use */
    }
    /* Pairs with the release in ring_post: the request is whole, and so is what it names. */
    return __atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) == ticket ? slot : NULL;
}

static void give_buffer(struct proxy *p, struct engine_op *op)
{
    p->peers[op->peer].num_staged -= op->stage != NULL;
    terni_stage_give(&p->stage, op->stage);
    op->stage = NULL;
}

static void give_op(struct proxy *p, struct engine_op *op)
{
    struct proxy_peer *peer = &p->peers[op->peer];
    give_buffer(p, op);
    op->next = peer->free;
    peer->free = op;
}

/* The ring is as a queue pair in error: what is in it and what comes is consumed, and never done. The first
 * syndrome stays, but a loss is told of every ring: that is where those who wait for the peer look for it. */
static void fail_ring(struct proxy *p, struct ring_side *ring, uint32_t syndrome)
{
    if (ring->syndrome != SYNDROME_NONE && syndrome != SYNDROME_TRANSPORT_RETRY) {
        return;
    }
    ring->syndrome = syndrome;
    if (ring->run.op != NULL) {
        give_op(p, ring->run.op);
        ring->run.op = NULL;
    }
    ring->run.count = 0;
    raise_done(ring);
}

static const char *request_name(const struct ring_slot *q)
{
    static const char *const names[] = {"a request", "a put",     "an inline put",
                                        "a get",     "an atomic", "a signal"};
    uint32_t kind = ring_code_kind(q->code);
    return names[kind <= RING_ATOMIC ? kind : 0];
}

/* A request is refused: this ring fails, and the host can read why. */
static void refuse(struct proxy *p, struct ring_side *ring, uint32_t syndrome, const char *why)
{
    char text[ENGINE_TEXT_BYTES];
    const struct ring_slot *q = &ring->run.request;
    snprintf(text, sizeof text, "%s of %llu bytes at 0x%llx of rank %d failed: syndrome 0x%02x, %s",
             request_name(q), (unsigned long long)q->bytes, (unsigned long long)q->remote, ring->view.peer,
             syndrome, why);
    terni_proxy_note(p, &ring->refusal,
                     net_syndrome_is_device(syndrome) ? TERN_DEVICE_ERROR : TERN_INVALID_ARGUMENT, text);
    fail_ring(p, ring, syndrome);
}

static void discard(struct ring_side *ring)
{
    uint64_t before = ring->consumed;
    for (;;) {
        const struct ring_slot *slot = &ring->slots[ring->consumed & (ring->view.depth - 1)];
        /* Pairs with the release in ring_post: nothing is read, but the slot is the poster's no more. */
        if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) != ring->consumed + 1) {
            break;
        }
        ring->consumed++;
    }
    if (ring->consumed != before) {
        raise_consumed(ring);
    }
}

/* ---- From requests to operations ---- */

static int holds(const struct region *r, uint64_t at, uint64_t bytes)
{
    return at >= r->base && at - r->base < r->bytes && bytes <= r->bytes - (at - r->base);
}

static struct own_region *find_own(struct proxy *p, uint64_t at)
{
    for (int i = p->num_own - 1; i >= 0; i--) {
        if (holds(&p->own[i].card, at, 1)) {
            return &p->own[i];
        }
    }
    return NULL;
}

static const struct region *find_there(const struct proxy *p, int peer, uint64_t at)
{
    for (int i = p->num_there - 1; i >= 0; i--) {
        const struct region *r = &p->there[(size_t)i * (size_t)p->num_ranks + (size_t)peer];
        if (holds(r, at, 1)) {
            return r;
        }
    }
    return NULL;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Begins a run with the next request, and adds puts that continue it. */
static int begin_run(struct ring_side *ring)
{
    struct ring_run *run = &ring->run;
    const struct ring_slot *next = peek(ring, 0);
    if (next == NULL) {
        return 0;
    }
    run->request = *next;
    run->count = 1;
    run->posted = 0;
    if (ring_code_kind(next->code) != RING_PUT) {
        return 1;
    }
    while ((next = peek(ring, run->count)) != NULL && next->code == run->request.code &&
           next->remote == run->request.remote + run->request.bytes &&
           next->local == run->request.local + run->request.bytes) {
        run->request.bytes += next->bytes;
        run->count++;
    }
    return 1;
}

/* The next piece of a put or get; 0: refused. */
static int prepare_move(struct proxy *p, struct ring_side *ring, struct engine_op *op)
{
    const struct ring_run *run = &ring->run;
    uint64_t remote = run->request.remote + run->posted, local = run->request.local + run->posted;
    const struct own_region *here = find_own(p, local);
    const struct region *there = find_there(p, ring->view.peer, remote);
    int is_get = ring_code_kind(run->request.code) == RING_GET;
    if (here != NULL ? is_get && !(here->card.access & KEY_LOCAL_WRITE) : !p->takes_any) {
        refuse(p, ring, SYNDROME_LOCAL_PROTECTION, "the local address is not registered");
        return 0;
    }
    if (there == NULL) {
        refuse(p, ring, SYNDROME_REMOTE_ACCESS, "the peer has registered nothing there");
        return 0;
    }
    op->kind = is_get ? ENGINE_READ : ENGINE_WRITE;
    op->remote = remote;
    op->there = *there;
    op->bytes = least(run->request.bytes - run->posted, p->engine->max_bytes);
    op->bytes = here != NULL ? least(op->bytes, here->card.base + here->card.bytes - local) : op->bytes;
    op->bytes = least(op->bytes, there->base + there->bytes - remote);
    op->local = (char *)(uintptr_t)local;
    op->desc = here != NULL ? here->desc : NULL;
    op->staged = here == NULL || here->card.is_staged ? op->local : NULL;
    if (op->staged != NULL || there->is_staged) {
        op->bytes = least(op->bytes, p->engine->max_staged_bytes);
    }
    return 1;
}

/* Whether a staged operation has its buffer, and a put's bytes are in it. */
static int fill_stage(struct proxy *p, struct ring_side *ring, struct engine_op *op)
{
    if (op->staged == NULL) {
        return 1;
    }
    if (p->peers[op->peer].num_staged == p->max_staged) {
        return 0;
    }
    op->stage = terni_stage_take(&p->stage); /* there is one: the shares add up to all */
    p->peers[op->peer].num_staged++;
    op->local = op->stage;
    op->desc = NULL;
    if (op->kind == ENGINE_WRITE &&
        terni_stage_copy(&p->stage, op->stage, op->staged, op->bytes) != TERN_OK) {
        refuse(p, ring, SYNDROME_LOCAL_QP_OPERATION, tern_last_error());
        return 0;
    }
    return 1;
}

/* An atomic or an inline put; 0: refused. */
static int prepare_word(struct proxy *p, struct ring_side *ring, struct engine_op *op)
{
    const struct ring_slot *q = &ring->run.request;
    const struct region *there = find_there(p, ring->view.peer, q->remote);
    uint32_t width = ring_code_width(q->code);
    if ((width != 4 && width != 8) || ring_code_amo(q->code) >= NET_AMO_COUNT || q->remote % width != 0 ||
        q->local > RING_NUM_RESULTS) {
        refuse(p, ring, SYNDROME_REMOTE_INVALID_REQUEST, "no aligned word of 4 or 8 bytes, or no operation");
        return 0;
    }
    if (there == NULL) {
        refuse(p, ring, SYNDROME_REMOTE_ACCESS, "the peer has registered nothing there");
        return 0;
    }
    op->kind = ring_code_kind(q->code) == RING_PUT_INLINE ? ENGINE_STORE : ENGINE_ATOMIC;
    op->remote = q->remote;
    op->there = *there;
    op->local = NULL;
    op->desc = NULL;
    op->bytes = 0;
    op->amo = ring_code_amo(q->code);
    if (op->amo == NET_AMO_SET && q->local != 0) {
        op->amo = NET_AMO_SWAP; /* of a SET nobody reads the old word */
    }
    op->width = width;
    op->value = q->value;
    op->compare = q->compare;
    op->result = q->local;
    op->staged = NULL;
    return 1;
}

static int is_word(const struct ring_run *run)
{
    return ring_code_kind(run->request.code) != RING_PUT && ring_code_kind(run->request.code) != RING_GET;
}

/* The run's next operation, in run->op; 0: not now, or the ring has failed. */
static int prepare(struct proxy *p, struct ring_side *ring)
{
    struct proxy_peer *peer = &p->peers[ring->view.peer];
    struct ring_run *run = &ring->run;
    struct engine_op *op = peer->free;
    if (ring_code_kind(run->request.code) == RING_ATOMIC && ring->moves != 0) {
        p->counts.held++;
        return 0;
    }
    if (op == NULL) {
        return 0;
    }
    op->syndrome = SYNDROME_NONE;
    op->is_revoked = 0;
    op->staged = NULL;
    op->amo = op->width = 0;
    op->value = op->compare = 0;
    op->owner = ring;
    op->ticket = ring->consumed + 1;
    if (!(is_word(run) ? prepare_word(p, ring, op) : prepare_move(p, ring, op) && fill_stage(p, ring, op))) {
        give_buffer(p, op);
        return 0;
    }
    peer->free = op->next;
    op->next = NULL;
    run->op = op;
    return 1;
}

/* Posts what is left of the run; 1: the engine has all of it. */
static int post_run(struct proxy *p, struct ring_side *ring)
{
    struct proxy_peer *peer = &p->peers[ring->view.peer];
    struct ring_run *run = &ring->run;
    uint16_t *left = &ring->left[(ring->consumed + 1) & (ring->view.depth - 1)];
    while (run->posted < run->request.bytes) {
        struct engine_op *op = run->op;
        if (op == NULL && !prepare(p, ring)) {
            return 0;
        }
        op = run->op;
        if (*left == UINT16_MAX) {
            return 0; /* a request of very many pieces goes on when some have come back */
        }
        if (p->engine->ops->post(p->engine, op) == ENGINE_AGAIN) {
            p->counts.deferred++;
            return 0;
        }
        run->op = NULL;
        run->posted += is_word(run) ? run->request.bytes : op->bytes;
        ++*left;
        if (peer->num_out++ == 0) {
            peer->since_ns = p->now_ns; /* later ones are no sign of the peer */
        }
        ring->moves += !is_word(run);
        p->counts.operations++;
    }
    return 1;
}

/* Requests are done in order: the oldest that waits for nothing, and so on. A run's operations are counted at
 * its first request, and the others come after that. */
static void retire(struct ring_side *ring)
{
    uint64_t before = ring->done;
    while (ring->done < ring->consumed && ring->left[(ring->done + 1) & (ring->view.depth - 1)] == 0) {
        ring->done++;
    }
    if (ring->done != before && ring->syndrome == SYNDROME_NONE) {
        raise_done(ring);
    }
}

int terni_ring_advance(struct proxy *p, struct ring_side *ring)
{
    uint64_t operations = p->counts.operations, consumed = ring->consumed;
    while (ring->syndrome == SYNDROME_NONE && (ring->run.count != 0 || begin_run(ring))) {
        if (!post_run(p, ring)) {
            break;
        }
        ring->consumed += ring->run.count;
        p->counts.requests += ring->run.count;
        ring->run.count = 0;
        raise_consumed(ring);
        retire(ring); /* a request of no bytes waits for nothing */
    }
    if (ring->syndrome != SYNDROME_NONE) {
        discard(ring);
    }
    return p->counts.operations != operations || ring->consumed != consumed;
}

/* What a get or an atomic brought goes where it was asked for. */
static enum tern_status deliver(struct proxy *p, struct ring_side *ring, const struct engine_op *op)
{
    if (op->kind == ENGINE_READ && op->staged != NULL) {
        return terni_stage_copy(&p->stage, op->staged, op->stage, op->bytes);
    }
    if (op->kind == ENGINE_ATOMIC && op->result != 0) {
        /* Relaxed; raise_done is the release. */
        __atomic_store_n(&ring->words->results[op->result - 1], op->old, __ATOMIC_RELAXED);
    }
    return TERN_OK;
}

void terni_rings_revoke(struct proxy *p, const struct region *own)
{
    for (int i = 0; i < terni_num_rings(p); i++) {
        struct ring_run *run = &p->rings[i].run;
        if (run->op != NULL) {
            give_op(p, run->op);
            run->op = NULL;
        }
    }
    /* Those that are not out are marked in vain. */
    for (int i = 0; i < p->num_ranks * ENGINE_WINDOW; i++) {
        struct engine_op *op = &p->peers[i / ENGINE_WINDOW].ops[i % ENGINE_WINDOW];
        uint64_t at = (uint64_t)(uintptr_t)(op->staged != NULL ? op->staged : op->local);
        op->is_revoked |= at != 0 && holds(own, at, 1);
    }
}

void terni_rings_lose(struct proxy *p, int peer)
{
    const struct engine_peer *seen = &p->engine->peers[peer];
    if (p->peers[peer].is_lost) {
        return;
    }
    p->peers[peer].is_lost = 1;
    terni_proxy_note(p, &p->peers[peer].loss, seen->lost, seen->text);
    for (int q = 0; q < p->num_queues; q++) {
        fail_ring(p, &p->rings[peer * p->num_queues + q], SYNDROME_TRANSPORT_RETRY);
    }
    /* Pairs with the acquire in barrier_await (barrier.h): who sees it sees the rings' failures. */
    __atomic_store_n(p->lost, *p->lost + 1, __ATOMIC_RELEASE);
}

/* The operation failed at the peer or on its way, and its ring with it. */
static void fail_op(struct proxy *p, struct ring_side *ring, const struct engine_op *op)
{
    static const uint32_t kinds[] = {RING_PUT, RING_GET, RING_ATOMIC, RING_PUT_INLINE};
    struct ring_slot *q = &ring->run.request;
    if (p->engine->peers[op->peer].lost != TERN_OK) {
        terni_rings_lose(p, op->peer);
        return;
    }
    q->code = ring_code(kinds[op->kind], op->amo, op->width);
    q->remote = op->remote;
    q->bytes = op->width != 0 ? op->width : op->bytes;
    refuse(p, ring, op->syndrome, terni_syndrome_text(op->syndrome));
}

void terni_ring_complete(struct proxy *p, struct engine_op *op)
{
    struct ring_side *ring = (struct ring_side *)op->owner;
    struct proxy_peer *peer = &p->peers[op->peer];
    peer->num_out--;
    peer->since_ns = p->now_ns;
    ring->moves -= op->kind == ENGINE_WRITE || op->kind == ENGINE_READ;
    ring->left[op->ticket & (ring->view.depth - 1)]--;
    if (ring->syndrome != SYNDROME_NONE) {
        /* Has failed already. */
    } else if (op->syndrome != SYNDROME_NONE || op->is_revoked) {
        op->syndrome = op->syndrome != SYNDROME_NONE ? op->syndrome : (uint32_t)SYNDROME_LOCAL_PROTECTION;
        fail_op(p, ring, op);
    } else if (deliver(p, ring, op) != TERN_OK) {
        refuse(p, ring, SYNDROME_LOCAL_QP_OPERATION, tern_last_error());
    } else {
        retire(ring);
    }
    give_op(p, op);
}
