/* SPDX-License-Identifier: Apache-2.0
 *
 * A provider's lists of memory, its own and each peer's: arrays in the order of arrival, of structures that
 * begin with where a range lies. Ranges of a list do not overlap; how many there are is bounded by memory
 * alone. */
#ifndef TERN_REGION_LIST_H
#define TERN_REGION_LIST_H

#include "tern/tern.h"

/* What every entry begins with. */
struct region_span {
    uint64_t addr, bytes;
};

/* Zeroed but for entry_bytes to begin with. */
struct region_list {
    void *entries; /* [num], with room for more; they move as the list grows */
    size_t entry_bytes;
    int num, room;
};

/* Another at the end, zeroed but for its span. TERN_INVALID_ARGUMENT: no bytes, a range past the end of
 * addresses, or one that overlaps another. `rank`: whose memory it is, for the sentence. */
enum tern_status terni_region_add(struct region_list *list, int rank, uint64_t addr, uint64_t bytes,
                                  void **entry);
/* The place of the range that begins there, -1: none. */
int terni_region_find(const struct region_list *list, uint64_t addr);
/* Closes the gap. */
void terni_region_remove(struct region_list *list, int at);
void terni_region_list_close(struct region_list *list);

static inline void *terni_region_at(const struct region_list *list, int at)
{
    return (char *)list->entries + (size_t)at * list->entry_bytes;
}

#endif
