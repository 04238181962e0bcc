/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs for one queue pair of rc_rig, and what they must do: a naive reference that carries out one
 * operation after the other, on copies of both memories.
 *
 * Each queue pair has memory of its own on both sides and one word at the target that all add to. A program
 * asks for a fence where the order of two operations would otherwise be open: a WRITE over what an earlier
 * READ reads, a WRITE from where an earlier READ lands, a READ into what an earlier WRITE sends; and, with
 * adaptive routing, two WRITEs to one place. */
#ifndef TERN_TEST_RC_PROGRAM_H
#define TERN_TEST_RC_PROGRAM_H

#include "rc_rig.h"

enum {
    RC_PROGRAM_OPS = 60,
    RC_PROGRAM_SLICE = 15 * 1024,
    RC_PROGRAM_RELAXED = 5 * 1024,
    RC_PROGRAM_COUNTER = 47 * 1024, /* away */
};

struct rc_model {
    char home[RC_RIG_SIDE], away[RC_RIG_SIDE];
};

struct rc_step {
    struct wqe_op op;
    unsigned char payload[256];
    uint32_t away, home; /* offsets; of op.bytes */
    uint32_t syndrome;   /* that it must complete with */
    char *expected;      /* of the bytes that it changes, when it has completed */
    int is_checked;      /* nothing later changes them */
};

struct rc_program {
    struct rc_step steps[RC_PROGRAM_OPS];
    int num_steps, num_posted, num_checked;
    int pair;
    int bad;            /* the step that ends the connection; num_steps if none does */
    int ahead_of_error; /* WRITEs behind the bad step may have been placed: what is there is not known */
    uint32_t imms[RC_PROGRAM_OPS];
    int num_imms, num_received;
};

/* Also carries it out on the model. `may_fail`: one operation may be wrong. */
void rc_program_open(struct rc_program *p, struct rc_rig *rig, int pair, struct rc_model *model,
                     int may_fail);
void rc_program_close(struct rc_program *p);
/* Posts what there is room for, gives and fetches receive entries, checks what has completed. */
int rc_program_turn(struct rc_program *p, struct rc_rig *rig);
int rc_program_is_over(const struct rc_program *p, const struct rc_rig *rig);
/* Everything has landed: the memory of this pair is the model's. */
int rc_program_check(const struct rc_program *p, const struct rc_rig *rig, const struct rc_model *model);

#endif
