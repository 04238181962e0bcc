/* SPDX-License-Identifier: Apache-2.0
 *
 * All ranks of one process with up to three batches of small rows, each with a dispatch and a combine whose
 * buffers lie in windows unless they are put elsewhere: the stage for tests of what happens between
 * operations. */
#ifndef TERN_TEST_SCENE_H
#define TERN_TEST_SCENE_H

#include "batch.h"

enum { MAX_BATCHES = 3, SCENE_ROW_BYTES = 144, MAX_TOKENS = 24 };

struct scene {
    struct world world;
    struct rng rng;
    int num_batches;
    struct batch batches[MAX_BATCHES];
    struct dispatch dispatches[MAX_BATCHES];
    struct combine combines[MAX_BATCHES];
    struct tern_ep **eps, **more_eps; /* of two objects; the second may stay closed */
    struct tern_ep_config config;
    uint32_t row_bytes; /* of every payload */
    int arena;          /* where batches that are added have what peers write and read; else ARENA_WINDOW */
    int free_running;   /* the cpu machine works while the host does something else */
    int branches;       /* a captured dispatch waits for a copy on another stream, too */
    struct tern_graph **graphs;
    struct tern_event **events;
};

/* Whether communicators that name no machine run on the cpu machine; or TEST_FAILED. */
int scene_on_cpu(void);
/* Four experts a rank, top-4, up to MAX_TOKENS tokens. */
struct batch_shape scene_shape(int num_ranks, uint32_t layout, int routing);
/* Chooses the configuration; the caller may change it before scene_open. */
void scene_init(struct scene *s, int num_ranks, uint64_t seed);
/* Batches added from now on are in no window, and the object has the staging of the default. */
void scene_leave_windows(struct scene *s);
/* A batch, a dispatch and a combine. capacity 0: what this batch needs. */
void scene_add(struct scene *s, const struct batch_shape *shape, uint64_t capacity);
/* After scene_init: one batch whose outputs have room for any ids; `equal`: every rank has MAX_TOKENS. */
int scene_add_static(struct scene *s, uint32_t layout, int equal);
/* The two. */
int scene_static(struct scene *s, int ranks, uint32_t layout, uint64_t seed, int equal);
int scene_open(struct scene *s);
/* Opening the object fails, on all ranks alike; the scene ends. */
int scene_refused(struct scene *s, enum tern_status status, const char *text);
/* New inputs, poisoned outputs, of batch i. */
void scene_refill(struct scene *s, int i);
/* patience_set on all ranks. */
uint32_t scene_patience(struct scene *s, uint32_t timeout_ms);
/* One of each, from ids to sums, judged, with patience; batch i's routes must be closed and are left open. */
int scene_round(struct scene *s, int i);
/* Opens, a first round of batch 0, and `body`; the scene ends. */
int scene_then(struct scene *s, int (*body)(struct scene *));
/* Opens, and routes of all batches; then rounds of their operations in random orders. */
int scene_interleave(struct scene *s, int rounds);
/* Batches 0 and 1 along two objects, on lanes of their own, which ranks use in different orders. */
int scene_side_by_side(struct scene *s, int rounds);
/* Route, dispatch and combine of batch 0, captured once on a lane of each rank, replayed with other ids. */
int scene_replay(struct scene *s, int lane, int rounds);
void scene_fini(struct scene *s);

#endif
