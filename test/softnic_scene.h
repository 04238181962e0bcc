/* SPDX-License-Identifier: Apache-2.0
 *
 * Two NICs that speak packets, a warp of threads that drive queues of the first, and what each thread is to
 * do: added step by step, then carried out. */
#ifndef TERN_TEST_SOFTNIC_SCENE_H
#define TERN_TEST_SOFTNIC_SCENE_H

#include "queue_rig.h"

enum { SCENE_STEPS = 16 };
#define SCENE_SHORT_NS 30000000ull /* of waits that are meant to end so */

struct softnic_scene {
    struct softnic_net_shape net;
    struct queue_shape shape;
    struct queue_rig rig;
    struct queue_step steps[32][SCENE_STEPS];
    uint32_t num[32];
};

/* Two queues, a collapsed queue each, no faults; a test changes net and shape, and then begins. */
struct softnic_scene *nics_take(void);
int nics_begin(struct softnic_scene *w, uint64_t seed);
/* Returns `result`. */
int nics_leave(struct softnic_scene *w, int result);

/* The next step of a thread; `away` and `home` are places in the two heaps. amo is ADD, width 8, value 1. */
struct queue_step *nics_add(struct softnic_scene *w, int thread, uint32_t kind, uint64_t away, uint64_t home,
                            uint64_t bytes);
/* A step on memory that a thread reaches by itself. */
struct queue_step *nics_look(struct softnic_scene *w, int thread, uint32_t kind, const void *at,
                             uint64_t bytes, uint64_t value);
/* All threads to their ends; what is added afterwards comes from the first step on. */
int nics_drive(struct softnic_scene *w, uint64_t timeout_ns);
/* The same, with the NICs on meanwhile. */
int nics_go(struct softnic_scene *w);
int nics_ends(const struct softnic_scene *w, int thread, int step, uint32_t wanted);
/* A scene for each seed, `count` of them at full scale. */
int nics_each_seed(struct test *t, int count, int (*body)(struct softnic_scene *w, uint64_t seed));

#endif
