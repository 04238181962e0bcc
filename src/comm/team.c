/* SPDX-License-Identifier: Apache-2.0
 *
 * Teams: some ranks of a communicator, with numbers of their own and a boot of their own, so that a team's
 * collectives neither wait for the other ranks nor count among theirs.
 *
 * Who is in which team follows from what all ranks know, the topology or the arguments; opening makes the
 * boots. It is a collective in steps over the communicator, or over the team that is split:
 *
 *     0   find the members; the leader of each team invites (struct boot_ops); post all this
 *     1   compare with all; join the team's boot; post how that went
 *     2   all have joined
 *
 * All teams of one kind are made in one call: every rank is in one of them. Sentences about late ranks name
 * them by their numbers in the communicator, which are the ones that a user can look up. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct team_card {
    struct team_spec spec;
    struct tern_id id;                /* of a leader's invitation */
    int32_t status;                   /* enum tern_status of this rank's part */
    char reason[TERN_SENTENCE_BYTES]; /* of a status that is not TERN_OK */
};

struct tern_team {
    struct tern_comm *comm;
    struct comm_child child;
    struct boot *boot; /* NULL until it is joined */
    int *members;      /* [size] numbers in the communicator */
    int rank, size;    /* rank -1: not a member of the team that the others make */
    /* While it opens. */
    struct boot *base; /* of the ranks that open it */
    int leader;        /* number in the base of the team's first */
    struct team_card card;
    int has_invited;
};

/* ---- Members ---- */

static int index_in_domain(const struct tern_comm *comm, int r)
{
    int index = 0;
    for (int q = 0; q < r; q++) {
        index += comm->domain_of[q] == comm->domain_of[r];
    }
    return index;
}

static int is_together(const struct tern_comm *comm, int kind, int r)
{
    switch (kind) {
    case TERN_TEAM_WORLD:
        return 1;
    case TERN_TEAM_DOMAIN:
        return comm->domain_of[r] == comm->domain_of[comm->rank];
    case TERN_TEAM_NODE:
        return comm->cards[r].host == comm->cards[comm->rank].host;
    default:
        return index_in_domain(comm, r) == index_in_domain(comm, comm->rank);
    }
}

static void add_member(struct tern_team *t, int r)
{
    if (r == t->comm->rank) {
        t->rank = t->size;
    }
    t->members[t->size++] = r;
}

static enum tern_status find_kind(struct tern_team *t, int kind)
{
    if (kind < TERN_TEAM_WORLD || kind > TERN_TEAM_RAIL) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kind %d is no enum tern_team_kind", kind);
    }
    for (int r = 0; r < t->comm->num_ranks; r++) {
        if (is_together(t->comm, kind, r)) {
            add_member(t, r);
        }
    }
    t->leader = t->members[0];
    return TERN_OK;
}

static enum tern_status find_split(struct tern_team *t, const struct tern_team *parent,
                                   const struct team_spec *s)
{
    int64_t last = (int64_t)s->start + ((int64_t)s->size - 1) * s->stride;
    if (s->start < 0 || s->stride < 1 || s->size < 1 || last >= parent->size) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%d ranks from %d on, %d apart, are not all among the %d of the team", s->size,
                         s->start, s->stride, parent->size);
    }
    for (int i = 0; i < s->size; i++) {
        add_member(t, parent->members[s->start + i * s->stride]);
    }
    t->leader = s->start;
    return TERN_OK;
}

/* ---- Opening ---- */

static enum tern_status prepare(struct tern_team *t, const struct tern_team *parent)
{
    struct team_card *card = &t->card;
    TERN_TRY(parent != NULL ? find_split(t, parent, &card->spec) : find_kind(t, card->spec.kind));
    if (t->rank == 0 && t->size > 1) {
        TERN_TRY(t->base->ops->invite(t->base, &card->id));
        t->has_invited = 1;
    }
    return TERN_OK;
}

/* Whatever fails from here on travels in the card. */
static enum tern_status begin(struct tern_comm *comm, const struct tern_team *parent,
                              const struct team_spec *spec, struct tern_team **team)
{
    struct tern_team *t = (struct tern_team *)calloc(1, sizeof *t);
    int *members = (int *)calloc((size_t)comm->num_ranks, sizeof *members);
    if (t == NULL || members == NULL) {
        free(t);
        free(members);
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a team of %d ranks", comm->num_ranks);
    }
    t->comm = comm;
    t->base = parent != NULL ? parent->boot : comm->boot;
    t->members = members;
    t->rank = -1;
    t->card.spec = *spec;
    *team = t;
    t->card.status = (int32_t)prepare(t, parent);
    if (t->card.status != TERN_OK) {
        snprintf(t->card.reason, sizeof t->card.reason, "%s", tern_last_error());
    }
    return t->base->ops->post(t->base, &t->card, sizeof t->card);
}

