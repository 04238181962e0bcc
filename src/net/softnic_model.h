/* SPDX-License-Identifier: Apache-2.0
 *
 * When things happen on a wire that is modelled: a rate of bytes and of messages for what a NIC sends, a rate
 * for what it receives, and the time that a byte is under way.
 *
 * Each direction of a NIC is one word: until when it is taken. A message takes it from then on, or from now
 * if that is later, for as long as its bytes need; adding that to the word is the whole limiter. Nothing is
 * measured and nothing drifts: any number of engines, also of other NICs, share a direction by additions, and
 * what they send in a second is the rate, whenever they happen to look. Messages that are taken at once take
 * their directions once, for all of them.
 *
 * Queue pairs of a NIC take turns, as those of NICs do: the next message of one is taken when its last one
 * leaves, and has the wire behind what the others have taken meanwhile. So each sends as much as any other
 * that always has something to send. A few bytes go between those of others.
 *
 *     put, atomic   sender taken ---- latency ----> receiver taken: arrives ---- latency ----> completes
 *     get           request      ---- latency ----> its bytes, back likewise: arrive and complete at once
 *
 * The receiver begins with the first byte, so that two NICs of one rate add nothing to each other. Bytes are
 * payload: nothing is added for headers, for which there is the rate of messages.
 *
 * Time is in ticks of 1/256 ns, wrapping. NICs of one GPU have one clock, and so have those that are threads
 * of a host; clocks of two GPUs are hundreds of microseconds apart, and drift. A word counts by the clock of
 * the NIC that it belongs to, which a NIC with another clock hears (struct softnic_clock). */
#ifndef TERN_SOFTNIC_MODEL_H
#define TERN_SOFTNIC_MODEL_H

#include "tern/tern.h"
#include "simt/simt.h"

enum { SOFTNIC_TICKS = 256 /* a ns */, SOFTNIC_FRACTION = 16 /* bits */ };

/* 0: as fast as it goes. */
struct softnic_rates {
    uint64_t bytes_per_s;         /* that a NIC sends, all its queue pairs together */
    uint64_t receive_bytes_per_s; /* that it receives, from all NICs together */
    uint64_t messages_per_s;      /* that it sends; requests for data count, the data does not */
    uint64_t latency_ns;          /* one way */
};
enum { SOFTNIC_MIN_BYTES_PER_S = 1000000, SOFTNIC_MIN_MESSAGES_PER_S = 1000 };
#define SOFTNIC_MAX_BYTES_PER_S    10000000000000ull
#define SOFTNIC_MAX_MESSAGES_PER_S 1000000000ull
#define SOFTNIC_MAX_LATENCY_NS     1000000000ull

/* The same as engines use it. All 0: nothing is modelled. */
struct softnic_model {
    uint64_t send_byte, receive_byte; /* ticks, with SOFTNIC_FRACTION bits behind the point */
    uint64_t message, latency;        /* ticks */
    uint64_t ahead; /* how long before a queue pair's last message has left its next one is taken: ticks */
};

/* Host (softnic_model.c). TERN_INVALID_ARGUMENT: a rate or latency that is too small or large for ticks. */
enum tern_status terni_softnic_model(const struct softnic_rates *rates, struct softnic_model *model);

/* Until when a NIC's directions are taken, in ticks; 0: never used. In memory that the NICs of all ranks
 * reach which send to it or read from it. `clock` is what its clock was at some step of an engine, which
 * stores it at every look where a peer has another clock; 0: never told. */
struct softnic_link {
    uint64_t sends, receives, clock, reserved;
};

struct softnic_times {
    uint64_t arrives, completes; /* ticks */
};

TERN_DEVICE uint64_t softnic_ticks(uint64_t ns) { return ns * SOFTNIC_TICKS; }
/* 1 at that time and from then on. */
TERN_DEVICE int softnic_is_due(uint64_t now, uint64_t time) { return (int64_t)(now - time) >= 0; }
TERN_DEVICE uint64_t softnic_later(uint64_t a, uint64_t b) { return softnic_is_due(a, b) ? a : b; }

TERN_DEVICE uint64_t softnic_cost(uint64_t bytes, uint64_t byte)
{
    return (bytes * byte + (1ull << (SOFTNIC_FRACTION - 1))) >> SOFTNIC_FRACTION;
}

