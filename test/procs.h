/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes. The parent forks before it has touched Tern, so a child may start any machine; rank 0
 * makes the id and leaves it in a page that all share. A child that outlives the deadline is killed. */
#ifndef TERN_TEST_PROCS_H
#define TERN_TEST_PROCS_H

#include "support.h"

/* Shared by parent and children. */
struct procs_page {
    int has_id; /* set with release after id */
    struct tern_id id;
    double marks[8]; /* for the body's own use, times of test_seconds */
};

/* Runs body(rank) in num_ranks processes; 0 if all end with status 0 in time. `victim` (-1: none) must end by
 * a signal instead. */
int procs_run(int num_ranks, int victim, double seconds,
              int (*body)(int rank, struct procs_page *page, void *user), void *user);

#endif
