/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of a software NIC's engine (softnic_engine.h) does with a batch, done by a warp at once, a lane
 * an entry: taking what has been decoded, copying puts that are under way, and making the list of what has
 * arrived. One thread takes about five microseconds for a put and its signal, nearly all of it waiting: for
 * its own last instruction, for shared memory, and for what the instructions are fetched from. All lanes wait
 * at the same time.
 *
 * Only for what is common: puts, signals that are added or that set a word, and NOPs, without errors,
 * fences or data within the entry, on keys that are at hand, none of which touches what an earlier one does.
 * Nothing is done before that is known; of anything else the functions say 0, and the step does it one by
 * one. So what happens is the same, in the same order, as without this file, but for bytes that nobody may
 * look at yet. */
#ifndef TERN_SOFTNIC_TOGETHER_H
#define TERN_SOFTNIC_TOGETHER_H

#include "net/softnic_engine.h"

/* ---- Taking ---- */

/* What a lane knows of the entry that begins at its block, if one does. */
struct together_entry {
    uint32_t blocks, is_plain, is_sent;
    uint64_t sends, receives; /* ticks that it needs; once it is taken, with those before it */
    uint32_t is_taken, number;
};

TERN_DEVICE struct together_entry together_look(struct softnic_work *w, const struct softnic_model *m)
{
    const struct softnic_qp *qp = w->qp;
    struct together_entry mine = {1, 0, 0, 0, 0, 0, 0};
    if ((uint32_t)lane() < w->num_first) {
        const struct softnic_flight *f = softnic_flight_of(w, qp->num_taken + (uint32_t)lane());
        struct softnic_crossing c = softnic_crossing_to_peer(qp);
        mine.blocks = f->op.blocks;
        mine.is_sent = softnic_is_sent(f);
        mine.is_plain =
            f->syndrome == SYNDROME_NONE && mine.blocks != 0 &&
            (f->op.opcode == WQE_RDMA_WRITE || f->op.opcode == WQE_NOP || wqe_opcode_is_atomic(f->op.opcode));
        if (mine.is_plain && mine.is_sent) {
            softnic_add(m, &c, f->op.bytes, m->message);
        }
        mine.sends = c.sends;
        mine.receives = c.receives;
    }
    return mine;
}

/* Which of them are taken, as in softnic_take_off. Blocks; 0: not all are plain. */
TERN_DEVICE uint32_t together_choose(const struct softnic_work *w, const struct softnic_model *m,
                                     uint64_t now, struct together_entry *mine, struct softnic_crossing *c,
                                     uint32_t *num)
{
    uint32_t at = 0, plain = warp_ballot(mine->is_plain != 0);
    for (*num = 0; at < w->num_first; (*num)++) {
        const uint64_t needs = shfl_u64(mine->sends, (int)at);
        if (at != 0 && !softnic_goes_along(m, now, w->until + c->sends, needs)) {
            break;
        }
        if ((plain >> at & 1) == 0) {
            return 0;
        }
        c->sends += needs;
        c->receives += shfl_u64(mine->receives, (int)at);
        if ((uint32_t)lane() == at) {
            mine->is_taken = 1;
            mine->number = *num;
            mine->sends = c->sends;
            mine->receives = c->receives;
        }
        at += shfl_u32(mine->blocks, (int)at);
    }
    return at;
}

/* As softnic_cross; a lane has the sender's word and another the receiver's, so that both ways there and back
 * are one. */
