/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of memory by bulk copies through a ring of stages in shared memory, begun one after the other by one
 * thread: as many are on their way as there are stages. What a stage holds is noted in shared memory, so that
 * copies may come from anywhere in a program.
 *
 * Step n uses stage n % num_stages. Before a stage is loaded anew, all copies but the latest have been read
 * from theirs. */
#ifndef TERN_BULK_RING_H
#define TERN_BULK_RING_H

#include "kernels/ep_args.h"
#include "simt/simt.h"

struct bulk_ring {
    char *stages;
    uint64_t *bars;
    struct ring_note *notes;
    uint32_t num_stages, stage_bytes;
    uint32_t loaded, sent; /* steps */
};

/* `memory`: num_stages of stage_bytes, a barrier and a note each. */
TERN_DEVICE struct bulk_ring bulk_ring_of(char *memory, uint32_t num_stages, uint32_t stage_bytes)
{
    struct bulk_ring r;
    r.stages = memory;
    r.bars = (uint64_t *)(void *)(memory + num_stages * stage_bytes);
    r.notes = (struct ring_note *)(void *)(r.bars + num_stages);
    r.num_stages = num_stages;
    r.stage_bytes = stage_bytes;
    r.loaded = 0;
    r.sent = 0;
    for (uint32_t i = 0; i < num_stages; i++) {
        mbar_init(r.bars + i, 1);
    }
    fence_mbar_init();
    return r;
}

/* The oldest load is here and goes on. */
TERN_DEVICE void bulk_ring_send(struct bulk_ring *r)
{
    uint32_t stage = r->sent % r->num_stages;
    while (!mbar_test(r->bars + stage, r->sent / r->num_stages & 1)) {
        spin();
    }
    bulk_store(r->notes[stage].to, r->stages + stage * r->stage_bytes, r->notes[stage].bytes);
    bulk_commit();
    r->sent++;
}

/* Begins a copy of at most stage_bytes, a multiple of 16, as both ends are. */
TERN_DEVICE void bulk_ring_put(struct bulk_ring *r, char *to, const char *from, uint32_t bytes)
{
    uint32_t stage = r->loaded % r->num_stages;
    while (r->loaded - r->sent + 2 > r->num_stages) {
        bulk_ring_send(r);
    }
    if (r->loaded >= r->num_stages) {
        bulk_wait_read(1);
    }
    r->notes[stage].to = to;
    r->notes[stage].bytes = bytes;
    mbar_expect(r->bars + stage, bytes);
    bulk_load(r->stages + stage * r->stage_bytes, from, bytes, r->bars + stage);
    r->loaded++;
}

/* All copies are where they belong. */
TERN_DEVICE void bulk_ring_finish(struct bulk_ring *r)
{
    while (r->sent < r->loaded) {
        bulk_ring_send(r);
    }
    bulk_wait(0);
}

#endif
