/* SPDX-License-Identifier: Apache-2.0
 *
 * The settler of a route, its last block: it alone talks to the peers. It announces this rank at once, sends
 * the totals of the workers as they come in, and with the counts of all ranks finds where this rank's slots
 * begin at every destination and what this rank receives. The host gets its copy last.
 *
 * A column goes to those who read it. Rank layout: pairs to the ranks after this one, whose slots come after
 * its own, and to the destination; choices to the expert's rank. Expert layout: pairs to the destination;
 * choices to everybody, because where an expert begins depends on the others of its rank.
 *
 * Shared memory: pairs[R] by source, total[E], before[E]. */
#ifndef TERN_ROUTE_SETTLE_H
#define TERN_ROUTE_SETTLE_H

#include "kernels/route_count.h"

TERN_DEVICE int32_t *settle_pairs(void) { return (int32_t *)shared_memory(); }

TERN_DEVICE int32_t *settle_total(const struct route_args *p) { return settle_pairs() + ROUTE_RANKS(p); }

TERN_DEVICE int32_t *settle_before(const struct route_args *p) { return settle_total(p) + p->num_experts; }

/* Thread j of the block is number nthr - 1 - j here: the first warp has other things to do. */
TERN_DEVICE uint32_t from_the_end(void) { return (uint32_t)(nthr() - 1 - tid()); }

/* The total of column c goes to those who read it. */
TERN_DEVICE void send_total(const struct route_args *p, uint64_t epoch, uint32_t c, uint32_t total)
{
    uint32_t num_ranks = (uint32_t)p->f.num_ranks;
    int pairs = c < num_ranks;
    uint32_t owner = pairs ? c : (c - num_ranks) / (p->num_experts / num_ranks);
    int all = p->layout == 0 ? pairs : !pairs;
    uint32_t end = all ? num_ranks : owner + 1;
    for (uint32_t d = all ? 0 : owner; d < end; d++) {
        if (d == owner || !pairs || d > (uint32_t)p->f.rank) {
            st_relaxed_sys_u64(op_counts(&p->f, p->f.ep_bases[d], epoch, p->f.rank, num_columns(p)) + c,
                               op_tagged(epoch, total));
        }
    }
}

/* Sums over workers go out; 0 if the operation is to be abandoned. */
TERN_DEVICE int publish(const struct route_args *p, uint64_t epoch)
{
    int ok = 1;
    for (uint32_t c = from_the_end(); ok && c < num_columns(p); c += (uint32_t)nthr()) {
        struct route_column column = worker_column(p, c, nblk() - 1);
        struct route_sum sum;
        ok = sum_column(&p->f, epoch, &column, 0, &sum);
        if (ok) {
            send_total(p, epoch, c, sum.all);
        }
    }
    return ok;
}

/* Quantity i of those that the settler wants from all ranks: first pairs by source, then in rank layout pairs
 * by destination, then choices an expert. 0 if the operation is to be abandoned. */
TERN_DEVICE int gather_one(const struct route_args *p, uint64_t epoch, uint32_t i)
{
    uint32_t num_ranks = (uint32_t)p->f.num_ranks, me = (uint32_t)p->f.rank;
    uint32_t num_pairs = p->layout == 0 ? 2 * num_ranks : num_ranks;
    uint32_t first = p->layout == 0 ? me * (p->num_experts / num_ranks) : 0;
    uint32_t c = i < num_ranks ? me : i < num_pairs ? i - num_ranks : num_ranks + first + i - num_pairs;
    struct route_column column = rank_column(p, epoch, c);
    struct route_sum sum;
    if (i < num_ranks) {
        column.words += i * column.stride;
        column.num_senders = 1;
        column.first_rank = (int)i;
    } else if (i < num_pairs) {
        column.num_senders = me;
    }
    if (!sum_column(&p->f, epoch, &column, me, &sum)) {
        return 0;
    }
    if (i < num_ranks) {
        settle_pairs()[i] = (int32_t)sum.all;
    } else if (i < num_pairs) {
        p->route.bases[i - num_ranks] = (int32_t)sum.all;
    } else {
        settle_total(p)[first + i - num_pairs] = (int32_t)sum.all;
        settle_before(p)[first + i - num_pairs] = (int32_t)sum.before;
    }
    return 1;
}

/* All of them. */
TERN_DEVICE int gather(const struct route_args *p, uint64_t epoch)
{
    uint32_t num_ranks = (uint32_t)p->f.num_ranks;
    uint32_t num = p->layout == 0 ? 2 * num_ranks + p->num_experts / num_ranks : num_ranks + p->num_experts;
    int ok = 1;
    for (uint32_t i = from_the_end(); ok && i < num; i += (uint32_t)nthr()) {
        ok = gather_one(p, epoch, i);
    }
    return ok;
}

/* Whether the host waits for this run and reads its counts. It may read those of a run while a graph replays
 * another over it, so that one keeps its counts to the device. */
TERN_DEVICE int host_reads(const struct route_args *p) { return p->ticket != 0; }

/* The number of rows. One thread. */
TERN_DEVICE void settle_rows(const struct route_args *p, int32_t num)
{
    p->route.num_rows[0] = num;
    if (host_reads(p)) {
        p->host.num_rows[0] = num;
    }
}

/* Expert i of this rank, of n choices, whose rows begin at `begin`. One thread. */
TERN_DEVICE void settle_expert(const struct route_args *p, uint32_t i, int32_t n, int32_t begin)
{
    p->route.expert_counts[i] = n;
    p->route.expert_offsets[i] = begin;
    if (host_reads(p)) {
        p->host.expert_counts[i] = n;
        p->host.expert_offsets[i] = begin;
    }
}

