/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker thread and those who wait for it. Between slices (a fixed number of fiber resumptions) the
 * worker takes the lock, looks at what hosts have submitted, and tests the conditions of the hosts that wait.
 *
 * Free running, it works while there is work. With a seed it works only while a host waits whose condition
 * does not hold yet, and it is the worker itself that finds out, at the end of a slice: a single host thread
 * then sees the worker stop at a point that the seed alone decides, and everything it submits next arrives
 * there. */
#include "simt/executor.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define WORD_POLL_NS    100000u /* for words that only others can write */
#define RECENT_CONTEXTS 128     /* idle contexts are kept this long before reuse; a bulk copy has two */

void *terni_executor_need(void *memory, const char *what)
{
    if (memory == NULL) {
        fprintf(stderr, "tern: the cpu machine has no memory for %s\n", what);
        abort();
    }
    return memory;
}

/* ---- Contexts of ThreadSanitizer; NULL and free of cost in other builds ---- */

void *terni_context_create(struct executor *x)
{
    void *current = order_current();
    void *context;

    order_enter(x->origin);
    context = order_create();
    order_enter(current);
    return context;
}

void *terni_context_take(struct executor *x)
{
#ifdef TERN_TSAN
    if (x->num_contexts < RECENT_CONTEXTS) {
        return terni_context_create(x);
    }
    void *context = x->contexts[x->first_context];
    x->first_context = (x->first_context + 1) % x->max_contexts;
    x->num_contexts--;
    return context;
#else
    (void)x;
    return NULL;
#endif
}

void terni_context_give(struct executor *x, void *context)
{
#ifdef TERN_TSAN
    if (x->num_contexts == x->max_contexts) {
        int max = x->max_contexts == 0 ? 2 * RECENT_CONTEXTS : 2 * x->max_contexts;
        void **ring = (void **)terni_executor_need(malloc((size_t)max * sizeof(*ring)), "contexts");
        for (int i = 0; i < x->num_contexts; i++) {
            ring[i] = x->contexts[(x->first_context + i) % x->max_contexts];
        }
        free(x->contexts);
        x->contexts = ring;
        x->first_context = 0;
        x->max_contexts = max;
    }
    x->contexts[(x->first_context + x->num_contexts++) % x->max_contexts] = context;
#else
    (void)x;
    (void)context;
#endif
}

static void contexts_destroy(struct executor *x)
{
    for (int i = 0; i < x->num_contexts; i++) {
        order_destroy(x->contexts[(x->first_context + i) % x->max_contexts]);
    }
    free(x->contexts);
}

/* ---- The worker ---- */

/* Returns how many hosts still wait; sets *num_words to those that wait for a word. */
static int settle_waiters(struct executor *x, int *num_words)
{
    int waiting = 0, settled = 0;

    *num_words = 0;
    for (struct waiter *w = x->waiters; w != NULL; w = w->next) {
        if (!w->satisfied && terni_waiter_ready(w)) {
            w->satisfied = 1;
            settled = 1;
        }
        waiting += !w->satisfied;
        *num_words += !w->satisfied && w->kind == WAIT_WORD;
    }
    if (settled) {
        pthread_cond_broadcast(&x->settled);
    }
    return waiting;
}

