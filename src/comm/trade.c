/* SPDX-License-Identifier: Apache-2.0
 *
 * Cards first, then descriptors. A rank's own part may fail on that rank alone, so the result travels in the
 * card, and all ranks fail together, in step, before any of them waits for a descriptor that will not
 * come. */
#include "comm/trade.h"
#include "comm/fd_pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *does, *cannot;
} words[] = {
    [TRADE_HEAP] = {"opens a window of", "has no window of"},
    [TRADE_GROWTH] = {"grows its window by", "cannot grow its window by"},
    [TRADE_LOAN] = {"adopts a window of", "cannot adopt a window of"},
};

static int is_same_domain(const struct tern_comm *comm, int r)
{
    return comm->domain_of[r] == comm->domain_of[comm->rank];
}

static int is_same_process(const struct tern_comm *comm, int r)
{
    return comm->cards[r].process == comm->cards[comm->rank].process;
}

int terni_is_remote_peer(const struct tern_comm *comm, int r)
{
    return is_same_domain(comm, r) && !is_same_process(comm, r);
}

int terni_is_local_peer(const struct tern_comm *comm, int r)
{
    return r != comm->rank && is_same_domain(comm, r) && is_same_process(comm, r);
}

enum tern_status terni_trade_open(struct tern_comm *comm, enum trade_kind kind, uint64_t bytes,
                                  struct trade *t)
{
    size_t n = (size_t)comm->num_ranks;
    memset(t, 0, sizeof *t);
    t->num_ranks = comm->num_ranks;
    t->listen_fd = t->export_fd = -1;
    t->cards = (struct trade_card *)calloc(n, sizeof *t->cards);
    t->is_remote = (unsigned char *)calloc(n, 1);
    t->fds = (int *)calloc(n, sizeof *t->fds);
    for (int r = 0; t->fds != NULL && r < comm->num_ranks; r++) {
        t->fds[r] = -1;
    }
    if (t->cards == NULL || t->is_remote == NULL || t->fds == NULL) {
        terni_trade_close(t);
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for windows of %d ranks", comm->num_ranks);
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        t->is_remote[r] = terni_is_remote_peer(comm, r);
        t->num_remote += t->is_remote[r];
    }
    memcpy(t->name.cookie, comm->cookie, sizeof t->name.cookie);
    t->name.heap = comm->num_trades++;
    t->name.rank = comm->rank;
    t->card.kind = (int32_t)kind;
    t->card.number = t->name.heap;
    t->card.bytes = bytes;
    return TERN_OK;
}

enum tern_status terni_trade_post(struct tern_comm *comm, struct trade *t, enum tern_status status)
{
    if (status == TERN_OK && t->num_remote > 0) {
        status = terni_fd_listen(&t->name, &t->listen_fd);
    }
    t->card.status = (int32_t)status;
    if (status != TERN_OK) {
        snprintf(t->card.reason, sizeof t->card.reason, "%s", tern_last_error());
    }
    return comm->boot->ops->post(comm->boot, &t->card, sizeof t->card);
}

static int is_known(int32_t kind) { return kind >= 0 && kind < (int32_t)(sizeof words / sizeof words[0]); }

/* All ranks judge the same cards, so all succeed or fail alike. */
static enum tern_status check_cards(const struct tern_comm *comm, const struct trade_card *cards)
{
    const struct trade_card *first = &cards[0];
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct trade_card *c = &cards[r];
        if (!is_known(c->kind) || !is_known(first->kind)) {
            return TERN_FAIL(TERN_MISMATCH, "ranks 0 and %d share windows of unknown kinds %d and %d", r,
                             first->kind, c->kind);
        }
        if (c->kind != first->kind || c->number != first->number || c->bytes != first->bytes) {
            return TERN_FAIL(
                TERN_MISMATCH,
                "rank %d %s %llu bytes in call %u about windows, where rank 0 %s %llu in call %u", r,
                words[c->kind].does, (unsigned long long)c->bytes, c->number, words[first->kind].does,
                (unsigned long long)first->bytes, first->number);
        }
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct trade_card *c = &cards[r];
        if (c->status != TERN_OK) {
            return TERN_FAIL((enum tern_status)c->status, "rank %d %s %llu bytes: %.*s", r,
                             words[c->kind].cannot, (unsigned long long)c->bytes, (int)sizeof c->reason,
                             c->reason);
        }
    }
    return TERN_OK;
}

enum tern_status terni_trade_wait(struct tern_comm *comm, struct trade *t)
{
    TERN_TRY(comm->boot->ops->wait(comm->boot, t->cards, sizeof *t->cards, comm->timeout_ms));
    TERN_TRY(check_cards(comm, t->cards));
    if (t->num_remote == 0) {
        return TERN_OK;
    }
    return terni_fd_exchange(&t->name, comm->num_ranks, t->is_remote, t->listen_fd, t->export_fd,
                             comm->timeout_ms, t->fds);
}

void terni_trade_close(struct trade *t)
{
    if (t->cards == NULL && t->is_remote == NULL && t->fds == NULL) {
        return; /* zeroed */
    }
    if (t->listen_fd >= 0) {
        close(t->listen_fd);
    }
    if (t->export_fd >= 0) {
        close(t->export_fd);
    }
    for (int r = 0; t->fds != NULL && r < t->num_ranks; r++) {
        if (t->fds[r] >= 0) {
            close(t->fds[r]);
        }
    }
    free(t->fds);
    free(t->is_remote);
    free(t->cards);
    memset(t, 0, sizeof *t);
}
