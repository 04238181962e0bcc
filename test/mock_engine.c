/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on memory of the test, when and as the test wants. */
#include "mock_engine.h"

#include "net/amo.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct mock_engine *mock_of(struct engine *e) { return (struct mock_engine *)e; }

static int is_move(const struct engine_op *op) { return op->kind == ENGINE_WRITE || op->kind == ENGINE_READ; }

static uint32_t draw(struct mock_engine *m, uint32_t n)
{
    struct rng r = {m->random};
    uint32_t value = rng_below(&r, n);
    m->random = r.state;
    return value;
}

static enum engine_post mock_post(struct engine *e, struct engine_op *op)
{
    struct mock_engine *m = mock_of(e);
    enum engine_post result = ENGINE_AGAIN;
    pthread_mutex_lock(&m->lock);
    if (m->takes != 0 && m->num_out < MOCK_MAX_OPS &&
        !(m->refuses_one_in != 0 && draw(m, (uint32_t)m->refuses_one_in) == 0)) {
        for (int i = 0; i < m->num_out && op->kind == ENGINE_ATOMIC; i++) {
            m->seen.order_broken |= m->out[i]->owner == op->owner && is_move(m->out[i]);
        }
        m->takes -= m->takes > 0;
        m->out[m->num_out++] = op;
        m->seen.num_taken++;
        m->seen.longest = op->bytes > m->seen.longest ? op->bytes : m->seen.longest;
        result = ENGINE_POSTED;
    }
    pthread_mutex_unlock(&m->lock);
    return result;
}

static void carry_out(struct engine_op *op)
{
    char *there = (char *)(uintptr_t)op->remote;
    uint64_t old = 0, next;
    switch (op->kind) {
    case ENGINE_WRITE:
        memcpy(there, op->local, op->bytes);
        break;
    case ENGINE_READ:
        memcpy(op->local, there, op->bytes);
        break;
    default:
        memcpy(&old, there, op->width);
        next = net_amo_apply(op->amo, op->width, old, op->value, op->compare);
        memcpy(there, &next, op->width);
        op->old = old;
    }
}

/* Stores and atomics to one peer stay in order, everything else comes as it likes. */
static int choose(struct mock_engine *m)
{
    int chosen = m->backwards ? m->num_out - 1 : (int)draw(m, (uint32_t)m->num_out);
    for (int i = 0; i < chosen && !is_move(m->out[chosen]); i++) {
        if (!is_move(m->out[i]) && m->out[i]->peer == m->out[chosen]->peer) {
            chosen = i;
        }
    }
    for (int i = 0; i < m->num_out && m->out[chosen]->peer == m->silent_peer; i++) {
        chosen = i;
    }
    return chosen;
}

static struct engine_op *mock_poll(struct engine *e, int *busy)
{
    struct mock_engine *m = mock_of(e);
    struct engine_op *ended = NULL;
    int chosen;
    pthread_mutex_lock(&m->lock);
    if (m->heard_peer >= 0) {
        e->peers[m->heard_peer].heard_ns = terni_clock_ns();
    }
    if (m->completes != 0 && m->num_out > 0 && m->out[chosen = choose(m)]->peer != m->silent_peer) {
        ended = m->out[chosen];
        m->num_out--;
        memmove(&m->out[chosen], &m->out[chosen + 1], (size_t)(m->num_out - chosen) * sizeof ended);
        m->completes -= m->completes > 0;
        m->seen.num_completed++;
        ended->syndrome = m->syndrome;
        ended->next = NULL;
        if (m->syndrome == 0) {
            carry_out(ended);
        }
        m->syndrome = 0;
        *busy = 1;
    }
    pthread_mutex_unlock(&m->lock);
    return ended;
}

static void mock_rest(struct engine *e, uint64_t ns)
{
    struct timespec nap = {0, (long)ns};
    struct mock_engine *m = mock_of(e);
    pthread_mutex_lock(&m->lock);
    m->seen.num_rests++;
    pthread_mutex_unlock(&m->lock);
    nanosleep(&nap, NULL);
}

/* Like a provider: what it has stays with it. */
static void mock_drop(struct engine *e, int peer)
{
    (void)peer;
    pthread_mutex_lock(&mock_of(e)->lock);
    mock_of(e)->seen.num_drops++;
    pthread_mutex_unlock(&mock_of(e)->lock);
}

static void mock_close(struct engine *e)
{
    pthread_mutex_destroy(&mock_of(e)->lock);
    terni_engine_fini(e);
    free(e);
}

static enum tern_status mock_card(struct engine *e, void *card)
{
    (void)e;
    memset(card, 0, ENGINE_CARD_BYTES);
    return TERN_OK;
}

static enum tern_status mock_connect(struct engine *e, const unsigned char *cards)
{
    (void)e;
    (void)cards;
    return TERN_OK;
}

static int mock_is_connected(const struct engine *e, int peer)
{
    const struct mock_engine *m = (const struct mock_engine *)e;
    return peer >= 32 || !(m->absent >> peer & 1);
}

static enum tern_status mock_add(struct engine *e, struct own_region *r)
{
    (void)e;
    (void)r;
    return TERN_OK;
}

static void mock_remove(struct engine *e, struct own_region *r)
{
    (void)e;
    (void)r;
}

static const struct engine_ops mock_ops = {
    .close = mock_close,
    .card = mock_card,
    .connect = mock_connect,
    .is_connected = mock_is_connected,
    .add = mock_add,
    .remove = mock_remove,
    .post = mock_post,
    .poll = mock_poll,
    .rest = mock_rest,
    .drop = mock_drop,
};

struct mock_engine *mock_engine_new(int rank, int num_ranks)
{
    struct mock_engine *m = (struct mock_engine *)test_take(1, sizeof *m);
    if (terni_engine_init(&m->base, &mock_ops, rank, num_ranks, "mock") != TERN_OK) {
        abort();
    }
    pthread_mutex_init(&m->lock, NULL);
    m->takes = m->completes = -1;
    m->silent_peer = m->heard_peer = -1;
    m->base.max_bytes = 1 << 20;
    m->base.max_staged_bytes = 4096;
    m->random = 1;
    return m;
}

void mock_engine_set(struct mock_engine *m, int takes, int completes)
{
    pthread_mutex_lock(&m->lock);
    m->takes = takes;
    m->completes = completes;
    pthread_mutex_unlock(&m->lock);
}

struct mock_seen mock_engine_look(struct mock_engine *m)
{
    struct mock_seen seen;
    pthread_mutex_lock(&m->lock);
    seen = m->seen;
    pthread_mutex_unlock(&m->lock);
    return seen;
}
