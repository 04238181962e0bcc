/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls of tern.h on teams: arguments checked, then the steps of a collective, each on every rank
 * that this thread drives before the next. */
#include "comm/comm.h"

#include <stdlib.h>

/* For one rank of each communicator or parent; where a parent is NULL this rank is in no team to split. */
static enum tern_status open_all(int num_ranks, struct tern_comm **comms, struct tern_team **parents,
                                 const struct team_spec *spec, struct tern_team **teams)
{
    struct first_failure first = {TERN_OK, ""};
    struct tern_team **made = (struct tern_team **)calloc((size_t)num_ranks, sizeof(struct tern_team *));
    if (made == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d pointers", num_ranks);
    }
    for (int step = 0; first.status == TERN_OK && step < TEAM_OPEN_STEPS; step++) {
        /* Every rank takes the step, also when one has failed: its peers' exchanges must stay in step. */
        for (int r = 0; r < num_ranks; r++) {
            const struct tern_team *parent = parents != NULL ? parents[r] : NULL;
            enum tern_status one = TERN_OK;
            if (parents == NULL || parent != NULL) {
                one = terni_team_open_step(parent != NULL ? terni_team_comm(parent) : comms[r], parent, spec,
                                           step, &made[r]);
            }
            terni_first_add(&first, one);
        }
    }
    for (int r = 0; r < num_ranks; r++) {
        terni_team_open_finish(&made[r], first.status);
        if (first.status == TERN_OK) {
            teams[r] = made[r];
        }
    }
    free(made);
    return terni_first_end(&first); /* after all that closes */
}

enum tern_status tern_team_open_all(int num_ranks, struct tern_comm **comms, int kind,
                                    struct tern_team **teams)
{
    struct team_spec spec = {kind, 0, 0, 0};
    TERN_TRY(terni_check_pointer("comms", comms));
    TERN_TRY(terni_check_pointer("teams", teams));
    TERN_TRY(terni_comm_check_all(num_ranks, comms));
    return open_all(num_ranks, comms, NULL, &spec, teams);
}

enum tern_status tern_team_open(struct tern_comm *comm, int kind, struct tern_team **team)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return tern_team_open_all(1, &comm, kind, team);
}

enum tern_status tern_team_split_all(int num_parents, struct tern_team **parents, int start, int stride,
                                     int size, struct tern_team **teams)
{
    struct team_spec spec = {-1, start, stride, size};
    TERN_TRY(terni_check_pointer("parents", parents));
    TERN_TRY(terni_check_pointer("teams", teams));
    if (num_parents < 1) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_parents is %d", num_parents);
    }
    return open_all(num_parents, NULL, parents, &spec, teams);
}

enum tern_status tern_team_split(struct tern_team *parent, int start, int stride, int size,
                                 struct tern_team **team)
{
    TERN_TRY(terni_check_pointer("parent", parent));
    return tern_team_split_all(1, &parent, start, stride, size, team);
}

void tern_team_close(struct tern_team *team)
{
    if (team != NULL) {
        terni_team_close(team);
    }
}

int tern_team_rank(const struct tern_team *team) { return team != NULL ? terni_team_rank(team) : -1; }

int tern_team_size(const struct tern_team *team) { return team != NULL ? terni_team_size(team) : 0; }

int tern_team_translate(const struct tern_team *from, int rank, const struct tern_team *to)
{
    return terni_team_translate(from, rank, to);
}

enum tern_status tern_team_barrier(struct tern_team *team)
{
    TERN_TRY(terni_check_pointer("team", team));
    return terni_team_barrier(team);
}
