/* SPDX-License-Identifier: Apache-2.0
 *
 * A proxy's memory, its thread, and its face to the host.
 *
 * The thread goes round: it serves peers and collects what has ended (the engine's poll), then takes requests
 * from every ring. When nothing has happened for some rounds it yields the processor, then it sleeps, longer
 * and longer up to a millisecond: kernels cannot wake it, and where ranks outnumber processors a loop that
 * spins takes the time slice of the one it waits for.
 *
 * Host threads never touch what is the thread's; they hand it an errand and wait. */
#include "net/proxy_parts.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_ROUNDS = 32, YIELD_ROUNDS = 256, REST_NS = 20000, MAX_REST_NS = 1000000, STAGE_BUFFERS = 16 };
enum { MAX_DEPTH = 32768, MAX_QUEUES = 256 };

void terni_proxy_note(struct proxy *p, int peer, enum tern_status status, const char *text)
{
    struct proxy_failure *f = &p->failures[peer];
    pthread_mutex_lock(&p->lock);
    if (f->status == TERN_OK) {
        f->status = status;
        snprintf(f->text, sizeof f->text, "%s", text);
    }
    pthread_mutex_unlock(&p->lock);
    TERN_LOG(TERN_LOG_WARN, "rank %d: %s", p->rank, text);
}

/* ---- The thread ---- */

static int num_rings(const struct proxy *p) { return p->num_ranks * p->num_queues; }

/* A peer that should have moved and has not, or that the engine has lost. */
static void watch_peer(struct proxy *p, int r)
{
    struct proxy_peer *peer = &p->peers[r];
    const struct engine_peer *seen = &p->engine->peers[r];
    int is_busy = peer->num_out > 0;
    if (r == p->rank || peer->is_lost) {
        return;
    }
    for (int q = 0; q < p->num_queues && !is_busy; q++) {
        is_busy = p->rings[r * p->num_queues + q].run.count != 0;
    }
    if (!is_busy) {
        peer->since_ns = 0;
    } else if (peer->since_ns == 0) {
        peer->since_ns = p->now_ns;
    } else if (p->now_ns > peer->since_ns + (uint64_t)p->timeout_ms * 1000000 && seen->lost == TERN_OK) {
        terni_engine_lose(p->engine, r, TERN_TIMEOUT, "rank %d has not answered for %u ms", r, p->timeout_ms);
        p->engine->ops->drop(p->engine, r);
    }
    /* One that left in good order is a failure only of what it leaves undone. */
    if (seen->lost != TERN_OK && (is_busy || !seen->has_left)) {
        terni_rings_lose(p, r);
    }
}

/* One round; whether anything happened. */
static int go_round(struct proxy *p)
{
    int busy = 0, first = p->first_ring, n = num_rings(p);
    struct engine_op *ended = p->engine->ops->poll(p->engine, &busy);
    p->now_ns = terni_clock_ns();
    while (ended != NULL) {
        struct engine_op *op = ended;
        ended = op->next;
        terni_ring_complete(p, op);
        busy = 1;
    }
    for (int i = 0; i < n; i++) {
        struct ring_side *ring = &p->rings[(first + i) % n];
        busy |= ring->slots != NULL && terni_ring_advance(p, ring);
    }
    p->first_ring = n > 0 ? (first + 1) % n : 0;
    for (int r = 0; r < p->num_ranks; r++) {
        watch_peer(p, r);
    }
    return busy;
}

/* An errand, if there is one; whether to stop. */
static int look_up(struct proxy *p)
{
    struct errand *errand;
    int stop;
    pthread_mutex_lock(&p->lock);
    errand = p->errand;
    stop = p->stop;
    /* Under the lock; read without it, where a round more or less does not matter. */
    __atomic_store_n(&p->wanted, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->lock);
    if (errand != NULL) {
        errand->status = errand->run(p, errand->arg);
        snprintf(errand->text, sizeof errand->text, "%s", tern_last_error());
        pthread_mutex_lock(&p->lock);
        p->errand = NULL;
        errand->is_done = 1;
        pthread_cond_broadcast(&p->settled);
        pthread_mutex_unlock(&p->lock);
    }
    return stop;
}

static void *thread_main(void *argument)
{
    struct proxy *p = (struct proxy *)argument;
    uint64_t rest_ns = REST_NS;
    int idle = 0;
    for (;;) {
        int busy = go_round(p);
        idle = busy ? 0 : idle + 1;
        if (__atomic_load_n(&p->wanted, __ATOMIC_RELAXED)) {
            if (look_up(p)) {
                break;
            }
        }
        if (idle < YIELD_ROUNDS) {
            rest_ns = REST_NS;
            if (idle >= SPIN_ROUNDS) {
                sched_yield();
            }
            continue;
        }
        p->counts.rests++;
        p->engine->ops->rest(p->engine, rest_ns);
        rest_ns = rest_ns * 5 / 4 < MAX_REST_NS ? rest_ns * 5 / 4 : MAX_REST_NS;
    }
    return NULL;
}

