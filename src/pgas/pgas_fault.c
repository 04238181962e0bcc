/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel could not do becomes a status and one sentence on the host. A record is told once, and then
 * there is room for the next: a word that came too late may still come, and nothing is broken by it. */
#include "pgas/pgas.h"

#include <stdio.h>
#include <string.h>

/* Where the word lies, in words: an offset means the same on every rank. */
static void place_print(const struct tern_network *n, uint64_t word, char *text, size_t bytes)
{
    struct window_place places[8];
    int num = terni_windows_list(n->comm, places, 8);
    uint64_t offset = word - (uint64_t)(uintptr_t)n->view.heap.own;
    if (offset < n->view.heap.bytes) {
        snprintf(text, bytes, "offset %llu of its window", (unsigned long long)offset);
        return;
    }
    snprintf(text, bytes, "address %#llx", (unsigned long long)word);
    for (int i = 0; i < num && i < 8; i++) {
        offset = word - (uint64_t)(uintptr_t)places[i].memory;
        if (offset < places[i].bytes) {
            snprintf(text, bytes, "offset %llu of its adopted window at %p", (unsigned long long)offset,
                     (const void *)places[i].memory);
        }
    }
}

static enum tern_status state_wait(const struct tern_network *n, const struct tern_net_record *r)
{
    static const char *const signs[] = {"==", "!=", ">=", ">", "<=", "<"};
    char where[96];
    place_print(n, r->word, where, sizeof where);
    return TERN_FAIL(
        (enum tern_status)r->status,
        "rank %d: the word of %u bytes at %s is %llu, not %s %llu, after %.1f ms (block %d, warp "
        "%d)",
        n->comm->rank, r->width, where, (unsigned long long)r->seen,
        signs[r->compare <= TERN_COMPARE_LT ? r->compare : TERN_COMPARE_EQ], (unsigned long long)r->expected,
        (double)r->elapsed_ns / 1e6, r->block, r->warp);
}

static enum tern_status state_barrier(const struct tern_network *n, const struct tern_net_record *r)
{
    uint64_t from_teams = r->word - (uint64_t)(uintptr_t)n->heap->bases[n->comm->rank] - (uint64_t)PGAS_TEAMS;
    uint64_t place = from_teams / terni_pgas_team_stride(n->comm);
    char late[TERN_SENTENCE_BYTES / 2] = "";
    size_t length = 0;
    for (uint32_t i = 0; i < 128 && i < r->num_ranks && place < n->num_teams; i++) {
        if (r->late[i >> 6] >> (i & 63) & 1 && length + 16 < sizeof late) {
            length += (size_t)snprintf(late + length, sizeof late - length, "%s%d", length ? ", " : "",
                                       n->places[place].members[i]);
        }
    }
    return TERN_FAIL((enum tern_status)r->status,
                     "rank %d: no signal of round %llu of the barrier of a team of %u ranks from rank %s "
                     "within %.1f ms (rank %d has come to %llu)",
                     n->comm->rank, (unsigned long long)r->expected, r->num_ranks, late,
                     (double)r->elapsed_ns / 1e6, r->peer, (unsigned long long)r->seen);
}

enum tern_status terni_pgas_state(const struct tern_network *n, const struct tern_net_record *r)
{
    if (r->status == TERN_DISCONNECTED) {
        return TERN_FAIL(TERN_DISCONNECTED, "rank %d: rank %d called tern_net_abort", n->comm->rank,
                         (int)r->seen - 1);
    }
    switch (r->fault) {
    case NET_FAULT_WAIT:
        return state_wait(n, r);
    case NET_FAULT_BARRIER:
        return state_barrier(n, r);
    case NET_FAULT_ADDRESS:
        return TERN_FAIL(
            (enum tern_status)r->status,
            "rank %d: a kernel operated on rank %d at %#llx, which is in no window that its view "
            "knows, or misaligned (block %d, warp %d)",
            n->comm->rank, r->peer, (unsigned long long)r->word, r->block, r->warp);
    case NET_FAULT_WORD:
        return TERN_FAIL((enum tern_status)r->status,
                         "rank %d: a kernel gave a word of rank %d width %u and operation or comparison %u, "
                         "of which one does not exist (block %d, warp %d)",
                         n->comm->rank, r->peer, r->width, r->compare, r->block, r->warp);
    default:
        return TERN_FAIL(
            (enum tern_status)r->status,
            r->status == TERN_UNSUPPORTED
                ? "rank %d: a kernel operated on rank %d, to which nothing leads (block %d, warp "
                  "%d)"
                : "rank %d: a kernel operated on rank %d by a queue, one of which does not exist "
                  "(block %d, warp %d)",
            n->comm->rank, r->peer, r->block, r->warp);
    }
}

enum tern_status terni_pgas_fault(struct tern_network *n)
{
    const struct machine_ops *ops = n->machine->ops;
    struct tern_net_record r;
    /* Pairs with the release in net_record (net/wait.h): the other fields are whole once this word is set. */
    if (__atomic_load_n(&n->host->record.written, __ATOMIC_ACQUIRE) == 0) {
        return TERN_OK;
    }
    r = n->host->record;
    n->host->record.written = 0;
    TERN_TRY(ops->fill(n->machine, n->view.claim, 0, sizeof *n->view.claim, n->stream));
    TERN_TRY(ops->stream_synchronize(n->machine, n->stream));
    return terni_pgas_state(n, &r);
}
