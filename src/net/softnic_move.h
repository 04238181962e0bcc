/* SPDX-License-Identifier: Apache-2.0
 *
 * What a software NIC does for an operation: finds its memory through the keys, and moves bytes there.
 *
 * One thread finds out; copies are collected in a list for the block (softnic_list.h), as long as it makes
 * no difference in which order they are done. What others wait for, atomics and inline writes of naturally
 * aligned words of 4 or 8 bytes, comes when the list has been done, one after the other, but signals that
 * follow each other together. So what is put behind a signal can land before the signal
 * does, and of two signals the second before the first, as with adaptive routing, but no signal before
 * what it is for: puts, inline ones and atomics. What touches the bytes of a word that is yet to be done
 * waits for it, and so do READs and entries with a fence. A word, inline or not, is read and written
 * whole. Atomics are of system scope: engines of this NIC and of others are atomic with each other,
 * whatever device they run on. Nobody may rely on those of others, since a NIC of silicon is atomic with
 * itself alone. Loads and stores of kernels are not meant to be: a word that NICs raise is
 * raised by NICs only. */
#ifndef TERN_SOFTNIC_MOVE_H
#define TERN_SOFTNIC_MOVE_H

#include "net/softnic_list.h"

/* ---- Results that are late ---- */

/* One thread; words whole. */
TERN_DEVICE void softnic_copy_alone(char *to, const char *from, uint64_t bytes)
{
    uint64_t all = (uint64_t)(uintptr_t)to | (uint64_t)(uintptr_t)from | bytes;
    uint32_t unit = (all & 7) == 0 ? 8 : (all & 3) == 0 ? 4 : 1;
    TERN_ROLLED
    for (uint64_t i = 0; i < bytes; i += unit) {
        p2p_move(to + i, from + i, unit);
    }
}

TERN_DEVICE void softnic_land(struct softnic_late *late)
{
    softnic_copy_alone(late->to, late->data, late->bytes);
    late->bytes = 0;
}

/* Keeps the end of what is to be copied; what was kept before lands first, so that results keep their
 * order. */
TERN_DEVICE void softnic_delay(struct softnic_late *late, struct softnic_copy *c)
{
    softnic_land(late);
    late->bytes = c->bytes < SOFTNIC_LATE_BYTES ? c->bytes : (uint64_t)SOFTNIC_LATE_BYTES;
    c->bytes -= late->bytes;
    late->to = c->to + c->bytes;
    softnic_copy_alone(late->data, c->from + c->bytes, late->bytes);
}

/* ---- Operations ---- */

TERN_DEVICE int softnic_is_sum(const struct wqe_amo *a)
{
    return a->opcode == WQE_ATOMIC_FA || (a->opcode == WQE_MASKED_FA && a->mask == 0);
}

TERN_DEVICE int softnic_is_set(const struct wqe_amo *a)
{
    uint64_t all = a->bytes == 4 ? 0xffffffffull : ~0ull;
    return a->opcode == WQE_MASKED_CS && a->compare_mask == 0 && a->mask == all;
}

/* With which other words it shares a round. */
TERN_DEVICE uint32_t softnic_form(const struct wqe_amo *a)
{
    return softnic_is_sum(a) ? SOFTNIC_SUM : softnic_is_set(a) ? SOFTNIC_SET : SOFTNIC_ALONE;
}

/* The old value. Whatever comes before in this thread, and in those that it has synchronised with, can be
 * read by who sees the word; what they read next is not older than what others put before the word. */
TERN_DEVICE uint64_t softnic_swap(char *word, uint32_t bytes, uint64_t value)
{
    /* Pairs with whoever waits for the word, and with whoever raised it. */
    return bytes == 4 ? atom_swap_acqrel_sys_u32((uint32_t *)(void *)word, (uint32_t)value)
                      : atom_swap_acqrel_sys_u64((uint64_t *)(void *)word, value);
}

/* Likewise. */
TERN_DEVICE uint64_t softnic_amo(char *word, const struct wqe_amo *a)
{
    uint32_t *p = (uint32_t *)(void *)word;
    uint64_t *q = (uint64_t *)(void *)word, old, seen;
    if (softnic_is_sum(a)) {
        /* Pairs with whoever waits for the word, and with whoever raised it; so do the following. */
        return a->bytes == 4 ? atom_add_acqrel_sys_u32(p, (uint32_t)a->swap_add)
                             : atom_add_acqrel_sys_u64(q, a->swap_add);
    }
    if (softnic_is_set(a)) {
        return softnic_swap(word, a->bytes, a->swap_add);
    }
    TERN_ROLLED
    for (old = a->bytes == 4 ? ld_relaxed_sys_u32(p) : ld_relaxed_sys_u64(q);; old = seen) {
        uint64_t next = wqe_amo_apply(a, old);
        /* Pairs with the same. */
        seen = a->bytes == 4 ? atom_cas_acqrel_sys_u32(p, (uint32_t)old, (uint32_t)next)
                             : atom_cas_acqrel_sys_u64(q, old, next);
        if (seen == old) {
            return old;
        }
    }
}

