/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as threads of a test, each with its own communicator, and what a sound communicator must be able to
 * do. */
#ifndef TERN_TEST_COMM_SCENE_H
#define TERN_TEST_COMM_SCENE_H

#include "comm/comm.h"
#include "comm/socket.h"
#include "support.h"

#include <pthread.h>

enum { max_ranks = 16, heap_bytes = 1 << 20 };
/* The deadline of ranks that will wait in vain, and what a sanitizer and a busy host may add to it. */
enum { deadline_ms = 300, slack_ms = 4000 };

struct scene {
    struct tern_id id;
    struct tern_comm *comms[max_ranks]; /* when opened before */
    uint32_t timeout_ms;
    pthread_barrier_t barrier;
};

struct actor {
    struct scene *scene;
    int rank, num_ranks;
    int (*act)(struct actor *a);
    int result;
    enum tern_status status; /* for the test to look at */
    char text[256];
    double seconds;
};

struct tern_comm_config config_of(uint32_t timeout_ms); /* the cpu machine, small windows */
void nap_ms(int ms);

/* Runs body(actor) in as many threads; 0 if all return 0. */
int run_threads(struct scene *scene, struct actor *actors, int num_ranks, int (*body)(struct actor *a));
/* Keeps a status and its sentence for the test to look at. */
void note_status(struct actor *a, enum tern_status status);
/* All actors noted this status, with `text` in the sentence, in time. */
int same_sentence(const struct actor *actors, int num_ranks, enum tern_status status, const char *text);

/* COLLECTIVE: allgathers of several sizes, and words through every peer's window. */
int check_all(struct tern_comm *comm);
/* A body: opens with the scene's id, checks all, closes. */
int open_and_check(struct actor *a);

/* A connection to who listens there; -1: nobody does. */
int call_port(const struct address *a);
/* Leaves this process, best a child, no more than `num` descriptors to open. */
int leave_fds(int num);
/* Descriptors and mapped windows that this process has. */
int num_fds(void);
int num_windows(void);
/* Mappings of files of this name. */
int num_mappings(const char *name);
/* Runs the first body once, then all: afterwards there are as many descriptors and windows as before
 * these. */
int leaves_nothing(struct test *t, int (*const bodies[])(struct test *t), int num_bodies);

#endif