/* Of a word that may never have been used. */
TERN_DEVICE uint64_t softnic_take_first(uint64_t *taken, uint64_t at, uint64_t cost)
{
    uint64_t seen = ld_relaxed_sys_u64(taken);
    for (;;) {
        uint64_t start = seen == 0 ? at : softnic_later(at, seen);
        uint64_t was = atom_cas_relaxed_sys_u64(taken, seen, start + cost);
        if (was == seen) {
            return start;
        }
        seen = was;
    }
}

/* Of any other, to which `cost` was added when it was `seen`. A direction that is taken is taken for longer
 * by an addition, which never fails: the word may be far away, and many engines add to it. One that was free
 * is lifted to now; who finds that somebody else has lifted it, over what was added, adds again. */
TERN_DEVICE uint64_t softnic_take_next(uint64_t *taken, uint64_t at, uint64_t cost, uint64_t seen)
{
    while (!softnic_is_due(seen, at)) {
        uint64_t expected = seen + cost, was;
        while ((was = atom_cas_relaxed_sys_u64(taken, expected, at + cost)) != expected) {
            if (softnic_is_due(was, at)) {
                break;
            }
            expected = was;
        }
        if (was == expected) {
            return at;
        }
        seen = atom_add_relaxed_sys_u64(taken, cost);
    }
    return seen;
}

/* What is known of a peer's clock. What the peer told is past when it is heard: by how much the clock seems
 * ahead is less than the truth by the age of the news, and the most that was heard is the best. From that
 * comes off what the clocks may have drifted apart since. It is to be heard again before it is used once
 * SOFTNIC_HEARD_FOR has passed, in which clocks drift apart by less than a microsecond. */
struct softnic_clock {
    uint64_t ahead;    /* ticks, wrapping; 0 where both are one clock */
    uint64_t heard_at; /* by the own clock; 0: never */
};
enum { SOFTNIC_DRIFT_SHIFT = 14 };                      /* 61 parts in a million */
#define SOFTNIC_HEARD_FOR (10000000ull * SOFTNIC_TICKS) /* 10 ms */

/* `told` was read before the own clock was `now`. */
TERN_DEVICE void softnic_hear(struct softnic_clock *k, uint64_t told, uint64_t now)
{
    uint64_t ahead = told - now;
    if (told == 0) {
        return;
    }
    if (k->heard_at != 0) {
        const uint64_t age = softnic_is_due(now, k->heard_at) ? now - k->heard_at : 0;
        ahead = softnic_later(ahead, k->ahead - (age >> SOFTNIC_DRIFT_SHIFT));
    }
    k->ahead = ahead;
    k->heard_at = now | 1;
}

TERN_DEVICE int softnic_is_old(const struct softnic_clock *k, uint64_t now)
{
    return k->heard_at == 0 || (int64_t)(now - k->heard_at - SOFTNIC_HEARD_FOR) > 0;
}

/* Messages that leave one NIC for another together, or a single one. What each needs is added up in order. */
struct softnic_crossing {
    struct softnic_link *from, *to; /* NULL: always free */
    uint32_t first_bit;             /* of `used`: the sender's; the receiver's is the next */
    uint64_t sends, receives;       /* ticks that are needed */
    uint64_t leaves, comes;         /* from when on they have them, by the own clock */
    uint64_t from_ahead, to_ahead;  /* of the own clock: those by which `from` and `to` count */
    uint64_t overtakes;             /* if it is of few bytes: those of other queue pairs */
    uint64_t behind; /* what it waits for then, by the own clock: its own one's last has left; 0: none */
};

/* What takes next to no time, as the signal of a put, has no turn of its own. */
enum { SOFTNIC_SMALL = 64 * SOFTNIC_TICKS };

/* Packets of a NIC's queue pairs take turns, so that a credit of eight bytes is not behind the messages that
 * others have begun: up to so many bytes, which are too few to be what a link is full of. They take the wire
 * all the same, and where messages have a rate of their own wait for it. */
enum { SOFTNIC_FEW_BYTES = 64 };

/* Of a crossing that has taken its directions. */
TERN_DEVICE void softnic_overtake(const struct softnic_model *m, struct softnic_crossing *c, uint64_t at)
{
    if (c->overtakes && m->message == 0 && c->sends != 0 &&
        c->sends <= softnic_cost(SOFTNIC_FEW_BYTES, m->send_byte) &&
        c->receives <= softnic_cost(SOFTNIC_FEW_BYTES, m->receive_byte)) {
        c->leaves = c->behind == 0 ? at : softnic_later(at, c->behind);
        c->comes = c->leaves + m->latency;
    }
}

