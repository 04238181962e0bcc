/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine inside a kernel of the cpu machine, under seeded schedules: data, an atomic that announces it,
 * and a kernel at the target that relies on the announcement; with links that lose packets, in both orders of
 * WRITEs. */
#include "rc_kernel.h"
#include "rc_rig.h"

#include "simt/executor.h"

#include <string.h>

enum { OPS = 12, DATA = 1500, FLAG = 40 * 1024, RESULT = 41 * 1024, BYTE = 0x5a };

static struct rc_rig_options options(uint64_t seed)
{
    struct rc_rig_options o = rc_rig_defaults(seed);
    o.config.timeout = 200;
    o.config.retry_count = 100000;
    o.config.adaptive = o.requests.overtake = seed % 2;
    o.requests.drop = o.answers.drop = o.requests.duplicate = o.answers.duplicate = 4000;
    o.requests.reorder = RC_CERTAIN / 4;
    o.modes = seed % 3 == 0 ? RC_RELAXED : 0;
    return o;
}

/* WRITE, atomic, WRITE, atomic: the word counts the WRITEs. */
static void post_ops(struct rc_rig *rig)
{
    memset(rig->home.bytes, BYTE, OPS * DATA);
    memset(rig->away.bytes, 0, OPS * DATA);
    rc_rig_set_word(&rig->away, FLAG, 0);
    for (uint32_t i = 0; i < OPS; i++) {
        struct wqe_op op = i % 2 == 0 ? rc_op_write(rig, i / 2 * DATA, i / 2 * DATA, DATA)
                                      : rc_op_add(rig, FLAG, RESULT + 8 * i, 1);
        rc_rig_post(rig, 0, &op, NULL);
    }
}

static int launch_kernel(struct rc_kernel_args *args, uint64_t seed)
{
    struct launch launch = {0, 3, 32, 0, args, sizeof(*args)};
    struct executor *x;
    struct machine *m;
    OK(terni_executor_open(seed, &x));
    OK(terni_cpu_open(x, &m));
    OK(terni_cpu_launch_function(m, tern_cpu_rc_pair, "rc_pair", &launch, NULL));
    OK(m->ops->stream_synchronize(m, NULL));
    m->ops->close(m);
    terni_executor_release(x);
    return TEST_PASSED;
}

static int check_results(struct rc_rig *rig, const uint32_t *syndromes, uint32_t num_wrong, uint64_t seed)
{
    for (uint32_t i = 0; i < OPS; i++) {
        CHECK(syndromes[i] == SYNDROME_NONE, "seed %llu: operation %u ends with 0x%02x",
              (unsigned long long)seed, i, syndromes[i]);
        CHECK(i % 2 == 0 || rc_rig_word(&rig->home, RESULT + 8 * i) == i / 2,
              "seed %llu: atomic %u was told %llu", (unsigned long long)seed, i,
              (unsigned long long)rc_rig_word(&rig->home, RESULT + 8 * i));
    }
    CHECK(num_wrong == 0, "seed %llu: %u bytes were not there when they were announced",
          (unsigned long long)seed, num_wrong);
    CHECK(rc_rig_word(&rig->away, FLAG) == OPS / 2, "the word is %llu",
          (unsigned long long)rc_rig_word(&rig->away, FLAG));
    return TEST_PASSED;
}

static int one_seed(uint64_t seed)
{
    struct rc_rig_options o = options(seed);
    uint32_t syndromes[OPS], num_wrong = ~0u;
    uint64_t over = 0;
    struct rc_rig rig;
    struct rc_kernel_args args = {0};
    int result;
    rc_rig_open(&rig, &o);
    post_ops(&rig);
    memset(syndromes, 0xff, sizeof(syndromes));
    args.q = &rig.pairs[0].q;
    args.s = &rig.pairs[0].s;
    args.home = &rig.home.memory;
    args.away = &rig.away.memory;
    args.requests = &rig.requests;
    args.answers = &rig.answers;
    args.syndromes = syndromes;
    args.num_ops = OPS;
    args.over = &over;
    args.flag = (const uint64_t *)(void *)(rig.away.bytes + FLAG);
    args.num_flags = OPS / 2;
    args.data = rig.away.bytes;
    args.data_bytes = OPS / 2 * DATA;
    args.data_byte = BYTE;
    args.num_wrong = &num_wrong;
    result = launch_kernel(&args, seed);
    if (result == TEST_PASSED) {
        result = check_results(&rig, syndromes, num_wrong, seed);
    }
    rc_rig_close(&rig);
    return result;
}

static int in_a_kernel(struct test *t)
{
    uint64_t last = (uint64_t)test_scaled(t, 60);
    for (uint64_t seed = t->has_seeds ? t->seeds[0] : 1; seed <= (t->has_seeds ? t->seeds[1] : last);
         seed++) {
        PASS(one_seed(seed));
    }
    test_detail(t, "%llu seeds", (unsigned long long)last);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "two NICs and an observer in one kernel", in_a_kernel);
    return test_end(&t);
}
