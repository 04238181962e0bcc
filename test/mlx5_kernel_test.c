/* SPDX-License-Identifier: Apache-2.0
 *
 * The formats inside kernels of the cpu machine: a warp writes one entry of every form into a ring, which has
 * the bytes of the assembler; a second kernel decodes, looks keys up and completes as the host does. */
#include "simt/executor.h"
#include "wqe_post.h"
#include "wqe_rig.h"

#include <assert.h>
#include <string.h>

static_assert((int)WQE_CASES == (int)FORM_COUNT, "one case a form");

enum { RING_BLOCKS = 64, PLACES = 4 };

/* What both kernels and the host see. */
struct scene {
    _Alignas(64) unsigned char ring[RING_BLOCKS * 64], wanted[RING_BLOCKS * 64];
    struct wqe_case cases[WQE_CASES];
    struct wqe_taken taken[WQE_CASES];
    struct key_entry entries[PLACES];
    struct key_table keys;
    uint32_t record[2];
    uint64_t doorbell;
};

static struct scene scene;

/* One entry of every form, one behind the other; the first index differs so that every one meets the end. */
static int lay_out(struct rng *r)
{
    uint32_t idx = (uint32_t)rng_next(r) | 0xffc0u, qpn = rng_below(r, 1u << 24);
    struct key_registration window = {0x10000, 1u << 30, scene.ring, 1, KEY_LOCAL_WRITE | KEY_REMOTE_WRITE};
    uint32_t key;
    memset(scene.ring, RIG_FILL, sizeof(scene.ring));
    memset(scene.wanted, RIG_FILL, sizeof(scene.wanted));
    OK(terni_key_table_init(&scene.keys, scene.entries, PLACES));
    OK(terni_key_table_add(&scene.keys, &window, &key));
    for (int form = 0; form < FORM_COUNT; form++) {
        struct wqe_case *c = &scene.cases[form];
        struct wqe_rig rig;
        unsigned char entry[WQE_MAX_ENTRY_BYTES];
        size_t bytes;
        wqe_rig_open(&rig, form, r);
        wqe_rig_close(&rig);
        c->op = rig.op;
        if (form == FORM_WRITE || form == FORM_INLINE_WARP) {
            c->op.rkey = key;
            c->op.remote = 0x10000 + (form == FORM_WRITE ? 0 : rng_below(r, 1u << 29));
        }
        memcpy(c->payload, rig.payload, sizeof(c->payload));
        c->qpn = qpn;
        c->idx = idx;
        bytes = wqe_assemble(&c->op, qpn, idx, c->payload, entry);
        for (size_t i = 0; i < bytes; i++) {
            scene.wanted[((size_t)idx * 64 + i) % sizeof(scene.wanted)] = entry[i];
        }
        idx += c->op.blocks;
    }
    return TEST_PASSED;
}

static int run_kernels(uint64_t seed)
{
    struct wqe_kernel_args args = {scene.ring,  RING_BLOCKS,  scene.cases,    scene.taken,
                                   &scene.keys, scene.record, &scene.doorbell};
    struct launch launch = {0, 1, 32, 0, &args, sizeof(args)};
    struct executor *x;
    struct machine *m;
    OK(terni_executor_open(seed, &x));
    OK(terni_cpu_open(x, &m));
    OK(terni_cpu_launch_function(m, tern_cpu_wqe_post, "wqe_post", &launch, NULL));
    OK(terni_cpu_launch_function(m, tern_cpu_wqe_take, "wqe_take", &launch, NULL));
    OK(m->ops->stream_synchronize(m, NULL));
    m->ops->close(m);
    terni_executor_release(x);
    return TEST_PASSED;
}

static int same_as_on_host(uint64_t seed)
{
    for (size_t i = 0; i < sizeof(scene.ring); i++) {
        CHECK(scene.ring[i] == scene.wanted[i], "seed %llu: byte %zu of the ring is %02x, not %02x",
              (unsigned long long)seed, i, scene.ring[i], scene.wanted[i]);
    }
    for (int form = 0; form < FORM_COUNT; form++) {
        const struct wqe_case *c = &scene.cases[form];
        const struct wqe_taken *seen = &scene.taken[form];
        struct key_request q = {KEY_USE_WRITE, c->op.rkey, 1, c->op.remote, c->op.bytes};
        struct key_memory memory;
        struct nic_refusal refusal;
        uint32_t syndrome = key_lookup(&scene.keys, &q, &memory, &refusal);
        CHECK(wqe_op_compare(&seen->op, &c->op) == 0, "seed %llu: %s is taken for something else",
              (unsigned long long)seed, wqe_form_name(form));
        CHECK(seen->memory.host == memory.host, "seed %llu: %s is at another address",
              (unsigned long long)seed, wqe_form_name(form));
        CHECK((form != FORM_WRITE && form != FORM_INLINE_WARP) || memory.host != NULL, "%s has no memory",
              wqe_form_name(form));
        CHECK(cqe_tail_idx(seen->completion[CQE_WORD_TAIL]) == (c->idx & 0xffff) &&
                  cqe_qpn(seen->completion[CQE_WORD_QPN]) == c->qpn &&
                  cqe_syndrome(seen->completion[CQE_WORD_SYNDROME]) == syndrome,
              "seed %llu: %s completes with 0x%02x, not 0x%02x", (unsigned long long)seed,
              wqe_form_name(form), cqe_syndrome(seen->completion[CQE_WORD_SYNDROME]), syndrome);
    }
    return TEST_PASSED;
}

static int kernels_agree_with_host(struct test *t)
{
    uint64_t last = (uint64_t)test_scaled(t, 100);
    for (uint64_t seed = t->has_seeds ? t->seeds[0] : 1; seed <= (t->has_seeds ? t->seeds[1] : last);
         seed++) {
        struct rng r = {seed};
        PASS(lay_out(&r));
        PASS(run_kernels(seed));
        PASS(same_as_on_host(seed));
    }
    test_detail(t, "%d forms, %llu seeds", FORM_COUNT, (unsigned long long)last);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "entries written and taken by kernels", kernels_agree_with_host);
    return test_end(&t);
}
