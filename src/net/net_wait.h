/* SPDX-License-Identifier: Apache-2.0
 *
 * How device code waits for what a NIC or an engine does: what a wait ends with, and its patience.
 *
 * An operation that was handed over is named by a ticket, and waiting for a ticket ends in a status. Both are
 * numbers, so that they pass through any transport. A request that could not be handed over has a ticket too:
 * waiting for that one ends at once, with the reason. Nothing on a device has to look at a ticket before it
 * goes on, and nothing is lost if it does not. */
#ifndef TERN_NET_WAIT_H
#define TERN_NET_WAIT_H

#include "simt/simt.h"

/* Low byte of a status; 0 alone is success. */
enum {
    NET_OK = 0,
    NET_FAILED = 1,    /* completed in error: bits 15:8 have the syndrome. The transport's object is lost */
    NET_ABORTED = 2,   /* somebody raised the abort word */
    NET_TIMED_OUT = 3, /* the deadline has passed; what was awaited may still happen */
    NET_REFUSED = 4,   /* nothing was handed over: no key names the address, or the object is too small */
};

/* Of the syndromes, the one that says that the peer is gone, or cannot be reached. */
enum { NET_SYNDROME_LOST = 0x15 };
/* And one that says no more than that something before has failed. Where that was not seen in time, since all
 * completions of a queue overwrite one entry, it was most likely the loss: what a program asks for wrongly is
 * refused before it is handed over. */
enum { NET_SYNDROME_FLUSHED = 0x05 };

TERN_DEVICE uint32_t net_failed(uint32_t syndrome) { return NET_FAILED | (syndrome & 0xffu) << 8; }
TERN_DEVICE uint32_t net_status_kind(uint32_t status) { return status & 0xffu; }
TERN_DEVICE uint32_t net_status_syndrome(uint32_t status) { return status >> 8 & 0xffu; }

TERN_DEVICE int net_syndrome_is_lost(uint32_t syndrome)
{
    return syndrome == NET_SYNDROME_LOST || syndrome == NET_SYNDROME_FLUSHED;
}

/* And two that say that a device failed, here (a copy, a queue pair) or at the peer: what was asked for was
 * right. */
enum { NET_SYNDROME_DEVICE = 0x02, NET_SYNDROME_FAR_DEVICE = 0x14 };

TERN_DEVICE int net_syndrome_is_device(uint32_t syndrome)
{
    return syndrome == NET_SYNDROME_DEVICE || syndrome == NET_SYNDROME_FAR_DEVICE;
}

/* Bit 63 of a ticket: the status is below it. Ticket 0: nothing was asked for, nothing is to be awaited. */
#define TERN_NET_TICKET_REFUSED (1ull << 63)

TERN_DEVICE uint64_t net_ticket_refused(uint32_t status) { return TERN_NET_TICKET_REFUSED | status; }
TERN_DEVICE uint32_t net_ticket_status(uint64_t ticket)
{
    return (ticket & TERN_NET_TICKET_REFUSED) != 0 ? (uint32_t)ticket : (uint32_t)NET_OK;
}

/* Nanoseconds of clock_ns(). */
#define TERN_NET_NO_DEADLINE (~0ull)

/* One wait. Begins as net_patience_of; net_patient is asked after every look that found nothing. */
struct net_patience {
    const uint64_t *abort; /* NULL: nobody can end it */
    uint64_t deadline_ns;
    uint32_t looks;
};

TERN_DEVICE struct net_patience net_patience_of(const uint64_t *abort, uint64_t deadline_ns)
{
    struct net_patience w;
    w.abort = abort;
    w.deadline_ns = deadline_ns;
    w.looks = 0;
    return w;
}

/* NET_OK: look again. The abort word and the clock are read once in 32 looks. */
TERN_DEVICE uint32_t net_patient(struct net_patience *w)
{
    spin();
    if (++w->looks % 32 != 0) {
        return NET_OK;
    }
    /* Relaxed: nothing is read on the strength of it. */
    if (w->abort != NULL && ld_relaxed_sys_u64(w->abort) != 0) {
        return NET_ABORTED;
    }
    return w->deadline_ns != TERN_NET_NO_DEADLINE && clock_ns() > w->deadline_ns ? NET_TIMED_OUT : NET_OK;
}

#endif
