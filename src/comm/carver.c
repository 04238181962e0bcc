/* SPDX-License-Identifier: Apache-2.0
 *
 * A carver keeps all blocks of its range, taken and free, in one list ordered by offset; two free blocks are
 * never neighbours. Taking is first fit, giving joins with both neighbours. Programs hold tens of windows,
 * not thousands, so a list is walked. All block sizes are multiples of 256 bytes, hence so are all offsets. A
 * range that grows gets a free block at its end, whose memory was set aside before the growth was agreed on:
 * what all ranks have agreed to must not fail on one. */
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
    struct block first;  /* never removed: the block at offset 0 */
    struct block *spare; /* for a growth to come, or NULL */
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
    free(c->spare);
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
    return TERN_FAIL(TERN_OUT_OF_MEMORY, "no window of %llu bytes: %llu are free, the largest block has %llu",
                     (unsigned long long)bytes, (unsigned long long)free_bytes,
                     (unsigned long long)largest_bytes);
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

enum tern_status terni_carver_grow_begin(struct carver *c)
{
    if (c->spare == NULL) {
        c->spare = (struct block *)calloc(1, sizeof *c->spare);
    }
    return c->spare != NULL ? TERN_OK
                            : TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *c->spare);
}

void terni_carver_grow_end(struct carver *c, uint64_t bytes)
{
    struct block *last = &c->first, *more = c->spare;
    while (last->next != NULL) {
        last = last->next;
    }
    more->offset = last->offset + last->bytes;
    more->bytes = bytes - bytes % granule - more->offset;
    more->is_free = 1;
    more->prev = last;
    last->next = more;
    c->spare = NULL;
    if (last->is_free) {
        join_next(last);
    }
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
