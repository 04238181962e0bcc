/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that carriers register: lists of pieces, in three steps over the boot:
 *
 *     0   register; post the cards of the list, and how that went
 *     1   import everybody's; post how that went
 *     2   all have
 *
 * A rank that has closed a carrier which others still have posts an empty card at its place. */
#include "comm/carrier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank posts: this, then a card a place. */
struct list_card {
    int32_t status;
    char reason[TERN_SENTENCE_BYTES - 4];
};

static size_t card_bytes(const struct carrier_parcels *parcels)
{
    return sizeof(struct list_card) + (size_t)parcels->num * sizeof(struct carrier_card);
}

static enum tern_status add_all(struct carrier_parcels *parcels)
{
    for (int i = 0; i < parcels->num; i++) {
        struct carrier_parcel *p = &parcels->list[i];
        if (p->carrier != NULL) {
            TERN_TRY(p->carrier->ops->add(p->carrier, &p->piece, &p->card));
            p->is_added = 1;
        }
    }
    return TERN_OK;
}

static enum tern_status post(struct tern_comm *comm, struct carrier_parcels *parcels)
{
    enum tern_status status;
    char *bytes = (char *)calloc(1, card_bytes(parcels));
    struct list_card *card = (struct list_card *)(void *)bytes;
    if (bytes == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for cards of %d registrations", parcels->num);
    }
    card->status = (int32_t)add_all(parcels);
    if (card->status != TERN_OK) {
        snprintf(card->reason, sizeof card->reason, "%s", tern_last_error());
    }
    for (int i = 0; i < parcels->num; i++) {
        memcpy(bytes + sizeof *card + (size_t)i * sizeof(struct carrier_card), &parcels->list[i].card,
               sizeof(struct carrier_card));
    }
    status = comm->boot->ops->post(comm->boot, bytes, card_bytes(parcels));
    free(bytes);
    return status;
}

/* `cards` are alike on all ranks, so all find the same culprit. */
static enum tern_status import_all(const struct tern_comm *comm, const struct carrier_parcels *parcels,
                                   const char *cards, struct carrier_card *row)
{
    for (int r = 0; r < comm->num_ranks; r++) {
        struct list_card card;
        memcpy(&card, cards + (size_t)r * card_bytes(parcels), sizeof card);
        if (card.status != TERN_OK) {
            return TERN_FAIL((enum tern_status)card.status, "rank %d: %.*s", r, (int)sizeof card.reason,
                             card.reason);
        }
    }
    for (int i = 0; i < parcels->num; i++) {
        for (int r = 0; r < comm->num_ranks; r++) {
            memcpy(&row[r],
                   cards + (size_t)r * card_bytes(parcels) + sizeof(struct list_card) +
                       (size_t)i * sizeof(struct carrier_card),
                   sizeof row[r]);
        }
        if (parcels->list[i].carrier != NULL) {
            struct carrier *c = parcels->list[i].carrier;
            TERN_TRY(c->ops->import(c, &parcels->list[i].piece, row));
        }
    }
    return TERN_OK;
}

static enum tern_status take(struct tern_comm *comm, const struct carrier_parcels *parcels)
{
    size_t n = (size_t)comm->num_ranks;
    char *cards = (char *)calloc(n, card_bytes(parcels));
    struct carrier_card *row = (struct carrier_card *)calloc(n, sizeof *row);
    enum tern_status status;
    if (cards == NULL || row == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for cards of %d registrations", parcels->num);
    } else {
        status = comm->boot->ops->wait(comm->boot, cards, card_bytes(parcels), comm->timeout_ms);
    }
    if (status == TERN_OK) {
        status = import_all(comm, parcels, cards, row);
    }
    free(row);
    free(cards);
    return status;
}

enum tern_status terni_carrier_step(struct tern_comm *comm, struct carrier_parcels *parcels, int step)
{
    if (parcels->num == 0) {
        return TERN_OK;
    }
    switch (step) {
    case 0:
        return post(comm, parcels);
    case 1:
        return terni_comm_judge_post(comm, take(comm, parcels));
    default:
        return terni_comm_judge_wait(comm);
    }
}

void terni_carrier_finish(struct carrier_parcels *parcels, enum tern_status status)
{
    for (int i = 0; i < parcels->num && status != TERN_OK; i++) {
        struct carrier_parcel *p = &parcels->list[i];
        if (p->is_added) {
            p->carrier->ops->release(p->carrier, &p->piece);
        }
    }
    free(parcels->list);
    parcels->list = NULL;
    parcels->num = 0;
}

/* ---- Carriers of a communicator ---- */

void terni_carrier_link(struct carrier *c)
{
    struct tern_comm *comm = c->comm;
    pthread_mutex_lock(&comm->children_lock);
    c->number = ++comm->num_carriers;
    c->next = comm->carriers;
    comm->carriers = c;
    pthread_mutex_unlock(&comm->children_lock);
}

void terni_carrier_unlink(struct carrier *c)
{
    struct tern_comm *comm = c->comm;
    struct carrier **at = &comm->carriers;
    pthread_mutex_lock(&comm->children_lock);
    while (*at != NULL && *at != c) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = c->next;
    }
    pthread_mutex_unlock(&comm->children_lock);
}

enum tern_status terni_carriers_parcels(struct tern_comm *comm, const struct carrier_piece *piece,
                                        struct carrier_parcels *parcels)
{
    if (comm->num_carriers == 0) {
        return TERN_OK;
    }
    parcels->list = (struct carrier_parcel *)calloc(comm->num_carriers, sizeof *parcels->list);
    if (parcels->list == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %u registrations", comm->num_carriers);
    }
    parcels->num = (int)comm->num_carriers;
    pthread_mutex_lock(&comm->children_lock);
    for (struct carrier *c = comm->carriers; c != NULL; c = c->next) {
        parcels->list[c->number - 1].carrier = c;
        parcels->list[c->number - 1].piece = *piece;
    }
    pthread_mutex_unlock(&comm->children_lock);
    return TERN_OK;
}

void terni_carriers_release(struct tern_comm *comm, const struct carrier_piece *piece)
{
    pthread_mutex_lock(&comm->children_lock);
    for (struct carrier *c = comm->carriers; c != NULL; c = c->next) {
        c->ops->release(c, piece);
    }
    pthread_mutex_unlock(&comm->children_lock);
}
