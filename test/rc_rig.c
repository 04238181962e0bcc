/* SPDX-License-Identifier: Apache-2.0
 *
 * Two NICs and the links between them; see rc_rig.h. */
#include "rc_rig.h"

#include <stdlib.h>
#include <string.h>

struct rc_rig_options rc_rig_defaults(uint64_t seed)
{
    struct rc_rig_options o = {0};
    o.config.pd = RC_RIG_PD;
    o.config.mtu = 256;
    o.config.window = 16;
    o.config.max_reads = RC_MAX_READS;
    o.config.retry_count = 7;
    o.config.rnr_retry = RC_RNR_FOREVER;
    o.config.timeout = 400;
    o.config.rnr_delay = 30;
    o.requests.seed = seed * 2;
    o.answers.seed = seed * 2 + 1;
    o.num_pairs = 1;
    o.seed = seed;
    return o;
}

uint32_t rc_rig_qpn(int pair) { return 0xabc001u + (uint32_t)pair; }

static void *take_aligned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) {
        abort();
    }
    memset(memory, 0, bytes);
    return memory;
}

static uint32_t add_key(struct rc_side *side, uint32_t first, uint32_t bytes, uint32_t access)
{
    struct key_registration g = {side->addr + first, bytes, side->bytes + first, RC_RIG_PD, access};
    uint32_t key = 0;
    if (terni_key_table_add(&side->keys, &g, &key) != TERN_OK) {
        abort();
    }
    return key;
}

static void side_open(struct rc_side *side, uint64_t addr, const struct rc_rig_options *o, struct rng *r)
{
    const uint32_t all = KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC;
    const size_t post = rc_post_bytes(o->config.mtu);
    memset(side, 0, sizeof(*side));
    side->addr = addr;
    side->bytes = (char *)take_aligned(RC_RIG_SIDE);
    side->posted = (char *)take_aligned(2 * RC_RIG_POSTS * post);
    rng_bytes(r, side->bytes, RC_RIG_SIDE);
    if (terni_key_table_init(&side->keys, side->places, 8) != TERN_OK) {
        abort();
    }
    side->key = add_key(side, 0, RC_RIG_BYTES, all);
    side->relaxed_key = add_key(side, RC_RIG_BYTES, RC_RIG_SIDE - RC_RIG_BYTES, all | KEY_RELAXED_ORDERING);
    side->read_only_key = add_key(side, 0, RC_RIG_SIDE, 0);
    side->memory.keys = &side->keys;
    side->memory.modes = o->modes;
    side->memory.random = rng_next(r) | 1;
    side->memory.writes.slots = side->posted;
    side->memory.results.slots = side->posted + RC_RIG_POSTS * post;
    side->memory.writes.capacity = side->memory.results.capacity = RC_RIG_POSTS;
    side->memory.writes.slot_bytes = side->memory.results.slot_bytes = (uint32_t)post;
}

void rc_rig_open(struct rc_rig *rig, const struct rc_rig_options *o)
{
    memset(rig, 0, sizeof(*rig));
    rig->random.state = o->seed * 0x9e3779b97f4a7c15ull + 1;
    side_open(&rig->home, RC_RIG_HOME, o, &rig->random);
    side_open(&rig->away, RC_RIG_AWAY, o, &rig->random);
    for (int i = 0; i < 2; i++) {
        rig->packets[i] = take_aligned(RC_RIG_PACKETS * rc_packet_bytes(o->config.mtu));
    }
    rc_link_init(&rig->requests, rig->packets[0], RC_RIG_PACKETS, o->config.mtu, &o->requests);
    rc_link_init(&rig->answers, rig->packets[1], RC_RIG_PACKETS, o->config.mtu, &o->answers);
    rig->num_pairs = o->num_pairs;
    rig->pairs = (struct rc_pair *)take_aligned((size_t)o->num_pairs * sizeof(struct rc_pair));
    for (int i = 0; i < o->num_pairs; i++) {
        struct rc_pair *p = &rig->pairs[i];
        struct rc_config c = o->config;
        c.qpn = c.peer_qpn = rc_rig_qpn(i);
        if (terni_rc_check_config(&c) != TERN_OK) {
            abort();
        }
        rc_requester_init(&p->q, &c, p->entries, RC_RIG_ENTRIES);
        rc_responder_init(&p->s, &c, p->receives, RC_RIG_RECEIVES);
        p->idx = 0u - rng_below(&rig->random, 40); /* wraps soon */
    }
}