TERN_DEVICE void together_cross(const struct softnic_model *m, struct softnic_crossing *c, uint64_t now,
                                uint32_t *used)
{
    const uint32_t receives = lane() == 1, bit = c->first_bit << receives;
    const uint64_t cost = receives ? c->receives : c->sends;
    const uint64_t from = receives ? now + m->latency + c->to_ahead : now + c->from_ahead;
    uint64_t at = from;
    if (lane() < 2 && cost != 0) {
        uint64_t *word = receives ? &c->to->receives : &c->from->sends;
        at = (*used & bit) == 0 ? softnic_take_first(word, from, cost)
                                : softnic_take_next(word, from, cost, atom_add_relaxed_sys_u64(word, cost));
    }
    c->leaves = shfl_u64(at, 0) - c->from_ahead;
    c->comes = shfl_u64(at, 1) - c->to_ahead;
    softnic_overtake(m, c, now);
    sync_warp(); /* both have read the bits */
    if (lane() == 0) {
        *used |= (c->sends != 0 ? c->first_bit : 0) | (c->receives != 0 ? 2 * c->first_bit : 0);
    }
}

/* What all lanes have been told. */
TERN_DEVICE void together_hear(const struct softnic_engine *e, struct softnic_qp *qp, uint64_t told)
{
    sync_warp(); /* all have read what is known */
    if (lane() == 0) {
        softnic_hear_peer(e, qp, told);
    }
    sync_warp();
}

/* A flight moves down to where it is the next, past blocks that began none. */
TERN_DEVICE void together_move(struct softnic_flight *to, const struct softnic_flight *from)
{
    enum { WORDS = sizeof(*to) / 8 };
    TERN_ROLLED
    for (uint32_t i = (uint32_t)lane(); i < WORDS; i += 32) {
        ((uint64_t *)(void *)to)[i] = ((const uint64_t *)(const void *)from)[i];
    }
    sync_warp();
}

/* One warp: softnic_take_off. 0: nothing was done. */
TERN_DEVICE int softnic_take_together(struct softnic_engine *e, struct softnic_work *w, uint64_t now)
{
    struct softnic_qp *qp = w->qp;
    const struct softnic_model *m = &e->args->model;
    struct softnic_crossing c;
    struct together_entry mine;
    uint32_t num, blocks;
    if (qp->state != SOFTNIC_READY) {
        return 0;
    }
    if (softnic_must_ask(qp, now)) {
        together_hear(e, qp, softnic_ask(qp));
    }
    c = softnic_crossing_to_peer(qp);
    mine = together_look(w, m);
    blocks = together_choose(w, m, now, &mine, &c, &num);
    if (blocks == 0) {
        return 0;
    }
    const uint64_t told = softnic_ask(qp); /* on its way with the crossing's words; for the next crossing */
    together_cross(m, &c, now, &qp->links_used);
    together_hear(e, qp, told);
    const uint32_t taken = warp_ballot(mine.is_taken != 0);
    const uint64_t first = qp->num_taken, fetched = qp->fetched;
    for (uint32_t left = taken, k = 0; left != 0; left &= left - 1, k++) {
        uint32_t at = (uint32_t)TERN_FFS(left) - 1u;
        if (at != k) {
            together_move(softnic_flight_of(w, first + k), softnic_flight_of(w, first + at));
        }
    }
    if (mine.is_taken) {
        struct softnic_flight *f = softnic_flight_of(w, first + mine.number);
        int is_modelled = qp->flights != NULL && mine.is_sent;
        f->idx = fetched + (uint32_t)lane();
        softnic_remember(qp, f->idx, mine.blocks);
        f->when.arrives = is_modelled ? softnic_comes(m, &c, mine.sends, mine.receives) : now;
        f->when.completes = is_modelled ? f->when.arrives + m->latency : now;
    }
    sync_warp(); /* all have read where the batch begins, and what they wrote is there for all */
    if (lane() == 0) {
        qp->num_taken = first + num;
        qp->fetched = fetched + blocks;
        qp->sends_until = c.sends != 0 ? c.leaves + c.sends : qp->sends_until;
    }
    sync_warp();
    return 1;
}

/* ---- What entries do ---- */

/* A flight that has nothing to do when it arrives. */
TERN_DEVICE int together_is_idle(const struct softnic_flight *f)
{
    return f->is_moved || f->op.opcode == WQE_NOP;
}

