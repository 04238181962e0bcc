/* SPDX-License-Identifier: Apache-2.0
 *
 * The same by bulk copies: one lane of each warp brings pieces into its ring of stages in shared memory and
 * out again, so that a processor has as much on its way as its warps have stages. Pieces of all columns go
 * to the warps by turns. Columns that bulk copies cannot take go by loads and stores.
 *
 * Step n uses stage n % COPY_STAGES. Before a stage is loaded anew, all copies but the latest have been read
 * from theirs. */
#include "kernels/copy_runs.h"
#include "kernels/kernels.h"

struct copier {
    const struct copy_args *p;
    char *stages;
    uint64_t *bars;
    uint32_t column, range; /* the run after this one */
    struct copy_run run;
    int64_t next; /* piece of this warp, from the beginning of the run on */
};

/* The next piece of the warp; bytes 0: there is none. */
TERN_DEVICE struct copy_one copier_take(struct copier *s)
{
    const struct copy_args *p = s->p;
    struct copy_one one = {0, 0, 0};
    while (s->next >= s->run.all) {
        s->next -= s->run.all;
        while (s->column < p->num_columns && (!copy_is_whole(&p->columns[s->column]) ||
                                              s->range == num_ranges(p, &p->columns[s->column]))) {
            s->column++;
            s->range = 0;
        }
        if (s->column == p->num_columns) {
            s->run.all = 0;
            return one;
        }
        const struct copy_column *c = &p->columns[s->column];
        s->run = run_of(c, range_of(p, c, s->range++), p->stage_bytes);
    }
    one = piece_of(&s->run, s->next, p->stage_bytes);
    s->next += nblk() * nwarps();
    return one;
}

/* What is in a warp's stages. */
struct copy_stages {
    char *to[COPY_STAGES];
    uint32_t bytes[COPY_STAGES]; /* 0: nothing */
    uint32_t phases;             /* bit i: of stage i's barrier */
};

/* Begins the load of the warp's next piece into stage i, whose copy out has been read. */
TERN_DEVICE void copier_load(struct copier *s, struct copy_stages *t, const uint32_t i)
{
    struct copy_one one = copier_take(s);
    t->to[i] = one.dst;
    t->bytes[i] = one.bytes;
    if (one.bytes != 0) {
        mbar_expect(s->bars + i, one.bytes);
        bulk_load(s->stages + i * s->p->stage_bytes, one.src, one.bytes, s->bars + i);
    }
}

/* Sends stage i; 0 if it is empty, and all others are then. */
TERN_DEVICE int copier_send(const struct copier *s, struct copy_stages *t, const uint32_t i)
{
    if (t->bytes[i] == 0) {
        return 0;
    }
    while (!mbar_test(s->bars + i, t->phases >> i & 1)) {
        spin();
    }
    t->phases ^= 1u << i;
    bulk_store(t->to[i], s->stages + i * s->p->stage_bytes, t->bytes[i]);
    bulk_commit();
    return 1;
}

/* One lane of each warp. */
TERN_DEVICE void copy_bulk(const struct copy_args *p)
{
    uint32_t warp_bytes = COPY_STAGES * p->stage_bytes;
    struct copier s = {0};
    struct copy_stages t;
    int more = 1;
    s.p = p;
    s.stages = shared_memory() + (uint32_t)warp() * warp_bytes;
    s.bars = (uint64_t *)(void *)(shared_memory() + (uint32_t)nwarps() * warp_bytes) +
             (uint32_t)warp() * COPY_STAGES;
    s.next = bid() * nwarps() + warp();
    t.phases = 0;
    TERN_UNROLL
    for (uint32_t i = 0; i < COPY_STAGES; i++) {
        mbar_init(s.bars + i, 1);
    }
    fence_mbar_init();
    TERN_UNROLL
    for (uint32_t i = 0; i < COPY_STAGES - 1; i++) {
        copier_load(&s, &t, i);
    }
    while (more) {
        TERN_UNROLL
        for (uint32_t i = 0; i < COPY_STAGES; i++) {
            if (more && (more = copier_send(&s, &t, i)) != 0) {
                bulk_wait_read(1);
                copier_load(&s, &t, (i + COPY_STAGES - 1) % COPY_STAGES);
            }
        }
    }
    bulk_wait(0);
}

TERN_DEVICE void copy_all(const struct copy_args *p)
{
    for (uint32_t c = 0; c < p->num_columns; c++) {
        if (!copy_is_whole(&p->columns[c])) {
            copy_column_plain(p, &p->columns[c]);
        }
    }
    if (lane() == 0) {
        copy_bulk(p);
    }
    sync_warp();
    sync_block();
    if (tid() == 0 && p->ticket) {
        /* Pairs with wait_word in terni_ep_wait, as op_tell_host's. */
        st_release_sys_u64(p->latest + bid(), p->ticket);
    }
}

TERN_KERNEL(copy_rows_bulk, struct copy_args, p)
{
    if (TERN_HAS_BULK) { /* elsewhere it is never launched, and need not be compiled */
        copy_all(p);
    }
}
