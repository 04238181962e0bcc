/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows of memory that the user allocated, and the address at which a peer's window is reached from here.
 *
 * Adopting is a collective in steps, as growing is (grow.c): 0 lend this rank's memory and post how that
 * went; 1 find or map the peers' memory, post how that went; 2 all have; 3 to 5 carriers register it
 * (carrier.h), for ranks that reach it by them. Peers of this process are reached at
 * the address that their card says, peers of another through a mapping of their memory. The memory stays the
 * user's: nothing here keeps it alive for a peer of this process.
 *
 * One thread at a time adopts and releases, and reads the list as it is its own; it changes it under the lock
 * that all other readers take. */
#include "comm/carrier.h"
#include "comm/trade.h"

#include <stdlib.h>

struct window {
    struct window *next; /* in comm->windows, once all ranks have agreed */
    char *memory;
    uint64_t bytes;
    char **bases;          /* [num_ranks] where this rank reaches each one's memory, or NULL */
    uint64_t *owners;      /* [num_ranks] where it begins for its owner */
    struct share *imports; /* [num_ranks] memory of other processes */
    uint32_t number;       /* comm->num_adopted when it was the latest */
    struct trade trade;    /* while it is being adopted, likewise the next */
    struct carrier_parcels parcels;
};

static void window_close(struct tern_comm *comm, struct window *w)
{
    struct machine *m = comm->machine;
    for (int r = 0; w->imports != NULL && r < comm->num_ranks; r++) {
        m->ops->share_free(m, &w->imports[r]);
    }
    terni_trade_close(&w->trade);
    free(w->imports);
    free(w->owners);
    free(w->bases);
    free(w);
}

static int overlaps(uintptr_t a, uint64_t a_bytes, uintptr_t b, uint64_t b_bytes)
{
    return a < b ? b - a < a_bytes : a - b < b_bytes;
}

static enum tern_status check_memory(const struct tern_comm *comm, const char *memory, uint64_t bytes)
{
    const struct heap *h = comm->heap;
    uintptr_t at = (uintptr_t)memory;
    if (memory == NULL || bytes == 0 || bytes > UINTPTR_MAX - at) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%llu bytes at %p are no memory", (unsigned long long)bytes,
                         (const void *)memory);
    }
    if (overlaps(at, bytes, (uintptr_t)h->bases[h->rank], h->max_bytes)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%llu bytes at %p lie in the window of tern_alloc",
                         (unsigned long long)bytes, (const void *)memory);
    }
    for (const struct window *w = comm->windows; w != NULL; w = w->next) {
        if (overlaps(at, bytes, (uintptr_t)w->memory, w->bytes)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "%llu bytes at %p overlap the adopted window of %llu at %p",
                             (unsigned long long)bytes, (const void *)memory, (unsigned long long)w->bytes,
                             (const void *)w->memory);
        }
    }
    return TERN_OK;
}

/* This rank's own part; the card says where its memory is. */
static enum tern_status lend(struct tern_comm *comm, struct window *w)
{
    struct machine *m = comm->machine;
    struct trade_card *card = &w->trade.card;
    struct share_loan loan;
    TERN_TRY(check_memory(comm, w->memory, w->bytes));
    TERN_TRY(m->ops->share_lend(m, w->memory, w->bytes, w->trade.num_remote > 0, &loan));
    w->trade.export_fd = loan.fd;
    card->address = (uint64_t)(uintptr_t)w->memory;
    card->offset = loan.offset;
    card->span_bytes = loan.span_bytes;
    card->inner = loan.inner;
    return TERN_OK;
}