/* What a lane's entry does. */
struct together_deed {
    int is_plain, is_word, is_copy; /* an idle one is neither */
    int lacks_key;                  /* not plain, but would be if its keys were at hand */
    uint32_t form, bytes;
    char *to, *from; /* of a word `from` is where its old value goes */
    const struct wqe_op *op;
};

/* Where an operation's memory is, by one of its keys; NULL: not at hand, or refused. */
TERN_DEVICE char *together_memory(const struct softnic_work *w, const struct wqe_op *op, uint32_t use)
{
    const struct softnic_qp *qp = w->qp;
    const int is_local = use == KEY_USE_GATHER || use == KEY_USE_SCATTER;
    const struct key_request q = softnic_request(qp, use, op);
    struct key_memory memory;
    struct nic_refusal why; /* the serial step finds out again, and tells */
    uint32_t syndrome = key_use(is_local ? softnic_at_hand(&w->hand.local, qp->keys, q.key)
                                         : softnic_at_hand(&w->hand.remote, qp->remote_keys, q.key),
                                &q, &memory, &why);
    return syndrome == SYNDROME_NONE ? memory.host : NULL;
}

/* Of `num` flights from `first` on, one each. */
TERN_DEVICE struct together_deed together_deed_of(struct softnic_work *w, uint64_t first, uint32_t num)
{
    struct together_deed d = {1, 0, 0, 0, SOFTNIC_ALONE, 0, NULL, NULL, NULL};
    if ((uint32_t)lane() < num) {
        const struct softnic_flight *f = softnic_flight_of(w, first + (uint32_t)lane());
        const struct wqe_op *op = &f->op;
        d.op = op;
        d.is_word = wqe_opcode_is_atomic(op->opcode) && !f->is_moved;
        d.bytes = together_is_idle(f) ? 0 : op->bytes;
        if (d.is_word) {
            d.form = softnic_form(&op->amo);
        }
        d.is_copy = op->opcode == WQE_RDMA_WRITE && !f->is_moved;
        d.is_plain = f->syndrome == SYNDROME_NONE && op->fence == 0;
        if (!together_is_idle(f)) {
            d.is_plain = d.is_plain && !op->is_inline && op->bytes != 0 &&
                         (d.is_copy || (d.is_word && d.form != SOFTNIC_ALONE));
            d.from = d.is_plain ? together_memory(w, op, d.is_word ? KEY_USE_SCATTER : KEY_USE_GATHER) : NULL;
            d.to = d.is_plain ? together_memory(w, op, d.is_word ? KEY_USE_ATOMIC : KEY_USE_WRITE) : NULL;
            d.lacks_key = d.is_plain && (d.from == NULL || d.to == NULL);
            d.is_plain = d.from != NULL && d.to != NULL;
        }
    }
    return d;
}

/* All lanes: likewise, with keys at hand as far as there are such. */
TERN_DEVICE struct together_deed together_study(struct softnic_work *w, uint64_t first, uint32_t num)
{
    const struct softnic_qp *qp = w->qp;
    struct together_deed d;
    TERN_ROLLED
    for (uint32_t tries = 0;; tries++) {
        d = together_deed_of(w, first, num);
        const uint32_t lacks = warp_ballot(d.lacks_key);
        if (lacks == 0 || tries == SOFTNIC_NEAR_KEYS) {
            return d;
        }
        sync_warp(); /* all have looked at what is at hand */
        if (lane() == 0) {
            const struct wqe_op *op = &softnic_flight_of(w, first + (uint32_t)TERN_FFS(lacks) - 1)->op;
            (void)softnic_place(&w->hand.local, qp->keys, op->lkey);
            (void)softnic_place(&w->hand.remote, qp->remote_keys, op->rkey);
        }
        sync_warp();
    }
}

/* Whether the lane's entry is to be done apart from one before it: in the list of both it could be told that
 * it was not. As softnic_append, softnic_append_word. */
