/* SPDX-License-Identifier: Apache-2.0
 *
 * The symmetric heap: one range of addresses a rank, reserved once for the largest size, mapped by every rank
 * of its domain.
 *
 *     begin   reserve this rank's range, put memory at its beginning, post a card (trade.c)
 *     end     read all cards; take each peer's part: a reference if it is in this process, a range of the
 *             same size and an import of its memory if it is in another; put all addresses into device memory
 *             for kernels
 *
 * Ranks of other domains have the address NULL. The addresses never change; more memory comes by grow.c. What
 * `end` does is local again: its callers let all ranks judge it (judge.c). */
#include "comm/heap.h"

#include <stdlib.h>
#include <string.h>

static struct heap *heap_new(struct tern_comm *comm, uint64_t bytes, uint64_t max_bytes)
{
    size_t n = (size_t)comm->num_ranks;
    struct heap *h = (struct heap *)calloc(1, sizeof *h);
    if (h == NULL) {
        return NULL;
    }
    h->machine = comm->machine;
    h->rank = comm->rank;
    h->num_ranks = comm->num_ranks;
    h->bytes = bytes;
    h->max_bytes = max_bytes;
    h->bases = (char **)calloc(n, sizeof *h->bases);
    h->owners = (uint64_t *)calloc(n, sizeof *h->owners);
    h->state = (struct heap_state *)calloc(1, sizeof *h->state);
    if (h->state != NULL) {
        h->state->references = (struct part **)calloc(n, sizeof *h->state->references);
        h->state->imports = (struct share *)calloc(n, sizeof *h->state->imports);
    }
    if (h->bases == NULL || h->owners == NULL || h->state == NULL || h->state->references == NULL ||
        h->state->imports == NULL) {
        terni_heap_close(h);
        return NULL;
    }
    return h;
}

struct share *terni_heap_own(struct heap *heap)
{
    return terni_part_share(heap->state->references[heap->rank]);
}

static int kind_of(const struct heap *h)
{
    if (h->state->trade.num_remote > 0) {
        return SHARE_EXPORTED;
    }
    return h->max_bytes > h->bytes ? SHARE_GROWING : SHARE_LOCAL;
}

/* Memory comes in whole granules unless it is one piece inside a process. */
static uint64_t mapped_bytes(const struct tern_comm *comm, int kind, uint64_t bytes)
{
    return kind == SHARE_LOCAL ? bytes : terni_comm_granules(comm, bytes);
}

static enum tern_status allocate_own(const struct tern_comm *comm, struct heap *h)
{
    struct heap_state *s = h->state;
    struct machine *m = h->machine;
    struct share share;
    int kind = kind_of(h);
    enum tern_status status;
    TERN_TRY(m->ops->share_reserve(m, kind, mapped_bytes(comm, kind, h->max_bytes), &share));
    status = m->ops->share_add(m, &share, mapped_bytes(comm, kind, h->bytes), &s->trade.export_fd);
    if (status == TERN_OK) {
        status = terni_part_open(&s->trade.name, &share, &s->references[h->rank]);
    }
    if (status != TERN_OK) {
        m->ops->share_free(m, &share);
        return status;
    }
    h->bases[h->rank] = share.base;
    s->trade.card.address = (uint64_t)(uintptr_t)share.base;
    return TERN_OK;
}

enum tern_status terni_heap_begin_upto(struct tern_comm *comm, uint64_t bytes, uint64_t max_bytes,
                                       struct heap **heap)
{
    enum tern_status status;
    struct heap *h = heap_new(comm, bytes, max_bytes);
    if (h == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a heap of %d ranks", comm->num_ranks);
    }
    status = terni_trade_open(comm, TRADE_HEAP, bytes, &h->state->trade);
    if (status == TERN_OK) {
        status = terni_trade_post(comm, &h->state->trade, allocate_own(comm, h));
    }
    if (status != TERN_OK) {
        terni_heap_close(h);
        return status;
    }
    *heap = h;
    return TERN_OK;
}

enum tern_status terni_heap_begin(struct tern_comm *comm, uint64_t bytes, struct heap **heap)
{
    return terni_heap_begin_upto(comm, bytes, bytes, heap);
}

