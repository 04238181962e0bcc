/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations come and go; see key_table.h for what a key is. Free places are a queue, so that a key that
 * was just removed is the last to be seen again. */
#include "net/key_table.h"

#include "core/core.h"

#include <stdlib.h>

/* Places from `first` on, in a queue by themselves. */
static void clear_places(struct key_entry *entries, uint32_t first, uint32_t capacity)
{
    for (uint32_t i = first; i < capacity; i++) {
        struct key_entry *e = &entries[i];
        e->addr = e->bytes = 0;
        e->host = NULL;
        e->key = (i + KEY_FIRST_PLACE) << 8;
        e->pd = e->access = 0;
        e->next = i + 1;
    }
}

enum tern_status terni_key_table_init(struct key_table *table, struct key_entry *entries, uint32_t capacity)
{
    if (capacity == 0 || capacity > KEY_MAX_CAPACITY) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a table of %u memory keys; it has 1 to %d", capacity,
                         KEY_MAX_CAPACITY);
    }
    clear_places(entries, 0, capacity);
    table->entries = entries;
    table->capacity = capacity;
    table->num_live = 0;
    table->first_free = 0;
    table->last_free = capacity - 1;
    return TERN_OK;
}

enum tern_status terni_key_table_extend(struct key_table *table)
{
    uint32_t before = table->capacity, after = before == 0 ? 16 : 2 * before;
    struct key_entry *entries;
    if (table->num_live < before || before == KEY_MAX_CAPACITY) {
        return TERN_OK; /* room; or none, as terni_key_table_add will say */
    }
    after = after < KEY_MAX_CAPACITY ? after : KEY_MAX_CAPACITY;
    entries = (struct key_entry *)realloc(table->entries, after * sizeof *entries);
    if (entries == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u memory keys", after);
    }
    clear_places(entries, before, after);
    table->entries = entries;
    table->capacity = after;
    table->first_free = before; /* no other is free */
    table->last_free = after - 1;
    return TERN_OK;
}

static enum tern_status check_registration(const struct key_registration *g)
{
    const uint32_t peers_write = KEY_REMOTE_WRITE | KEY_REMOTE_ATOMIC;
    const uint32_t known = KEY_LOCAL_WRITE | KEY_REMOTE_READ | peers_write | KEY_RELAXED_ORDERING;

    if (g->bytes == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a registration of no bytes at 0x%llx",
                         (unsigned long long)g->addr);
    }
    if (g->bytes - 1 > UINT64_MAX - g->addr) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%llu bytes at 0x%llx go past the end of addresses",
                         (unsigned long long)g->bytes, (unsigned long long)g->addr);
    }
    if (g->access & ~known) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "access 0x%x has bits other than 0x%x", g->access, known);
    }
    if ((g->access & peers_write) && !(g->access & KEY_LOCAL_WRITE)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "access 0x%x lets peers write but not the owner (0x%x)",
                         g->access, KEY_LOCAL_WRITE);
    }
    if (g->pd > KEY_MAX_PD) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "protection domain %u is more than %d", g->pd, KEY_MAX_PD);
    }
    return TERN_OK;
}

enum tern_status terni_key_table_add(struct key_table *table, const struct key_registration *registration,
                                     uint32_t *key)
{
    struct key_entry *e;
    TERN_TRY(check_registration(registration));
    if (table->num_live == table->capacity) {
        return TERN_FAIL(TERN_NO_SPACE, "all %u memory keys are in use", table->capacity);
    }
    e = &table->entries[table->first_free];
    table->first_free = e->next;
    table->num_live++;
    e->addr = registration->addr;
    e->bytes = registration->bytes;
    e->host = (char *)registration->host;
    e->pd = registration->pd;
    e->access = registration->access;
    *key = e->key;
    return TERN_OK;
}

enum tern_status terni_key_table_remove(struct key_table *table, uint32_t key)
{
    uint32_t place = (key >> 8) - KEY_FIRST_PLACE;
    struct key_entry *e;
    if (place >= table->capacity || table->entries[place].bytes == 0 || table->entries[place].key != key) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "there is no memory key 0x%08x", key);
    }
    e = &table->entries[place];
    e->addr = e->bytes = 0;
    e->host = NULL;
    e->key = (key & ~0xffu) | ((key + 1) & 0xffu);
    if (table->num_live == table->capacity) { /* it is the only free place */
        table->first_free = place;
    } else {
        table->entries[table->last_free].next = place;
    }
    table->last_free = place;
    table->num_live--;
    return TERN_OK;
}
