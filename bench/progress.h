/* SPDX-License-Identifier: Apache-2.0
 *
 * One line on standard error that says how far a long run is; nothing if that is not a terminal. */
#ifndef TERN_BENCH_PROGRESS_H
#define TERN_BENCH_PROGRESS_H

#include <stdint.h>

struct progress {
    int shown;        /* whether this process shows progress at all */
    uint64_t last_ns; /* when the line was last drawn */
};

/* `quiet` processes (ranks other than 0) show nothing. */
void progress_init(struct progress *p, int quiet);
void progress_step(struct progress *p, const char *what, uint32_t done, uint32_t of);
/* Clears the line before ordinary output. */
void progress_clear(struct progress *p);

#endif
