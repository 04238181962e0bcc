/* SPDX-License-Identifier: Apache-2.0
 *
 * See ep_rail.h. A chunk is what one put should carry, but no more than a fourth of a ring, if that is a
 * message, so that some are written and some read while others travel; at most half a ring in any case, and
 * no more than leaves a part for every stream. And at least so much that a stream has no more of them on
 * their way than RAIL_MAX_CHUNKS. */
#include "ep/ep_rail.h"

#include "ep/layout.h"

enum { ALIGNMENT = 256 };

static uint64_t streams_of(uint32_t num_domains, uint32_t num_channels)
{
    return (num_domains - 1ull) * num_channels;
}

static uint64_t words_bytes(uint64_t streams) { return align_up(streams * sizeof(uint64_t), ALIGNMENT); }

uint64_t terni_rail_ring_bytes(uint32_t num_domains, uint32_t num_channels, uint32_t ring_bytes)
{
    return 2 * streams_of(num_domains, num_channels) * ring_bytes;
}

uint64_t terni_rail_word_bytes(uint32_t num_domains, uint32_t num_channels)
{
    return 2 * words_bytes(streams_of(num_domains, num_channels));
}

uint64_t terni_rail_state_bytes(uint32_t num_domains, uint32_t num_channels)
{
    uint64_t streams = streams_of(num_domains, num_channels);
    return 2 * words_bytes(streams) + align_up(streams * sizeof(struct rail_release), ALIGNMENT);
}

void terni_rail_place(struct rail_args *rail, char *rings, char *words, char *state)
{
    uint64_t streams = streams_of((uint32_t)rail->world.num_domains, rail->num_channels);
    rail->send = rings;
    rail->arrived = rings + streams * rail->ring_bytes;
    rail->tails = (uint64_t *)(void *)words;
    rail->credits = (uint64_t *)(void *)(words + words_bytes(streams));
    rail->sent = (uint64_t *)(void *)state;
    rail->taken = (uint64_t *)(void *)(state + words_bytes(streams));
    rail->releases = (struct rail_release *)(void *)(state + 2 * words_bytes(streams));
}

uint32_t terni_rail_chunk(uint32_t ring_bytes, uint32_t stride, uint32_t share)
{
    uint32_t most = ring_bytes / (2 * stride), fourth = ring_bytes / RAIL_USUAL_CHUNKS;
    uint32_t wanted = (fourth < RAIL_CHUNK_BYTES ? fourth : RAIL_CHUNK_BYTES) / stride;
    uint32_t least = (uint32_t)((ring_bytes + stride * (RAIL_MAX_CHUNKS - 2ull) - 1) /
                                (stride * (RAIL_MAX_CHUNKS - 2ull)));
    wanted = wanted > share ? share : wanted;
    /* As many chunks as that are, and all as long as the last one: no stream has more than another. */
    uint32_t chunks = wanted != 0 ? (share + wanted - 1) / wanted : 0;
    wanted = chunks != 0 ? (share + chunks - 1) / chunks : 0;
    wanted = wanted < least ? least : wanted;
    wanted = wanted > most ? most : wanted;
    return wanted == 0 ? 1 : wanted;
}