void rc_rig_close(struct rc_rig *rig)
{
    free(rig->home.bytes);
    free(rig->home.posted);
    free(rig->away.bytes);
    free(rig->away.posted);
    free(rig->packets[0]);
    free(rig->packets[1]);
    free(rig->pairs);
}

int rc_rig_post(struct rc_rig *rig, int pair, const struct wqe_op *op, const void *payload)
{
    struct rc_pair *p = &rig->pairs[pair];
    struct wqe_source from = {wqe_ring_of(p->ring, RC_RIG_BLOCKS), rc_rig_qpn(pair), p->idx, RC_RIG_BLOCKS};
    struct wqe_case c;
    struct wqe_op seen;
    struct nic_refusal refusal;

    if (!rc_requester_has_room(&p->q)) {
        return 0;
    }
    memset(&c, 0, sizeof(c));
    c.op = *op;
    c.qpn = from.qpn;
    c.idx = p->idx;
    if (op->is_inline) {
        memcpy(c.payload, payload, op->bytes);
    }
    if (op->opcode == 0xff) {
        c.op.opcode = WQE_NOP;
    }
    if (wqe_case_is_warp(&c.op)) {
        for (uint32_t i = 0; i < 32; i++) {
            wqe_case_post_lane(&from.ring, &c, i);
        }
    } else {
        wqe_case_post(&from.ring, &c);
    }
    if (op->opcode == 0xff) {
        *wqe_byte(&from.ring, p->idx, 3) = 0x0a; /* SEND */
    }
    wqe_decode(&from, &seen, &refusal);
    rc_requester_post(&p->q, &seen, &from, &refusal);
    p->idx += seen.blocks != 0 ? seen.blocks : 1;
    p->num_posted++;
    return 1;
}

/* ---- Time ---- */

static void take_completions(struct rc_rig *rig, struct rc_pair *p)
{
    struct rc_completion done;
    while (rc_requester_peek(&p->q, &done)) {
        struct rc_done *d = &p->done[p->num_done % RC_RIG_DONE];
        d->idx = done.entry->idx;
        d->opcode = done.entry->op.opcode;
        d->syndrome = done.syndrome;
        d->at = rig->now;
        d->has_cqe = (uint32_t)wqe_op_completes(&done.entry->op, done.syndrome);
        p->num_done++;
        rc_requester_retire(&p->q);
    }
}

/* A NIC has found a packet; this is whose it is. */
static struct rc_pair *pair_of(struct rc_rig *rig, const struct rc_packet *packet)
{
    return &rig->pairs[packet->to_qpn - rc_rig_qpn(0)];
}

static void away_takes(struct rc_rig *rig)
{
    struct rc_packet *packet = rc_link_peek(&rig->requests, rig->now);
    if (packet != NULL &&
        rc_responder_take(&pair_of(rig, packet)->s, &rig->away.memory, packet, &rig->answers, rig->now)) {
        rc_link_release(&rig->requests);
    }
}

static void home_takes(struct rc_rig *rig)
{
    struct rc_packet *packet = rc_link_peek(&rig->answers, rig->now);
    if (packet != NULL) {
        rc_requester_take(&pair_of(rig, packet)->q, &rig->home.memory, packet, rig->now);
        rc_link_release(&rig->answers);
    }
}

/* What holds between any two steps; in error nothing matters any more. */
static int is_sound(const struct rc_requester *q)
{
    return q->state == RC_ERROR ||
           (q->retired <= q->acked_entry && q->acked_entry <= q->cursor_entry &&
            q->cursor_entry <= q->begun && q->begun <= q->posted && q->acked <= q->cursor &&
            q->cursor <= q->next && q->acked <= q->landed && q->num_reads <= q->config.max_reads);
}

