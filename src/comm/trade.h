/* SPDX-License-Identifier: Apache-2.0
 *
 * A piece of memory of every rank, on its way to the peers of its domain: the collective step that opening a
 * heap, growing it and adopting a user's buffer have in common. */
#ifndef TERN_TRADE_H
#define TERN_TRADE_H

#include "comm/comm.h"
#include "comm/part.h"

enum trade_kind { TRADE_HEAP, TRADE_GROWTH, TRADE_LOAN };

struct trade_card {
    int32_t kind;    /* enum trade_kind; this and the next two are equal on all ranks */
    uint32_t number; /* of the trade in its communicator */
    uint64_t bytes;
    uint64_t address; /* where the piece of a heap or a loan lies, as its owner addresses it */
    uint64_t offset, span_bytes, inner; /* likewise, for the others: as in struct share_loan */
    int32_t status;                     /* enum tern_status of the rank's own part */
    char reason[TERN_SENTENCE_BYTES];   /* of a status that is not TERN_OK */
};

struct trade {
    int num_ranks;
    struct part_name name;    /* of this rank's piece */
    struct trade_card card;   /* this rank's */
    struct trade_card *cards; /* [num_ranks], all, after wait */
    unsigned char *is_remote; /* [num_ranks]: peers of this domain in other processes */
    int num_remote;
    int listen_fd, export_fd; /* else -1. The owner sets export_fd if there are remote peers */
    int *fds;                 /* [num_ranks] after wait, of remote peers' pieces; -1: none, or taken */
};

/* Peers that this rank addresses, by a descriptor (another process) or by what lies in this process. */
int terni_is_remote_peer(const struct tern_comm *comm, int r);
int terni_is_local_peer(const struct tern_comm *comm, int r);

/* Every rank opens; does its own part; posts the result of that, with this thread's tern_last_error, whatever
 * it is; and, where post returned TERN_OK, waits. wait fails on all ranks alike if one had failed or they
 * disagree; it fails on one alone if descriptors did not arrive, so whoever trades ends with a judgement.
 * Close after any of these; a zeroed trade too. What was sent to peers that have not read it yet lives on in
 * their sockets. */
enum tern_status terni_trade_open(struct tern_comm *comm, enum trade_kind kind, uint64_t bytes,
                                  struct trade *trade);
enum tern_status terni_trade_post(struct tern_comm *comm, struct trade *trade, enum tern_status status);
enum tern_status terni_trade_wait(struct tern_comm *comm, struct trade *trade);
void terni_trade_close(struct trade *trade);

#endif