TERN_DEVICE int together_meets(const struct together_deed *d, uint32_t num)
{
    const struct softnic_span writes = softnic_span_of(d->to, d->bytes),
                              reads = softnic_span_of(d->from, d->bytes);
    int meets = 0;
    for (uint32_t j = 0; j + 1 < num; j++) {
        const uint64_t bytes = shfl_u32(d->bytes, (int)j);
        const int is_word = (int)shfl_u32((uint32_t)d->is_word, (int)j);
        struct softnic_span its_writes, its_reads;
        its_writes.begin = shfl_u64(writes.begin, (int)j);
        its_writes.end = its_writes.begin + bytes;
        its_reads.begin = shfl_u64(reads.begin, (int)j);
        its_reads.end = its_reads.begin + bytes;
        if ((uint32_t)lane() <= j || (uint32_t)lane() >= num) {
            continue;
        }
        if (d->is_word) { /* words come behind all copies */
            meets |= is_word && d->form == SOFTNIC_SET && softnic_meet(writes, its_writes);
        } else {
            meets |= softnic_meet(writes, its_writes) || softnic_meet(writes, its_reads) ||
                     softnic_meet(reads, its_writes) || (is_word && softnic_meet(reads, its_reads));
        }
    }
    return meets;
}

/* Whether all words share a round. */
TERN_DEVICE int together_is_round(const struct together_deed *d, uint32_t words)
{
    if (words == 0) {
        return 1;
    }
    const int first = TERN_FFS(words) - 1;
    const uint32_t form = shfl_u32(d->form, first), bytes = shfl_u32(d->bytes, first);
    const uint64_t from = shfl_u64((uint64_t)(uintptr_t)d->from, first);
    const int like = d->form == form && d->bytes == bytes && (uint64_t)(uintptr_t)d->from == from;
    return warp_all((words >> lane() & 1) == 0 || like);
}

/* Whether something can be listed: nothing is, and nothing has failed. */
TERN_DEVICE int together_may_list(const struct softnic_work *w)
{
    const struct softnic_qp *qp = w->qp;
    const struct softnic_list *l = &w->hand.list;
    return w->done == 0 && l->num == 0 && l->num_words == 0 && !qp->has_failed && !qp->is_cut &&
           qp->late == NULL && qp->state == SOFTNIC_READY;
}

/* Lanes that have a copy, or a word, to the empty list, in their order; with that so many have arrived. */
TERN_DEVICE void together_fill(struct softnic_work *w, const struct together_deed *d, uint32_t copies,
                               uint32_t words, uint32_t done)
{
    struct softnic_list *l = &w->hand.list;
    const uint32_t mine = 1u << lane();
    if ((copies & mine) != 0) {
        struct softnic_copy c = {d->to, d->from, 0, ~0ull, d->bytes};
        l->copies[popc_before(copies, lane())] = c;
    }
    if ((words & mine) != 0) {
        /* Old values of signals: the last one's stays. */
        struct softnic_word word = {
            d->op, d->to, d->from, 0, d->bytes, 0, (words & ~(mine | (mine - 1))) != 0, 0};
        l->words[popc_before(words, lane())] = word;
    }
    sync_warp(); /* all have read what there is to do, and what they wrote is there for all */
    if (lane() == 0) {
        l->num = (uint32_t)TERN_POPC(copies);
        l->num_words = (uint32_t)TERN_POPC(words);
        l->rounds = words != 0;
        w->done = done;
    }
    sync_warp();
}

/* ---- On the way ---- */

/* Bytes are under way while a wire is taken, and not copied when it no longer is: so a put is copied once it
 * has been taken, and what tells of it, signals and completions, comes when the model says. Nobody can know:
 * until then the bytes are the NIC's, here and there. But something before it in the same queue pair that has
 * not arrived could tell, if they touched. What words need of keys is found out at the same time, so that
 * little is left to do when they arrive. */