static enum tern_status start_thread(struct proxy *p)
{
    sigset_t all, before;
    int error;
    /* Signals of the process are its own threads' business; those of a fault are this one's. */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&p->thread, NULL, thread_main, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no thread for a proxy: %s", strerror(error));
    }
    p->has_thread = 1;
    return TERN_OK;
}

/* Has the thread do something; before there is one, does it here. */
static enum tern_status send_errand(struct proxy *p, enum tern_status (*run)(struct proxy *p, void *arg),
                                    void *arg)
{
    struct errand errand = {.run = run, .arg = arg};
    if (!p->has_thread) {
        return run(p, arg);
    }
    pthread_mutex_lock(&p->lock);
    while (p->errand != NULL) {
        pthread_cond_wait(&p->settled, &p->lock);
    }
    p->errand = &errand;
    __atomic_store_n(&p->wanted, 1, __ATOMIC_RELAXED);
    while (!errand.is_done) {
        pthread_cond_wait(&p->settled, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return errand.status == TERN_OK ? TERN_OK : TERN_FAIL(errand.status, "%s", errand.text);
}

/* ---- Opening and closing ---- */

static size_t slots_bytes(const struct proxy *p) { return (size_t)p->depth * sizeof(struct ring_slot); }

/* In one piece of host memory: the abort word's line, then for each ring its words and its slots. */
static enum tern_status lay_rings(struct proxy *p)
{
    size_t n = (size_t)num_rings(p), each = sizeof(struct ring_words) + slots_bytes(p);
    struct machine *m = p->machine;
    void *device_view;
    TERN_TRY(m->ops->host_alloc(m, 64 + n * each, &p->host_memory, &device_view));
    TERN_TRY(m->ops->alloc(m, n * sizeof(struct ring_state), &p->device_memory));
    TERN_TRY(m->ops->fill(m, p->device_memory, 0, n * sizeof(struct ring_state), m->ops->own_stream(m)));
    TERN_TRY(m->ops->stream_synchronize(m, m->ops->own_stream(m)));
    p->abort = (uint64_t *)p->host_memory;
    for (size_t i = 0; i < n; i++) {
        struct ring_side *ring = &p->rings[i];
        size_t at = 64 + i * each;
        if ((int)i / p->num_queues == p->rank) {
            continue; /* nobody needs a proxy to reach himself */
        }
        ring->left = (uint16_t *)calloc(p->depth, sizeof *ring->left);
        if (ring->left == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a ring of %u requests", p->depth);
        }
        ring->words = (struct ring_words *)(void *)((char *)p->host_memory + at);
        ring->slots = (struct ring_slot *)(void *)(ring->words + 1);
        ring->view.words = (const struct ring_words *)(void *)((char *)device_view + at);
        ring->view.slots = (struct ring_slot *)(void *)((char *)device_view + at + sizeof(struct ring_words));
        ring->view.state = (struct ring_state *)p->device_memory + i;
        ring->view.abort = (const uint64_t *)device_view;
        ring->view.timeout_ns = (uint64_t)p->timeout_ms * 1000000;
        ring->view.depth = p->depth;
        ring->view.peer = (int)i / p->num_queues;
        ring->view.queue = (int)i % p->num_queues;
    }
    return TERN_OK;
}

static void link_ops(struct proxy *p)
{
    for (int r = 0; r < p->num_ranks; r++) {
        for (uint32_t i = 0; i < ENGINE_WINDOW; i++) {
            struct engine_op *op = &p->peers[r].ops[i];
            op->peer = r;
            op->tag = i;
            op->next = p->peers[r].free;
            p->peers[r].free = op;
        }
    }
}

static enum tern_status check_config(const struct proxy_config *c)
{
    if (c->num_queues < 1 || c->num_queues > MAX_QUEUES) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%d queues a peer, not 1 to %d", c->num_queues, MAX_QUEUES);
    }
    if (c->depth < 2 || c->depth > MAX_DEPTH || (c->depth & (c->depth - 1)) != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a ring of %u requests; a power of two, 2 to %d, is expected",
                         c->depth, MAX_DEPTH);
    }
    return terni_check_range("timeout_ms", c->timeout_ms, 1, UINT32_MAX);
}

