/* SPDX-License-Identifier: Apache-2.0
 *
 * What `tern-bench ll --statistics` tells of waiting: the operations add up, for each source, how long they
 * waited for it. The source that a rank waited for longest, on the rank where that was most, is shown. */
#include "bench_ll.h"

/* Of one rank, added to longest[operation][source]. */
static enum tern_status read_waits(struct ll_bench *b, struct ll_seat *seat, double *longest)
{
    int ranks = b->party->num_ranks;
    uint64_t ns[NUM_LL_OPERATIONS * TERN_MAX_RANKS];
    for (uint32_t lane = 0; lane < b->shape.options->ll.lanes; lane++) {
        TERN_TRY(tern_copy(seat->comm, ns, seat->lanes[lane].tensors[LT_WAITS],
                           ll_tensor_bytes(&b->shape, LT_WAITS), seat->stream));
        TERN_TRY(tern_stream_synchronize(seat->comm, seat->stream));
        for (int k = 0; k < NUM_LL_OPERATIONS * ranks; k++) {
            longest[k] += (double)ns[k];
        }
    }
    return TERN_OK;
}

static enum tern_status clear_waits(struct ll_bench *b)
{
    for (int i = 0; i < b->party->num_local; i++) {
        for (uint32_t lane = 0; lane < b->shape.options->ll.lanes; lane++) {
            TERN_TRY(tern_fill(b->seats[i].comm, b->seats[i].lanes[lane].tensors[LT_WAITS], 0,
                               ll_tensor_bytes(&b->shape, LT_WAITS), b->seats[i].stream));
        }
    }
    return TERN_OK;
}

enum tern_status ll_time_waits(struct ll_bench *b, double waited[NUM_LL_OPERATIONS])
{
    const struct options *o = b->shape.options;
    double local[TERN_MAX_RANKS][NUM_LL_OPERATIONS] = {{0}}, all[TERN_MAX_RANKS][NUM_LL_OPERATIONS];
    TERN_TRY(clear_waits(b));
    for (uint32_t n = 0; n < o->iters; n++) {
        for (int i = 0; i < b->party->num_local; i++) {
            TERN_TRY(ll_issue(b, i, UNIT_PAIR));
        }
        if (n + 1 == o->iters || n % ROUNDS_A_CHAIN == 0) { /* in between, ranks are in step */
            TERN_TRY(ll_synchronize(b));
        }
    }
    for (int i = 0; i < b->party->num_local; i++) {
        double ns[NUM_LL_OPERATIONS * TERN_MAX_RANKS] = {0};
        TERN_TRY(read_waits(b, &b->seats[i], ns));
        for (int k = 0; k < NUM_LL_OPERATIONS * b->party->num_ranks; k++) {
            double *longest = &local[i][k / b->party->num_ranks];
            double us = ns[k] / 1e3 / o->iters / o->ll.lanes;
            *longest = us > *longest ? us : *longest;
        }
    }
    TERN_TRY(party_gather(b->party, local, all, sizeof(all[0])));
    for (int op = 0; op < NUM_LL_OPERATIONS; op++) {
        waited[op] = 0;
        for (int r = 0; r < b->party->num_ranks; r++) {
            waited[op] = all[r][op] > waited[op] ? all[r][op] : waited[op];
        }
    }
    return TERN_OK;
}