/* Whether the lane's copy can be told from a flight before `first` that is yet to arrive. */
TERN_DEVICE int together_is_told(struct softnic_work *w, uint64_t first, const struct together_deed *d)
{
    const struct softnic_span writes = softnic_span_of(d->to, d->bytes),
                              reads = softnic_span_of(d->from, d->bytes);
    int is_told = 0;
    TERN_ROLLED
    for (uint64_t k = w->qp->num_arrived; k != first; k++) {
        const struct softnic_flight *f = softnic_flight_of(w, k);
        const struct softnic_span word = softnic_span_of(f->word, f->op.bytes),
                                  old = softnic_span_of(f->old, f->op.bytes);
        if (f->syndrome == SYNDROME_NONE && together_is_idle(f)) {
            continue;
        }
        is_told |= f->syndrome != SYNDROME_NONE || f->word == NULL || softnic_meet(writes, word) ||
                   softnic_meet(reads, word) || softnic_meet(writes, old) || softnic_meet(reads, old);
    }
    return is_told;
}

/* ---- Both ---- */

/* One warp, of `num` flights from `first` on, one each: lists what they do. is_early: they have just been
 * taken, and only puts are to be done. 0: nothing was done. */
TERN_DEVICE int softnic_list_together(struct softnic_work *w, uint64_t first, uint32_t num, int is_early)
{
    struct together_deed d;
    if (!together_may_list(w)) {
        return 0;
    }
    d = together_study(w, first, num);
    if (!warp_all(d.is_plain)) {
        return 0;
    }
    const uint32_t words = warp_ballot(d.is_word), copies = warp_ballot(d.is_copy);
    const int meets = together_meets(&d, num);
    const int is_apart = is_early ? !d.is_copy || (!meets && !together_is_told(w, first, &d)) : !meets;
    if (!warp_all(is_apart) || (!is_early && !together_is_round(&d, words))) {
        return 0;
    }
    if (is_early && (uint32_t)lane() < num) { /* nobody else looks at these yet */
        struct softnic_flight *f = softnic_flight_of(w, first + (uint32_t)lane());
        f->is_moved = (uint32_t)d.is_copy;
        f->word = d.is_word ? d.to : NULL;
        f->old = d.is_word ? d.from : NULL;
    }
    together_fill(w, &d, copies, is_early ? 0 : words, is_early ? 0 : num);
    return 1;
}

/* One warp: softnic_arrive_all of the flights that softnic_find_arrivals has found, but for doing the list,
 * which has nothing but words: all else has been done on the way. 0: nothing was done. */
TERN_DEVICE int softnic_arrive_moved(struct softnic_work *w)
{
    const uint32_t num = w->num;
    struct together_deed d = {1, 0, 0, 0, SOFTNIC_ALONE, 0, NULL, NULL, NULL};
    if (!together_may_list(w)) {
        return 0;
    }
    if ((uint32_t)lane() < num) {
        const struct softnic_flight *f = softnic_flight_of(w, w->qp->num_arrived + (uint32_t)lane());
        d.op = &f->op;
        d.is_word = f->word != NULL;
        d.is_plain = f->syndrome == SYNDROME_NONE && (d.is_word || together_is_idle(f));
        d.form = d.is_word ? softnic_form(&f->op.amo) : (uint32_t)SOFTNIC_ALONE;
        d.bytes = f->op.bytes;
        d.to = f->word;
        d.from = f->old;
    }
    const uint32_t words = warp_ballot(d.is_word);
    /* Of words that are set none comes twice, as far as this can tell. */
    const uint32_t same = match_any_u32(d.is_word ? (uint32_t)(uintptr_t)d.to >> 2 : ~(uint32_t)lane());
    const int is_apart = !d.is_word || d.form == SOFTNIC_SUM || (same & (same - 1)) == 0;
    if (!warp_all(d.is_plain && is_apart) || !together_is_round(&d, words)) {
        return 0;
    }
    together_fill(w, &d, 0, words, num);
    return 1;
}

#endif
