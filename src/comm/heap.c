/* SPDX-License-Identifier: Apache-2.0
 *
 * The symmetric heap: one allocation a rank, mapped by every rank of its domain.
 *
 *     begin   allocate this rank's part, listen for descriptors, post a card
 *     end     read all cards; take each peer's part: a reference if it is in this process, an import of its
 *             descriptor if it is in another; put all addresses into device memory for kernels
 *
 * Ranks of other domains have the address NULL. The allocation may fail on one rank alone, so its result
 * travels in the card and all ranks fail together, in step. What `end` does is local again: its callers let
 * all ranks judge it (judge.c). */
#include "comm/fd_pass.h"
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct heap_card {
    uint64_t bytes;
    uint32_t number;  /* of the heap in its communicator */
    int32_t status;   /* enum tern_status of the allocation */
    char reason[128]; /* of a status that is not TERN_OK */
};

struct heap_state {
    struct part_name name; /* of this rank's part */
    struct part *
        *references; /* [num_ranks]: parts of this process that are mapped here, this rank's included */
    unsigned char *is_remote; /* [num_ranks]: peers of this domain in other processes */
    int num_remote;
    /* Between begin and end, with peers in other processes; else -1. Mappings need no descriptor, so that a
     * heap that is open holds none. */
    int listen_fd, export_fd;
    struct heap_card *cards; /* [num_ranks] */
};

static int is_same_domain(const struct tern_comm *comm, int r)
{
    return comm->domain_of[r] == comm->domain_of[comm->rank];
}

static int is_same_process(const struct tern_comm *comm, int r)
{
    return comm->cards[r].process == comm->cards[comm->rank].process;
}

static struct heap *heap_new(struct tern_comm *comm, uint64_t bytes)
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
    h->parts = (struct share *)calloc(n, sizeof *h->parts);
    h->bases = (char **)calloc(n, sizeof *h->bases);
    h->state = (struct heap_state *)calloc(1, sizeof *h->state);
    if (h->state != NULL) {
        h->state->listen_fd = -1;
        h->state->export_fd = -1;
        h->state->cards = (struct heap_card *)calloc(n, sizeof *h->state->cards);
        h->state->references = (struct part **)calloc(n, sizeof *h->state->references);
        h->state->is_remote = (unsigned char *)calloc(n, 1);
    }
    if (h->parts == NULL || h->bases == NULL || h->state == NULL || h->state->references == NULL ||
        h->state->is_remote == NULL || h->state->cards == NULL) {
        terni_heap_close(h);
        return NULL;
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        h->parts[r].fd = -1;
        h->state->is_remote[r] = is_same_domain(comm, r) && !is_same_process(comm, r);
        h->state->num_remote += h->state->is_remote[r];
    }
    return h;
}

/* This rank's part, and the socket on which it will receive those of other processes. */
static enum tern_status allocate_own(struct heap *h)
{
    struct heap_state *s = h->state;
    struct machine *m = h->machine;
    struct share share = {.fd = -1};
    enum tern_status status;
    if (s->num_remote > 0) {
        TERN_TRY(terni_fd_listen(&s->name, &s->listen_fd));
    }
    TERN_TRY(m->ops->share_alloc(m, h->bytes, s->num_remote > 0, &share));
    s->export_fd = share.fd;
    share.fd = -1;
    status = terni_part_open(&s->name, &share, &s->references[h->rank]);
    if (status != TERN_OK) {
        m->ops->share_free(m, &share);
        return status;
    }
    h->parts[h->rank] = share;
    h->bases[h->rank] = share.base;
    return TERN_OK;
}

enum tern_status terni_heap_begin(struct tern_comm *comm, uint64_t bytes, struct heap **heap)
{
    struct heap_card card;
    enum tern_status status;
    struct heap *h = heap_new(comm, bytes);
    if (h == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a heap of %d ranks", comm->num_ranks);
    }
    memcpy(h->state->name.cookie, comm->cookie, sizeof h->state->name.cookie);
    h->state->name.heap = comm->num_heaps++;
    h->state->name.rank = comm->rank;
    memset(&card, 0, sizeof card);
    card.bytes = bytes;
    card.number = h->state->name.heap;
    card.status = (int32_t)allocate_own(h);
    if (card.status != TERN_OK) {
        snprintf(card.reason, sizeof card.reason, "%s", tern_last_error());
    }
    status = comm->boot->ops->post(comm->boot, &card, sizeof card);
    if (status != TERN_OK) {
        terni_heap_close(h);
        return status;
    }
    *heap = h;
    return TERN_OK;
}

