/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds lists in an image of the host's and brings them over as a whole. */
#include "net/key_lists.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* How much old blocks may take: so many times the newest, and as many bytes. Together all that ever were take
 * a share of memory that does not depend on their number, and few programs ever wait for the device. */
enum { OLD_TIMES = 4, OLD_BYTES = 1 << 20 };

enum tern_status terni_key_block_open(struct machine *m, uint64_t bytes, struct key_block **block)
{
    enum tern_status status = TERN_OK;
    void *memory = NULL;
    struct key_block *b = (struct key_block *)calloc(1, sizeof *b);
    char *image = (char *)calloc(1, bytes);
    if (b == NULL || image == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %llu bytes of memory keys",
                           (unsigned long long)bytes);
    }
    status = status == TERN_OK ? m->ops->alloc(m, bytes, &memory) : status;
    if (status != TERN_OK) {
        free(image);
        free(b);
        return status;
    }
    b->memory = (char *)memory;
    b->image = image;
    b->bytes = bytes;
    *block = b;
    return TERN_OK;
}

void terni_key_block_close(struct machine *m, struct key_block *b)
{
    while (b != NULL) {
        struct key_block *older = b->older;
        m->ops->free(m, b->memory);
        free(b->image);
        free(b);
        b = older;
    }
}

void *terni_key_block_take(struct key_block *b, uint64_t bytes, char **device)
{
    void *image = b->image + b->used;
    assert(b->used + terni_key_block_share(bytes) <= b->bytes);
    *device = b->memory + b->used;
    b->used += terni_key_block_share(bytes);
    return image;
}

static int compare_ranges(const void *a, const void *b)
{
    uint64_t x = ((const struct net_range *)a)->addr, y = ((const struct net_range *)b)->addr;
    return (x > y) - (x < y);
}

uint64_t terni_key_block_list(struct key_block *b, const struct region_list *regions, size_t key_at)
{
    char *device;
    struct net_ranges *list =
        (struct net_ranges *)terni_key_block_take(b, terni_key_list_share(regions->num), &device);
    struct net_range *ranges = (struct net_range *)(void *)(list + 1);
    for (int i = 0; i < regions->num; i++) {
        const char *entry = (const char *)terni_region_at(regions, i);
        const struct region_span *span = (const struct region_span *)(const void *)entry;
        uint32_t key;
        memcpy(&key, entry + key_at, sizeof key);
        ranges[i].addr = span->addr;
        ranges[i].bytes = span->bytes;
        ranges[i].key = wqe_key_of(key);
    }
    list->num = (uint64_t)regions->num;
    qsort(ranges, (size_t)regions->num, sizeof *ranges, compare_ranges);
    return (uint64_t)(uintptr_t)device;
}

static enum tern_status send_image(struct machine *m, struct key_block *b)
{
    struct tern_stream *s = m->ops->own_stream(m);
    TERN_TRY(m->ops->copy(m, b->memory, b->image, b->used, s));
    return m->ops->stream_synchronize(m, s);
}

enum tern_status terni_key_block_send(struct machine *m, struct key_block *b, struct key_block **sent)
{
    enum tern_status status = send_image(m, b);
    if (status != TERN_OK) {
        terni_key_block_close(m, b);
        return status;
    }
    free(b->image);
    b->image = NULL;
    *sent = b;
    return TERN_OK;
}

enum tern_status terni_key_lists_publish(struct machine *m, struct net_queue *queues,
                                         const struct net_queue *image, uint64_t num)
{
    struct tern_stream *s = m->ops->own_stream(m);
    for (uint64_t i = 0; i < num; i++) {
        if (image[i].local == 0) {
            continue;
        }
        /* Releases of the lists' bytes, which went by the same stream; they pair with the load in
         * queue_range. */
        TERN_TRY(m->ops->store(m, &queues[i].local, image[i].local, s));
        TERN_TRY(m->ops->store(m, &queues[i].remote, image[i].remote, s));
    }
    return m->ops->stream_synchronize(m, s);
}

void terni_key_block_replace(struct machine *m, struct key_block **newest, struct key_block *fresh,
                             enum tern_status outcome, const int *copies)
{
    /* Behind the publication. Who makes copies of queues says so first and copies then (terni_pgas_abort): it
     * has the new lists, or is seen here. */
    int is_copied = copies != NULL && __atomic_load_n(copies, __ATOMIC_SEQ_CST) != 0;
    uint64_t old_bytes = 0;
    fresh->older = *newest;
    *newest = fresh;
    for (const struct key_block *b = fresh->older; b != NULL; b = b->older) {
        old_bytes += b->bytes;
    }
    if (outcome == TERN_OK && !is_copied && old_bytes > OLD_TIMES * fresh->bytes + OLD_BYTES) {
        terni_key_block_close(m, fresh->older);
        fresh->older = NULL;
    }
}
