/* SPDX-License-Identifier: Apache-2.0
 *
 * tern_alloc and tern_free: windows are carved out of the communicator's heap, device and host memory come
 * from the machine one by one. */
#include "comm/comm.h"

#include <stdlib.h>

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
    status = terni_carver_open(terni_heap_bytes(comm->heap), &list->windows);
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
    bytes = bytes == 0 ? 1 : bytes;
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

enum tern_status terni_blocks_grow_begin(struct tern_comm *comm)
{
    return terni_carver_grow_begin(comm->blocks->windows);
}

void terni_blocks_grow_end(struct tern_comm *comm)
{
    terni_carver_grow_end(comm->blocks->windows, terni_heap_bytes(comm->heap));
}

/* A refusal by the carver, and what would help. */
static enum tern_status no_window(const struct tern_comm *comm, enum tern_status status)
{
    const struct heap *h = comm->heap;
    uint64_t room = h->max_bytes - terni_heap_bytes(h);
    if (status != TERN_OUT_OF_MEMORY) {
        return status;
    }
    if (room > 0) {
        return TERN_FAIL(status, "%s (tern_heap_grow can add %llu)", tern_last_error(),
                         (unsigned long long)room);
    }
    return TERN_FAIL(status,
                     "%s (heap_bytes sets the whole, heap_max_bytes what tern_heap_grow can make of it)",
                     tern_last_error());
}

enum tern_status terni_alloc(struct tern_comm *comm, enum tern_memory kind, size_t bytes, void **memory)
{
    uint64_t offset;
    enum tern_status status;
    if (kind != TERN_MEMORY_WINDOW) {
        return single_alloc(comm, kind, bytes, memory);
    }
    status = terni_carver_take(comm->blocks->windows, bytes, &offset);
    if (status != TERN_OK) {
        return no_window(comm, status);
    }
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
