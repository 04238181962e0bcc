/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs and their naive reference; see rc_program.h. */
#include "rc_program.h"

#include <stdlib.h>
#include <string.h>

/* ---- One operation ---- */

static uint32_t place_in(struct rng *r, int pair, int relaxed, uint32_t bytes, uint32_t align)
{
    uint32_t slice = relaxed ? RC_PROGRAM_RELAXED : RC_PROGRAM_SLICE;
    uint32_t first = relaxed ? RC_RIG_BYTES + (uint32_t)pair * slice : (uint32_t)pair * slice;
    return first + rng_below(r, (slice - bytes) / align + 1) * align;
}

static uint32_t some_bytes(struct rng *r, uint32_t mtu)
{
    uint32_t most = 5 * mtu < 4 * 1024 ? 5 * mtu : 4 * 1024 + 512;
    switch (rng_below(r, 6)) {
    case 0:
        return 0;
    case 1:
        return 4u << rng_below(r, 2);
    case 2:
        return mtu * rng_between(r, 1, most / mtu);
    case 3:
        return rng_below(r, 64);
    default:
        return rng_between(r, 1, most);
    }
}

static void make_rdma(struct rc_step *s, struct rc_rig *rig, int pair)
{
    struct rng *r = &rig->random;
    uint32_t bytes = some_bytes(r, rig->pairs[pair].q.config.mtu), kind = rng_below(r, 10);
    uint32_t align = rng_one_in(r, 2) ? 8 : 1;
    s->away = place_in(r, pair, rng_one_in(r, 5), bytes, align);
    s->home = place_in(r, pair, rng_one_in(r, 5), bytes, align);
    if (kind < 4) {
        s->op = rc_op_write(rig, s->away, s->home, bytes);
    } else if (kind < 5) {
        s->op = rc_op_imm(rig, s->away, s->home, bytes, (uint32_t)rng_next(r) | 1);
    } else if (kind < 8) {
        s->op = rc_op_read(rig, s->away, s->home, bytes);
    } else {
        bytes = rng_one_in(r, 2) ? rng_between(r, 1, 28) : 32u << rng_below(r, 4);
        s->op = rc_op_write(rig, s->away = place_in(r, pair, 0, bytes, align), s->home, bytes);
        s->op.is_inline = 1;
        rng_bytes(r, s->payload, bytes);
    }
}

static void make_atomic(struct rc_step *s, struct rc_rig *rig, int pair)
{
    struct rng *r = &rig->random;
    uint32_t bytes = rng_one_in(r, 2) ? 4 : 8;
    struct wqe_amo amo = wqe_amo_of(rng_below(r, AMO_COUNT), bytes, rng_next(r), rng_below(r, 2));
    s->home = place_in(r, pair, 0, bytes, 1);
    s->away = place_in(r, pair, rng_one_in(r, 3), bytes, bytes);
    if (rng_one_in(r, 3)) { /* one of few words, so that some meet */
        s->away = (uint32_t)pair * RC_PROGRAM_SLICE + 8 * rng_below(r, 2);
    }
    s->op = rc_op_atomic(rig, s->away, s->home, &amo);
}

static void make_step(struct rc_step *s, struct rc_rig *rig, int pair)
{
    struct rng *r = &rig->random;
    memset(s, 0, sizeof(*s));
    switch (rng_below(r, 12)) {
    case 0:
        s->op.opcode = WQE_NOP;
        break;
    case 1:
        s->op = rc_op_dump(rig);
        break;
    case 2:
    case 3:
    case 4:
        make_atomic(s, rig, pair);
        break;
    case 5: /* the word that all share; what it was before depends on the others */
        s->home = RC_PROGRAM_COUNTER + 8 * (uint32_t)pair;
        s->away = RC_PROGRAM_COUNTER;
        s->op = rc_op_add(rig, s->away, s->home, 1 + rng_below(r, 100));
        break;
    default:
        make_rdma(s, rig, pair);
        break;
    }
    s->op.complete = rng_one_in(r, 2) ? WQE_CE_ALWAYS : WQE_CE_ON_ERROR;
    s->op.fence = rng_one_in(r, 12) ? rng_below(r, 5) << 5 : WQE_FM_NONE;
}

