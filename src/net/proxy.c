/* SPDX-License-Identifier: Apache-2.0
 *
 * A proxy's thread, and its face to the host.
 *
 * The thread goes round: it serves peers and collects what has ended (the engine's poll), then takes requests
 * from every ring. When nothing has happened for some rounds it yields the processor, then it sleeps, longer
 * and longer up to a millisecond: kernels cannot wake it, and where ranks outnumber processors a loop that
 * spins takes the time slice of the one it waits for.
 *
 * Host threads never touch what is the thread's; they hand it an errand and wait. */
#include "net/proxy_parts.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_ROUNDS = 32, YIELD_ROUNDS = 256, REST_NS = 20000, MAX_REST_NS = 1000000 };
enum { MISSING_NAMED = 8, MISSING_TEXT = 104 }; /* of ranks that are not connected, in a sentence */

void terni_proxy_note(struct proxy *p, struct proxy_failure *f, enum tern_status status, const char *text)
{
    pthread_mutex_lock(&p->lock);
    if (f->status == TERN_OK) {
        f->status = status;
        snprintf(f->text, sizeof f->text, "%s", text);
    }
    pthread_mutex_unlock(&p->lock);
    TERN_LOG(TERN_LOG_WARN, "rank %d: %s", p->rank, text);
}

/* ---- The thread ---- */

/* A peer that should have moved and has not, or that the engine has lost. One whose bytes come is there,
 * however long it takes them to be an answer. */
static void watch_peer(struct proxy *p, int r)
{
    struct proxy_peer *peer = &p->peers[r];
    const struct engine_peer *seen = &p->engine->peers[r];
    uint64_t moved_ns = peer->since_ns > seen->heard_ns ? peer->since_ns : seen->heard_ns;
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
    } else if (p->now_ns > moved_ns + (uint64_t)p->timeout_ms * 1000000 && seen->lost == TERN_OK) {
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
    int busy = 0, first = p->first_ring, n = terni_num_rings(p);
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

enum tern_status terni_proxy_start(struct proxy *p)
{
    TERN_TRY(terni_thread_open(&p->thread, "tern-proxy", thread_main, p));
    p->has_thread = 1;
    return TERN_OK;
}

void terni_proxy_stop(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    __atomic_store_n(&p->wanted, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
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

/* "rank 3 has" or "ranks 3, 5 and 9 more have": those from `first` up to before `end` that are not connected.
 * Returns how many they are. */
static int list_missing(const struct proxy *p, int first, int end, char text[MISSING_TEXT])
{
    char list[MISSING_TEXT - 32] = "";
    size_t at = 0;
    int num = 0;
    for (int r = first; r < end; r++) {
        if (!p->engine->ops->is_connected(p->engine, r) && num++ < MISSING_NAMED) {
            at += (size_t)snprintf(list + at, sizeof list - at, num == 1 ? "%d" : ", %d", r);
        }
    }
    if (num > MISSING_NAMED) {
        snprintf(list + at, sizeof list - at, " and %d more", num - MISSING_NAMED);
    }
    snprintf(text, MISSING_TEXT, num == 1 ? "rank %s has" : "ranks %s have", list);
    return num;
}

/* Of a pair the higher rank calls, where an engine has a caller. A rank that was lost meanwhile says more. */
static enum tern_status name_missing(struct proxy *p, void *arg)
{
    uint32_t timeout_ms = *(const uint32_t *)arg;
    char below[MISSING_TEXT], above[MISSING_TEXT];
    int num_missing, num_below = list_missing(p, 0, p->rank, below);
    int num_above = list_missing(p, p->rank + 1, p->num_ranks, above);
    TERN_TRY(look_for_peers(p, &num_missing));
    if (num_below != 0 && num_above != 0) {
        return TERN_FAIL(TERN_TIMEOUT,
                         "%s not answered a call of rank %d's proxy, and %s not called it, within %u ms",
                         below, p->rank, above, timeout_ms);
    }
    if (num_missing != 0) {
        return TERN_FAIL(TERN_TIMEOUT, "%s not %s rank %d's proxy within %u ms",
                         num_below != 0 ? below : above, num_below != 0 ? "answered a call of" : "called",
                         p->rank, timeout_ms);
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

/* The peers' cards that came with this registration: at the same address a peer may have another key next. */
static void unimport(struct proxy *p, const struct region *own)
{
    size_t row = (size_t)p->num_ranks;
    for (int i = p->num_there - 1; i >= 0; i--) {
        struct region *cards = p->there + (size_t)i * row;
        if (cards[p->rank].base == own->base && cards[p->rank].key == own->key) {
            p->num_there--;
            memmove(cards, cards + row, (size_t)(p->num_there - i) * row * sizeof *cards);
        }
    }
}

static enum tern_status remove_region(struct proxy *p, void *arg)
{
    uint64_t base = (uint64_t)(uintptr_t)arg;
    for (int i = p->num_own - 1; i >= 0; i--) {
        struct own_region r = p->own[i];
        if (r.card.base == base) {
            p->num_own--;
            memmove(&p->own[i], &p->own[i + 1], (size_t)(p->num_own - i) * sizeof r);
            unimport(p, &r.card);
            terni_serve_remove(&p->serve, &r.card);
            terni_rings_revoke(p, &r.card);
            p->engine->ops->remove(p->engine, &r);
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

static enum tern_status state_failure(struct proxy *p, const struct proxy_failure *noted)
{
    struct proxy_failure f;
    pthread_mutex_lock(&p->lock);
    f = *noted;
    pthread_mutex_unlock(&p->lock);
    return f.status == TERN_OK ? TERN_OK : TERN_FAIL(f.status, "%s", f.text);
}

enum tern_status terni_proxy_loss(struct proxy *p, int peer)
{
    return state_failure(p, &p->peers[peer].loss);
}

enum tern_status terni_proxy_refusal(struct proxy *p, int peer, int queue)
{
    return state_failure(p, &p->rings[peer * p->num_queues + queue].refusal);
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
