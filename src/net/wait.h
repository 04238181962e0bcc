/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for words of this rank's memory that peers raise. A wait ends with TERN_OK, with TERN_TIMEOUT at its
 * deadline, or with TERN_DISCONNECTED once somebody has raised the abort word. The first that fails leaves a
 * record for the host, which makes a sentence of it (pgas/pgas_fault.c). Nothing traps. */
#ifndef TERN_WAIT_H
#define TERN_WAIT_H

#include "net/group.h"
#include "net/net_wait.h"
#include "tern/tern.h"

/* A program that is wrong on purpose, for test/tsan_awake.sh. */
#ifdef TERN_WEAKEN_ACQUIRE
#define WAIT_LOAD_32(p) ld_relaxed_sys_u32(p)
#define WAIT_LOAD_64(p) ld_relaxed_sys_u64(p)
#else
/* Pair with the releases of p2p_signal (p2p.h). */
#define WAIT_LOAD_32(p) ld_acquire_sys_u32(p)
#define WAIT_LOAD_64(p) ld_acquire_sys_u64(p)
#endif

/* What failed. */
enum {
    NET_FAULT_WAIT = 1,
    NET_FAULT_BARRIER = 2,
    NET_FAULT_ADDRESS = 3,
    NET_FAULT_ROUTE = 4,
    NET_FAULT_WORD = 5,   /* `compare` says what was to be done, `width` with how many bytes */
    NET_FAULT_RING = 6,   /* `compare` says by which queue, `expected` how it ended (net_wait.h) */
    NET_FAULT_ATOMIC = 7, /* on a peer behind a link that carries none */
    NET_FAULT_QUEUE = 8   /* as RING; `word` is the memory here, if there is any */
};

/* What a record says beside where it was written. */
struct net_note {
    int fault, status, peer;
    uint32_t width, compare, num_ranks;
    const void *word;
    uint64_t expected, seen, elapsed_ns, late_low, late_high;
};

TERN_DEVICE void net_record(const struct tern_net *net, const struct net_note *n)
{
    struct tern_net_record *r = net->record;
    /* Pairs with itself in other threads: one of them wins the record, until the host has read it. */
    if (r == 0 || atom_cas_acqrel_gpu_u32(net->claim, 0, 1) != 0) {
        return;
    }
    r->fault = n->fault;
    r->status = n->status;
    r->peer = n->peer;
    r->width = n->width;
    r->compare = n->compare;
    r->block = bid();
    r->warp = warp();
    r->num_ranks = n->num_ranks;
    r->word = (uint64_t)(uintptr_t)n->word;
    r->expected = n->expected;
    r->seen = n->seen;
    r->elapsed_ns = n->elapsed_ns;
    r->late[0] = n->late_low;
    r->late[1] = n->late_high;
    /* Pairs with the acquire in terni_pgas_fault: the host reads the rest only after it has seen this. */
    st_release_sys_u64(&r->written, 1);
}

/* The word, and all that was written before it was raised. */
TERN_DEVICE uint64_t net_look(const void *word, uint32_t width)
{
    /* Pairs with the release of p2p_signal in a peer. */
    return width == 4 ? WAIT_LOAD_32((const uint32_t *)word) : WAIT_LOAD_64((const uint64_t *)word);
}

TERN_DEVICE int net_compares(uint64_t seen, uint32_t width, uint32_t compare, uint64_t value)
{
    uint64_t wanted = width == 4 ? (uint32_t)value : value;
    switch (compare) {
    case TERN_COMPARE_EQ:
        return seen == wanted;
    case TERN_COMPARE_NE:
        return seen != wanted;
    case TERN_COMPARE_GE:
        return seen >= wanted;
    case TERN_COMPARE_GT:
        return seen > wanted;
    case TERN_COMPARE_LE:
        return seen <= wanted;
    default:
        return seen < wanted;
    }
}

/* Whether a word can be looked at so; a status. */
TERN_DEVICE int net_check_word(const void *word, uint32_t width, int is_known)
{
    return is_known && (width == 4 || width == 8) && ((uintptr_t)word & (width - 1)) == 0
               ? TERN_OK
               : TERN_INVALID_ARGUMENT;
}

/* One look: 1 or 0, or TERN_INVALID_ARGUMENT. */
TERN_DEVICE int net_test(const void *word, uint32_t width, uint32_t compare, uint64_t value)
{
    int status = net_check_word(word, width, compare <= TERN_COMPARE_LT);
    return status == TERN_OK ? net_compares(net_look(word, width), width, compare, value) : status;
}

