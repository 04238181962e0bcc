/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels look keys up in (struct net_ranges), made by a provider's host: all lists of a rank in one
 * block of device memory. A block is made anew whenever memory comes or goes, and never changed once kernels
 * can see it: queues are told of its lists by one word each (terni_key_lists_publish), so a kernel that runs
 * finds either the old list or the new one, whole.
 *
 * Old blocks are kept until they take several times what the newest does, and freed then: behind the newest's
 * publication, and a thread of a kernel keeps no list from one call to the next. So nobody reads them:
 *
 *     on the cuda machine   freeing waits until kernels that run, and may be in a call, have ended
 *     on the cpu machine    the one thread that runs all of them has stored the words between two steps of
 *                           theirs, and a lookup is within one step
 */
#ifndef TERN_KEY_LISTS_H
#define TERN_KEY_LISTS_H

#include "machine/machine.h"
#include "net/queue.h"
#include "net/region_list.h"

/* The newest of a chain has what kernels find now. */
struct key_block {
    struct key_block *older;
    char *memory;         /* of the device */
    char *image;          /* the host's, until it is sent */
    uint64_t bytes, used; /* taken from the front on */
};

/* What so many bytes take of a block: lines of the device's caches, or halves; a short list is within one. An
 * empty list has room for a range, of zeroes. */
static inline uint64_t terni_key_block_share(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
static inline uint64_t terni_key_list_share(int num)
{
    return terni_key_block_share(sizeof(struct net_ranges) +
                                 (uint64_t)(num > 0 ? num : 1) * sizeof(struct net_range));
}
enum tern_status terni_key_block_open(struct machine *m, uint64_t bytes, struct key_block **b);
/* All of a chain; NULL: nothing. */
void terni_key_block_close(struct machine *m, struct key_block *b);
/* The next bytes, zeroed: the image of what will be at *device. Shares add up to what the block was opened
 * with. */
void *terni_key_block_take(struct key_block *b, uint64_t bytes, char **device);
/* A list, sorted; of each region the uint32_t that is `key_at` bytes into its entry. Its address for
 * kernels. */
uint64_t terni_key_block_list(struct key_block *b, const struct region_list *regions, size_t key_at);
/* The image goes to the device, and *sent is the block; where that fails the block is closed. Done on
 * return. */
enum tern_status terni_key_block_send(struct machine *m, struct key_block *b, struct key_block **sent);
/* queues[num], which kernels may be using, are told of the lists that `image` names for them, if any. Done on
 * return. */
enum tern_status terni_key_lists_publish(struct machine *m, struct net_queue *queues,
                                         const struct net_queue *image, uint64_t num);
/* `fresh` is the newest now, published with this outcome: where that failed, some queues have older lists
 * yet. Old ones stay while *copies is not 0; `copies` may be NULL. May wait for all work of the device. */
void terni_key_block_replace(struct machine *m, struct key_block **newest, struct key_block *fresh,
                             enum tern_status outcome, const int *copies);

#endif
