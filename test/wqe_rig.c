/* SPDX-License-Identifier: Apache-2.0
 *
 * Random work queue entries of every form. Rings are allocations of exactly their size, so that
 * AddressSanitizer sees a byte too far. */
#include "wqe_rig.h"
#include "wqe_post.h"

#include <stdlib.h>
#include <string.h>

const char *wqe_form_name(int form)
{
    static const char *const names[FORM_COUNT] = {
        "NOP",
        "DUMP",
        "WRITE",
        "WRITE_IMM",
        "READ",
        "empty WRITE",
        "empty WRITE_IMM",
        "empty READ",
        "inline",
        "inline of a warp",
        "FA",
        "CS",
        "masked FA of 4",
        "masked FA of 8",
        "masked CS of 4",
        "masked CS of 8",
    };
    return names[form];
}

/* Every width of number, and the ends of their ranges, come up often. */
static uint64_t draw(struct rng *r, int bits)
{
    uint64_t all = bits == 64 ? ~0ull : (1ull << bits) - 1, value = rng_next(r) & all;
    switch (rng_below(r, 8)) {
    case 0:
        return 0;
    case 1:
        return all;
    case 2:
        return value >> rng_below(r, (uint32_t)bits);
    default:
        return value;
    }
}

static void draw_amo(struct wqe_op *op, int form, struct rng *r)
{
    static const uint32_t opcodes[] = {WQE_ATOMIC_FA, WQE_ATOMIC_CS, WQE_MASKED_FA,
                                       WQE_MASKED_FA, WQE_MASKED_CS, WQE_MASKED_CS};
    int bits = form == FORM_MASKED_FA_4 || form == FORM_MASKED_CS_4 ? 32 : 64;
    struct wqe_amo *a = &op->amo;
    a->opcode = op->opcode = opcodes[form - FORM_FA];
    a->bytes = op->bytes = (uint32_t)bits / 8;
    a->swap_add = draw(r, bits);
    a->compare = form == FORM_CS || form >= FORM_MASKED_CS_4 ? draw(r, bits) : 0;
    a->mask = form >= FORM_MASKED_FA_4 ? draw(r, bits) : 0;
    a->compare_mask = form >= FORM_MASKED_CS_4 ? draw(r, bits) : 0;
    op->segments = form == FORM_MASKED_CS_8 ? 5 : 4;
}

static void draw_op(struct wqe_op *op, int form, struct rng *r)
{
    static const uint32_t opcodes[] = {WQE_NOP,        WQE_DUMP,       WQE_RDMA_WRITE,     WQE_RDMA_WRITE_IMM,
                                       WQE_RDMA_READ,  WQE_RDMA_WRITE, WQE_RDMA_WRITE_IMM, WQE_RDMA_READ,
                                       WQE_RDMA_WRITE, WQE_RDMA_WRITE};
    static const uint32_t segments[] = {1, 2, 3, 3, 3, 2, 2, 2};
    memset(op, 0, sizeof(*op));
    op->fence = rng_below(r, 5) << 5;
    op->complete = rng_below(r, 4) << 2;
    op->solicited = rng_below(r, 2);
    if (form >= FORM_FA) {
        draw_amo(op, form, r);
    } else {
        op->opcode = opcodes[form];
        op->segments = form < FORM_INLINE ? segments[form] : 0;
    }
    if (form == FORM_INLINE || form == FORM_INLINE_WARP) {
        op->is_inline = 1;
        op->bytes = form == FORM_INLINE ? rng_between(r, 1, 28) : 32u << rng_below(r, 4);
        op->segments = 2 + (4 + op->bytes + 15) / 16;
    } else if (form == FORM_DUMP || (form >= FORM_WRITE && form <= FORM_READ)) {
        op->bytes = rng_one_in(r, 4) ? 1u << 30 : 1 + (uint32_t)draw(r, 29);
    }
    if (form >= FORM_WRITE) {
        op->remote = draw(r, 64);
        op->rkey = (uint32_t)draw(r, 32);
    }
    if (op->bytes != 0 && !op->is_inline) {
        op->local = draw(r, 64);
        op->lkey = (uint32_t)draw(r, 32);
    }
    op->imm = op->opcode == WQE_RDMA_WRITE_IMM ? (uint32_t)draw(r, 32) : 0;
    op->blocks = (op->segments + 3) / 4;
}

void wqe_rig_open(struct wqe_rig *rig, int form, struct rng *r)
{
    draw_op(&rig->op, form, r);
    rng_bytes(r, rig->payload, sizeof(rig->payload));
    rig->qpn = (uint32_t)draw(r, 24);
    do {
        rig->num_blocks = 1u << rng_below(r, 6);
    } while (rig->num_blocks < rig->op.blocks);
    /* Anywhere, at the end of the ring, and where 16 and 32 bits end. */
    rig->idx = rng_below(r, 2) ? (uint32_t)rng_next(r) : 0u;
    rig->idx =
        (rig->idx & ~0xffffu) | (rng_below(r, 2) ? 0x10000u - rng_between(r, 1, 8) : rig->idx & 0xffffu);
    rig->allocation = aligned_alloc(64, (size_t)rig->num_blocks * 64);
    if (rig->allocation == NULL) {
        abort();
    }
    rig->memory = (unsigned char *)rig->allocation;
    rig->ring = wqe_ring_of(rig->memory, rig->num_blocks);
}

void wqe_rig_close(struct wqe_rig *rig) { free(rig->allocation); }

unsigned char *wqe_rig_byte(const struct wqe_rig *rig, size_t offset)
{
    return rig->memory + ((size_t)rig->idx * 64 + offset) % ((size_t)rig->num_blocks * 64);
}

/* Lanes in an order of their own: no lane relies on another. */
void wqe_rig_post(struct wqe_rig *rig)
{
    struct wqe_case c;
    c.op = rig->op;
    memcpy(c.payload, rig->payload, sizeof(c.payload));
    c.qpn = rig->qpn;
    c.idx = rig->idx;
    memset(rig->memory, RIG_FILL, (size_t)rig->num_blocks * 64);
    if (!wqe_case_is_warp(&c.op)) {
        wqe_case_post(&rig->ring, &c);
        return;
    }
    for (uint32_t i = 0; i < 32; i++) {
        wqe_case_post_lane(&rig->ring, &c, (i * 13 + c.op.rkey) % 32);
    }
}

void wqe_rig_expect(const struct wqe_rig *rig, unsigned char *ring)
{
    unsigned char entry[WQE_MAX_ENTRY_BYTES];
    size_t bytes = wqe_assemble(&rig->op, rig->qpn, rig->idx, rig->payload, entry);
    memset(ring, RIG_FILL, (size_t)rig->num_blocks * 64);
    for (size_t i = 0; i < bytes; i++) {
        ring[((size_t)rig->idx * 64 + i) % ((size_t)rig->num_blocks * 64)] = entry[i];
    }
}

struct wqe_source wqe_rig_source(const struct wqe_rig *rig)
{
    struct wqe_source from = {rig->ring, rig->qpn, rig->idx, rig->op.blocks};
    return from;
}
