/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel could not do becomes a status and one sentence on the host. A record is told once, and then
 * there is room for the next: a word that came too late may still come, and nothing is broken by it. */
#include "pgas/pgas.h"

#include "net/nic_refusal.h"

#include <stdio.h>
#include <string.h>

/* Where the word lies, in words: an offset means the same on every rank. */
static void place_print(const struct tern_network *n, uint64_t word, char *text, size_t bytes)
{
    struct window_place places[8];
    int num;
    uint64_t offset = word - (uint64_t)(uintptr_t)n->view.heap.own;
    if (offset < n->view.heap.bytes) {
        snprintf(text, bytes, "offset %llu of its window", (unsigned long long)offset);
        return;
    }
    snprintf(text, bytes, "address %#llx", (unsigned long long)word);
    terni_windows_lock(n->comm);
    num = terni_windows_list(n->comm, places, 8);
    terni_windows_unlock(n->comm);
    for (int i = 0; i < num && i < 8; i++) {
        offset = word - (uint64_t)(uintptr_t)places[i].memory;
        if (offset < places[i].bytes) {
            snprintf(text, bytes, "offset %llu of its adopted window at %p", (unsigned long long)offset,
                     (const void *)places[i].memory);
        }
    }
}

void terni_pgas_lost_print(const struct tern_network *n, char *text, size_t bytes)
{
    text[0] = '\0';
    if (n->courier != NULL) {
        terni_pgas_proxy_print_lost(n, text, bytes);
    } else if (n->nics != NULL) {
        terni_pgas_nics_print_lost(n, text, bytes);
    }
}

/* Why, with what was said last. */
static enum tern_status state_cut(const struct tern_network *n, int rank)
{
    char why[TERN_SENTENCE_BYTES / 2];
    snprintf(why, sizeof why, "%s", tern_last_error());
    return TERN_FAIL(TERN_DISCONNECTED, "rank %d: the network does not carry to rank %d any more: %s",
                     n->comm->rank, rank, why);
}

static enum tern_status rings_reach(const struct tern_network *n, int rank)
{
    struct proxy *proxy = terni_courier_proxy(n->courier);
    TERN_TRY(terni_proxy_loss(proxy, rank));
    for (int q = 0; q < (int)n->num_queues; q++) {
        TERN_TRY(terni_proxy_refusal(proxy, rank, q));
    }
    return TERN_OK;
}

static enum tern_status queues_reach(const struct tern_network *n, int rank)
{
    for (uint32_t q = 0; q < n->num_queues; q++) {
        const struct net_queue *queues = (const struct net_queue *)n->view.queues;
        struct net_queue queue;
        uint64_t error = 0;
        TERN_TRY(terni_pgas_move(n, &queue, queues + (uint32_t)rank * n->num_queues + q, sizeof queue));
        if (queue.state != NULL) {
            TERN_TRY(terni_pgas_move(n, &error, &queue.state->error, sizeof error));
        }
        if (error != 0) {
            uint32_t syndrome = queue_error_syndrome(error);
            return TERN_FAIL(TERN_DISCONNECTED, "queue %u has failed with syndrome 0x%02x, %s", q, syndrome,
                             terni_syndrome_text(syndrome));
        }
    }
    return TERN_OK;
}

enum tern_status terni_pgas_reaches(const struct tern_network *n, int rank)
{
    enum tern_status status = n->courier != NULL ? rings_reach(n, rank)
                              : n->nics != NULL  ? queues_reach(n, rank)
                                                 : TERN_OK;
    return status == TERN_OK ? TERN_OK : state_cut(n, rank);
}

static enum tern_status state_wait(const struct tern_network *n, const struct tern_net_record *r)
{
    static const char *const signs[] = {"==", "!=", ">=", ">", "<=", "<"};
    char where[96], lost[TERN_SENTENCE_BYTES / 2];
    place_print(n, r->word, where, sizeof where);
    terni_pgas_lost_print(n, lost, sizeof lost);
    return TERN_FAIL(
        (enum tern_status)r->status,
        "rank %d: the word of %u bytes at %s is %llu, not %s %llu, after %.1f ms (block %d, warp "
        "%d)%s",
        n->comm->rank, r->width, where, (unsigned long long)r->seen,
        signs[r->compare <= TERN_COMPARE_LT ? r->compare : TERN_COMPARE_EQ], (unsigned long long)r->expected,
        (double)r->elapsed_ns / 1e6, r->block, r->warp, lost);
}