void rc_rig_step(struct rc_rig *rig)
{
    rig->now++;
    for (int i = 0; i < rig->num_pairs; i++) {
        struct rc_pair *p = &rig->pairs[i];
        if (!rng_one_in(&rig->random, 3)) {
            rc_requester_work(&p->q, &rig->home.memory, &rig->requests, rig->now);
        }
        if (!rng_one_in(&rig->random, 3)) {
            rc_responder_work(&p->s, &rig->away.memory, &rig->answers, rig->now);
        }
    }
    for (int i = 0; i < rig->num_pairs && !rng_one_in(&rig->random, 3); i++) {
        away_takes(rig);
        home_takes(rig);
    }
    if (rng_one_in(&rig->random, 8)) {
        rc_memory_work(&rig->away.memory);
    }
    for (int i = 0; i < rig->num_pairs; i++) {
        rig->is_broken |= !is_sound(&rig->pairs[i].q);
        take_completions(rig, &rig->pairs[i]);
    }
}

static int is_over(const struct rc_rig *rig)
{
    for (int i = 0; i < rig->num_pairs; i++) {
        if (rig->pairs[i].num_done != rig->pairs[i].num_posted) {
            return 0;
        }
    }
    return 1;
}

int rc_rig_run(struct rc_rig *rig, int steps)
{
    for (int i = 0; i < steps && !is_over(rig); i++) {
        rc_rig_step(rig);
    }
    return is_over(rig) && !rig->is_broken;
}

/* ---- Operations ---- */

static uint32_t key_at(const struct rc_side *side, uint32_t at)
{
    return at < RC_RIG_BYTES ? side->key : side->relaxed_key;
}

static struct wqe_op op_of(const struct rc_rig *rig, uint32_t opcode, uint32_t away, uint32_t home,
                           uint32_t bytes)
{
    struct wqe_op op = {0};
    op.opcode = opcode;
    op.complete = WQE_CE_ALWAYS;
    op.bytes = bytes;
    op.rkey = key_at(&rig->away, away);
    op.lkey = key_at(&rig->home, home);
    op.remote = rig->away.addr + away;
    op.local = rig->home.addr + home;
    return op;
}

struct wqe_op rc_op_write(const struct rc_rig *rig, uint32_t away, uint32_t home, uint32_t bytes)
{
    return op_of(rig, WQE_RDMA_WRITE, away, home, bytes);
}

struct wqe_op rc_op_read(const struct rc_rig *rig, uint32_t away, uint32_t home, uint32_t bytes)
{
    return op_of(rig, WQE_RDMA_READ, away, home, bytes);
}

struct wqe_op rc_op_imm(const struct rc_rig *rig, uint32_t away, uint32_t home, uint32_t bytes, uint32_t imm)
{
    struct wqe_op op = op_of(rig, WQE_RDMA_WRITE_IMM, away, home, bytes);
    op.imm = imm;
    return op;
}

struct wqe_op rc_op_atomic(const struct rc_rig *rig, uint32_t away, uint32_t home, const struct wqe_amo *amo)
{
    struct wqe_op op = op_of(rig, amo->opcode, away, home, amo->bytes);
    op.amo = *amo;
    return op;
}

struct wqe_op rc_op_add(const struct rc_rig *rig, uint32_t away, uint32_t home, uint64_t value)
{
    struct wqe_amo amo = wqe_amo_of(AMO_ADD, 8, value, 0);
    return rc_op_atomic(rig, away, home, &amo);
}

struct wqe_op rc_op_dump(const struct rc_rig *rig) { return op_of(rig, WQE_DUMP, 0, 0, 8); }

uint64_t rc_rig_word(const struct rc_side *side, uint32_t at)
{
    uint64_t value;
    memcpy(&value, side->bytes + at, sizeof(value));
    return value;
}

void rc_rig_set_word(struct rc_side *side, uint32_t at, uint64_t value)
{
    memcpy(side->bytes + at, &value, sizeof(value));
}
