/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the signals of low latency are: see ll_words.h. */
#include "ll_words.h"

#include "support.h"

#include "ep/ep.h"
#include "kernels/ll_far_args.h"
#include "net/softnic_provider.h"
#include "pgas/pgas_nics.h"

#include <stdlib.h>
#include <string.h>

uint64_t *ll_words_arrivals(const struct tern_ep *ep, uint32_t lane, uint64_t epoch)
{
    const struct ep_layout *l = &ep->layout;
    char *window = ep->heap->bases[ep->comm->rank];

    return (uint64_t *)(void *)(window + l->ll_arrivals + (2 * lane + (epoch & 1)) * l->ll.arrival_bytes);
}

uint64_t *ll_words_entry(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int from)
{
    const struct ep_layout *l = &ep->layout;
    char *window = ep->heap->bases[ep->comm->rank];
    char *copy = window + l->ll_entries + (2 * lane + (epoch & 1)) * l->ll.entry_bytes;

    return (uint64_t *)(void *)copy + (uint64_t)from * l->ll.entry_words;
}

char *ll_words_place(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int to, int from, uint32_t slot)
{
    const struct ep_layout *l = &ep->layout;
    char *copy = ep->heap->bases[to] + l->ll_buffers + (2 * lane + (epoch & 1)) * l->ll.buffer_bytes;

    return copy + ((uint64_t)from * ep->shape.ll_tokens + slot) * l->ll.row_stride;
}

uint64_t *ll_words_home(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, const struct tern_ep *from,
                        uint32_t slot)
{
    const struct ep_layout *l = &from->layout;
    const char *own = from->device_memory + l->ll_lanes + lane * l->ll.bytes;
    const struct ll_far_home *homes = (const struct ll_far_home *)(const void *)(own + l->ll.homes);

    return ll_words_arrivals(ep, lane, epoch) + (uint64_t)ep->shape.ll_tokens * ep->shape.max_topk +
           homes[ep->comm->rank].there + slot / LL_CHUNK * LL_CHUNK;
}

char *ll_words_message(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int to, int domain,
                       uint32_t number)
{
    const struct ep_layout *l = &ep->layout;
    char *copy = ep->heap->bases[to] + l->ll_buffers + (2 * lane + (epoch & 1)) * l->ll.buffer_bytes;
    uint64_t row = terni_ll_row_bytes(&ep->shape) + l->ll.tail_bytes;

    return copy + l->ll.messages + (uint64_t)domain * l->ll.domain_bytes + number * row;
}

uint64_t *ll_words_message_word(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int domain,
                                uint32_t number)
{
    const struct ep_layout *l = &ep->layout;

    return ll_words_arrivals(ep, lane, epoch) + l->ll.message_words + (uint64_t)domain * ep->shape.ll_tokens +
           number / LL_CHUNK * LL_CHUNK;
}

uint64_t *ll_words_heard(const struct tern_ep *ep, int r)
{
    return (uint64_t *)(void *)(ep->heap->bases[ep->comm->rank] + ep->layout.ll_heard) + r;
}

const int32_t *ll_words_ids(const struct tern_ep *ep, uint32_t lane)
{
    const struct ep_layout *l = &ep->layout;

    return (const int32_t *)(const void *)(ep->device_memory + l->ll_lanes + lane * l->ll.bytes + l->ll.ids);
}

int ll_words_chunk(void) { return LL_CHUNK; }

int ll_words_posted(const struct tern_ep *ep, uint64_t *posted)
{
    struct softnic_provider *p = (struct softnic_provider *)ep->network->nics->provider.state;
    struct softnic_state state;

    memset(posted, 0, TERN_MAX_RANKS * sizeof *posted);
    for (int d = 0; d < ep->comm->num_ranks; d++) {
        for (uint32_t q = 0; terni_softnic_queue(p, d, q) != NULL; q++) {
            OK(terni_softnic_inspect(p, d, q, &state));
            CHECK(!state.is_error && state.num_wrong == 0, "queue %u to rank %d has failed", q, d);
            posted[d] += state.posted;
        }
    }
    return 0;
}

void ll_words_spoil(const struct tern_ep *ep, uint32_t lane)
{
    const struct ep_layout *l = &ep->layout;
    char *own = ep->device_memory + l->ll_lanes + lane * l->ll.bytes;

    memset(own + l->ll.plan, 0x3f, l->ll.bytes - l->ll.plan);
}

/* Of this rank's window. */
static uint32_t *places_of(const struct tern_ep *ep, uint32_t lane, uint64_t epoch)
{
    const struct ep_layout *l = &ep->layout;
    uint64_t at = l->ll_blanks + (2 * lane + (epoch & 1)) * l->ll.blank_bytes;

    return (uint32_t *)(void *)(ep->heap->bases[ep->comm->rank] + at);
}

uint64_t ll_words_lose_blanks(const struct tern_ep *ep, uint32_t lane, uint64_t epoch)
{
    uint32_t *words = places_of(ep, lane, epoch);
    uint64_t lost = 0;

    for (uint64_t i = 0; i < ep->layout.ll.blank_bytes / sizeof *words; i++) {
        lost += __atomic_exchange_n(&words[i], 0, __ATOMIC_RELAXED) != 0;
    }
    return lost;
}

int ll_words_lose_one(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, uint64_t number)
{
    uint32_t *words = places_of(ep, lane, epoch);

    for (uint64_t i = 0; i < ep->layout.ll.blank_bytes / sizeof *words; i++) {
        if (words[i] != 0 && number-- == 0) {
            words[i] = 0;
            return 0;
        }
    }
    CHECK(0, "%llu words too few", (unsigned long long)number + 1);
    return 0;
}

/* Adds to *left the words of a part of this rank's window that are not 0. */
static int count_left(const struct tern_ep *ep, uint64_t offset, uint64_t bytes, uint64_t *left)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct tern_stream *stream = ops->own_stream(ep->machine);
    uint32_t *words = (uint32_t *)test_take(bytes, 1);

    OK(ops->copy(ep->machine, words, ep->heap->bases[ep->comm->rank] + offset, bytes, stream));
    OK(ops->stream_synchronize(ep->machine, stream));
    for (uint64_t i = 0; i < bytes / sizeof *words; i++) {
        *left += words[i] != 0;
    }
    free(words);
    return 0;
}

int ll_words_left(const struct tern_ep *ep, uint32_t lane, uint64_t *left)
{
    const struct ep_layout *l = &ep->layout;

    *left = 0;
    PASS(count_left(ep, l->ll_blanks + lane * 2 * l->ll.blank_bytes, 2 * l->ll.blank_bytes, left));
    return count_left(ep, l->ll_ahead + lane * 2 * l->ll.ahead_bytes, 2 * l->ll.ahead_bytes, left);
}

void ll_words_forbid(struct tern_ep *ep) { ep->no_words = 1; }
