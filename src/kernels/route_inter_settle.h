/* SPDX-License-Identifier: Apache-2.0
 *
 * The settler of a route across domains. Columns are of the ranks and experts of one domain, its keys: what a
 * rank has for its own domain goes to its domain-mates as tagged words, as in one domain; what it has for
 * another, as one row, to its rail peer there, who hands it on as if it were the source. So each rank learns
 * from every source what is for its domain, and no more.
 *
 *   announce; totals of the workers -> mates, rows       a warp a domain: row -> rail peer
 *   await the mates                                      a warp a domain: await the peer's row, hand it on
 *   gather: what all sources have for each key that this rank wants
 *   settle: totals, offsets; bases of the own rows, and of the messages that this rank will forward
 *   when the workers have finished: forward blocks -> rail peers
 *
 * Rows of a run have two copies: a rank sends the row of run n + 2 after it has the peer's of n + 1, which
 * that one sent after it had finished n. A row also says that the writer has the peer's forward blocks of all
 * runs before, so of blocks on their way two copies are enough, too; and that it has entered this run, so
 * that it reads the blocks of the route's last run no more.
 *
 * Shared memory: pairs[R] by source; of each domain and key `all` and `before`; total[keys]; in rank layout
 * the totals of own experts behind. */
#ifndef TERN_ROUTE_INTER_SETTLE_H
#define TERN_ROUTE_INTER_SETTLE_H

#include "kernels/inter_fault.h"
#include "kernels/route_forward.h"
#include "kernels/route_settle.h"

/* One settler at work. */
struct far_settler {
    const struct route_inter_args *p;
    uint64_t epoch, run;
    uint32_t mates, domains, domain; /* G, D, d */
    uint32_t experts, share;         /* of the domain, of a rank */
    uint32_t columns;                /* G + E / D */
    uint32_t keys, first_key;        /* those that slots are counted in, among the columns */
    uint32_t *pairs, *all, *before, *total, *own;
};

TERN_DEVICE struct far_settler far_settler_of(const struct route_inter_args *p, uint64_t epoch, uint64_t run)
{
    struct far_settler s;
    s.p = p;
    s.epoch = epoch;
    s.run = run;
    s.mates = (uint32_t)p->r.f.num_ranks;
    s.domains = p->r.num_domains;
    s.domain = (uint32_t)p->world.domain;
    s.experts = p->r.num_experts / s.domains;
    s.share = s.experts / s.mates;
    s.columns = s.mates + s.experts;
    s.keys = p->r.layout == 0 ? s.mates : s.experts;
    s.first_key = p->r.layout == 0 ? 0 : s.mates;
    s.pairs = (uint32_t *)shared_memory();
    s.all = s.pairs + p->r.num_all;
    s.before = s.all + s.domains * s.keys;
    s.total = s.before + s.domains * s.keys;
    s.own = s.total + s.keys;
    return s;
}

TERN_DEVICE struct rail_row *row_at(const struct far_settler *s, char *rows, uint32_t e)
{
    return (struct rail_row *)(rows + ((s->run & 1) * s->domains + e) * s->p->row_bytes);
}

TERN_DEVICE uint32_t *counts_of(struct rail_row *row) { return (uint32_t *)(row + 1); }

/* The tagged words of source `from` in the window that begins at `heap`. */
TERN_DEVICE uint64_t *far_counts(const struct far_settler *s, char *heap, uint32_t from)
{
    const struct op_frame *f = &s->p->r.f;
    return (uint64_t *)(heap + f->counts_offset) +
           ((s->epoch & 1) * (uint32_t)s->p->r.num_all + from) * (uint64_t)s->columns;
}

/* Count `value` of source `from` for column c of this domain goes to the mates that read it. */
TERN_DEVICE void hand_out(const struct far_settler *s, uint32_t from, uint32_t c, uint32_t value)
{
    const struct op_frame *f = &s->p->r.f;
    int is_pair = c < s->mates;
    int is_for_all = is_pair == (s->p->r.layout == 0);
    uint32_t owner = is_pair ? c : (c - s->mates) / s->share;
    for (uint32_t m = is_for_all ? 0 : owner; m < (is_for_all ? s->mates : owner + 1); m++) {
        st_relaxed_sys_u64(far_counts(s, f->ep_bases[m], from) + c, op_tagged(s->epoch, value));
    }
}