enum tern_status terni_proxy_open(const struct proxy_config *config, struct proxy **proxy)
{
    size_t n = (size_t)config->engine->num_ranks;
    enum tern_status status;
    struct proxy *p = (struct proxy *)calloc(1, sizeof *p);
    if (p == NULL) {
        config->engine->ops->close(config->engine);
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a proxy");
    }
    p->machine = config->machine;
    p->engine = config->engine;
    p->rank = config->engine->rank;
    p->num_ranks = config->engine->num_ranks;
    p->num_queues = config->num_queues;
    p->depth = config->depth;
    p->timeout_ms = config->timeout_ms;
    p->stages_all = config->stages_all;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->settled, NULL);
    p->peers = (struct proxy_peer *)calloc(n, sizeof *p->peers);
    p->failures = (struct proxy_failure *)calloc(n, sizeof *p->failures);
    status = check_config(config);
    if (status == TERN_OK) {
        p->rings = (struct ring_side *)calloc(n * (size_t)p->num_queues, sizeof *p->rings);
        if (p->peers == NULL || p->failures == NULL || p->rings == NULL) {
            status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a proxy of %zu peers", n);
        }
    }
    if (status == TERN_OK) {
        link_ops(p);
        status = lay_rings(p);
    }
    if (status == TERN_OK) {
        status = terni_stage_open(&p->stage, p->machine, STAGE_BUFFERS, p->num_ranks);
    }
    if (status == TERN_OK) {
        status = terni_serve_init(&p->serve, &p->stage);
    }
    p->engine->serve = &p->serve;
    if (status != TERN_OK) {
        terni_proxy_close(p);
        return status;
    }
    *proxy = p;
    return TERN_OK;
}

static void stop_thread(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    __atomic_store_n(&p->wanted, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
}

void terni_proxy_close(struct proxy *p)
{
    if (p == NULL) {
        return;
    }
    if (p->has_thread) {
        stop_thread(p);
    }
    for (int i = 0; i < p->num_own; i++) {
        if (p->own[i].card.bytes != 0) {
            p->engine->ops->remove(p->engine, &p->own[i]);
        }
    }
    p->engine->ops->close(p->engine);
    terni_stage_close(&p->stage);
    for (int i = 0; p->rings != NULL && i < num_rings(p); i++) {
        free(p->rings[i].left);
    }
    p->machine->ops->free(p->machine, p->device_memory);
    if (p->host_memory != NULL) {
        p->machine->ops->host_free(p->machine, p->host_memory);
    }
    pthread_cond_destroy(&p->settled);
    pthread_mutex_destroy(&p->lock);
    free(p->there);
    free(p->own);
    free(p->rings);
    free(p->failures);
    free(p->peers);
    free(p);
}

enum tern_status terni_proxy_card(struct proxy *p, struct proxy_card *card)
{
    memset(card, 0, sizeof *card);
    snprintf(card->engine, sizeof card->engine, "%s", p->engine->name);
    card->num_queues = (uint32_t)p->num_queues;
    card->version = tern_version();
    return p->engine->ops->card(p->engine, card->address);
}

enum tern_status terni_proxy_connect(struct proxy *p, const struct proxy_card *cards)
{
    enum tern_status status;
    unsigned char *addresses;
    for (int r = 0; r < p->num_ranks; r++) {
        if (strncmp(cards[r].engine, p->engine->name, sizeof cards[r].engine) != 0 ||
            cards[r].version != tern_version()) {
            return TERN_FAIL(TERN_MISMATCH,
                             "rank %d has engine %.31s of version %08x, rank %d has %s of %08x", r,
                             cards[r].engine, cards[r].version, p->rank, p->engine->name, tern_version());
        }
        if (cards[r].num_queues != (uint32_t)p->num_queues) {
            return TERN_FAIL(TERN_MISMATCH, "rank %d has %u queues a peer, rank %d has %d", r,
                             cards[r].num_queues, p->rank, p->num_queues);
        }
    }
    addresses = (unsigned char *)malloc((size_t)p->num_ranks * ENGINE_CARD_BYTES);
    if (addresses == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d addresses", p->num_ranks);
    }
    for (int r = 0; r < p->num_ranks; r++) {
        memcpy(addresses + (size_t)r * ENGINE_CARD_BYTES, cards[r].address, ENGINE_CARD_BYTES);
    }
    status = p->engine->ops->connect(p->engine, addresses);
    free(addresses);
    return status == TERN_OK ? start_thread(p) : status;
}

/* ---- Host threads ---- */

static enum tern_status look_for_peers(struct proxy *p, void *arg)
{
    int *num_missing = (int *)arg;
    *num_missing = 0;
    for (int r = 0; r < p->num_ranks; r++) {
        const struct engine_peer *peer = &p->engine->peers[r];
        if (r == p->rank) {
            continue;
        }
        if (peer->lost != TERN_OK) {
            return TERN_FAIL(peer->lost, "%s", peer->text);
        }
        *num_missing += !p->engine->ops->is_connected(p->engine, r);
    }
    return TERN_OK;
}

static enum tern_status name_missing(struct proxy *p, void *arg)
{
    uint32_t timeout_ms = *(const uint32_t *)arg;
    for (int r = 0; r < p->num_ranks; r++) {
        if (r != p->rank && !p->engine->ops->is_connected(p->engine, r)) {
            return TERN_FAIL(TERN_TIMEOUT, "rank %d has not connected to rank %d's proxy within %u ms", r,
                             p->rank, timeout_ms);
        }
    }
    return TERN_OK;
}

enum tern_status terni_proxy_await(struct proxy *p, uint32_t timeout_ms)
{
    uint64_t deadline_ns = terni_clock_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        struct timespec nap = {0, 1000000};
        int num_missing;
        TERN_TRY(send_errand(p, look_for_peers, &num_missing));
        if (num_missing == 0) {
            return TERN_OK;
        }
        if (terni_clock_ns() > deadline_ns) {
            return send_errand(p, name_missing, &timeout_ms);
        }
        nanosleep(&nap, NULL);
    }
}

