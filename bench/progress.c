/* SPDX-License-Identifier: Apache-2.0
 *
 * The line is drawn at most ten times a second, so that it costs the timed loops nothing. */
#include "progress.h"

#include "core/core.h"

#include <stdio.h>
#include <unistd.h>

enum { REDRAW_NS = 100 * 1000 * 1000 };

void progress_init(struct progress *p, int quiet)
{
    p->shown = !quiet && isatty(STDERR_FILENO);
    p->last_ns = 0;
}

void progress_step(struct progress *p, const char *what, uint32_t done, uint32_t of)
{
    uint64_t now;
    if (!p->shown) {
        return;
    }
    now = terni_clock_ns();
    if (now - p->last_ns >= REDRAW_NS) {
        fprintf(stderr, "\r\033[K%s %u/%u", what, done, of);
        p->last_ns = now;
    }
}

void progress_clear(struct progress *p)
{
    if (p->shown && p->last_ns != 0) {
        fprintf(stderr, "\r\033[K");
        p->last_ns = 0;
    }
}