/* The total of the workers for column c of theirs. */
TERN_DEVICE void send_far_total(const struct far_settler *s, uint32_t c, uint32_t total)
{
    const struct route_inter_args *p = s->p;
    uint32_t pairs = (uint32_t)p->r.num_all, choices = pairs + p->r.num_experts;
    if (c >= choices) {
        row_at(s, p->rows_out, c - choices)->num_messages = total;
        p->far.num_out[c - choices] = (int32_t)total;
        return;
    }
    uint32_t e = c < pairs ? c / s->mates : (c - pairs) / s->experts;
    uint32_t key = c < pairs ? c % s->mates : s->mates + (c - pairs) % s->experts;
    if (e == s->domain) {
        hand_out(s, (uint32_t)(p->r.f.first_rank + p->r.f.rank), key, total);
    } else {
        counts_of(row_at(s, p->rows_out, e))[key] = total;
    }
}

/* All threads: sums over workers, to mates and into rows; 0 if the operation is to be abandoned. */
TERN_DEVICE int publish_far(const struct far_settler *s)
{
    const struct route_inter_args *p = s->p;
    int ok = 1;
    for (uint32_t e = (uint32_t)tid(); e < s->domains; e += (uint32_t)nthr()) {
        struct rail_row *row = row_at(s, p->rows_out, e);
        row->signature = p->r.f.message.signature;
        row->slot = p->slot;
    }
    for (uint32_t c = from_the_end(); ok && c < num_columns(&p->r); c += (uint32_t)nthr()) {
        struct route_column column = worker_column(&p->r, c, nblk() - 1);
        struct route_sum sum;
        ok = sum_column(&p->r.f, s->epoch, &column, 0, &sum);
        if (ok) {
            send_far_total(s, c, sum.all);
        }
    }
    return !sync_block_or(!ok);
}

/* A warp: the row for domain e leaves. */
TERN_DEVICE int send_row(const struct far_settler *s, uint32_t e)
{
    const struct route_inter_args *p = s->p;
    const struct op_frame *f = &p->r.f;
    uint64_t bytes = sizeof(struct rail_row) + (uint64_t)s->columns * sizeof(uint32_t);
    if (!inter_await_warp(f, &p->world.net, s->epoch, (int)e, OP_AWAIT_BLOCK, p->world.block_tails + e,
                          s->run - 1)) {
        return 0;
    }
    int status =
        route_put_signal(&p->world.net, group_of(GROUP_WARP), rail_peer(f, (int)e), 0,
                         row_at(s, p->rows_in, s->domain), row_at(s, p->rows_out, e), bytes,
                         p->world.row_tails + s->domain, sizeof(uint64_t), TERN_SIGNAL_SET, s->run, 0);
    return inter_carried(f, s->epoch, (int)e, status, lane() == 0);
}

/* A warp: the row of the rail peer in domain e comes, and is handed out for it. */
TERN_DEVICE int take_row(const struct far_settler *s, uint32_t e)
{
    const struct route_inter_args *p = s->p;
    const struct op_frame *f = &p->r.f;
    struct rail_row *row = row_at(s, p->rows_in, e);
    if (!inter_await_warp(f, &p->world.net, s->epoch, (int)e, OP_AWAIT_COUNTS, p->world.row_tails + e,
                          s->run)) {
        return 0;
    }
    if (row->signature != f->message.signature) {
        struct op_note note = {OP_STATUS_MISMATCH,
                               OP_AWAIT_MATCH,
                               rail_note(f, (int)e),
                               f->rank,
                               s->epoch,
                               f->message.signature,
                               row->signature,
                               0,
                               0,
                               0};
        if (lane() == 0) {
            op_fault(f, &note);
        }
        return 0;
    }
    if (lane() == 0) {
        p->far.num_in[e] = (int32_t)row->num_messages;
    }
    for (uint32_t c = (uint32_t)lane(); c < s->columns; c += 32) {
        hand_out(s, (uint32_t)rail_peer(f, (int)e), c, counts_of(row)[c]);
    }
    return 1;
}

/* All threads, a warp a domain: rows leave, then rows come. */
TERN_DEVICE int exchange_rows(const struct far_settler *s)
{
    int ok = 1;
    for (uint32_t e = (uint32_t)warp(); e < s->domains; e += (uint32_t)nwarps()) {
        ok = ok && (e == s->domain || send_row(s, e));
    }
    for (uint32_t e = (uint32_t)warp(); e < s->domains; e += (uint32_t)nwarps()) {
        ok = ok && (e == s->domain || take_row(s, e));
    }
    return ok;
}

