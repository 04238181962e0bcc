/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a proxy. Its rings are one piece of host memory: a line of words for all, then words
 * and slots of every ring. It owns its engine from the first moment on; what goes last is what others use. */
#include "net/proxy_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32768, MAX_QUEUES = 256, STAGE_BUFFERS = 16, STAGE_LEAST = 2 };

static size_t slots_bytes(const struct proxy *p) { return (size_t)p->depth * sizeof(struct ring_slot); }

static enum tern_status lay_rings(struct proxy *p)
{
    size_t n = (size_t)terni_num_rings(p), each = sizeof(struct ring_words) + slots_bytes(p);
    struct machine *m = p->machine;
    void *device_view;
    TERN_TRY(m->ops->host_alloc(m, 64 + n * each, &p->host_memory, &device_view));
    TERN_TRY(m->ops->alloc(m, n * sizeof(struct ring_state), &p->device_memory));
    TERN_TRY(m->ops->fill(m, p->device_memory, 0, n * sizeof(struct ring_state), m->ops->own_stream(m)));
    TERN_TRY(m->ops->stream_synchronize(m, m->ops->own_stream(m)));
    p->abort = (uint64_t *)p->host_memory;
    p->lost = p->abort + 1;
    for (size_t i = 0; i < n; i++) {
        struct ring_side *ring = &p->rings[i];
        size_t at = 64 + i * each;
        ring->view.abort = (const uint64_t *)device_view;
        ring->view.lost = ring->view.abort + 1;
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
    p->takes_any = config->takes_any;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->settled, NULL);
    p->peers = (struct proxy_peer *)calloc(n, sizeof *p->peers);
    status = check_config(config);
    if (status == TERN_OK) {
        p->rings = (struct ring_side *)calloc(n * (size_t)p->num_queues, sizeof *p->rings);
        if (p->peers == NULL || p->rings == NULL) {
            status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a proxy of %zu peers", n);
        }
    }
    if (status == TERN_OK) {
        link_ops(p);
        status = lay_rings(p);
    }
    if (status == TERN_OK) {
        int num_peers = n > 1 ? (int)n - 1 : 1;
        p->max_staged = STAGE_BUFFERS / num_peers > STAGE_LEAST ? STAGE_BUFFERS / num_peers : STAGE_LEAST;
        status = terni_stage_open(&p->stage, p->machine, p->max_staged * num_peers, p->num_ranks);
    }
    if (status == TERN_OK && p->takes_any) {
        status = terni_stage_need(&p->stage);
    }
    if (status == TERN_OK) {
        terni_serve_init(&p->serve, &p->stage);
    }
    p->engine->serve = &p->serve;
    if (status != TERN_OK) {
        terni_proxy_close(p);
        return status;
    }
    *proxy = p;
    return TERN_OK;
}

void terni_proxy_close(struct proxy *p)
{
    if (p == NULL) {
        return;
    }
    if (p->has_thread) {
        terni_proxy_stop(p);
    }
    p->engine->ops->close(p->engine);
    terni_serve_close(&p->serve);
    terni_stage_close(&p->stage);
    for (int i = 0; p->rings != NULL && i < terni_num_rings(p); i++) {
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
    return status == TERN_OK ? terni_proxy_start(p) : status;
}
