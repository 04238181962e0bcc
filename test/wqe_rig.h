/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the formats share: every form of work queue entry with random contents, written by the
 * builders into rings of which every other byte is known. */
#ifndef TERN_TEST_WQE_RIG_H
#define TERN_TEST_WQE_RIG_H

#include "support.h"
#include "wqe_bytes.h"

enum wqe_form {
    FORM_NOP,
    FORM_DUMP,
    FORM_WRITE,
    FORM_WRITE_IMM,
    FORM_READ,
    FORM_WRITE_NOTHING,
    FORM_WRITE_IMM_NOTHING,
    FORM_READ_NOTHING,
    FORM_INLINE,
    FORM_INLINE_WARP,
    FORM_FA,
    FORM_CS,
    FORM_MASKED_FA_4,
    FORM_MASKED_FA_8,
    FORM_MASKED_CS_4,
    FORM_MASKED_CS_8,
    FORM_COUNT
};

enum { RIG_MAX_BLOCKS = 32, RIG_FILL = 0xee };

/* One entry in a ring. */
struct wqe_rig {
    struct wqe_op op;           /* what it says */
    unsigned char payload[256]; /* inline */
    uint32_t qpn, idx, num_blocks;
    struct wqe_ring ring;
    unsigned char *memory; /* of the ring */
    void *allocation;
};

const char *wqe_form_name(int form);
/* A ring of 2^k blocks in which the entry has room, and a random entry; wqe_rig_close frees the ring. */
void wqe_rig_open(struct wqe_rig *rig, int form, struct rng *r);
void wqe_rig_close(struct wqe_rig *rig);
/* Fills the ring with RIG_FILL, and has a builder write the entry. */
void wqe_rig_post(struct wqe_rig *rig);
/* The reference's bytes: wqe_assemble's, laid around the end of a ring that is otherwise RIG_FILL. */
void wqe_rig_expect(const struct wqe_rig *rig, unsigned char *ring);
/* Byte `offset` of the entry. */
unsigned char *wqe_rig_byte(const struct wqe_rig *rig, size_t offset);
/* The entry at its place, exactly its blocks posted. */
struct wqe_source wqe_rig_source(const struct wqe_rig *rig);

#endif