/* Of sources first .. first + num - 1, column c: what all have, and what those before have that are in a
 * place before this rank's. */
TERN_DEVICE int sum_far(const struct far_settler *s, uint32_t first, uint32_t num, uint32_t c,
                        struct route_sum *sum)
{
    const struct op_frame *f = &s->p->r.f;
    struct route_column column = {far_counts(s, f->own, first) + c, s->columns, num, (int)first};
    return sum_column(f, s->epoch, &column, (uint32_t)f->rank, sum);
}

/* Quantity i of those that the settler wants: pairs by source, then keys by domain, then in rank layout
 * choices of its own experts. 0 if the operation is to be abandoned. */
TERN_DEVICE int gather_far(const struct far_settler *s, uint32_t i)
{
    const struct route_inter_args *p = s->p;
    uint32_t num_all = (uint32_t)p->r.num_all, me = (uint32_t)p->r.f.rank;
    struct route_sum sum;
    if (i < num_all) {
        int ok = sum_far(s, i, 1, me, &sum);
        s->pairs[i] = sum.all;
        return ok;
    }
    i -= num_all;
    if (i < s->domains * s->keys) {
        int ok = sum_far(s, i / s->keys * s->mates, s->mates, s->first_key + i % s->keys, &sum);
        s->all[i] = sum.all;
        s->before[i] = sum.before;
        return ok;
    }
    i -= s->domains * s->keys;
    int ok = sum_far(s, 0, num_all, s->mates + me * s->share + i, &sum);
    s->own[i] = sum.all;
    return ok;
}

/* All threads. */
TERN_DEVICE int gather_all(const struct far_settler *s)
{
    uint32_t num = (uint32_t)s->p->r.num_all + s->domains * s->keys + (s->p->r.layout == 0 ? s->share : 0);
    int ok = 1;
    for (uint32_t i = from_the_end(); ok && i < num; i += (uint32_t)nthr()) {
        ok = gather_far(s, i);
    }
    return ok;
}

/* All threads: what sources before the rail peer of each domain have for a key, and all have together. */
TERN_DEVICE void add_domains(const struct far_settler *s)
{
    for (uint32_t key = (uint32_t)tid(); key < s->keys; key += (uint32_t)nthr()) {
        uint32_t sum = 0;
        for (uint32_t e = 0; e < s->domains; e++) {
            uint32_t i = e * s->keys + key;
            s->before[i] += sum;
            sum += s->all[i];
        }
        s->total[key] = sum;
    }
    sync_block();
}

/* The experts of one rank. */
struct far_experts {
    const uint32_t *counts; /* of the rank's experts */
    uint32_t rank;          /* in the domain */
};

/* Offsets of a mate's experts. One warp. */
TERN_DEVICE void settle_experts(const struct far_settler *s, struct far_experts x)
{
    const struct route_args *r = &s->p->r;
    int32_t carry = 0;
    for (uint32_t i0 = 0; i0 < s->share; i0 += 32) {
        uint32_t i = i0 + (uint32_t)lane();
        uint32_t n = i < s->share ? x.counts[i] : 0;
        uint32_t padded = (n + r->alignment - 1) / r->alignment * r->alignment;
        int32_t end = carry + (int32_t)scan_warp(padded);
        int32_t begin = end - (int32_t)padded;
        for (uint32_t e = 0; r->layout != 0 && i < s->share && e < s->domains; e++) {
            uint32_t at = e * s->keys + x.rank * s->share + i;
            s->p->far.bases[at] = begin + (int32_t)s->before[at];
        }
        if (i < s->share && x.rank == (uint32_t)r->f.rank) {
            settle_expert(r, i, (int32_t)n, begin);
        }
        carry = (int32_t)shfl_u32((uint32_t)end, 31);
    }
    if (lane() == 0 && x.rank == (uint32_t)r->f.rank) {
        settle_end(r, s->share, carry);
    }
}

/* Rank layout: bases need no offsets. One warp. */
TERN_DEVICE void settle_ranks(const struct far_settler *s)
{
    for (uint32_t i = (uint32_t)lane(); i < s->domains * s->keys; i += 32) {
        s->p->far.bases[i] = (int32_t)s->before[i];
    }
}