static enum tern_status check_cards(const struct boot *base, const struct team_card *cards)
{
    for (int r = 0; r < base->num_ranks; r++) {
        const struct team_spec *s = &cards[r].spec, *first = &cards[0].spec;
        if (memcmp(s, first, sizeof *s) != 0) {
            return TERN_FAIL(
                TERN_MISMATCH,
                "rank %d asks for kind %d, start %d, stride %d, size %d where rank %d asks for kind "
                "%d, start %d, stride %d, size %d",
                terni_boot_name(base, r), s->kind, s->start, s->stride, s->size, terni_boot_name(base, 0),
                first->kind, first->start, first->stride, first->size);
        }
    }
    for (int r = 0; r < base->num_ranks; r++) {
        if (cards[r].status != TERN_OK) {
            return TERN_FAIL((enum tern_status)cards[r].status, "rank %d opens no team: %.*s",
                             terni_boot_name(base, r), (int)sizeof cards[r].reason, cards[r].reason);
        }
    }
    return TERN_OK;
}

static enum tern_status join(struct tern_team *t, const struct team_card *cards)
{
    struct boot_group group = {t->rank, t->size, t->leader, t->members};
    if (t->rank < 0) {
        return TERN_OK;
    }
    if (t->size == 1) {
        TERN_TRY(terni_board_open(1, &t->boot));
        t->boot->names = t->members;
        return TERN_OK;
    }
    return t->base->ops->join(t->base, &group, &cards[t->leader].id, t->comm->timeout_ms, &t->boot);
}

static enum tern_status compare_and_join(struct tern_team *t)
{
    struct boot *base = t->base;
    enum tern_status status;
    struct team_card *cards = (struct team_card *)calloc((size_t)base->num_ranks, sizeof *cards);
    if (cards == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d cards", base->num_ranks);
    }
    status = base->ops->wait(base, cards, sizeof *cards, t->comm->timeout_ms);
    if (status == TERN_OK) {
        status = check_cards(base, cards);
    }
    if (status == TERN_OK) {
        status = join(t, cards);
    }
    free(cards);
    return status;
}

enum tern_status terni_team_open_step(struct tern_comm *comm, const struct tern_team *parent,
                                      const struct team_spec *spec, int step, struct tern_team **team)
{
    switch (step) {
    case 0:
        return begin(comm, parent, spec, team);
    case 1:
        return terni_boot_judge_post((*team)->base, compare_and_join(*team));
    default:
        return terni_boot_judge_wait((*team)->base, comm->timeout_ms);
    }
}

static void team_free(struct tern_team *t)
{
    if (t->has_invited) {
        t->base->ops->withdraw(t->base, &t->card.id); /* nothing if it was taken up */
    }
    if (t->boot != NULL) {
        t->boot->ops->close(t->boot);
    }
    free(t->members);
    free(t);
}

void terni_team_open_finish(struct tern_team **team, enum tern_status status)
{
    struct tern_team *t = *team;
    if (t != NULL && (status != TERN_OK || t->rank < 0)) {
        team_free(t);
        *team = NULL;
    } else if (t != NULL) {
        t->has_invited = 0;
        t->base = NULL; /* a parent may close before the team */
        terni_comm_adopt(t->comm, &t->child);
    }
}

void terni_team_close(struct tern_team *team)
{
    terni_comm_disown(team->comm, &team->child);
    team_free(team);
}

/* ---- Use ---- */

enum tern_status terni_team_barrier(struct tern_team *team)
{
    struct boot *boot = team->boot;
    TERN_TRY(boot->ops->post(boot, NULL, 0));
    return boot->ops->wait(boot, NULL, 0, team->comm->timeout_ms);
}

struct tern_comm *terni_team_comm(const struct tern_team *team) { return team->comm; }

struct boot *terni_team_boot(const struct tern_team *team) { return team->boot; }

int terni_team_rank(const struct tern_team *team) { return team->rank; }

int terni_team_size(const struct tern_team *team) { return team->size; }

int terni_team_translate(const struct tern_team *from, int rank, const struct tern_team *to)
{
    if (rank < 0 || (from != NULL && rank >= from->size)) {
        return -1;
    }
    rank = from != NULL ? from->members[rank] : rank;
    for (int i = 0; to != NULL && i < to->size; i++) {
        if (to->members[i] == rank) {
            return i;
        }
    }
    return to == NULL ? rank : -1;
}