/* All ranks judge the same cards, so all succeed or fail alike. */
static enum tern_status check_cards(const struct tern_comm *comm, const struct heap_card *cards)
{
    for (int r = 0; r < comm->num_ranks; r++) {
        if (cards[r].number != cards[0].number) {
            return TERN_FAIL(TERN_MISMATCH, "rank %d opens heap number %u where rank 0 opens %u", r,
                             cards[r].number, cards[0].number);
        }
        if (cards[r].bytes != cards[0].bytes) {
            return TERN_FAIL(TERN_MISMATCH,
                             "rank %d opens a heap of %llu bytes where rank 0 opens one of %llu", r,
                             (unsigned long long)cards[r].bytes, (unsigned long long)cards[0].bytes);
        }
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        if (cards[r].status != TERN_OK) {
            return TERN_FAIL((enum tern_status)cards[r].status, "rank %d has no window of %llu bytes: %.*s",
                             r, (unsigned long long)cards[r].bytes, (int)sizeof cards[r].reason,
                             cards[r].reason);
        }
    }
    return TERN_OK;
}

/* Peers of this process: enable access to their devices, then share their parts. */
static enum tern_status take_local(struct tern_comm *comm, struct heap *h)
{
    struct machine *m = h->machine;
    for (int r = 0; r < comm->num_ranks; r++) {
        struct part_name name = h->state->name;
        if (r == comm->rank || !is_same_domain(comm, r) || !is_same_process(comm, r)) {
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
        h->parts[r] = *terni_part_share(h->state->references[r]);
        h->bases[r] = h->parts[r].base;
    }
    return TERN_OK;
}

/* Peers in other processes: exchange descriptors, import theirs. */
static enum tern_status take_remote(struct tern_comm *comm, struct heap *h)
{
    struct heap_state *s = h->state;
    struct machine *m = h->machine;
    enum tern_status status;
    int *fds;
    if (s->num_remote == 0) {
        return TERN_OK;
    }
    fds = (int *)calloc((size_t)h->num_ranks, sizeof *fds);
    if (fds == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d descriptors", h->num_ranks);
    }
    status = terni_fd_exchange(&s->name, h->num_ranks, s->is_remote, s->listen_fd, s->export_fd,
                               comm->timeout_ms, fds);
    for (int r = 0; r < h->num_ranks && status == TERN_OK; r++) {
        struct share share = {.fd = -1};
        if (!s->is_remote[r]) {
            continue;
        }
        status = m->ops->share_import(m, fds[r], h->bytes, &share);
        if (status != TERN_OK) {
            status = TERN_FAIL(status, "rank %d cannot map rank %d's window: %s", comm->rank, r,
                               tern_last_error());
            break;
        }
        fds[r] = -1; /* import has closed it */
        h->parts[r] = share;
        h->bases[r] = share.base;
    }
    for (int r = 0; r < h->num_ranks; r++) {
        if (s->is_remote[r] && fds[r] >= 0) {
            close(fds[r]);
        }
    }
    free(fds);
    return status;
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

static void close_fds(struct heap_state *s)
{
    if (s->listen_fd >= 0) {
        close(s->listen_fd);
    }
    if (s->export_fd >= 0) {
        close(s->export_fd);
    }
    s->listen_fd = s->export_fd = -1;
}

enum tern_status terni_heap_end(struct tern_comm *comm, struct heap *heap)
{
    struct heap_card *cards = heap->state->cards;
    TERN_TRY(comm->boot->ops->wait(comm->boot, cards, sizeof *cards, comm->timeout_ms));
    TERN_TRY(check_cards(comm, cards));
    TERN_TRY(take_local(comm, heap));
    TERN_TRY(take_remote(comm, heap));
    /* What was sent to peers that have not read it yet lives on in their sockets. */
    close_fds(heap->state);
    return publish_bases(heap);
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
        close_fds(heap->state);
    }
    for (int r = 0; r < heap->num_ranks && heap->state != NULL && heap->state->references != NULL; r++) {
        if (heap->state->references[r] != NULL) {
            terni_part_release(heap->state->references[r], heap->machine);
        } else if (heap->parts != NULL && heap->parts[r].base != NULL) {
            heap->machine->ops->share_free(heap->machine, &heap->parts[r]);
        }
    }
    if (heap->state != NULL) {
        free(heap->state->references);
        free(heap->state->is_remote);
        free(heap->state->cards);
    }
    free(heap->state);
    free(heap->bases);
    free(heap->parts);
    free(heap);
}

int64_t terni_heap_offset(const struct heap *heap, const void *p, uint64_t bytes)
{
    uintptr_t base = (uintptr_t)heap->bases[heap->rank];
    uintptr_t at = (uintptr_t)p;
    if (at < base || at - base > heap->bytes || bytes > heap->bytes - (at - base)) {
        return -1;
    }
    return (int64_t)(at - base);
}