/* Jobs of a warp each: the workers, the sources, and each rank whose offsets this rank must know. All
 * threads; the workers are awaited whatever has happened. */
TERN_DEVICE void settle_far(const struct far_settler *s, int ok)
{
    const struct route_args *r = &s->p->r;
    uint32_t ranks = r->layout == 0 ? 1 : s->mates;
    for (uint32_t job = (uint32_t)warp(); job < 2 + ranks; job += (uint32_t)nwarps()) {
        if (job == 0) {
            for (int b = lane(); b < nblk() - 1; b += 32) {
                await_worker(r, s->epoch, b);
            }
            sync_warp();
        } else if (ok && job == 1) {
            settle_sources(r);
        } else if (ok && r->layout == 0) {
            struct far_experts mine = {s->own, (uint32_t)r->f.rank};
            settle_ranks(s);
            settle_experts(s, mine);
        } else if (ok) {
            struct far_experts x = {s->total + (job - 2) * s->share, job - 2};
            settle_experts(s, x);
        }
    }
    sync_block();
}

/* The bases as callers see them: of all ranks or experts, those of other domains unknown. All threads. */
TERN_DEVICE void copy_bases(const struct far_settler *s)
{
    for (uint32_t i = (uint32_t)tid(); i < s->domains * s->keys; i += (uint32_t)nthr()) {
        s->p->r.route.bases[i] = i / s->keys == s->domain ? s->p->far.bases[i] : -1;
    }
}

/* A warp: the forward block of domain e leaves, for the slot that the peer has the route in. */
TERN_DEVICE int send_block(const struct far_settler *s, uint32_t e)
{
    const struct route_inter_args *p = s->p;
    const struct op_frame *f = &p->r.f;
    uint64_t slot = row_at(s, p->rows_in, e)->slot;
    char *to = p->blocks_in + (slot * s->domains + s->domain) * p->block_bytes;
    uint64_t bytes = (uint64_t)(uint32_t)p->far.num_out[e] * p->far.entry_ints * sizeof(int32_t);
    int status = route_put_signal(&p->world.net, group_of(GROUP_WARP), rail_peer(f, (int)e), 0, to,
                                  block_out(p, s->run, e), bytes, p->world.block_tails + s->domain,
                                  sizeof(uint64_t), TERN_SIGNAL_SET, s->run, 0);
    return inter_carried(f, s->epoch, (int)e, status, lane() == 0);
}

/* All threads, a warp a domain. */
TERN_DEVICE int send_blocks(const struct far_settler *s)
{
    int ok = 1;
    for (uint32_t e = (uint32_t)warp(); e < s->domains; e += (uint32_t)nwarps()) {
        ok = ok && (e == s->domain || send_block(s, e));
    }
    return !sync_block_or(!ok);
}

/* One thread: the end of the operation. */
TERN_DEVICE void finish_far(const struct far_settler *s, int ok)
{
    const struct route_inter_args *p = s->p;
    if (!ok) {
        inter_tell(&p->r.f, &p->world);
    }
    p->far.run[0] = s->run;
    p->runs[0] = s->run;
    p->r.route.overflow[0] = 0;
    p->r.f.state->bad_ids = 0;
    st_relaxed_sys_u64(p->r.host.epoch, s->epoch);
    if (p->r.ticket) {
        /* Pairs with wait_word in terni_route_wait, also after a fault: the host looks at the record then. */
        st_release_sys_u64(p->r.host.ticket, p->r.ticket);
    }
    op_finish(&p->r.f, s->epoch); /* last: the host may zero all of this at once */
}

/* All threads of the last block. */
TERN_DEVICE void settle_across(const struct route_inter_args *p, uint64_t epoch, uint64_t run, uint64_t begin)
{
    struct far_settler s = far_settler_of(p, epoch, run);
    op_announce(&p->r.f, epoch, 1);
    int ok = publish_far(&s) && exchange_rows(&s);
    ok = op_await(&p->r.f, epoch, 0) && ok && gather_all(&s);
    ok = !sync_block_or(!ok);
    if (ok) {
        add_domains(&s);
    }
    settle_far(&s, ok);
    if (ok) {
        copy_bases(&s);
        ok = send_blocks(&s);
    }
    sync_block();
    if (tid() == 0) {
        stamp_block(&p->r.f, 0, epoch, begin);
        finish_far(&s, ok);
    }
}

#endif
