/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks through lists of ranges one by one, which the host does when memory comes and goes; kernels have
 * lists of their own (key_lists.h). */
#include "net/region_list.h"

#include "core/core.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static struct region_span *span(const struct region_list *l, int at)
{
    return (struct region_span *)terni_region_at(l, at);
}

static enum tern_status check(const struct region_list *l, int rank, uint64_t addr, uint64_t bytes)
{
    if (bytes == 0 || bytes - 1 > UINT64_MAX - addr) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "rank %d: a registration of %llu bytes at 0x%llx", rank,
                         (unsigned long long)bytes, (unsigned long long)addr);
    }
    for (int i = 0; i < l->num; i++) {
        const struct region_span *s = span(l, i);
        if (addr < s->addr + s->bytes && s->addr < addr + bytes) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "rank %d: %llu bytes at 0x%llx overlap the %llu registered at 0x%llx", rank,
                             (unsigned long long)bytes, (unsigned long long)addr,
                             (unsigned long long)s->bytes, (unsigned long long)s->addr);
        }
    }
    return TERN_OK;
}

static enum tern_status make_room(struct region_list *l)
{
    int room = l->room == 0 ? 8 : l->room <= INT_MAX / 2 ? 2 * l->room : l->room;
    void *entries;
    if (l->num < l->room) {
        return TERN_OK;
    }
    entries = room > l->room ? realloc(l->entries, (size_t)room * l->entry_bytes) : NULL;
    if (entries == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for more than %d registrations", l->num);
    }
    l->entries = entries;
    l->room = room;
    return TERN_OK;
}

enum tern_status terni_region_add(struct region_list *l, int rank, uint64_t addr, uint64_t bytes,
                                  void **entry)
{
    TERN_TRY(check(l, rank, addr, bytes));
    TERN_TRY(make_room(l));
    *entry = terni_region_at(l, l->num);
    memset(*entry, 0, l->entry_bytes);
    span(l, l->num)->addr = addr;
    span(l, l->num)->bytes = bytes;
    l->num++;
    return TERN_OK;
}

int terni_region_find(const struct region_list *l, uint64_t addr)
{
    for (int i = 0; i < l->num; i++) {
        if (span(l, i)->addr == addr) {
            return i;
        }
    }
    return -1;
}

void terni_region_remove(struct region_list *l, int at)
{
    l->num--;
    memmove(terni_region_at(l, at), terni_region_at(l, at + 1), (size_t)(l->num - at) * l->entry_bytes);
}

void terni_region_list_close(struct region_list *l)
{
    free(l->entries);
    l->entries = NULL;
    l->num = l->room = 0;
}
