/* SPDX-License-Identifier: Apache-2.0
 *
 * A random history of a growing heap, and what must hold at every step: blocks do not overlap and keep their
 * bytes, addresses never change, peers see the same bytes in old and in new memory, and when all is free
 * again the window is one block.
 *
 * A model holds all ranks of a communicator, driven by one thread, or one of them. Growths are drawn from the
 * seed alone, allocation and freeing from seed and rank. */
#ifndef TERN_TEST_HEAP_MODEL_H
#define TERN_TEST_HEAP_MODEL_H

#include "comm_scene.h"

enum { model_blocks = 24 };

struct model_block {
    unsigned char *memory;
    size_t bytes;
    unsigned char tag; /* what every byte holds */
};

/* One rank. */
struct model_rank {
    struct tern_comm *comm;
    struct rng rng;
    struct model_block blocks[model_blocks];
    int num_blocks;
    uint64_t *mailbox;            /* [num_ranks] in the memory of before the first growth */
    uint64_t *at_peer[max_ranks]; /* this rank's place in each one's, as tern_peer_pointer said then */
    char *bases[max_ranks];       /* of then */
};

struct heap_model {
    int num_ranks, self; /* the one local rank; -1: all are */
    struct rng rng;      /* the same on all ranks */
    uint64_t bytes;      /* of the window */
    struct model_rank ranks[max_ranks];
};

int heap_model_open(struct heap_model *m, int num_ranks, int self, const struct tern_id *id, uint64_t seed);
int heap_model_run(struct heap_model *m, int num_rounds);
void heap_model_close(struct heap_model *m);

/* How this process may use the memory at p: "rw-s" and the like, of /proc/self/maps; "none" if it is not
 * mapped. Valid until the thread's next call. */
const char *access_of(const void *p);

#endif
