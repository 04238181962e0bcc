/* SPDX-License-Identifier: Apache-2.0
 *
 * What every example needs and none is about: stop on a failure, open ranks, take memory, move it, BF16. */
#ifndef TERN_EXAMPLE_H
#define TERN_EXAMPLE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tern/tern.h"

static inline void must(enum tern_status status)
{
    if (status != TERN_OK) {
        fprintf(stderr, "%s: %s\n", tern_status_string(status), tern_last_error());
        exit(1);
    }
}

static inline struct tern_ep_config ep_config(uint32_t experts, uint32_t topk, uint32_t tokens,
                                              uint32_t row_bytes)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    config.num_experts = experts;
    config.max_topk = topk;
    config.max_tokens = tokens;
    config.max_row_bytes = row_bytes;
    return config;
}

/* Opens num_ranks ranks with an EP object each. Returns how many this process drives: all of them, or under
 * tern-run one, rank *first. Another number of ranks than the example's is refused by rank 0 for all. */
static inline int open_ranks(int num_ranks, const struct tern_ep_config *config, struct tern_comm **comms,
                             struct tern_ep **eps, int *first)
{
    struct tern_id id;
    int started;
    *first = 0;
    if (getenv("TERN_ID") == NULL) {
        must(tern_comm_open_all(num_ranks, NULL, comms));
        must(tern_ep_open_all(num_ranks, comms, config, eps));
        return num_ranks;
    }
    must(tern_id_from_environment(&id, first, &started));
    if (started != num_ranks) {
        if (*first == 0) {
            fprintf(stderr, "this example has %d ranks, and tern-run started %d\n", num_ranks, started);
        }
        exit(1);
    }
    must(tern_comm_open(&id, *first, num_ranks, NULL, comms));
    must(tern_ep_open(comms[0], config, eps));
    return 1;
}

static inline void *take(struct tern_comm *comm, enum tern_memory kind, size_t bytes)
{
    void *memory = NULL;
    must(tern_alloc(comm, kind, bytes != 0 ? bytes : 1, &memory));
    return memory;
}

/* Host to device and back, on the default stream; done on return. */
static inline void copy(struct tern_comm *comm, void *to, const void *from, size_t bytes)
{
    must(tern_copy(comm, to, from, bytes, NULL));
    must(tern_stream_synchronize(comm, NULL));
}

/* New device memory with a copy of `bytes` bytes. */
static inline void *put(struct tern_comm *comm, const void *from, size_t bytes)
{
    void *memory = take(comm, TERN_MEMORY_DEVICE, bytes);
    copy(comm, memory, from, bytes);
    return memory;
}

/* BF16 is the upper half of FP32. */
static inline float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* The nearest BF16, the even one of two; not for NaN. */
static inline uint16_t bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
