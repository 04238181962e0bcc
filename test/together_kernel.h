/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel of softnic_together_test and its host share: one queue pair of each of two engines, with
 * the same entries. A warp takes a batch of the first and lists what has arrived, one thread does so for the
 * second. */
#ifndef TERN_TEST_TOGETHER_KERNEL_H
#define TERN_TEST_TOGETHER_KERNEL_H

#include "net/softnic_engine.h"

enum { TOGETHER_WARP, TOGETHER_THREAD, TOGETHER_ENGINES, TOGETHER_BLOCKS = 64 };

struct together_side {
    struct softnic_args args;
    struct softnic_qp qp;
    struct softnic_flight flights[SOFTNIC_FLIGHTS]; /* where a wire is modelled; else those of `work` */
    uint64_t watch[TOGETHER_BLOCKS];
    struct softnic_link link, peer_link;
    struct softnic_work work;
    struct softnic_list early; /* what was listed before it arrived */
    uint64_t random;           /* where its engine begins to draw */
    uint64_t clock;            /* ns, as it says when it hears of the peer's */
};

struct together_args {
    struct together_side *sides; /* [TOGETHER_ENGINES] */
    uint64_t now, then;          /* ticks: of the taking, and of the arrival */
    uint32_t keys[2][2];         /* at hand before: local, remote */
    uint32_t is_early;           /* the warp lists what is to be done before anything arrives */
    uint32_t *results;           /* [3] whether the warp took the batch, made the list, and one before that */
};

#ifndef __CUDACC__
void tern_cpu_together(const void *args);
#else
enum { TERN_THREADS_together = 32 };
#endif

#endif
