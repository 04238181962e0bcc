/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery: an operation that a rank does not come to ends at the deadline, with that rank's name. And then?
 *
 *     07_recovery                                one process: rank 2 is late, but there. All ranks reset the
 *                                                object and go on with it
 *     tern-run -n 3 --keep-going 07_recovery     processes: rank 2 has ended. The others shrink to two ranks
 *                                                and open an object of their own
 */
#include "round.h"

enum { RANKS = 3, LATE = 2, TIMEOUT_MS = 1000 };

/* Waits for the round, and tells a fault in a sentence. A failure that leaves nothing to go on with ends the
 * program. */
static enum tern_status finish(struct round *r, enum tern_status issued)
{
    enum tern_status status = issued != TERN_OK ? issued : tern_ep_synchronize(r->ep);
    struct tern_fault fault = TERN_FAULT_INIT;
    char text[512];
    if (status == TERN_OK) {
        return status;
    }
    if (tern_status_recovery(status) != TERN_RECOVER_GROUP) {
        must(status); /* a call that was wrong, or a device that is beyond repair */
    }
    if (tern_fault_get(r->ep, &fault) == TERN_OK) {
        tern_fault_text(&fault, text, sizeof text);
        fprintf(stderr, "rank %d: %s\n", r->rank, text);
    }
    return status;
}

/* All ranks are there: they close their routes and reset the object. */
static int reset(void)
{
    const struct tern_ep_config config = round_config(TIMEOUT_MS);
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    struct round rounds[RANKS];
    int good = 1;
    must(tern_comm_open_all(RANKS, NULL, comms));
    must(tern_ep_open_all(RANKS, comms, &config, eps));
    for (int r = 0; r < RANKS; r++) {
        round_prepare(&rounds[r], comms[r], eps[r]);
    }
    for (int r = 0; r < LATE; r++) {
        must(round_issue(&rounds[r]));
    }
    for (int r = 0; r < RANKS;
         r++) { /* the late rank's round comes to nothing, as the others have given up */
        good &= finish(&rounds[r], r < LATE ? TERN_OK : round_issue(&rounds[r])) != TERN_OK;
        tern_route_close(rounds[r].route);
        rounds[r].route = NULL;
    }
    must(tern_ep_reset_all(RANKS, eps));
    for (int r = 0; r < RANKS; r++) {
        must(round_issue(&rounds[r]));
    }
    for (int r = 0; r < RANKS; r++) {
        good &= finish(&rounds[r], TERN_OK) == TERN_OK && round_is_right(&rounds[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        round_close(&rounds[r]);
    }
    printf("reset: all %d ranks' sums are %s\n", RANKS, good ? "right" : "wrong");
    return good ? 0 : 1;
}

/* A rank is gone: those that are left agree on a new communicator, in which they are renumbered. Then the old
 * one goes, with all that was opened on it. */
static int shrink(void)
{
    const struct tern_ep_config config = round_config(TIMEOUT_MS);
    struct tern_shrink_args args = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *comm, *left;
    struct tern_ep *ep;
    struct round before, after;
    int32_t old_ranks[RANKS];
    int first, good;
    (void)open_ranks(RANKS, &config, &comm, &ep, &first);
    round_prepare(&before, comm, ep);
    if (before.rank == LATE) {
        exit(0); /* without a word */
    }
    good = finish(&before, round_issue(&before)) != TERN_OK;
    args.min_ranks = 2; /* fewer make no sense here */
    must(tern_comm_shrink(comm, &args, old_ranks, &left));
    must(tern_ep_open(left, &config, &ep));
    round_prepare(&after, left, ep);
    good &= finish(&after, round_issue(&after)) == TERN_OK && round_is_right(&after);
    if (after.rank == 0) {
        printf("shrunk: ranks %d and %d of %d go on, and this one's sums are %s\n", old_ranks[0],
               old_ranks[1], RANKS, good ? "right" : "wrong");
    }
    round_close(&before);
    must(tern_comm_barrier(left)); /* nobody closes what a peer still uses */
    round_close(&after);
    return good ? 0 : 1;
}

int main(void) { return getenv("TERN_ID") == NULL ? reset() : shrink(); }
