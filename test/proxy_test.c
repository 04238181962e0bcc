/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of several ranks of one process through their proxies: every operation against the reference, with
 * each engine that is here, with memory that is addressed and memory that is staged. */
#include "proxy_case.h"

#include <string.h>

static int run_case(struct proxy_rig *rig, int num_threads, int num_steps, uint64_t seed)
{
    struct proxy_case c;
    int result = TEST_PASSED;
    proxy_case_init(&c, rig->num_ranks, num_threads, num_steps, seed);
    proxy_case_upload(&c, rig);
    proxy_case_draw(&c, rig);
    for (int r = 0; r < rig->num_ranks; r++) {
        if (proxy_rig_launch(rig, r, num_threads, num_steps, 60000000000ull) != TERN_OK) {
            result = TEST_FAILED;
        }
    }
    for (int r = 0; r < rig->num_ranks; r++) {
        if (proxy_rig_wait(rig, r) != TERN_OK) {
            result = TEST_FAILED;
        }
    }
    for (int r = 0; r < rig->num_ranks && !result; r++) {
        result = proxy_case_ended(&c, rig, r);
    }
    for (int r = 0; r < rig->num_ranks && !result; r++) {
        result = proxy_case_compare(&c, rig, r);
    }
    proxy_case_fini(&c);
    return result;
}

static int run_cases(struct test *t, const char *engine, int num_ranks, uint32_t depth, int stages_all,
                     int count)
{
    uint64_t last = (uint64_t)test_scaled(t, count), requests = 0, operations = 0;
    for (uint64_t seed = t->has_seeds ? t->seeds[0] : 1; seed <= (t->has_seeds ? t->seeds[1] : last);
         seed++) {
        struct proxy_rig rig;
        struct proxy_counts counts;
        int result;
        proxy_rig_init(&rig, num_ranks, engine);
        rig.config.depth = depth;
        rig.config.stages_all = stages_all;
        result = proxy_rig_open(t, &rig, seed & 1 ? 0 : seed);
        result = result ? result : run_case(&rig, 64, 48, seed);
        if (!result) {
            terni_proxy_counts(terni_courier_proxy(rig.members[0].courier), &counts);
            requests += counts.requests;
            operations += counts.operations;
        }
        proxy_rig_close(&rig);
        if (result) {
            return result;
        }
    }
    test_detail(t, "%d ranks, %llu seeds, %llu requests of rank 0 in %llu operations", num_ranks,
                (unsigned long long)last, (unsigned long long)requests, (unsigned long long)operations);
    return TEST_PASSED;
}

static int tcp_direct(struct test *t) { return run_cases(t, "tcp", 3, 64, 0, 12); }
static int tcp_small_ring(struct test *t) { return run_cases(t, "tcp", 2, 2, 0, 6); }
static int tcp_staged(struct test *t) { return run_cases(t, "tcp", 2, 64, 1, 6); }
static int tcp_many(struct test *t) { return run_cases(t, "tcp", 8, 64, 0, 2); }

static int rxm_direct(struct test *t) { return run_cases(t, "fabric:tcp;ofi_rxm", 3, 64, 0, 6); }
static int rxm_staged(struct test *t) { return run_cases(t, "fabric:tcp;ofi_rxm", 2, 64, 1, 3); }
static int shm_direct(struct test *t) { return run_cases(t, "fabric:shm", 3, 64, 0, 6); }
static int shm_staged(struct test *t) { return run_cases(t, "fabric:shm", 2, 64, 1, 3); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "every operation over TCP", tcp_direct);
    test_run(&t, "rings of two requests over TCP", tcp_small_ring);
    test_run(&t, "staged memory over TCP", tcp_staged);
    test_run(&t, "eight ranks over TCP", tcp_many);
    test_run(&t, "every operation over libfabric's tcp;ofi_rxm", rxm_direct);
    test_run(&t, "staged memory over libfabric's tcp;ofi_rxm", rxm_staged);
    test_run(&t, "every operation over libfabric's shm", shm_direct);
    test_run(&t, "staged memory over libfabric's shm", shm_staged);
    return test_end(&t);
}