static enum tern_status begin(struct tern_comm *comm, void *memory, uint64_t bytes, struct window **window)
{
    size_t n = (size_t)comm->num_ranks;
    enum tern_status status;
    struct window *w = (struct window *)calloc(1, sizeof *w);
    if (w == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a window of %d ranks", comm->num_ranks);
    }
    w->memory = (char *)memory;
    w->bytes = bytes;
    w->bases = (char **)calloc(n, sizeof *w->bases);
    w->owners = (uint64_t *)calloc(n, sizeof *w->owners);
    w->imports = (struct share *)calloc(n, sizeof *w->imports);
    status = w->bases != NULL && w->owners != NULL && w->imports != NULL
                 ? terni_trade_open(comm, TRADE_LOAN, bytes, &w->trade)
                 : TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a window of %d ranks", comm->num_ranks);
    if (status != TERN_OK) {
        window_close(comm, w);
        return status;
    }
    *window = w;
    return terni_trade_post(comm, &w->trade, lend(comm, w));
}

static enum tern_status import(struct tern_comm *comm, struct window *w, int r)
{
    struct machine *m = comm->machine;
    const struct trade_card *card = &w->trade.cards[r];
    enum tern_status status = m->ops->share_reserve(m, SHARE_EXPORTED, card->span_bytes, &w->imports[r]);
    if (status == TERN_OK) {
        status = m->ops->share_import(m, &w->imports[r], w->trade.fds[r], card->offset, card->span_bytes);
    }
    if (status != TERN_OK) {
        return TERN_FAIL(status, "rank %d cannot map the memory that rank %d gave: %s", comm->rank, r,
                         tern_last_error());
    }
    w->trade.fds[r] = -1; /* import has closed it */
    w->bases[r] = w->imports[r].base + card->inner;
    return TERN_OK;
}

static enum tern_status take(struct tern_comm *comm, struct window *w)
{
    TERN_TRY(terni_trade_wait(comm, &w->trade));
    w->bases[comm->rank] = w->memory;
    for (int r = 0; r < comm->num_ranks; r++) {
        w->owners[r] = w->trade.cards[r].address;
        if (terni_is_local_peer(comm, r)) {
            w->bases[r] = (char *)(uintptr_t)w->trade.cards[r].address;
        } else if (terni_is_remote_peer(comm, r)) {
            TERN_TRY(import(comm, w, r));
        }
    }
    return TERN_OK;
}

static enum tern_status give_to_carriers(struct tern_comm *comm, struct window *w, int step)
{
    if (step == 0) {
        struct carrier_piece piece = {w->memory, w->bytes, w->bases, w->owners};
        TERN_TRY(terni_carriers_parcels(comm, &piece, &w->parcels));
    }
    return terni_carrier_step(comm, &w->parcels, step);
}

enum tern_status terni_window_adopt_step(struct tern_comm *comm, void *memory, uint64_t bytes, int step,
                                         struct window **window)
{
    switch (step) {
    case 0:
        return begin(comm, memory, bytes, window);
    case 1:
        return terni_comm_judge_post(comm, take(comm, *window));
    case 2:
        return terni_comm_judge_wait(comm);
    default:
        return give_to_carriers(comm, *window, step - 3);
    }
}

/* Readers have a communicator that they do not change. */
static pthread_mutex_t *lock_of(const struct tern_comm *comm)
{
    return &((struct tern_comm *)(uintptr_t)comm)->windows_lock;
}

void terni_windows_lock(const struct tern_comm *comm) { pthread_mutex_lock(lock_of(comm)); }
void terni_windows_unlock(const struct tern_comm *comm) { pthread_mutex_unlock(lock_of(comm)); }

/* Relaxed: who learns of a change by it alone takes the lock before it looks at the list, and whoever has a
 * pointer into a new window has it from a call that came after the change, as of terni_heap_bytes. */
uint64_t terni_windows_changes(const struct tern_comm *comm)
{
    return __atomic_load_n(&comm->num_window_changes, __ATOMIC_RELAXED);
}

static void count_change(struct tern_comm *comm)
{
    __atomic_store_n(&comm->num_window_changes, comm->num_window_changes + 1, __ATOMIC_RELAXED);
}

