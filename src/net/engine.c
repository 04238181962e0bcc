/* SPDX-License-Identifier: Apache-2.0
 *
 * What all engines have alike. */
#include "net/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum tern_status terni_engine_init(struct engine *e, const struct engine_ops *ops, int rank, int num_ranks,
                                   const char *name)
{
    e->ops = ops;
    e->rank = rank;
    e->num_ranks = num_ranks;
    snprintf(e->name, sizeof e->name, "%s", name);
    e->peers = (struct engine_peer *)calloc((size_t)num_ranks, sizeof *e->peers);
    if (e->peers == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d peers", num_ranks);
    }
    return TERN_OK;
}

void terni_engine_fini(struct engine *e) { free(e->peers); }

void terni_engine_lose(struct engine *e, int peer, enum tern_status status, const char *format, ...)
{
    struct engine_peer *p = &e->peers[peer];
    va_list args;
    if (p->lost != TERN_OK) {
        return;
    }
    va_start(args, format);
    vsnprintf(p->text, sizeof p->text, format, args);
    va_end(args);
    p->lost = status;
}