static enum tern_status state_barrier(const struct tern_network *n, const struct tern_net_record *r)
{
    uint64_t from_teams = r->word - (uint64_t)(uintptr_t)n->heap->bases[n->comm->rank] - (uint64_t)PGAS_TEAMS;
    uint64_t place = from_teams / terni_pgas_team_stride(n->comm);
    char late[TERN_SENTENCE_BYTES / 2] = "", lost[TERN_SENTENCE_BYTES / 2];
    size_t length = 0;
    for (uint32_t i = 0; i < 128 && i < r->num_ranks && place < n->num_teams; i++) {
        if (r->late[i >> 6] >> (i & 63) & 1 && length + 16 < sizeof late) {
            length += (size_t)snprintf(late + length, sizeof late - length, "%s%d", length ? ", " : "",
                                       n->places[place].members[i]);
        }
    }
    terni_pgas_lost_print(n, lost, sizeof lost);
    if (r->status == TERN_DISCONNECTED) {
        return TERN_FAIL(
            TERN_DISCONNECTED,
            "rank %d: no signal of round %llu of the barrier of a team of %u ranks will come from rank "
            "%d%s",
            n->comm->rank, (unsigned long long)r->expected, r->num_ranks, r->peer, lost);
    }
    return TERN_FAIL((enum tern_status)r->status,
                     "rank %d: no signal of round %llu of the barrier of a team of %u ranks from rank %s "
                     "within %.1f ms (rank %d has come to %llu)%s",
                     n->comm->rank, (unsigned long long)r->expected, r->num_ranks, late,
                     (double)r->elapsed_ns / 1e6, r->peer, (unsigned long long)r->seen, lost);
}

/* What a queue or a ring carries did not end in time. */
static enum tern_status state_late(const struct tern_network *n, const struct tern_net_record *r)
{
    return TERN_FAIL(TERN_TIMEOUT,
                     "rank %d: what queue %u carries to rank %d is not complete after %.1f ms (block %d, "
                     "warp %d)",
                     n->comm->rank, r->compare, r->peer, (double)r->elapsed_ns / 1e6, r->block, r->warp);
}

/* Why a ring failed, as a kernel saw it: the peer is lost, or something was refused of this queue. */
static enum tern_status ring_reason(const struct tern_network *n, const struct tern_net_record *r)
{
    struct proxy *proxy = terni_courier_proxy(n->courier);
    return net_status_syndrome((uint32_t)r->expected) == NET_SYNDROME_LOST
               ? terni_proxy_loss(proxy, r->peer)
               : terni_proxy_refusal(proxy, r->peer, (int)r->compare);
}

/* The proxy's reason says more than a kernel can see. */
static enum tern_status state_ring(const struct tern_network *n, const struct tern_net_record *r)
{
    uint32_t status = (uint32_t)r->expected;
    if (net_status_kind(status) == NET_TIMED_OUT) {
        return state_late(n, r);
    }
    if (net_status_kind(status) == NET_FAILED && ring_reason(n, r) != TERN_OK) {
        char why[TERN_SENTENCE_BYTES];
        snprintf(why, sizeof why, "%s", tern_last_error());
        return TERN_FAIL((enum tern_status)r->status, "rank %d, queue %u to rank %d: %s", n->comm->rank,
                         r->compare, r->peer, why);
    }
    return TERN_FAIL((enum tern_status)r->status,
                     "rank %d: queue %u to rank %d has failed: 0x%x (block %d, warp %d)", n->comm->rank,
                     r->compare, r->peer, status, r->block, r->warp);
}

/* What a syndrome means for the peer. */
static const char *meaning(uint32_t syndrome, int first_is_known)
{
    return syndrome == NET_SYNDROME_LOST ? ": the peer is lost, or its end of the queue"
           : syndrome == NET_SYNDROME_FLUSHED && !first_is_known
               ? ": what failed first was overwritten, and is most likely that the peer is lost"
               : "";
}