void terni_window_adopt_finish(struct tern_comm *comm, struct window *w, enum tern_status status)
{
    if (w == NULL) {
        return;
    }
    terni_carrier_finish(&w->parcels, status);
    if (status != TERN_OK) {
        window_close(comm, w);
        return;
    }
    terni_trade_close(&w->trade);
    terni_windows_lock(comm);
    w->number = ++comm->num_adopted;
    w->next = comm->windows;
    comm->windows = w;
    count_change(comm);
    terni_windows_unlock(comm);
}

int terni_windows_list(const struct tern_comm *comm, struct window_place *places, int max)
{
    int n = 0;
    for (const struct window *w = comm->windows; w != NULL; w = w->next, n++) {
        if (n < max) {
            places[n].memory = w->memory;
            places[n].bytes = w->bytes;
            places[n].bases = w->bases;
            places[n].owners = w->owners;
            places[n].number = w->number;
        }
    }
    return n;
}

/* NULL: there is none. */
static struct window *take_out(struct tern_comm *comm, const void *memory)
{
    struct window **at = &comm->windows, *w;
    terni_windows_lock(comm);
    while (*at != NULL && (*at)->memory != (const char *)memory) {
        at = &(*at)->next;
    }
    w = *at;
    if (w != NULL) {
        *at = w->next;
        count_change(comm);
    }
    terni_windows_unlock(comm);
    return w;
}

void terni_window_release(struct tern_comm *comm, const void *memory)
{
    struct window *w = take_out(comm, memory);
    if (w == NULL) {
        TERN_LOG(TERN_LOG_ERROR, "tern_window_release of %p, which rank %d has not adopted or has released",
                 memory, comm->rank);
        return;
    }
    struct carrier_piece piece = {w->memory, w->bytes, w->bases, w->owners};
    terni_carriers_release(comm, &piece);
    window_close(comm, w);
}

void terni_windows_close(struct tern_comm *comm)
{
    while (comm->windows != NULL) {
        struct window *w = comm->windows;
        comm->windows = w->next;
        window_close(comm, w);
    }
}

/* That has it; by who has the lock. NULL: none does. */
static const struct window *find(const struct tern_comm *comm, const void *memory, uint64_t *inner)
{
    const struct window *w = comm->windows;
    for (; w != NULL; w = w->next) {
        *inner = (uint64_t)((uintptr_t)memory - (uintptr_t)w->memory); /* wraps below it */
        if (*inner < w->bytes) {
            break;
        }
    }
    return w;
}

uint64_t terni_window_left(const struct tern_comm *comm, const void *memory)
{
    int64_t offset = terni_heap_offset(comm->heap, memory, 1);
    const struct window *w;
    uint64_t inner = 0, left;
    if (offset >= 0) {
        return terni_heap_bytes(comm->heap) - (uint64_t)offset;
    }
    terni_windows_lock(comm);
    w = find(comm, memory, &inner);
    left = w != NULL ? w->bytes - inner : 0;
    terni_windows_unlock(comm);
    return left;
}

enum tern_status terni_peer_pointer(const struct tern_comm *comm, const void *memory, int peer,
                                    void **pointer)
{
    const struct heap *h = comm->heap;
    int64_t offset = terni_heap_offset(h, memory, 1);
    char *base = NULL;
    if (peer < 0 || peer >= comm->num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "peer %d is none of %d ranks", peer, comm->num_ranks);
    }
    if (offset >= 0) {
        base = h->bases[peer];
    } else {
        const struct window *w;
        uint64_t inner = 0;
        terni_windows_lock(comm);
        w = find(comm, memory, &inner);
        if (w != NULL) {
            offset = (int64_t)inner;
            base = w->bases[peer];
        }
        terni_windows_unlock(comm);
    }
    if (offset < 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%p is in no window of rank %d: take tern_alloc(TERN_MEMORY_WINDOW) or "
                         "tern_window_adopt",
                         memory, comm->rank);
    }
    *pointer = base != NULL ? base + offset : NULL;
    return TERN_OK;
}
