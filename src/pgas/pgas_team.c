/* SPDX-License-Identifier: Apache-2.0
 *
 * Device teams. Members signal each other in words of the network's own window, and a word's address must be
 * symmetric: so all members take the same place, the first that is free on all of them. Opening is a
 * collective over the team, in steps. Refused unless every member reaches every other: else a group would get
 * different statuses from one barrier.
 *
 *     0   post which places are free here, and      1   choose; say from which round on the team counts; post
 *         the last round that this rank has               how that went
 *         signalled in each                         2   all have
 *
 * Rounds of a place only grow, whatever teams have it: a signal of an earlier team that comes late falls on a
 * word that is not awaited before it is higher. So words need not be cleared (decision page 012). */
#include "pgas/pgas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct team_note {
    uint64_t free_places;                /* bit i: place i */
    uint64_t rounds[TERN_NET_MAX_TEAMS]; /* of the places: none was signalled that is higher */
    int32_t status;
    char reason[TERN_SENTENCE_BYTES - 12];
};

/* The round, then the members. */
static char *state_of(const struct tern_network *n, int place)
{
    return n->device + (uint64_t)place * terni_pgas_state_stride(n->comm);
}

/* A rank signals the round after the one that it has passed, and then has either passed that or given up. */
static enum tern_status read_rounds(const struct tern_network *n, struct team_note *note)
{
    for (uint32_t i = 0; i < n->num_teams; i++) {
        if (!n->places[i].is_taken && n->places[i].is_used) {
            TERN_TRY(terni_pgas_move(n, &note->rounds[i], state_of(n, (int)i), sizeof note->rounds[i]));
            note->rounds[i]++;
        }
    }
    return TERN_OK;
}

static enum tern_status offer(const struct pgas_joining *j, struct team_note *note)
{
    if (terni_team_comm(j->team) != j->network->comm) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "the team and the network are not of one communicator");
    }
    for (int i = 0; i < terni_team_size(j->team); i++) {
        int r = terni_team_translate(j->team, i, NULL);
        if (j->network->routes[r] == NET_ROUTE_NONE) {
            return TERN_FAIL(TERN_UNSUPPORTED,
                             "no barrier of a team in which nothing leads from rank %d to rank %d",
                             j->network->comm->rank, r);
        }
    }
    for (uint32_t i = 0; i < j->network->num_teams; i++) {
        note->free_places |= j->network->places[i].is_taken ? 0 : 1ull << i;
    }
    return read_rounds(j->network, note);
}

static enum tern_status post_offer(struct pgas_joining *j)
{
    struct boot *boot = terni_team_boot(j->team);
    struct team_note note;
    memset(&note, 0, sizeof note);
    note.status = (int32_t)offer(j, &note);
    if (note.status != TERN_OK) {
        snprintf(note.reason, sizeof note.reason, "%s", tern_last_error());
    }
    return boot->ops->post(boot, &note, sizeof note);
}

static enum tern_status choose(struct pgas_joining *j, const struct team_note *notes)
{
    uint64_t free_places = ~0ull;
    for (int i = 0; i < terni_team_size(j->team); i++) {
        if (notes[i].status != TERN_OK) {
            return TERN_FAIL((enum tern_status)notes[i].status, "rank %d: %.*s",
                             terni_team_translate(j->team, i, NULL), (int)sizeof notes[i].reason,
                             notes[i].reason);
        }
        free_places &= notes[i].free_places;
    }
    if (free_places == 0) {
        return TERN_FAIL(TERN_NO_SPACE,
                         "none of the %u places for device teams is free on all %d ranks of the team: close "
                         "teams, or raise num_teams",
                         j->network->num_teams, terni_team_size(j->team));
    }
    j->place = __builtin_ctzll(free_places);
    j->network->places[j->place].is_taken = j->network->places[j->place].is_used = 1;
    for (int i = 0; i < terni_team_size(j->team); i++) {
        uint64_t round = notes[i].rounds[j->place];
        j->round = round > j->round ? round : j->round;
    }
    return TERN_OK;
}

static char *words_of(const struct tern_network *n, int place)
{
    return n->heap->bases[n->comm->rank] + PGAS_TEAMS + (uint64_t)place * terni_pgas_team_stride(n->comm);
}

static enum tern_status prepare(const struct pgas_joining *j)
{
    struct tern_network *n = j->network;
    int32_t *members = n->places[j->place].members;
    int size = terni_team_size(j->team);
    for (int i = 0; i < size; i++) {
        members[i] = terni_team_translate(j->team, i, NULL);
    }
    TERN_TRY(terni_pgas_move(n, state_of(n, j->place), &j->round, sizeof j->round));
    return terni_pgas_move(n, state_of(n, j->place) + 8, members, (size_t)size * sizeof *members);
}

static enum tern_status take_offers(struct pgas_joining *j)
{
    struct boot *boot = terni_team_boot(j->team);
    size_t size = (size_t)terni_team_size(j->team);
    enum tern_status status;
    struct team_note *notes = (struct team_note *)calloc(size, sizeof *notes);
    if (notes == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the notes of %zu ranks", size);
    }
    status = boot->ops->wait(boot, notes, sizeof *notes, j->network->comm->timeout_ms);
    if (status == TERN_OK) {
        status = choose(j, notes);
    }
    free(notes);
    return status == TERN_OK ? prepare(j) : status;
}

enum tern_status terni_net_team_step(struct pgas_joining *j, int step)
{
    struct boot *boot = terni_team_boot(j->team);
    switch (step) {
    case 0:
        j->place = -1;
        j->round = 0;
        return post_offer(j);
    case 1:
        return terni_boot_judge_post(boot, take_offers(j));
    default:
        return terni_boot_judge_wait(boot, j->network->comm->timeout_ms);
    }
}

void terni_net_team_finish(struct pgas_joining *j, enum tern_status status, struct tern_net_team *view)
{
    struct tern_network *n = j->network;
    if (status != TERN_OK) {
        if (j->place >= 0) {
            n->places[j->place].is_taken = 0;
        }
        return;
    }
    view->size = sizeof *view;
    view->rank = terni_team_rank(j->team);
    view->num_ranks = terni_team_size(j->team);
    view->members = (const int32_t *)(void *)(state_of(n, j->place) + 8);
    view->words = (uint64_t *)(void *)words_of(n, j->place);
    view->round = (uint64_t *)(void *)state_of(n, j->place);
}

void terni_net_team_close(struct tern_network *n, struct tern_net_team *view)
{
    for (uint32_t i = 0; i < n->num_teams; i++) {
        if ((char *)view->words == words_of(n, (int)i) && n->places[i].is_taken) {
            n->places[i].is_taken = 0;
            memset(view, 0, sizeof *view);
            view->size = sizeof *view;
            return;
        }
    }
    TERN_LOG(TERN_LOG_ERROR, "tern_net_team_close of a team that rank %d has not opened or has closed",
             n->comm->rank);
}
