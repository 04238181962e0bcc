/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks under test, and the memory they are judged by.
 *
 * Every rank has two arenas, one in a window and one in plain device memory. Each arena has an image: host
 * memory that holds what the device's bytes must be. A buffer is a place in an arena, between guards of
 * poison. A step of a test is always the same:
 *
 *     write inputs and poison into the images     world_upload     images -> devices
 *     issue the operation on every rank           the reference does the same to the images
 *     world_verify                                devices == images, every byte, guards included
 *
 * So a byte written where none belongs fails like a byte that is wrong. A world may hold all ranks of a
 * communicator (one host thread drives them) or one of them (the others are threads or processes that draw
 * the same images from the same seed). Places are taken before world_open, which allocates. */
#ifndef TERN_TEST_WORLD_H
#define TERN_TEST_WORLD_H

#include "ref/ref.h"
#include "support.h"

enum { ARENA_NONE = 0, ARENA_WINDOW = 1, ARENA_DEVICE = 2, NUM_ARENAS = 3 };
enum { NUM_LANES = 4, POISON = 0xa5, SCRATCH_BYTES = 1 << 18 };

/* Zeroed: no buffer. */
struct place {
    int rank, arena;
    size_t offset, bytes;
};

struct mark {
    const char *name;
    size_t offset, bytes;
};

struct arena {
    unsigned char *image, *device, *staging;
    size_t bytes, capacity;
    struct mark *marks;
    int num_marks;
};

struct member {
    struct tern_comm *comm;
    struct tern_stream *lanes[NUM_LANES];
    struct arena arenas[NUM_ARENAS];
    void *scratch; /* SCRATCH_BYTES of host memory that device copies may use */
};

struct world {
    int num_ranks;
    int self;         /* the one local rank; -1: all are */
    int num_lanes;    /* a rank opens so many; NUM_LANES unless set before world_open */
    int grows;        /* set before world_open: the windows lie in memory that the heap grew by, in pieces */
    int domain_ranks; /* set before batches: of a domain, which divides num_ranks; 0: one domain */
    int forces_domains; /* set before world_open: TERN_DOMAIN_SIZE makes them, so that nobody can address
                           another
                           domain's ranks; else an EP object's config.domain_ranks does. Ranks that open apart
                           need it from who starts them */
    struct member *members;
};

void world_init(struct world *w, int num_ranks, int self);
int world_local(const struct world *w, int rank);
/* A buffer of poison. `name` is kept. */
struct place world_take(struct world *w, int rank, int arena, size_t bytes, const char *name);
/* NULL for no buffer. An image moves when another place is taken. */
void *world_image(const struct world *w, struct place place);
void *world_device(const struct world *w, struct place place);
void world_poison(const struct world *w, struct place place);

/* Opens the communicator of all local ranks (id NULL: all ranks in this process), streams and arenas.
 * config->heap_bytes is chosen here. The one local rank's member may have its communicator already. */
int world_open(struct world *w, const struct tern_id *id, const struct tern_comm_config *config);
/* Waits for everything issued, then images to devices, and done. */
int world_upload(struct world *w);
/* Devices to the host after everything issued on any lane, and compared. */
int world_verify(struct world *w, const char *step);
int world_synchronize(struct world *w);
/* Blocking copy of device bytes into scratch; NULL (and a note) if that failed. */
const void *world_peek(struct world *w, int rank, const void *device, size_t bytes);
void world_close(struct world *w);
void world_fini(struct world *w);

int world_ep_open(struct world *w, const struct tern_ep_config *config, struct tern_ep **eps);
int world_ep_synchronize(struct world *w, struct tern_ep **eps);
/* Accepts NULLs; leaves NULLs. */
void world_ep_close(struct world *w, struct tern_ep **eps);

#endif