/* Where the last of this rank's experts ends. One thread. */
TERN_DEVICE void settle_end(const struct route_args *p, uint32_t num_local, int32_t end)
{
    p->route.expert_offsets[num_local] = end;
    if (host_reads(p)) {
        p->host.expert_offsets[num_local] = end;
    }
    if (p->layout == 1) {
        settle_rows(p, end);
    }
}

/* First row of every source at this rank. One warp. */
TERN_DEVICE void settle_sources(const struct route_args *p)
{
    int num_ranks = ROUTE_RANKS(p);
    int32_t carry = 0;
    for (int s0 = 0; s0 < num_ranks; s0 += 32) {
        int s = s0 + lane();
        int32_t n = s < num_ranks ? settle_pairs()[s] : 0;
        int32_t end = carry + (int32_t)scan_warp((uint32_t)n);
        if (s < num_ranks) {
            if (host_reads(p)) {
                p->host.rank_counts[s] = n;
            }
            p->route.rank_offsets[s] = end - n;
        }
        carry = (int32_t)shfl_u32((uint32_t)end, 31);
    }
    if (lane() == 0) {
        p->route.rank_offsets[num_ranks] = carry;
        if (host_reads(p)) {
            p->host.num_rows[1] = carry;
        }
        if (p->layout == 0) {
            settle_rows(p, carry);
        }
    }
}

/* Offsets of the experts of rank d, and in expert layout this rank's bases there. One warp. */
TERN_DEVICE void settle_rank(const struct route_args *p, int d)
{
    uint32_t local = p->num_experts / (uint32_t)p->f.num_ranks;
    uint32_t align = p->alignment;
    int32_t carry = 0;
    for (uint32_t i0 = 0; i0 < local; i0 += 32) {
        uint32_t i = i0 + (uint32_t)lane();
        uint32_t e = (uint32_t)d * local + i;
        int32_t n = i < local ? settle_total(p)[e] : 0;
        int32_t padded = (int32_t)(((uint32_t)n + align - 1) / align * align);
        int32_t end = carry + (int32_t)scan_warp((uint32_t)padded);
        if (i < local && p->layout == 1) {
            p->route.bases[e] = end - padded + settle_before(p)[e];
        }
        if (i < local && d == p->f.rank) {
            settle_expert(p, i, n, end - padded);
        }
        carry = (int32_t)shfl_u32((uint32_t)end, 31);
    }
    if (lane() == 0 && d == p->f.rank) {
        settle_end(p, local, carry);
    }
}

/* Waits until worker b has finished, also when the operation has been abandoned: the worker still uses the
 * state of this operation. Gives up at the deadline. */
TERN_DEVICE void await_worker(const struct route_args *p, uint64_t epoch, int b)
{
    struct op_patience patience = {0};
    for (;;) {
        /* Pairs with the release at the end of work() (route.c): the worker has read the epoch, and its
         * record of a bad id is written. */
        uint64_t seen = ld_acquire_sys_u64(p->finished + b);
        if (seen >= epoch) {
            op_waited(&p->f, &patience, 0, 1);
            return;
        }
        struct op_note note = {
            OP_STATUS_TIMEOUT, OP_AWAIT_DONE, p->f.rank, p->f.rank, epoch, epoch, seen, 0, 0, 0};
        int verdict = op_patient(&p->f, &patience, &note);
        if (verdict == OP_EXPIRED) {
            op_note_late(&p->f, &note, p->f.rank);
            op_fault(&p->f, &note);
        }
        if (verdict != OP_WAIT_ON && note.elapsed_ns > p->f.timeout_ns) {
            op_waited(&p->f, &patience, 0, 0);
            return;
        }
    }
}

/* Jobs of a warp each: the workers, the sources, and each rank whose offsets this rank must know. All
 * threads. */
TERN_DEVICE void settle_all(const struct route_args *p, uint64_t epoch, int ok)
{
    int num_ranks = p->layout == 1 ? p->f.num_ranks : 1;
    for (int job = warp(); job < 2 + num_ranks; job += nwarps()) {
        if (job == 0) {
            for (int b = lane(); b < nblk() - 1; b += 32) {
                await_worker(p, epoch, b);
            }
            sync_warp();
        } else if (ok && job == 1) {
            settle_sources(p);
        } else if (ok) {
            settle_rank(p, p->layout == 1 ? job - 2 : p->f.rank);
        }
    }
}

/* All threads of the last block. */
TERN_DEVICE void settle(const struct route_args *p, uint64_t epoch, uint64_t begin)
{
    op_announce(&p->f, epoch, 1);
    int ok = publish(p, epoch);
    ok = op_await(&p->f, epoch, 0) && ok && gather(p, epoch);
    ok = !sync_block_or(!ok);
    settle_all(p, epoch, ok);
    sync_block();
    if (tid() == 0) {
        stamp_block(&p->f, 0, epoch, begin);
        p->route.overflow[0] = 0;
        p->f.state->bad_ids = 0;
        st_relaxed_sys_u64(p->host.epoch, epoch);
        if (p->ticket) {
            /* Pairs with wait_word in terni_route_wait, also after a fault: the host looks at the record
             * then. */
            st_release_sys_u64(p->host.ticket, p->ticket);
        }
        op_finish(&p->f, epoch); /* last: the host may zero all of this at once */
    }
}

#endif
