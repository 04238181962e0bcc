/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is released while connections still move bytes from and to it. Afterwards nothing reads or
 * writes it. Streams stay whole: a frame whose header is out keeps its length.
 *
 *     arriving, a peer's write      the rest is thrown away, the answer is a refusal
 *     arriving, an answer           the rest is thrown away; the proxy fails the request
 *     leaving, begun                what is missing is copied
 *     leaving, an answer            becomes a refusal
 *     leaving, this rank's write    becomes one of no bytes; the proxy fails the request */
#include "net/tcp_engine.h"

#include <stdlib.h>
#include <string.h>

/* The first in the queue, of which part is out. */
static void keep_rest(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    struct wire_out *out = &w->out[w->first_out];
    free(w->kept);
    w->kept = (char *)malloc(out->bytes);
    if (w->kept == NULL) {
        terni_wire_lose(t, r, TERN_OUT_OF_MEMORY, "no memory to keep %llu bytes for rank %d",
                        (unsigned long long)out->bytes, r);
        return;
    }
    memcpy(w->kept, out->data, out->bytes);
    out->data = w->kept;
}

static void empty(struct wire_out *out)
{
    if (out->frame.kind == WIRE_ANSWER) {
        out->frame.key = SYNDROME_REMOTE_ACCESS;
    }
    out->frame.bytes = out->bytes = 0;
    out->data = NULL;
}

static void release_out(struct tcp_engine *t, int r, const struct region *gone)
{
    struct wire *w = t->wires[r];
    for (int i = 0; i < w->num_out; i++) {
        struct wire_out *out = &w->out[(w->first_out + i) % WIRE_MAX_OUT];
        if (out->bytes == 0 || !terni_region_holds(gone, out->data)) {
            continue; /* that a write has been done stays true */
        }
        if (i == 0 && w->out_done != 0) {
            keep_rest(t, r);
        } else {
            empty(out);
        }
    }
}

static void release_in(struct wire *w, const struct region *gone)
{
    for (int i = 0; i < ENGINE_WINDOW; i++) {
        if (w->ops[i] != NULL && w->ops[i]->kind == ENGINE_READ &&
            terni_region_holds(gone, w->ops[i]->local)) {
            w->ops[i]->local = NULL;
        }
    }
    if (!w->has_frame) {
        return;
    }
    if (w->frame.kind == WIRE_WRITE && w->served.syndrome == SYNDROME_NONE &&
        (terni_region_holds(gone, w->served.at) || terni_region_holds(gone, w->served.staged))) {
        w->served.syndrome = SYNDROME_REMOTE_ACCESS;
        w->sink = NULL;
    }
    if (terni_region_holds(gone, w->sink)) {
        w->sink = NULL;
    }
}

void terni_tcp_engine_remove(struct engine *e, struct own_region *region)
{
    struct tcp_engine *t = (struct tcp_engine *)e;
    for (int r = 0; r < e->num_ranks; r++) {
        if (t->wires[r] != NULL && t->wires[r]->state >= WIRE_GREETING && t->wires[r]->state != WIRE_LOST) {
            release_in(t->wires[r], &region->card);
            release_out(t, r, &region->card);
        }
    }
}
