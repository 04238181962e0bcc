/* SPDX-License-Identifier: Apache-2.0
 *
 * A barrier of a team's ranks, in kernels. Rounds are counted and never reset: a member that has come to
 * round n sets its word at every other to n, and has passed once every other's word here is n or more. A
 * word may be one ahead: its owner has passed and come again. A member that gives up has not raised its own
 * count, so it may come again to the same round and set the same words.
 *
 * A word belongs to a rank of the communicator, whatever its number in the team: a signal that comes late,
 * from a team that had the place before, can only fall on the word of the rank that sent it. A team counts on
 * from the highest round that any of its members has signalled in the place (pgas_team.c), so it is not
 * awaited there; nor does it come after a round that is, because that rank's queues are quiet before it
 * signals. */
#ifndef TERN_BARRIER_H
#define TERN_BARRIER_H

#include "net/route.h"

/* Where member m tells this rank how far it is; at another rank, the same place. */
TERN_DEVICE uint64_t *barrier_word(const struct tern_net_team *team, int m)
{
    return &team->words[team->members[m]];
}

/* Who is missing, by the one that has waited in vain for member m. */
TERN_DEVICE void barrier_record(const struct tern_net *net, const struct tern_net_team *team, int m,
                                struct net_note *n)
{
    n->fault = NET_FAULT_BARRIER;
    n->peer = team->members[m];
    n->num_ranks = (uint32_t)team->num_ranks;
    n->word = barrier_word(team, m);
    for (int i = 0; i < team->num_ranks && i < 128; i++) {
        uint64_t bit = 1ull << (i & 63);
        int late = i != team->rank && ld_relaxed_sys_u64(barrier_word(team, i)) < n->expected;
        n->late_low |= late && i < 64 ? bit : 0;
        n->late_high |= late && i >= 64 ? bit : 0;
    }
    net_record(net, n);
}

/* A member that is lost: it will not come, nor will those that wait for it; -1: none. */
TERN_DEVICE int barrier_lost(const struct tern_net *net, const struct tern_net_team *team)
{
    for (int m = 0; m < team->num_ranks; m++) {
        if (route_has_lost(net, team->members[m])) {
            return m;
        }
    }
    return -1;
}

/* So long at most without a look at what became of this rank's own signal: by a queue nobody else does. */
enum { BARRIER_SLICE_NS = 1000000 };

TERN_DEVICE int barrier_await(const struct tern_net *net, const struct tern_net_team *team, int m,
                              uint64_t round)
{
    const uint64_t *watched = route_lost_word(net);
    uint64_t seen, elapsed_ns, known = 0, left_ns = net->timeout_ns, whole_ns = 0;
    int status, missing, again;
    do {
        uint64_t slice_ns = net->queues && left_ns > BARRIER_SLICE_NS ? (uint64_t)BARRIER_SLICE_NS : left_ns;
        status = net_await(net, barrier_word(team, m), 8, TERN_COMPARE_GE, round, slice_ns, watched, known,
                           &seen, &elapsed_ns);
        whole_ns += elapsed_ns;
        again = status == TERN_TIMEOUT && left_ns > elapsed_ns;
        if (again) {
            route_look(net, team->members[m], 0);
        }
        left_ns = left_ns > elapsed_ns ? left_ns - elapsed_ns : 1;
        missing = m;
        if (status == TERN_DISCONNECTED && seen == 0) {
            /* Pairs with the releases in terni_rings_lose (proxy_ring.c), queue_keep_error (queue_core.h). */
            known = ld_acquire_sys_u64(watched);
            missing = barrier_lost(net, team);
            again = missing < 0; /* lost is somebody else */
        }
    } while (again);
    if (status != TERN_OK) {
        struct net_note n = {0, status, 0, 8, TERN_COMPARE_GE, 0, 0, round, seen, whole_ns, 0, 0};
        barrier_record(net, team, missing, &n);
    }
    return status;
}

/* A signal says that what came before it is complete at all members, so that comes first where a signal to
 * one does not follow puts to another. */
TERN_DEVICE int barrier_quiet(const struct tern_net *net, const struct tern_net_team *team,
                              struct net_group g)
{
    int status = TERN_OK;
    if (!route_leaves_any(net)) {
        return status;
    }
    for (int m = (int)g.index; m < team->num_ranks && status == TERN_OK; m += (int)g.count) {
        status = route_settle_range(net, team->members[m], team->members[m] + 1, 0, net->num_queues);
    }
    return group_status(g, status);
}

/* All threads of one group of each member. What any thread of the group has issued, or seen of others of its
 * rank, is complete at every member when their groups return. All threads get the same status. */
TERN_DEVICE int route_barrier(const struct tern_net *net, const struct tern_net_team *team,
                              struct net_group g)
{
    int status;
    uint64_t round = *team->round + 1; /* read by all before one raises it: they meet in between */
    group_sync(g);
    status = barrier_quiet(net, team, g);
    for (int m = (int)g.index; m < team->num_ranks && status == TERN_OK; m += (int)g.count) {
        if (m != team->rank) {
            status = route_signal(net, team->members[m], 0, barrier_word(team, team->rank), 8,
                                  TERN_SIGNAL_SET, round);
        }
    }
    for (int m = (int)g.index; m < team->num_ranks && status == TERN_OK; m += (int)g.count) {
        status = m != team->rank ? barrier_await(net, team, m, round) : TERN_OK;
    }
    status = group_status(g, status);
    if (g.index == 0 && status == TERN_OK) {
        *team->round = round;
    }
    group_sync(g); /* the round is raised before anybody comes again */
    return status;
}

#endif
