/* SPDX-License-Identifier: Apache-2.0
 *
 * A barrier of a team's ranks, in kernels. Rounds are counted and never reset: a member that has come to
 * round n sets its word at every other to n, and has passed once every other's word here is n or more. A
 * word may be one ahead: its owner has passed and come again. A member that gives up has not raised its own
 * count, so it may come again to the same round and set the same words.
 *
 * A word belongs to a rank of the communicator, whatever its number in the team: a signal that comes late,
 * from a team that had the place before, can only fall on the word of the rank that sent it. */
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

TERN_DEVICE int barrier_await(const struct tern_net *net, const struct tern_net_team *team, int m,
                              uint64_t round)
{
    uint64_t seen, elapsed_ns;
    int status = net_await(net, barrier_word(team, m), 8, TERN_COMPARE_GE, round, 0, &seen, &elapsed_ns);
    if (status != TERN_OK) {
        struct net_note n = {0, status, 0, 8, TERN_COMPARE_GE, 0, 0, round, seen, elapsed_ns, 0, 0};
        barrier_record(net, team, m, &n);
    }
    return status;
}

/* All threads of one group of each member. What any thread of the group has issued, or seen of others of its
 * rank, is complete at every member when their groups return. All threads get the same status. */
TERN_DEVICE int route_barrier(const struct tern_net *net, const struct tern_net_team *team,
                              struct net_group g)
{
    int late = 0, gone = 0, status = TERN_OK;
    uint64_t round = *team->round + 1; /* read by all before one raises it: they meet in between */
    group_sync(g);
    for (int m = (int)g.index; m < team->num_ranks && status == TERN_OK; m += (int)g.count) {
        if (m != team->rank) {
            status = route_signal(net, team->members[m], 0, barrier_word(team, team->rank), 8,
                                  TERN_SIGNAL_SET, round);
        }
    }
    for (int m = (int)g.index; m < team->num_ranks && status == TERN_OK; m += (int)g.count) {
        status = m != team->rank ? barrier_await(net, team, m, round) : TERN_OK;
    }
    late = group_or(g, status == TERN_TIMEOUT);
    gone = group_or(g, status != TERN_OK && status != TERN_TIMEOUT);
    if (g.index == 0 && !late && !gone) {
        *team->round = round;
    }
    group_sync(g); /* the round is raised before anybody comes again */
    return gone   ? (status == TERN_OK || status == TERN_TIMEOUT ? TERN_DISCONNECTED : status)
           : late ? TERN_TIMEOUT
                  : TERN_OK;
}

#endif
