/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts on their way: from the workers of a route to each other and to its settler, and from settlers to
 * their peers. Each count is one tagged word, so that a reader needs no signal but the count itself. A column
 * is the words that several senders have for one quantity; readers want its sum, and part of it. */
#ifndef TERN_ROUTE_WORDS_H
#define TERN_ROUTE_WORDS_H

#include "kernels/op.h"

enum { WORDS_AT_ONCE = 8 /* loads in flight a thread */ };

/* The ranks that ids name, and one more column for each domain, of the messages to it: for the kernel across
 * domains, which says so before it includes this. */
#ifdef ROUTE_ACROSS
#define ROUTE_RANKS(p)   ((p)->num_all)
#define ROUTE_DOMAINS(p) ((p)->num_domains)
#else
#define ROUTE_RANKS(p)   ((p)->f.num_ranks)
#define ROUTE_DOMAINS(p) 0u
#endif

struct route_column {
    const uint64_t *words; /* of sender 0 */
    uint64_t stride;       /* words between senders */
    uint32_t num_senders;
    int first_rank; /* senders are ranks of the communicator from this one on; -1: blocks of this launch */
};

struct route_sum {
    uint32_t all, before; /* of all senders, and of those before the split */
};

TERN_DEVICE int sender_rank(const struct op_frame *f, const struct route_column *c, int sender)
{
    return c->first_rank < 0 ? f->rank : c->first_rank + sender - OP_FIRST_RANK(f);
}

/* After a look that found sender `late` without its word; 0 if the operation is to be abandoned. */
TERN_DEVICE int wait_on(const struct op_frame *f, uint64_t epoch, const struct route_column *c, int late,
                        uint64_t seen, struct op_patience *patience)
{
    struct op_note note = {
        OP_STATUS_TIMEOUT, OP_AWAIT_READY, sender_rank(f, c, late), f->rank, epoch, epoch, seen, 0, 0, 0};
    int verdict = op_patient(f, patience, &note);
    if (verdict == OP_EXPIRED) {
        for (uint32_t s = 0; s < c->num_senders; s++) {
            if (!op_has_tag(ld_relaxed_sys_u64(c->words + s * c->stride), epoch)) {
                op_note_late(f, &note, sender_rank(f, c, (int)s));
            }
        }
        op_fault(f, &note);
    }
    return verdict == OP_WAIT_ON;
}

/* Waits for the words of all senders and adds them up; 0 if the operation is to be abandoned. Loads are
 * relaxed: a word is all that is read on its strength. */
TERN_DEVICE int sum_column(const struct op_frame *f, uint64_t epoch, const struct route_column *c,
                           uint32_t split, struct route_sum *sum)
{
    struct op_patience patience = {0};
    uint32_t s0 = 0;
    sum->all = sum->before = 0;
    while (s0 < c->num_senders) {
        uint64_t words[WORDS_AT_ONCE];
        int late = -1;
        uint64_t seen = 0;
        TERN_UNROLL
        for (uint32_t a = 0; a < WORDS_AT_ONCE; a++) {
            words[a] = s0 + a < c->num_senders ? ld_relaxed_sys_u64(c->words + (s0 + a) * c->stride)
                                               : op_tagged(epoch, 0);
        }
        TERN_UNROLL
        for (uint32_t a = 0; a < WORDS_AT_ONCE; a++) {
            if (!op_has_tag(words[a], epoch)) {
                late = (int)(s0 + a);
                seen = words[a] >> 32;
            }
        }
        if (late >= 0) {
            if (!wait_on(f, epoch, c, late, seen, &patience)) {
                op_waited(f, &patience, 0, 0);
                return 0;
            }
            continue;
        }
        TERN_UNROLL
        for (uint32_t a = 0; a < WORDS_AT_ONCE; a++) {
            sum->all += (uint32_t)words[a];
            sum->before += s0 + a < split ? (uint32_t)words[a] : 0;
        }
        s0 += WORDS_AT_ONCE;
    }
    if (lane() == 0) { /* for its warp, whose columns are neighbours */
        op_waited(f, &patience, 0, 1);
    }
    return 1;
}

/* The quantities: pairs by destination, then choices by expert, then messages by domain. */
TERN_DEVICE uint32_t num_columns(const struct route_args *p)
{
    return (uint32_t)ROUTE_RANKS(p) + p->num_experts + ROUTE_DOMAINS(p);
}

/* The count of worker b for column c of this launch. */
TERN_DEVICE uint64_t *route_cell(const struct route_args *p, int b, uint32_t c)
{
    return p->cells + (uint64_t)b * num_columns(p) + c;
}

/* Column c of the first so many workers. */
TERN_DEVICE struct route_column worker_column(const struct route_args *p, uint32_t c, int num_workers)
{
    struct route_column column = {route_cell(p, 0, c), num_columns(p), (uint32_t)num_workers, -1};
    return column;
}

/* Column c of all ranks. */
TERN_DEVICE struct route_column rank_column(const struct route_args *p, uint64_t epoch, uint32_t c)
{
    struct route_column column = {op_counts(&p->f, p->f.own, epoch, 0, num_columns(p)) + c, num_columns(p),
                                  (uint32_t)p->f.num_ranks, 0};
    return column;
}

#endif