/* Peers of this process: enable access to their devices, then share their parts. */
static enum tern_status take_local(struct tern_comm *comm, struct heap *h)
{
    struct machine *m = h->machine;
    for (int r = 0; r < comm->num_ranks; r++) {
        struct part_name name = h->state->trade.name;
        if (!terni_is_local_peer(comm, r)) {
            continue;
        }
        if (comm->cards[r].device != comm->cards[comm->rank].device &&
            m->ops->peer_enable(m, comm->cards[r].device) != TERN_OK) {
            return TERN_FAIL(TERN_UNSUPPORTED, "rank %d cannot address rank %d's device: %s", comm->rank, r,
                             tern_last_error());
        }
        name.rank = r;
        h->state->references[r] = terni_part_find(&name);
        if (h->state->references[r] == NULL) {
            return TERN_FAIL(TERN_DISCONNECTED, "rank %d has closed its window already", r);
        }
        h->bases[r] = terni_part_base(h->state->references[r]);
    }
    return TERN_OK;
}

/* Peers in other processes. */
static enum tern_status take_remote(struct tern_comm *comm, struct heap *h)
{
    struct machine *m = h->machine;
    struct trade *t = &h->state->trade;
    for (int r = 0; r < h->num_ranks; r++) {
        struct share *share = &h->state->imports[r];
        enum tern_status status;
        if (!t->is_remote[r]) {
            continue;
        }
        status = m->ops->share_reserve(m, SHARE_EXPORTED, terni_comm_granules(comm, h->max_bytes), share);
        if (status == TERN_OK) {
            status = m->ops->share_import(m, share, t->fds[r], 0, terni_comm_granules(comm, h->bytes));
        }
        if (status != TERN_OK) {
            return TERN_FAIL(status, "rank %d cannot map rank %d's window: %s", comm->rank, r,
                             tern_last_error());
        }
        t->fds[r] = -1; /* import has closed it */
        h->bases[r] = share->base;
    }
    return TERN_OK;
}

/* On the machine's own stream: the default stream of a device waits for the program's other streams there,
 * where a kernel may be waiting for a rank that comes only after this call. */
static enum tern_status publish_bases(struct heap *h)
{
    struct machine *m = h->machine;
    size_t bytes = (size_t)h->num_ranks * sizeof *h->bases;
    struct tern_stream *stream = m->ops->own_stream(m);
    void *device;
    enum tern_status status;
    TERN_TRY(m->ops->alloc(m, bytes, &device));
    status = m->ops->copy(m, device, h->bases, bytes, stream);
    if (status == TERN_OK) {
        status = m->ops->stream_synchronize(m, stream);
    }
    if (status != TERN_OK) {
        m->ops->free(m, device);
        return status;
    }
    h->device_bases = (char **)device;
    return TERN_OK;
}

enum tern_status terni_heap_end(struct tern_comm *comm, struct heap *heap)
{
    struct trade *t = &heap->state->trade;
    enum tern_status status = terni_trade_wait(comm, t);
    for (int r = 0; r < comm->num_ranks && status == TERN_OK; r++) {
        heap->owners[r] = t->cards[r].address;
    }
    if (status == TERN_OK) {
        status = take_local(comm, heap);
    }
    if (status == TERN_OK) {
        status = take_remote(comm, heap);
    }
    terni_trade_close(t);
    TERN_TRY(status);
    return publish_bases(heap);
}

static void state_close(struct heap *heap)
{
    struct heap_state *s = heap->state;
    struct machine *m = heap->machine;
    for (int r = 0; r < heap->num_ranks; r++) {
        if (s->references != NULL) {
            terni_part_release(s->references[r], m);
        }
        if (s->imports != NULL) {
            m->ops->share_free(m, &s->imports[r]);
        }
    }
    terni_trade_close(&s->trade);
    free(s->references);
    free(s->imports);
    free(s);
}

void terni_heap_close(struct heap *heap)
{
    if (heap == NULL) {
        return;
    }
    if (heap->device_bases != NULL) {
        heap->machine->ops->free(heap->machine, heap->device_bases);
    }
    if (heap->state != NULL) {
        state_close(heap);
    }
    free(heap->owners);
    free(heap->bases);
    free(heap);
}

/* Another thread may grow the heap meanwhile. Relaxed: whoever has a pointer into new memory has it from a
 * call that came after the growth, in whatever order the program gave to its threads. */
uint64_t terni_heap_bytes(const struct heap *heap) { return __atomic_load_n(&heap->bytes, __ATOMIC_RELAXED); }

int64_t terni_heap_offset(const struct heap *heap, const void *p, uint64_t bytes)
{
    uintptr_t base = (uintptr_t)heap->bases[heap->rank];
    uintptr_t at = (uintptr_t)p;
    uint64_t heap_bytes = terni_heap_bytes(heap);
    if (at < base || at - base > heap_bytes || bytes > heap_bytes - (at - base)) {
        return -1;
    }
    return (int64_t)(at - base);
}