/* ---- What orders need a fence ---- */

static int is_read(const struct wqe_op *op)
{
    return op->opcode == WQE_RDMA_READ || wqe_opcode_is_atomic(op->opcode);
}

static int is_write(const struct wqe_op *op)
{
    return op->opcode == WQE_RDMA_WRITE || op->opcode == WQE_RDMA_WRITE_IMM;
}

static int changes_target(const struct wqe_op *op)
{
    return is_write(op) || wqe_opcode_is_atomic(op->opcode);
}

static int meet(uint32_t a, uint32_t a_bytes, uint32_t b, uint32_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* WQE_FM_NONE, WQE_FM_FENCE or WQE_FM_STRONG: what `later` needs so as to come after `s`. */
static uint32_t order_of(const struct rc_step *s, const struct rc_step *later, int adaptive)
{
    const struct wqe_op *a = &s->op, *b = &later->op;
    int at_target = meet(s->away, a->bytes, later->away, b->bytes);
    int at_home = meet(s->home, a->bytes, later->home, b->bytes);
    if (is_write(a) && !a->is_inline && is_read(b) && at_home) {
        return WQE_FM_STRONG;
    }
    if (adaptive && is_write(a) && is_write(b) && at_target) {
        return WQE_FM_STRONG;
    }
    if (is_read(a) && is_write(b) && at_home && !b->is_inline) {
        return WQE_FM_FENCE;
    }
    if (a->opcode == WQE_RDMA_READ && changes_target(b) && at_target) {
        return WQE_FM_FENCE;
    }
    if (adaptive && wqe_opcode_is_atomic(a->opcode) && is_write(b) && at_target) {
        return WQE_FM_FENCE;
    }
    return WQE_FM_NONE;
}

static void add_fences(struct rc_program *p, int adaptive)
{
    int answered = 0, over = 0; /* steps before these are, when step i begins */
    for (int i = 0; i < p->num_steps; i++) {
        struct wqe_op *op = &p->steps[i].op;
        for (int k = over; k < i; k++) {
            uint32_t order = order_of(&p->steps[k], &p->steps[i], adaptive);
            if (order == WQE_FM_STRONG || (order == WQE_FM_FENCE && k >= answered &&
                                           op->fence != WQE_FM_STRONG && op->fence != WQE_FM_FENCE_SMALL)) {
                op->fence = order;
            }
        }
        answered = op->fence >= WQE_FM_FENCE ? i : answered;
        over = op->fence == WQE_FM_STRONG ? i : over;
    }
}

/* ---- The reference ---- */

static void do_atomic(const struct rc_step *s, struct rc_model *m)
{
    uint64_t old = 0, new_value, result;
    memcpy(&old, m->away + s->away, s->op.bytes);
    new_value = wqe_amo_apply(&s->op.amo, old);
    memcpy(m->away + s->away, &new_value, s->op.bytes);
    result = wqe_amo_result(s->op.bytes, old);
    memcpy(m->home + s->home, &result, s->op.bytes);
}

/* Returns what it changed; NULL: nothing. */
static const char *do_step(const struct rc_step *s, struct rc_model *m)
{
    if (is_write(&s->op)) {
        memcpy(m->away + s->away, s->op.is_inline ? (const char *)s->payload : m->home + s->home,
               s->op.bytes);
        return m->away + s->away;
    }
    if (s->op.opcode == WQE_RDMA_READ) {
        memcpy(m->home + s->home, m->away + s->away, s->op.bytes);
        return m->home + s->home;
    }
    if (is_read(&s->op)) {
        do_atomic(s, m);
        return m->home + s->home;
    }
    return NULL;
}

static void run_model(struct rc_program *p, struct rc_model *model)
{
    for (int i = 0; i < p->bad; i++) {
        struct rc_step *s = &p->steps[i];
        const char *changed = do_step(s, model);
        s->expected = (char *)test_take(1, s->op.bytes + 1);
        s->is_checked = changed != NULL && s->away != RC_PROGRAM_COUNTER;
        if (changed != NULL) {
            memcpy(s->expected, changed, s->op.bytes);
        }
        if (s->op.opcode == WQE_RDMA_WRITE_IMM) {
            p->imms[p->num_imms++] = s->op.imm;
        }
        for (int k = 0; k < i; k++) {
            struct rc_step *before = &p->steps[k];
            if (is_write(&before->op)
                    ? changes_target(&s->op) && meet(before->away, before->op.bytes, s->away, s->op.bytes)
                    : is_read(&s->op) && meet(before->home, before->op.bytes, s->home, s->op.bytes)) {
                before->is_checked = 0;
            }
        }
    }
}

/* ---- Errors ---- */

static void spoil_remote(struct rc_step *s, struct rc_rig *rig)
{
    switch (rng_below(&rig->random, 4)) {
    case 0:
        s->op = rc_op_write(rig, 0, 0, 700);
        s->op.rkey ^= 0x100u << rng_below(&rig->random, 8);
        break;
    case 1: /* from its second packet on */
        s->op = rc_op_write(rig, RC_RIG_BYTES - 300, 0, 700);
        break;
    case 2:
        s->op = rc_op_read(rig, 0, 0, 600);
        s->op.rkey = rig->away.read_only_key;
        break;
    default:
        s->op = rc_op_add(rig, 4, 0, 1);
        s->syndrome = SYNDROME_REMOTE_INVALID_REQUEST;
        return;
    }
    s->syndrome = SYNDROME_REMOTE_ACCESS;
}

static void spoil_local(struct rc_step *s, struct rc_rig *rig)
{
    switch (rng_below(&rig->random, 4)) {
    case 0:
        s->op = rc_op_write(rig, 0, 0, 700);
        s->op.lkey = 0x100;
        s->syndrome = SYNDROME_LOCAL_PROTECTION;
        break;
    case 1:
        s->op = rc_op_write(rig, 0, RC_RIG_BYTES - 699, 700);
        s->syndrome = SYNDROME_LOCAL_PROTECTION;
        break;
    case 2:
        s->op = rng_one_in(&rig->random, 2) ? rc_op_read(rig, 0, 0, 600) : rc_op_add(rig, 0, 0, 1);
        s->op.lkey = rig->home.read_only_key;
        s->syndrome = SYNDROME_LOCAL_ACCESS;
        break;
    default:
        s->op.opcode = 0xff;
        s->syndrome = SYNDROME_LOCAL_QP_OPERATION;
        break;
    }
}

static void spoil(struct rc_program *p, struct rc_rig *rig)
{
    struct rc_step *s;
    int local = rng_one_in(&rig->random, 2);
    p->bad = (int)rng_below(&rig->random, (uint32_t)p->num_steps);
    s = &p->steps[p->bad];
    memset(s, 0, sizeof(*s));
    (local ? spoil_local : spoil_remote)(s, rig);
    p->ahead_of_error = !local && rig->pairs[p->pair].q.config.adaptive;
    for (int i = p->bad + 1; i < p->num_steps; i++) {
        p->steps[i].syndrome = SYNDROME_FLUSHED;
    }
}

void rc_program_open(struct rc_program *p, struct rc_rig *rig, int pair, struct rc_model *model, int may_fail)
{
    memset(p, 0, sizeof(*p));
    p->pair = pair;
    p->num_steps = (int)rng_between(&rig->random, 1, RC_PROGRAM_OPS);
    p->bad = p->num_steps;
    for (int i = 0; i < p->num_steps; i++) {
        make_step(&p->steps[i], rig, pair);
    }
    if (may_fail && rng_one_in(&rig->random, 2)) {
        spoil(p, rig);
    }
    add_fences(p, (int)rig->pairs[pair].q.config.adaptive);
    run_model(p, model);
}

void rc_program_close(struct rc_program *p)
{
    for (int i = 0; i < p->bad; i++) {
        free(p->steps[i].expected);
    }
}

/* ---- Watching ---- */

static int check_done(struct rc_program *p, const struct rc_rig *rig)
{
    const struct rc_pair *pair = &rig->pairs[p->pair];
    for (; p->num_checked < (int)pair->num_done; p->num_checked++) {
        const struct rc_step *s = &p->steps[p->num_checked];
        const struct rc_done *d = &pair->done[p->num_checked];
        const char *seen = is_write(&s->op) ? rig->away.bytes + s->away : rig->home.bytes + s->home;
        uint32_t late =
            is_write(&s->op) ? rig->away.memory.modes & RC_RELAXED : rig->home.memory.modes & RC_CST;
        CHECK(d->syndrome == s->syndrome, "step %d of pair %d, opcode 0x%02x: syndrome 0x%02x, not 0x%02x",
              p->num_checked, p->pair, s->op.opcode, d->syndrome, s->syndrome);
        CHECK(d->has_cqe == (s->syndrome != 0 || s->op.complete == WQE_CE_ALWAYS),
              "step %d: %s completion entry", p->num_checked, d->has_cqe ? "a" : "no");
        if (s->syndrome == SYNDROME_NONE && s->is_checked && late == 0) {
            CHECK(memcmp(seen, s->expected, s->op.bytes) == 0,
                  "step %d of pair %d, opcode 0x%02x of %u bytes: complete, but its data is not there",
                  p->num_checked, p->pair, s->op.opcode, s->op.bytes);
        }
    }
    return TEST_PASSED;
}

int rc_program_turn(struct rc_program *p, struct rc_rig *rig)
{
    struct rc_responder *s = &rig->pairs[p->pair].s;
    struct rc_receive receive;
    if (p->num_posted < p->num_steps && rng_one_in(&rig->random, 2)) {
        const struct rc_step *step = &p->steps[p->num_posted];
        p->num_posted += rc_rig_post(rig, p->pair, &step->op, step->payload);
    }
    if (rng_one_in(&rig->random, 20)) {
        rc_responder_give(s);
    }
    if (rng_one_in(&rig->random, 20) && rc_responder_fetch(s, &receive)) {
        CHECK(p->num_received < p->num_imms && p->imms[p->num_received] == receive.imm,
              "pair %d: immediate %d is 0x%08x", p->pair, p->num_received, receive.imm);
        p->num_received++;
    }
    return check_done(p, rig);
}

int rc_program_is_over(const struct rc_program *p, const struct rc_rig *rig)
{
    return p->num_posted == p->num_steps && (int)rig->pairs[p->pair].num_done == p->num_steps &&
           p->num_received == p->num_imms;
}

static int same(const char *seen, const char *wanted, uint32_t first, uint32_t bytes, const char *where)
{
    for (uint32_t i = first; i < first + bytes; i++) {
        CHECK(seen[i] == wanted[i], "byte %u of %s is %02x, not %02x", i, where, (unsigned char)seen[i],
              (unsigned char)wanted[i]);
    }
    return TEST_PASSED;
}

int rc_program_check(const struct rc_program *p, const struct rc_rig *rig, const struct rc_model *model)
{
    uint32_t slice = (uint32_t)p->pair * RC_PROGRAM_SLICE;
    uint32_t relaxed = RC_RIG_BYTES + (uint32_t)p->pair * RC_PROGRAM_RELAXED;
    if (!p->ahead_of_error) {
        PASS(same(rig->away.bytes, model->away, slice, RC_PROGRAM_SLICE, "the target"));
        PASS(same(rig->away.bytes, model->away, relaxed, RC_PROGRAM_RELAXED, "the target, relaxed"));
    }
    PASS(same(rig->home.bytes, model->home, slice, RC_PROGRAM_SLICE, "home"));
    return same(rig->home.bytes, model->home, relaxed, RC_PROGRAM_RELAXED, "home, relaxed");
}
