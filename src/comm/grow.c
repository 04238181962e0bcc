/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing the communicator's heap, a collective in steps, so that one thread can take several ranks through
 * it:
 *
 *     0   put more memory behind this rank's part; post how that went (trade.c)
 *     1   map the peers' new memory behind their parts; post how that went
 *     2   all have mapped everything
 *     3   carriers register it; to 5 (carrier.h)
 *     finish   hand the new memory to tern_alloc, or give it back
 *
 * Until all ranks have agreed at the end nobody uses the new memory, so giving it back leaves every rank as
 * it was. Peers of the same process have nothing to map: the owner's range is theirs. Everything that can
 * fail is done before step 5 ends. */
#include "comm/heap.h"

#include <stdlib.h>

/* Whole granules of growth that fit below the largest size. */
static enum tern_status check_room(const struct tern_comm *comm, uint64_t bytes, uint64_t *granules)
{
    const struct heap *h = comm->heap;
    uint64_t room = h->max_bytes - h->bytes;
    if (bytes == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a growth of 0 bytes");
    }
    if (bytes > room) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY,
                         "the window has %llu bytes and may grow to %llu: raise heap_max_bytes",
                         (unsigned long long)h->bytes, (unsigned long long)h->max_bytes);
    }
    *granules = terni_comm_granules(comm, bytes); /* the room is a multiple of granules, too */
    return TERN_OK;
}

/* This rank's own part. */
static enum tern_status add_own(struct tern_comm *comm, struct growth *g)
{
    struct machine *m = comm->machine;
    TERN_TRY(check_room(comm, g->trade.card.bytes, &g->bytes));
    TERN_TRY(terni_blocks_grow_begin(comm));
    return m->ops->share_add(m, terni_heap_own(comm->heap), g->bytes, &g->trade.export_fd);
}

static enum tern_status begin(struct tern_comm *comm, uint64_t bytes)
{
    struct heap *h = comm->heap;
    enum tern_status status;
    struct growth *g = (struct growth *)calloc(1, sizeof *g);
    if (g == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to grow a window");
    }
    g->before = terni_heap_own(h)->bytes;
    status = terni_trade_open(comm, TRADE_GROWTH, bytes, &g->trade);
    if (status != TERN_OK) {
        free(g);
        return status;
    }
    h->state->growth = g;
    return terni_trade_post(comm, &g->trade, add_own(comm, g));
}

static enum tern_status take_remote(struct tern_comm *comm)
{
    struct heap *h = comm->heap;
    struct growth *g = h->state->growth;
    struct machine *m = comm->machine;
    TERN_TRY(terni_trade_wait(comm, &g->trade));
    for (int r = 0; r < h->num_ranks; r++) {
        if (!g->trade.is_remote[r]) {
            continue;
        }
        enum tern_status status =
            m->ops->share_import(m, &h->state->imports[r], g->trade.fds[r], 0, g->bytes);
        if (status != TERN_OK) {
            return TERN_FAIL(status, "rank %d cannot map what rank %d's window grew by: %s", comm->rank, r,
                             tern_last_error());
        }
        g->trade.fds[r] = -1; /* import has closed it */
    }
    return TERN_OK;
}

static enum tern_status give_to_carriers(struct tern_comm *comm, int step)
{
    struct heap *h = comm->heap;
    struct growth *g = h->state->growth;
    if (step == 0) {
        struct carrier_piece piece = {h->bases[h->rank] + h->bytes, g->bytes, h->bases, h->owners};
        TERN_TRY(terni_carriers_parcels(comm, &piece, &g->parcels));
    }
    return terni_carrier_step(comm, &g->parcels, step);
}

enum tern_status terni_heap_grow_step(struct tern_comm *comm, uint64_t bytes, int step)
{
    switch (step) {
    case 0:
        return begin(comm, bytes);
    case 1:
        return terni_comm_judge_post(comm, take_remote(comm));
    case 2:
        return terni_comm_judge_wait(comm);
    default:
        return give_to_carriers(comm, step - 3);
    }
}

void terni_heap_grow_finish(struct tern_comm *comm, enum tern_status status)
{
    struct heap *h = comm->heap;
    struct growth *g = h->state->growth;
    struct machine *m = comm->machine;
    if (g == NULL) {
        return;
    }
    terni_carrier_finish(&g->parcels, status);
    if (status == TERN_OK) {
        /* Relaxed: see terni_heap_bytes. */
        __atomic_store_n(&h->bytes, h->bytes + g->bytes, __ATOMIC_RELAXED);
        terni_blocks_grow_end(comm);
    } else {
        for (int r = 0; r < h->num_ranks; r++) {
            m->ops->share_trim(m, &h->state->imports[r], g->before);
        }
        m->ops->share_trim(m, terni_heap_own(h), g->before);
    }
    terni_trade_close(&g->trade);
    free(g);
    h->state->growth = NULL;
}