/* As programs know it. */
TERN_DEVICE int net_status_public(uint32_t status)
{
    switch (net_status_kind(status)) {
    case NET_OK:
        return TERN_OK;
    case NET_TIMED_OUT:
        return TERN_TIMEOUT;
    case NET_ABORTED:
        return TERN_DISCONNECTED;
    case NET_FAILED:
        return net_syndrome_is_lost(net_status_syndrome(status))     ? TERN_DISCONNECTED
               : net_syndrome_is_device(net_status_syndrome(status)) ? TERN_DEVICE_ERROR
                                                                     : TERN_INVALID_ARGUMENT;
    default:
        return TERN_INVALID_ARGUMENT;
    }
}

/* The worst of any thread of the group, for all. Each failure more costs a meeting more, a success one. */
TERN_DEVICE int group_status(struct net_group g, int status)
{
    if (!group_or(g, status != TERN_OK)) {
        return TERN_OK;
    }
    if (group_or(g, status == TERN_DISCONNECTED)) {
        return TERN_DISCONNECTED;
    }
    if (group_or(g, status == TERN_TIMEOUT)) {
        return TERN_TIMEOUT;
    }
    if (group_or(g, status == TERN_DEVICE_ERROR)) {
        return TERN_DEVICE_ERROR;
    }
    return group_or(g, status == TERN_UNSUPPORTED) ? TERN_UNSUPPORTED : TERN_INVALID_ARGUMENT;
}

/* Not 0: who gave up, 1 + its rank. Relaxed: nothing is read on the strength of it. */
TERN_DEVICE uint64_t net_aborter(const struct tern_net *net) { return ld_relaxed_sys_u64(net->abort_word); }

/* How something has ended that was handed over to `peer` by `queue`, as programs know it; a failure is
 * recorded as such a fault. local: memory of this rank that it was about, or NULL. */
TERN_DEVICE int net_ended(const struct tern_net *net, int fault, int peer, uint32_t queue, const void *local,
                          uint32_t status, uint64_t begin_ns)
{
    if (status == NET_OK) {
        return TERN_OK;
    }
    struct net_note n = {fault,
                         net_status_public(status),
                         peer,
                         0,
                         queue,
                         0,
                         local,
                         status,
                         net_status_kind(status) == NET_ABORTED ? net_aborter(net) : 0,
                         clock_ns() - begin_ns,
                         0,
                         0};
    net_record(net, &n);
    return n.status;
}

/* One thread. *seen: the word as it was last; with TERN_DISCONNECTED the abort word. `watched`: NULL, or a
 * word that ends the wait, too, once it is not `known`, as if the abort word were raised, but *seen is 0. */
TERN_DEVICE int net_await(const struct tern_net *net, const void *word, uint32_t width, uint32_t compare,
                          uint64_t value, uint64_t timeout_ns, const uint64_t *watched, uint64_t known,
                          uint64_t *seen, uint64_t *elapsed_ns)
{
    struct net_patience patience = net_patience_of(net->abort_word, TERN_NET_NO_DEADLINE);
    uint64_t begin = 0;
    int status = TERN_OK;
    *elapsed_ns = 0;
    for (;;) {
        *seen = net_look(word, width);
        if (net_compares(*seen, width, compare, value)) {
            return TERN_OK;
        }
        if (status != TERN_OK) { /* that was the last look, after the deadline */
            *elapsed_ns = clock_ns() - begin;
            *seen = status == TERN_DISCONNECTED ? net_aborter(net) : *seen;
            return status;
        }
        if (begin == 0) { /* not before: a word that is there needs no clock */
            begin = clock_ns();
            uint64_t most = timeout_ns ? timeout_ns : net->timeout_ns;
            patience.deadline_ns = most < TERN_NET_NO_DEADLINE - begin ? begin + most : TERN_NET_NO_DEADLINE;
        }
        status = net_status_public(net_patient(&patience));
        if (status == TERN_OK && watched && patience.looks % 32 == 0 &&
            ld_relaxed_sys_u64(watched) != known) {
            status = TERN_DISCONNECTED;
        }
    }
}

/* The same, with a record of a failure. */
TERN_DEVICE int net_wait(const struct tern_net *net, const void *word, uint32_t width, uint32_t compare,
                         uint64_t value, uint64_t timeout_ns, uint64_t *seen)
{
    uint64_t elapsed_ns = 0;
    int fault = NET_FAULT_WORD, status = net_check_word(word, width, compare <= TERN_COMPARE_LT);
    *seen = 0;
    if (status == TERN_OK) {
        fault = NET_FAULT_WAIT;
        status = net_await(net, word, width, compare, value, timeout_ns, 0, 0, seen, &elapsed_ns);
    }
    if (status != TERN_OK) {
        struct net_note n = {fault, status, net->rank, width,      compare, 0,
                             word,  value,  *seen,     elapsed_ns, 0,       0};
        net_record(net, &n);
    }
    return status;
}

#undef WAIT_LOAD_32
#undef WAIT_LOAD_64

#endif
