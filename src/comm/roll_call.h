/* SPDX-License-Identifier: Apache-2.0
 *
 * A roll call: which ranks of a communicator are still there, decided by one of them for all, without the
 * boot, whose rank 0 may be who was lost. Every rank of a communicator between processes listens for it at
 * a door of its own, of which all know the address. */
#ifndef TERN_ROLL_CALL_H
#define TERN_ROLL_CALL_H

#include "comm/comm.h"

/* What the call says of a rank. */
enum roll_mark {
    ROLL_ABSENT = 0,
    ROLL_CHOSEN = 1,
    ROLL_SPARE = 2 /* it came, but its domain has lost a rank, and only whole ones go on */
};

struct roll {
    int lowest;           /* of the chosen; -1: there is none */
    struct tern_id id;    /* of the lowest, which listens there */
    unsigned char *marks; /* [num_ranks] enum roll_mark; the owner frees it */
};

struct roll_terms {
    uint32_t timeout_ms; /* that a silent rank is waited for */
    uint32_t min_ranks;  /* that go on */
    int whole_domains;
};

/* The door, from when a communicator opens until it closes. A communicator whose ranks are all in one
 * process, or one rank, has none: comm->door_fd is -1 and the id zero. */
enum tern_status terni_door_open(struct boot *boot, struct tern_id *id, int *fd);
void terni_door_close(int *fd);

/* COLLECTIVE over the ranks that are left, blocking. On success this rank is among the marked, and `own`,
 * an id at which it listens, is to be opened if it is the lowest, else to be withdrawn:
 * terni_roll_withdraw, also after a failure. */
enum tern_status terni_roll_call(struct tern_comm *comm, const struct roll_terms *terms, struct tern_id *own,
                                 struct roll *roll);
void terni_roll_withdraw(const struct tern_id *own);

#endif