static struct timespec timespec_of(uint64_t ns)
{
    struct timespec t;
    t.tv_sec = (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

static void worker_pause(struct executor *x, int num_words)
{
    if (num_words != 0) {
        struct timespec until = timespec_of(terni_clock_ns() + WORD_POLL_NS);
        pthread_cond_timedwait(&x->work, &x->lock, &until);
    } else {
        pthread_cond_wait(&x->work, &x->lock);
    }
}

/* If fibers have only been spinning for some rounds, what they wait for comes from another thread or process,
 * which may want this processor. */
static void nap_if_quiet(struct executor *x)
{
    uint64_t limit = 2 * SIMT_LANES * (uint64_t)x->num_ready + 512;

    if (x->num_ready == 0) {
        limit = 1; /* at most streams that wait for an event */
    }
    if (x->quiet < limit) {
        x->quiet += x->num_ready == 0;
        x->naps = 0;
        return;
    }
    if (x->naps < 4) {
        sched_yield();
    } else {
        struct timespec t = {0, x->naps < 16 ? 20000 : 50000};
        nanosleep(&t, NULL);
    }
    x->naps++;
}

static void *worker_main(void *argument)
{
    struct executor *x = (struct executor *)argument;

    x->context = order_current();
    x->origin = order_create();
    pthread_mutex_lock(&x->lock);
    for (;;) {
        int waiting, num_words;

        terni_streams_intake(x);
        x->published = x->stats;
        waiting = settle_waiters(x, &num_words);
        if (x->stop) {
            break;
        }
        if (x->num_active == 0 || (x->deterministic && waiting == 0)) {
            worker_pause(x, num_words);
            continue;
        }
        pthread_mutex_unlock(&x->lock);
        terni_slice_run(x);
        nap_if_quiet(x);
        pthread_mutex_lock(&x->lock);
    }
    pthread_mutex_unlock(&x->lock);
    terni_bulk_destroy(x);
    terni_fibers_destroy(x);
    contexts_destroy(x);
    if (x->origin != NULL) {
        order_destroy(x->origin);
    }
    return NULL;
}

/* ---- The hosts ---- */

enum tern_status terni_executor_wait(struct executor *x, struct waiter *w, uint64_t deadline_ns)
{
    struct timespec until = timespec_of(deadline_ns);
    struct waiter **link = &x->waiters;

    w->satisfied = 0;
    pthread_mutex_lock(&x->lock);
    w->next = x->waiters;
    x->waiters = w;
    pthread_cond_signal(&x->work);
    while (!w->satisfied) {
        if (deadline_ns == 0) {
            pthread_cond_wait(&x->settled, &x->lock);
        } else if (pthread_cond_timedwait(&x->settled, &x->lock, &until) == ETIMEDOUT) {
            break;
        }
    }
    while (*link != w) {
        link = &(*link)->next;
    }
    *link = w->next;
    pthread_mutex_unlock(&x->lock);
    return w->satisfied ? TERN_OK : TERN_TIMEOUT;
}

enum tern_status terni_executor_word(struct executor *x, const uint64_t *word, uint64_t value,
                                     uint64_t deadline_ns)
{
    struct waiter w = {.kind = WAIT_WORD, .word = word, .value = value};
    enum tern_status status;

    /* No deadline is 0 to terni_executor_wait; to callers it is long past. */
    status = terni_executor_wait(x, &w, deadline_ns == 0 ? 1 : deadline_ns);
    if (terni_waiter_ready(&w)) { /* also when the deadline came first */
        status = TERN_OK;
        order_acquire((char *)(uintptr_t)word); /* pairs with the kernel's release store */
    }
    return status;
}

void terni_executor_stats(struct executor *x, struct executor_stats *stats)
{
    pthread_mutex_lock(&x->lock);
    *stats = x->published;
    pthread_mutex_unlock(&x->lock);
}

static enum tern_status worker_start(struct executor *x)
{
    return terni_thread_open(&x->worker, "tern-cpu", worker_main, x);
}

/* Spreads a seed over 64 bits, of which at least one is set; the finaliser of splitmix64. */
static uint64_t spread(uint64_t seed)
{
    uint64_t z = seed + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return z != 0 ? z : 1;
}

enum tern_status terni_executor_open(uint64_t seed, struct executor **executor)
{
    struct executor *x = (struct executor *)calloc(1, sizeof(*x));
    pthread_condattr_t monotonic;
    enum tern_status status;

    if (x == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for an executor of %zu bytes", sizeof(*x));
    }
    if (getrandom(x->uuid, sizeof(x->uuid), 0) != (ssize_t)sizeof(x->uuid)) {
        status = TERN_FAIL(TERN_SYSTEM_ERROR, "getrandom: %s", strerror(errno));
        goto free_executor;
    }
    x->refs = 1;
    x->deterministic = seed != 0;
    x->random = spread(seed != 0 ? seed : terni_clock_ns());
    pthread_mutex_init(&x->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&x->work, &monotonic);
    pthread_cond_init(&x->settled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    status = worker_start(x);
    if (status != TERN_OK) {
        goto destroy_locks;
    }
    *executor = x;
    return TERN_OK;

destroy_locks:
    pthread_cond_destroy(&x->settled);
    pthread_cond_destroy(&x->work);
    pthread_mutex_destroy(&x->lock);
free_executor:
    free(x);
    return status;
}

int terni_executor_ref(struct executor *x)
{
    int machine;

    pthread_mutex_lock(&x->lock);
    x->refs++;
    machine = x->num_machines++;
    pthread_mutex_unlock(&x->lock);
    return machine;
}

void terni_executor_release(struct executor *x)
{
    int refs;

    if (x == NULL) {
        return;
    }
    pthread_mutex_lock(&x->lock);
    refs = --x->refs;
    x->stop = refs == 0;
    pthread_cond_signal(&x->work);
    pthread_mutex_unlock(&x->lock);
    if (refs != 0) {
        return;
    }
    pthread_join(x->worker, NULL);
    pthread_cond_destroy(&x->settled);
    pthread_cond_destroy(&x->work);
    pthread_mutex_destroy(&x->lock);
    free(x->active);
    free(x->ready);
    free(x);
}
