/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls of tern.h on windows: arguments checked, then the steps of a collective, each on every
 * rank that this thread drives before the next. */
#include "comm/comm.h"

#include <stdlib.h>

enum tern_status tern_heap_grow_all(int num_ranks, struct tern_comm **comms, uint64_t bytes)
{
    struct first_failure first = {TERN_OK, ""};
    TERN_TRY(terni_check_pointer("comms", comms));
    TERN_TRY(terni_comm_check_all(num_ranks, comms));
    for (int step = 0; first.status == TERN_OK && step < HEAP_GROW_STEPS; step++) {
        /* Every rank takes the step, also when one has failed: its peers' exchanges must stay in step. */
        for (int r = 0; r < num_ranks; r++) {
            enum tern_status one = terni_heap_grow_step(comms[r], bytes, step);
            terni_first_add(&first, one);
        }
    }
    for (int r = 0; r < num_ranks; r++) {
        terni_heap_grow_finish(comms[r], first.status);
    }
    return terni_first_end(&first); /* after all that closes */
}

enum tern_status tern_heap_grow(struct tern_comm *comm, uint64_t bytes)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return tern_heap_grow_all(1, &comm, bytes);
}

enum tern_status tern_window_adopt_all(int num_ranks, struct tern_comm **comms, void *const *memories,
                                       uint64_t bytes)
{
    struct first_failure first = {TERN_OK, ""};
    struct window **windows;
    TERN_TRY(terni_check_pointer("comms", comms));
    TERN_TRY(terni_check_pointer("memories", memories));
    TERN_TRY(terni_comm_check_all(num_ranks, comms));
    windows = (struct window **)calloc((size_t)num_ranks, sizeof *windows);
    if (windows == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d pointers", num_ranks);
    }
    for (int step = 0; first.status == TERN_OK && step < WINDOW_ADOPT_STEPS; step++) {
        for (int r = 0; r < num_ranks; r++) {
            enum tern_status one = terni_window_adopt_step(comms[r], memories[r], bytes, step, &windows[r]);
            terni_first_add(&first, one);
        }
    }
    for (int r = 0; r < num_ranks; r++) {
        terni_window_adopt_finish(comms[r], windows[r], first.status);
    }
    free(windows);
    return terni_first_end(&first); /* after all that closes */
}

enum tern_status tern_window_adopt(struct tern_comm *comm, void *memory, uint64_t bytes)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return tern_window_adopt_all(1, &comm, &memory, bytes);
}

void tern_window_release(struct tern_comm *comm, void *memory)
{
    if (comm != NULL && memory != NULL) {
        terni_window_release(comm, memory);
    }
}

enum tern_status tern_peer_pointer(const struct tern_comm *comm, const void *memory, int peer, void **pointer)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("memory", memory));
    TERN_TRY(terni_check_pointer("pointer", pointer));
    return terni_peer_pointer(comm, memory, peer, pointer);
}
