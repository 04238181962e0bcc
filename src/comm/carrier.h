/* SPDX-License-Identifier: Apache-2.0
 *
 * Carriers: what takes operations of a communicator's kernels to ranks that loads and stores do not reach,
 * and must know memory before it can. A proxy is one (courier.h), NICs are others; a network may have either.
 * Each learns of memory as it comes and goes, by what all ranks know of it. */
#ifndef TERN_CARRIER_H
#define TERN_CARRIER_H

#include "comm/comm.h"

struct carrier;

/* A piece of memory of every rank, of any size each. */
struct carrier_piece {
    void *memory; /* this rank's */
    uint64_t bytes;
    /* [num_ranks] of the window that it lies in: where each one's begins as this rank addresses it, or NULL,
     * and as its owner does. */
    char *const *bases;
    const uint64_t *owners;
};

/* What peers must know of a piece, in the carrier's own words; all zero: this rank has none. */
struct carrier_card {
    uint64_t words[8];
};

struct carrier_ops {
    enum tern_status (*add)(struct carrier *c, const struct carrier_piece *piece, struct carrier_card *card);
    /* cards: of all ranks in order. */
    enum tern_status (*import)(struct carrier *c, const struct carrier_piece *piece,
                               const struct carrier_card *cards);
    /* What was added, and imported with it, or not yet, is of no further use. */
    void (*release)(struct carrier *c, const struct carrier_piece *piece);
};
struct carrier {
    const struct carrier_ops *ops;
    struct tern_comm *comm;
    struct carrier *next; /* in comm->carriers */
    uint32_t number;      /* from 1 on; 0: not linked */
};

struct carrier_parcel {
    struct carrier *carrier; /* NULL: this rank has nothing at this place of the list */
    struct carrier_piece piece;
    struct carrier_card card;
    int is_added;
};
struct carrier_parcels {
    int num; /* equal on all ranks; 0: the steps do nothing */
    struct carrier_parcel *list;
};
/* COLLECTIVE: every step on every rank, as long as none fails, then finish with the outcome, which frees the
 * list; after a failure nothing of it is registered here. Place i of the list is the same piece of every
 * rank. */
enum { CARRIER_STEPS = 3 };
enum tern_status terni_carrier_step(struct tern_comm *comm, struct carrier_parcels *parcels, int step);
void terni_carrier_finish(struct carrier_parcels *parcels, enum tern_status status);

/* The communicator's memory that comes and goes while carriers are open. Ranks open carriers together, so
 * they number them alike, and close them alone. link: after the last step of opening, on every rank. */
void terni_carrier_link(struct carrier *carrier);
void terni_carrier_unlink(struct carrier *carrier); /* also one that is not linked */
/* One piece for every carrier ever linked, at its number. */
enum tern_status terni_carriers_parcels(struct tern_comm *comm, const struct carrier_piece *piece,
                                        struct carrier_parcels *parcels);
void terni_carriers_release(struct tern_comm *comm, const struct carrier_piece *piece);

#endif