static enum tern_status add_region(struct proxy *p, void *arg)
{
    struct region *card = (struct region *)arg;
    struct own_region *grown =
        (struct own_region *)realloc(p->own, (size_t)(p->num_own + 1) * sizeof *p->own);
    enum tern_status status;
    if (grown == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d registrations", p->num_own + 1);
    }
    p->own = grown;
    memset(&grown[p->num_own], 0, sizeof *grown);
    TERN_TRY(terni_serve_add(&p->serve, card));
    grown[p->num_own].card = *card;
    status = p->engine->ops->add(p->engine, &grown[p->num_own]);
    if (status != TERN_OK) {
        terni_serve_remove(&p->serve, card);
        return status;
    }
    *card = grown[p->num_own++].card;
    return TERN_OK;
}

enum tern_status terni_proxy_register(struct proxy *p, void *memory, uint64_t bytes, uint32_t access,
                                      int on_device, struct region *card)
{
    memset(card, 0, sizeof *card);
    card->base = (uint64_t)(uintptr_t)memory;
    card->bytes = bytes;
    card->access = access;
    card->is_staged = p->stages_all || (on_device && p->machine->info.kind == TERN_MACHINE_CUDA);
    return send_errand(p, add_region, card);
}

static enum tern_status remove_region(struct proxy *p, void *arg)
{
    uint64_t base = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < p->num_own; i++) {
        struct own_region *r = &p->own[i];
        if (r->card.base == base && r->card.bytes != 0) {
            terni_serve_remove(&p->serve, &r->card);
            p->engine->ops->remove(p->engine, r);
            r->card.bytes = 0;
            return TERN_OK;
        }
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT, "nothing is registered at 0x%llx", (unsigned long long)base);
}

enum tern_status terni_proxy_release(struct proxy *p, const void *memory)
{
    return send_errand(p, remove_region, (void *)(uintptr_t)memory);
}

static enum tern_status import_regions(struct proxy *p, void *arg)
{
    size_t row = (size_t)p->num_ranks;
    struct region *grown =
        (struct region *)realloc(p->there, (size_t)(p->num_there + 1) * row * sizeof *p->there);
    if (grown == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for registrations of %d ranks", p->num_ranks);
    }
    p->there = grown;
    memcpy(grown + (size_t)p->num_there * row, arg, row * sizeof *grown);
    p->num_there++;
    return TERN_OK;
}

enum tern_status terni_proxy_import(struct proxy *p, const struct region *cards)
{
    return send_errand(p, import_regions, (void *)(uintptr_t)cards);
}

const struct net_ring *terni_proxy_ring(const struct proxy *p, int peer, int queue)
{
    return &p->rings[peer * p->num_queues + queue].view;
}

/* Relaxed: nothing is read on its strength. Pairs with ring_patient. */
void terni_proxy_abort(struct proxy *p) { __atomic_store_n(p->abort, 1, __ATOMIC_RELAXED); }

enum tern_status terni_proxy_failure(struct proxy *p, int peer)
{
    struct proxy_failure f;
    pthread_mutex_lock(&p->lock);
    f = p->failures[peer];
    pthread_mutex_unlock(&p->lock);
    return f.status == TERN_OK ? TERN_OK : TERN_FAIL(f.status, "%s", f.text);
}

static enum tern_status read_counts(struct proxy *p, void *arg)
{
    *(struct proxy_counts *)arg = p->counts;
    return TERN_OK;
}

void terni_proxy_counts(struct proxy *p, struct proxy_counts *counts)
{
    (void)send_errand(p, read_counts, counts);
}