/* What was at keys' places when they were looked up last: puts and signals have two keys in turn, and an
 * engine has queue pairs to several peers. Nobody changes keys while a NIC runs, so that this holds until it
 * ends. */
enum { SOFTNIC_NEAR_KEYS = 4 };
struct softnic_near {
    const struct key_table *tables[SOFTNIC_NEAR_KEYS]; /* NULL: nothing yet */
    struct key_entry entries[SOFTNIC_NEAR_KEYS];
    uint32_t next, reserved; /* whose place is taken */
};

/* What an engine has at hand, all 0 to begin with: the last keys, and what is left to be copied. */
struct softnic_hand {
    struct softnic_near local, remote;
    struct softnic_list list;
};

/* A key that is at hand, or NULL. */
TERN_DEVICE const struct key_entry *softnic_at_hand(const struct softnic_near *near,
                                                    const struct key_table *table, uint32_t key)
{
    for (uint32_t i = 0; i < SOFTNIC_NEAR_KEYS; i++) {
        if (near->tables[i] == table && near->entries[i].key == key) {
            return &near->entries[i];
        }
    }
    return NULL;
}

TERN_DEVICE const struct key_entry *softnic_place(struct softnic_near *near, const struct key_table *table,
                                                  uint32_t key)
{
    const struct key_entry *e = softnic_at_hand(near, table, key);
    if (e != NULL) {
        return e;
    }
    e = key_place(table, key);
    if (e == NULL) {
        return NULL;
    }
    uint32_t at = near->next;
    near->next = (at + 1) % SOFTNIC_NEAR_KEYS;
    near->entries[at] = *e;
    near->tables[at] = table;
    return &near->entries[at];
}

/* What an operation asks of its local memory, or of its remote one. */
TERN_DEVICE struct key_request softnic_request(const struct softnic_qp *qp, uint32_t use,
                                               const struct wqe_op *op)
{
    int local = use == KEY_USE_GATHER || use == KEY_USE_SCATTER;
    struct key_request q;
    q.use = use;
    q.key = local ? op->lkey : op->rkey;
    q.pd = local ? qp->pd : qp->remote_pd;
    q.addr = local ? op->local : op->remote;
    q.bytes = op->bytes;
    return q;
}

TERN_DEVICE uint32_t softnic_find(const struct softnic_qp *qp, struct softnic_hand *h, uint32_t use,
                                  const struct wqe_op *op, struct key_memory *memory, struct nic_refusal *r)
{
    int local = use == KEY_USE_GATHER || use == KEY_USE_SCATTER;
    struct key_request q = softnic_request(qp, use, op);
    return key_use(local ? softnic_place(&h->local, qp->keys, q.key)
                         : softnic_place(&h->remote, qp->remote_keys, q.key),
                   &q, memory, r);
}

/* Both ends of an operation; the local one first, as a NIC finds out before it sends anything. */
TERN_DEVICE uint32_t softnic_find_both(const struct softnic_qp *qp, struct softnic_hand *h,
                                       const struct wqe_op *op, struct key_memory *local,
                                       struct key_memory *remote, struct nic_refusal *r)
{
    int is_write = op->opcode == WQE_RDMA_WRITE, is_read = op->opcode == WQE_RDMA_READ;
    uint32_t syndrome = SYNDROME_NONE;
    local->host = remote->host = NULL;
    if (op->opcode == WQE_NOP) {
        return SYNDROME_NONE;
    }
    if (op->opcode == WQE_RDMA_WRITE_IMM) {
        return SYNDROME_RNR_RETRY; /* the other end is memory, and has nothing to receive with */
    }
    if (!op->is_inline) {
        syndrome = softnic_find(qp, h, is_write || op->opcode == WQE_DUMP ? KEY_USE_GATHER : KEY_USE_SCATTER,
                                op, local, r);
    }
    if (syndrome != SYNDROME_NONE || op->opcode == WQE_DUMP) {
        return syndrome;
    }
    return softnic_find(qp, h,
                        is_write  ? KEY_USE_WRITE
                        : is_read ? KEY_USE_READ
                                  : KEY_USE_ATOMIC,
                        op, remote, r);
}

/* The old value goes where it is wanted, or will with a DUMP. */
TERN_DEVICE void softnic_do_atomic(const struct softnic_qp *qp, const struct softnic_word *w)
{
    uint64_t old = wqe_amo_result(w->op->amo.bytes, softnic_amo(w->word, &w->op->amo));
    if (qp->late != NULL) {
        softnic_land(qp->late);
        qp->late->to = w->to;
        qp->late->bytes = w->bytes;
        *(uint64_t *)(void *)qp->late->data = old;
    } else if (!w->drops && (uintptr_t)w->to % w->bytes == 0) {
        softnic_store_word(w->to, w->bytes, old);
    } else {
        TERN_ROLLED
        for (uint32_t i = 0; !w->drops && i < w->bytes; i++) {
            w->to[i] = (char)(old >> 8 * i);
        }
    }
}