TERN_DEVICE void softnic_add(const struct softnic_model *m, struct softnic_crossing *c, uint64_t bytes,
                             uint64_t extra)
{
    c->sends += c->from != NULL ? softnic_cost(bytes, m->send_byte) + extra : 0;
    c->receives += c->to != NULL ? softnic_cost(bytes, m->receive_byte) : 0;
}

/* Takes both directions for what is needed, from `at` on or from when they are free. Bits of *used remember
 * which words are not new; to those it is added at the same time, as each is a way to memory and back.
 *
 * The receiver is taken from when the first byte could come, though the sender may let it wait: engines come
 * here in another order than to the sender, and a receiver that waited for the last of them would stay behind
 * for ever. */
TERN_DEVICE void softnic_cross(const struct softnic_model *m, struct softnic_crossing *c, uint64_t at,
                               uint32_t *used)
{
    uint64_t sends = 0, receives = 0;
    const uint64_t leaves = at + c->from_ahead, comes = at + m->latency + c->to_ahead; /* by their clocks */
    const int adds_to_sends = c->sends != 0 && (*used & c->first_bit) != 0;
    const int adds_to_receives = c->receives != 0 && (*used & 2 * c->first_bit) != 0;
    c->leaves = leaves;
    c->comes = comes;
    if (adds_to_receives) {
        receives = atom_add_relaxed_sys_u64(&c->to->receives, c->receives);
    }
    if (adds_to_sends) {
        sends = atom_add_relaxed_sys_u64(&c->from->sends, c->sends);
        c->leaves = softnic_take_next(&c->from->sends, leaves, c->sends, sends);
    } else if (c->sends != 0) {
        c->leaves = softnic_take_first(&c->from->sends, leaves, c->sends);
        *used |= c->first_bit;
    }
    if (adds_to_receives) {
        c->comes = softnic_take_next(&c->to->receives, comes, c->receives, receives);
    } else if (c->receives != 0) {
        c->comes = softnic_take_first(&c->to->receives, comes, c->receives);
        *used |= 2 * c->first_bit;
    }
    c->leaves -= c->from_ahead;
    c->comes -= c->to_ahead;
    softnic_overtake(m, c, at);
}

/* When the message is there behind which `sends` and `receives` ticks of them all are needed. */
TERN_DEVICE uint64_t softnic_comes(const struct softnic_model *m, const struct softnic_crossing *c,
                                   uint64_t sends, uint64_t receives)
{
    return softnic_later(c->leaves + sends + m->latency, c->comes + receives);
}

TERN_DEVICE struct softnic_crossing softnic_crossing_of(struct softnic_link *from, struct softnic_link *to,
                                                        uint32_t first_bit)
{
    struct softnic_crossing c;
    c.from = from;
    c.to = to;
    c.first_bit = first_bit;
    c.sends = c.receives = c.leaves = c.comes = c.from_ahead = c.to_ahead = 0;
    c.overtakes = c.behind = 0;
    return c;
}

/* A message that is taken now and whose bytes come back; the peer's clock is ahead by so much. */
TERN_DEVICE struct softnic_times softnic_plan_read(const struct softnic_model *m, struct softnic_link *own,
                                                   struct softnic_link *peer, uint64_t ahead, uint64_t now,
                                                   uint64_t bytes, uint32_t *used)
{
    struct softnic_crossing there = softnic_crossing_of(own, peer, 1),
                            back = softnic_crossing_of(peer, own, 4);
    struct softnic_times when;
    uint64_t asked;
    there.to_ahead = back.from_ahead = ahead;
    softnic_add(m, &there, 0, m->message);
    softnic_cross(m, &there, now, used);
    asked = softnic_comes(m, &there, there.sends, there.receives);
    softnic_add(m, &back, bytes, 0);
    softnic_cross(m, &back, asked, used);
    when.arrives = when.completes = softnic_comes(m, &back, back.sends, back.receives);
    return when;
}

/* Until when a sending side is taken that says `taken`: a NIC's, or what a queue pair has of it. */
TERN_DEVICE uint64_t softnic_sends_until(uint64_t taken, uint64_t now)
{
    return taken == 0 ? now : softnic_later(taken, now);
}

/* Whether a message that needs `sends` ticks leaves together with those before it of its queue pair, which
 * are done with the wire at `until`. If that were far off, others who come in between would wait behind both;
 * but what takes next to no time, as the signal of a put does, has no turn of its own. */
TERN_DEVICE int softnic_goes_along(const struct softnic_model *m, uint64_t now, uint64_t until,
                                   uint64_t sends)
{
    return sends <= SOFTNIC_SMALL || softnic_is_due(now + m->ahead, until);
}

#endif
