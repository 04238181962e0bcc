/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the reliable connection share: two NICs on one pair of links, with memory that is known
 * by other addresses than it has, queue pairs whose entries are built, decoded and carried out, and a
 * schedule that gives each part its turns at random, from a seed. */
#ifndef TERN_TEST_RC_RIG_H
#define TERN_TEST_RC_RIG_H

#include "net/rc_answer.h"
#include "net/rc_responder.h"
#include "support.h"
#include "wqe_post.h"

enum {
    RC_RIG_PAIRS = 3,
    RC_RIG_ENTRIES = 16,
    RC_RIG_BLOCKS = 256,
    RC_RIG_RECEIVES = 4,
    RC_RIG_BYTES = 48 * 1024, /* of each side, strictly ordered; followed by */
    RC_RIG_SIDE = 64 * 1024,  /* memory with relaxed ordering up to here */
    RC_RIG_PACKETS = 32,      /* of a link */
    RC_RIG_POSTS = 16,
    RC_RIG_DONE = 256, /* completions that are remembered */
    RC_RIG_PD = 5,
};

#define RC_RIG_HOME 0x7000000000ull
#define RC_RIG_AWAY 0x12345600000ull

struct rc_side {
    struct key_table keys;
    struct key_entry places[8];
    struct rc_memory memory;
    char *bytes;  /* RC_RIG_SIDE */
    char *posted; /* room for writes and results on their way */
    uint64_t addr;
    uint32_t key, relaxed_key; /* with all rights */
    uint32_t read_only_key;    /* of all bytes; nothing may be written there */
};

struct rc_done {
    uint32_t idx, opcode, syndrome, has_cqe;
    uint64_t at;
};

struct rc_pair {
    struct rc_requester q;
    struct rc_responder s;
    struct rc_entry entries[RC_RIG_ENTRIES];
    struct rc_receive receives[RC_RIG_RECEIVES];
    _Alignas(64) unsigned char ring[RC_RIG_BLOCKS * WQE_BLOCK_BYTES];
    uint32_t idx; /* of the next work queue entry */
    uint32_t num_posted, num_done;
    struct rc_done done[RC_RIG_DONE];
};

struct rc_rig {
    struct rng random;
    struct rc_side home, away;
    struct rc_link requests, answers;
    void *packets[2];
    struct rc_pair *pairs;
    int num_pairs;
    uint64_t now;
    int is_broken; /* a requester's state has contradicted itself */
};

struct rc_rig_options {
    struct rc_config config; /* of the first; queue pair numbers are the rig's */
    struct rc_faults requests, answers;
    uint32_t modes; /* RC_RELAXED, RC_CST */
    int num_pairs;
    uint64_t seed;
};

/* No faults, one pair, MTU 256; what the tests change. */
struct rc_rig_options rc_rig_defaults(uint64_t seed);
/* Memory is filled from the seed. */
void rc_rig_open(struct rc_rig *rig, const struct rc_rig_options *options);
void rc_rig_close(struct rc_rig *rig);

uint32_t rc_rig_qpn(int pair);
/* Builds the entry, decodes it and posts it; returns 0 if there is no room. `op->opcode` 0xff: an entry that
 * the decoder refuses. */
int rc_rig_post(struct rc_rig *rig, int pair, const struct wqe_op *op, const void *payload);
/* One moment: each part may take a step, or not. */
void rc_rig_step(struct rc_rig *rig);
/* Until nothing is left to complete, or so many steps. Returns whether all completed, and no state was
 * broken. */
int rc_rig_run(struct rc_rig *rig, int steps);

/* Operations on byte offsets of both sides. */
struct wqe_op rc_op_write(const struct rc_rig *rig, uint32_t away, uint32_t home, uint32_t bytes);
struct wqe_op rc_op_read(const struct rc_rig *rig, uint32_t away, uint32_t home, uint32_t bytes);
struct wqe_op rc_op_imm(const struct rc_rig *rig, uint32_t away, uint32_t home, uint32_t bytes, uint32_t imm);
struct wqe_op rc_op_atomic(const struct rc_rig *rig, uint32_t away, uint32_t home, const struct wqe_amo *amo);
struct wqe_op rc_op_add(const struct rc_rig *rig, uint32_t away, uint32_t home, uint64_t value);
struct wqe_op rc_op_dump(const struct rc_rig *rig);

uint64_t rc_rig_word(const struct rc_side *side, uint32_t at);
void rc_rig_set_word(struct rc_side *side, uint32_t at, uint64_t value);

#endif