TERN_DEVICE struct softnic_copy softnic_copy_of(const struct softnic_qp *qp, uint64_t idx,
                                                const struct wqe_op *op, char *local, char *remote)
{
    struct softnic_copy c;
    c.to = op->opcode == WQE_RDMA_READ ? local : remote;
    c.from = op->opcode == WQE_RDMA_READ ? remote : local;
    c.at = 0;
    c.mask = ~0ull;
    c.bytes = op->bytes;
    if (op->is_inline) {
        c.from = (const char *)qp->ring.segments;
        c.at = idx * WQE_BLOCK_BYTES + 2 * WQE_SEGMENT_BYTES + WQE_INLINE_HEADER_BYTES;
        c.mask = (uint64_t)softnic_blocks(qp) * WQE_BLOCK_BYTES - 1;
    }
    return c;
}

/* Not a syndrome: what is in the list comes first, and then the operation is to be tried again. */
#define SOFTNIC_LATER (~0u)

/* An atomic, or a store that others wait for. */
TERN_DEVICE void softnic_raise(const struct softnic_qp *qp, const struct softnic_word *w)
{
    if (w->op != NULL) {
        softnic_do_atomic(qp, w);
    } else if (w->bytes == 4) {
        /* Pairs with whoever waits for the word: what this queue pair moved before can be read. */
        st_release_sys_u32((uint32_t *)(void *)w->word, (uint32_t)w->value);
    } else {
        st_release_sys_u64((uint64_t *)(void *)w->word, w->value); /* pairs with the same */
    }
}

/* Words of a round, after the copies and all rounds before, with whoever did those synchronised: thread
 * `index` of `count`. */
TERN_DEVICE void softnic_do_round(const struct softnic_qp *qp, const struct softnic_list *l, uint32_t round,
                                  uint32_t index, uint32_t count)
{
    TERN_ROLLED
    for (uint32_t i = index; i < l->num_words; i += count) {
        if (l->words[i].round == round) {
            softnic_raise(qp, &l->words[i]);
        }
    }
}

TERN_DEVICE struct softnic_word softnic_word_of(const struct wqe_op *op, const struct softnic_copy *c,
                                                char *to)
{
    struct softnic_word w;
    int is_atomic = wqe_opcode_is_atomic(op->opcode);
    w.op = is_atomic ? op : NULL;
    w.word = c->to;
    w.to = to;
    w.value = is_atomic ? 0 : softnic_load_word(c);
    w.bytes = op->bytes;
    w.round = w.drops = w.reserved = 0;
    return w;
}

/* Does an operation, or leaves it to the list. `idx` is the entry's; `op` stays until the list is done. */
TERN_DEVICE uint32_t softnic_do(const struct softnic_qp *qp, struct softnic_hand *h, uint64_t idx,
                                const struct wqe_op *op, struct nic_refusal *r)
{
    struct key_memory local, remote;
    struct softnic_copy c;
    int is_awaited;
    uint32_t syndrome = softnic_find_both(qp, h, op, &local, &remote, r);
    if (syndrome != SYNDROME_NONE || op->opcode == WQE_NOP || (op->opcode == WQE_DUMP && qp->late == NULL)) {
        return syndrome;
    }
    if ((h->list.num != 0 || h->list.num_words != 0) && qp->late != NULL) {
        return SOFTNIC_LATER; /* its results keep their order by the data that follow them */
    }
    if (h->list.num_words != 0 && (op->opcode == WQE_RDMA_READ || op->fence != 0)) {
        return SOFTNIC_LATER;
    }
    if (op->opcode == WQE_DUMP) {
        softnic_land(qp->late);
        return SYNDROME_NONE;
    }
    c = softnic_copy_of(qp, idx, op, local.host, remote.host);
    is_awaited = wqe_opcode_is_atomic(op->opcode) || (op->is_inline && softnic_is_word(&c));
    if (is_awaited) {
        struct softnic_word w = softnic_word_of(op, &c, local.host);
        softnic_append_word(&h->list, &w, w.op == NULL ? (uint32_t)SOFTNIC_ALONE : softnic_form(&w.op->amo));
        return SYNDROME_NONE;
    }
    if (op->opcode == WQE_RDMA_READ && qp->late != NULL) {
        softnic_delay(qp->late, &c);
    }
    return c.bytes == 0 || softnic_append(&h->list, &c) ? SYNDROME_NONE : SOFTNIC_LATER;
}

#endif