static enum tern_status state_queue(const struct tern_network *n, const struct tern_net_record *r)
{
    uint32_t status = (uint32_t)r->expected, syndrome = net_status_syndrome(status);
    const void *local = (const void *)(uintptr_t)r->word;
    char why[TERN_SENTENCE_BYTES / 2];
    int is_known;
    if (net_status_kind(status) == NET_TIMED_OUT) {
        return state_late(n, r);
    }
    if (net_status_kind(status) == NET_REFUSED && local != NULL && terni_window_left(n->comm, local) == 0) {
        return TERN_FAIL((enum tern_status)r->status,
                         "rank %d: a kernel gave queue %u to rank %d its own memory at %#llx, which is in no "
                         "window: NICs reach nothing else (block %d, warp %d)",
                         n->comm->rank, r->compare, r->peer, (unsigned long long)r->word, r->block, r->warp);
    }
    if (net_status_kind(status) == NET_REFUSED) {
        return TERN_FAIL(
            (enum tern_status)r->status,
            "rank %d: a kernel gave queue %u to rank %d what the windows do not have, here or there, "
            "as far as they have grown (block %d, warp %d)",
            n->comm->rank, r->compare, r->peer, r->block, r->warp);
    }
    is_known = terni_pgas_nics_explain(n, r->peer, r->compare, why, sizeof why);
    return TERN_FAIL(
        (enum tern_status)r->status,
        "rank %d: queue %u to rank %d has failed with syndrome 0x%02x, %s (block %d, warp %d)%s%s",
        n->comm->rank, r->compare, r->peer, syndrome, terni_syndrome_text(syndrome), r->block, r->warp,
        meaning(syndrome, is_known), why);
}

enum tern_status terni_pgas_refuse_atomic(const struct tern_network *n, int peer, const char *where)
{
    const struct rank_card *own = &n->comm->cards[n->comm->rank], *card = &n->comm->cards[peer];
    return TERN_FAIL(
        TERN_UNSUPPORTED,
        "rank %d: the link from device %d (%.32s) to rank %d's device %d (%.32s) carries no atomics: "
        "TERN_SIGNAL_SET does without, tern_atomic and TERN_SIGNAL_ADD do not%s",
        n->comm->rank, own->device, own->device_name, peer, card->device, card->device_name, where);
}

enum tern_status terni_pgas_state(const struct tern_network *n, const struct tern_net_record *r)
{
    if (r->status == TERN_DISCONNECTED && r->seen != 0 && r->seen <= (uint64_t)n->comm->num_ranks &&
        ((r->fault != NET_FAULT_RING && r->fault != NET_FAULT_QUEUE) ||
         net_status_kind((uint32_t)r->expected) == NET_ABORTED)) {
        return TERN_FAIL(TERN_DISCONNECTED, "rank %d: rank %d called tern_net_abort", n->comm->rank,
                         (int)r->seen - 1);
    }
    switch (r->fault) {
    case NET_FAULT_RING:
        return state_ring(n, r);
    case NET_FAULT_QUEUE:
        return state_queue(n, r);
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
    case NET_FAULT_ATOMIC: {
        char where[48];
        snprintf(where, sizeof where, " (block %d, warp %d)", r->block, r->warp);
        return terni_pgas_refuse_atomic(n, r->peer, where);
    }
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

enum tern_status terni_pgas_fault(struct tern_network *n, enum pgas_teller teller)
{
    const struct machine_ops *ops = n->machine->ops;
    struct tern_net_record *record = &n->host->records[teller];
    struct tern_net_record r;
    /* Pairs with the release in net_record (net/wait.h): the other fields are whole once this word is set. */
    if (__atomic_load_n(&record->written, __ATOMIC_ACQUIRE) == 0) {
        return TERN_OK;
    }
    r = *record;
    record->written = 0;
    TERN_TRY(ops->fill(n->machine, n->view.claim + teller, 0, sizeof *n->view.claim, n->stream));
    TERN_TRY(ops->stream_synchronize(n->machine, n->stream));
    return terni_pgas_state(n, &r);
}
