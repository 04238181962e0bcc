/* SPDX-License-Identifier: Apache-2.0
 *
 * The same by bulk copies: lane 0 of each warp brings pieces into its ring of stages in shared memory and out
 * again, so that a processor has as much on its way as its warps have stages. Pieces of all columns go to the
 * warps by turns, and all lanes look for the next one while the one before is on its way. Columns that bulk
 * copies cannot take go by loads and stores.
 *
 * Step n uses stage n % COPY_STAGES. Before a stage is loaded anew, all copies but the latest have been read
 * from theirs. */
#include "kernels/copy_runs.h"
#include "kernels/kernels.h"

struct copier {
    struct copy_walk walk;
    char *stages;
    uint64_t *bars;
};

/* What is in a warp's stages. */
struct copy_stages {
    char *to[COPY_STAGES];
    uint32_t bytes[COPY_STAGES]; /* 0: nothing */
    uint32_t phases;             /* bit i: of stage i's barrier */
};

/* The warp's next piece; bytes 0: there is none. All lanes. */
TERN_DEVICE struct copy_one copier_take(struct copier *s)
{
    struct copy_one one = {0, 0, 0};
    (void)copy_walk_take(&s->walk, &one);
    return one;
}

/* Begins the load of a piece into stage i, whose copy out has been read. All lanes. */
TERN_DEVICE void copier_load(const struct copier *s, struct copy_stages *t, const uint32_t i,
                             const struct copy_one *one)
{
    t->to[i] = one->dst;
    t->bytes[i] = one->bytes;
    if (one->bytes != 0 && lane() == 0) {
        mbar_expect(s->bars + i, one->bytes);
        bulk_load(s->stages + i * s->walk.most, one->src, one->bytes, s->bars + i);
    }
}

/* Lane 0, as copies are awaited by who began them: sends stage i, which is not empty, and awaits that all
 * copies but this one have been read. */
TERN_DEVICE void copier_send(const struct copier *s, const struct copy_stages *t, const uint32_t i)
{
    while (!mbar_test(s->bars + i, t->phases >> i & 1)) {
        spin();
    }
    bulk_store(t->to[i], s->stages + i * s->walk.most, t->bytes[i]);
    bulk_commit();
    bulk_wait_read(1);
}

/* All lanes of each warp. */
TERN_DEVICE void copy_bulk(const struct copy_args *p)
{
    uint32_t warp_bytes = COPY_STAGES * p->stage_bytes;
    struct copier s;
    struct copy_stages t;
    int more = 1;
    s.walk = copy_walk_of(p, p->stage_bytes, COPY_WHOLE);
    s.stages = shared_memory() + (uint32_t)warp() * warp_bytes;
    s.bars = (uint64_t *)(void *)(shared_memory() + (uint32_t)nwarps() * warp_bytes) +
             (uint32_t)warp() * COPY_STAGES;
    t.phases = 0;
    if (lane() == 0) {
        TERN_UNROLL
        for (uint32_t i = 0; i < COPY_STAGES; i++) {
            mbar_init(s.bars + i, 1);
        }
        fence_mbar_init();
    }
    TERN_UNROLL
    for (uint32_t i = 0; i < COPY_STAGES - 1; i++) {
        struct copy_one one = copier_take(&s);
        copier_load(&s, &t, i, &one);
    }
    while (more) {
        TERN_UNROLL
        for (uint32_t i = 0; i < COPY_STAGES; i++) {
            more = more && t.bytes[i] != 0; /* if this one is empty all others are */
            if (more) {
                struct copy_one one = copier_take(&s); /* before the wait for what this stage loads */
                if (lane() == 0) {
                    copier_send(&s, &t, i);
                }
                t.phases ^= 1u << i;
                copier_load(&s, &t, (i + COPY_STAGES - 1) % COPY_STAGES, &one);
            }
        }
    }
    if (lane() == 0) {
        bulk_wait(0);
    }
}

TERN_DEVICE void copy_all(const struct copy_args *p)
{
    copy_columns_plain(p, COPY_OTHERS);
    copy_bulk(p);
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
