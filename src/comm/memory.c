/* SPDX-License-Identifier: Apache-2.0
 *
 * tern_alloc and tern_free: windows are carved out of the communicator's heap, device and host memory come
 * from the machine one by one.
 *
 * The carver keeps all blocks of its range, taken and free, in one list ordered by offset; two free blocks
 * are never neighbours. Taking is first fit, giving joins with both neighbours. Programs hold tens of
 * windows, not thousands, so a list is walked. All block sizes are multiples of 256 bytes, hence so are all
 * offsets. */
#include "comm/comm.h"

#include <assert.h>
#include <stdlib.h>

enum { granule = 256 };

struct block {
    struct block *next, *prev;
    uint64_t offset, bytes;
    int is_free;
};

struct carver {
    struct block first; /* never removed: the block at offset 0 */
};

enum tern_status terni_carver_open(uint64_t bytes, struct carver **carver)
{
    struct carver *c = (struct carver *)calloc(1, sizeof *c);
    if (c == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *c);
    }
    c->first.bytes = bytes - bytes % granule;
    c->first.is_free = 1;
    *carver = c;
    return TERN_OK;
}

void terni_carver_close(struct carver *c)
{
    if (c == NULL) {
        return;
    }
    for (struct block *b = c->first.next, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    free(c);
}

void terni_carver_get_free(const struct carver *c, uint64_t *free_bytes, uint64_t *largest_bytes)
{
    uint64_t total = 0, largest = 0;
    for (const struct block *b = &c->first; b != NULL; b = b->next) {
        if (b->is_free) {
            total += b->bytes;
            largest = b->bytes > largest ? b->bytes : largest;
        }
    }
    *free_bytes = total;
    *largest_bytes = largest;
}

/* Cuts b after `bytes`; the rest becomes a free block. */
static enum tern_status split(struct block *b, uint64_t bytes)
{
    struct block *rest = (struct block *)malloc(sizeof *rest);
    if (rest == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *rest);
    }
    rest->offset = b->offset + bytes;
    rest->bytes = b->bytes - bytes;
    rest->is_free = 1;
    rest->prev = b;
    rest->next = b->next;
    if (rest->next != NULL) {
        rest->next->prev = rest;
    }
    b->next = rest;
    b->bytes = bytes;
    return TERN_OK;
}

enum tern_status terni_carver_take(struct carver *c, uint64_t bytes, uint64_t *offset)
{
    uint64_t rounded = bytes == 0 ? granule : bytes + (granule - 1) - (bytes + (granule - 1)) % granule;
    uint64_t free_bytes, largest_bytes;
    for (struct block *b = &c->first; b != NULL && rounded >= bytes; b = b->next) {
        if (!b->is_free || b->bytes < rounded) {
            continue;
        }
        if (b->bytes > rounded) {
            TERN_TRY(split(b, rounded));
        }
        b->is_free = 0;
        *offset = b->offset;
        return TERN_OK;
    }
    terni_carver_get_free(c, &free_bytes, &largest_bytes);
    return TERN_FAIL(
        TERN_OUT_OF_MEMORY,
        "no window of %llu bytes: %llu are free, the largest block has %llu (heap_bytes sets the whole)",
        (unsigned long long)bytes, (unsigned long long)free_bytes, (unsigned long long)largest_bytes);
}

/* Joins free b with the block after it, which is freed and never the first. */
static void join_next(struct block *b)
{
    struct block *next = b->next;
    assert(b->offset + b->bytes == next->offset);
    b->bytes += next->bytes;
    b->next = next->next;
    if (b->next != NULL) {
        b->next->prev = b;
    }
    free(next);
}

int terni_carver_give(struct carver *c, uint64_t offset)
{
    struct block *b = &c->first;
    while (b != NULL && b->offset != offset) {
        b = b->next;
    }
    if (b == NULL || b->is_free) {
        return 0;
    }
    b->is_free = 1;
    if (b->next != NULL && b->next->is_free) {
        join_next(b);
    }
    if (b->prev != NULL && b->prev->is_free) {
        join_next(b->prev);
    }
    return 1;
}

/* ---- tern_alloc ---- */

/* Device or host memory, one allocation of the machine. */
struct single {
    struct single *next;
    void *memory;
    enum tern_memory kind;
};

struct block_list {
    struct carver *windows;
    struct single *singles;
};

enum tern_status terni_blocks_open(struct tern_comm *comm)
{
    struct block_list *list = (struct block_list *)calloc(1, sizeof *list);
    enum tern_status status;
    if (list == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *list);
    }
    status = terni_carver_open(comm->heap->bytes, &list->windows);
    if (status != TERN_OK) {
        free(list);
        return status;
    }
    comm->blocks = list;
    return TERN_OK;
}

static void single_free(struct tern_comm *comm, struct single *s)
{
    if (s->kind == TERN_MEMORY_HOST) {
        comm->machine->ops->host_free(comm->machine, s->memory);
    } else {
        comm->machine->ops->free(comm->machine, s->memory);
    }
    free(s);
}

void terni_blocks_close(struct tern_comm *comm)
{
    struct block_list *list = comm->blocks;
    if (list == NULL) {
        return;
    }
    while (list->singles != NULL) {
        struct single *s = list->singles;
        list->singles = s->next;
        single_free(comm, s);
    }
    terni_carver_close(list->windows);
    free(list);
    comm->blocks = NULL;
}

static enum tern_status single_alloc(struct tern_comm *comm, enum tern_memory kind, size_t bytes,
                                     void **memory)
{
    struct machine *m = comm->machine;
    enum tern_status status;
    void *device;
    struct single *s = (struct single *)calloc(1, sizeof *s);
    if (s == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *s);
    }
    bytes = bytes == 0 ? granule : bytes;
    status = kind == TERN_MEMORY_HOST ? m->ops->host_alloc(m, bytes, &s->memory, &device)
                                      : m->ops->alloc(m, bytes, &s->memory);
    if (status != TERN_OK) {
        free(s);
        return status;
    }
    s->kind = kind;
    s->next = comm->blocks->singles;
    comm->blocks->singles = s;
    *memory = s->memory;
    return TERN_OK;
}

enum tern_status terni_alloc(struct tern_comm *comm, enum tern_memory kind, size_t bytes, void **memory)
{
    uint64_t offset;
    if (kind != TERN_MEMORY_WINDOW) {
        return single_alloc(comm, kind, bytes, memory);
    }
    TERN_TRY(terni_carver_take(comm->blocks->windows, bytes, &offset));
    *memory = comm->heap->bases[comm->rank] + offset;
    return TERN_OK;
}

void terni_free(struct tern_comm *comm, void *memory)
{
    int64_t offset = terni_heap_offset(comm->heap, memory, 0);
    int is_ours = 0;
    if (offset >= 0) {
        is_ours = terni_carver_give(comm->blocks->windows, (uint64_t)offset);
    }
    for (struct single **at = &comm->blocks->singles; *at != NULL && !is_ours; at = &(*at)->next) {
        if ((*at)->memory == memory) {
            struct single *s = *at;
            *at = s->next;
            single_free(comm, s);
            is_ours = 1;
            break;
        }
    }
    if (!is_ours) {
        TERN_LOG(TERN_LOG_ERROR,
                 "tern_free of %p, which tern_alloc of rank %d did not return or which is free", memory,
                 comm->rank);
    }
}
