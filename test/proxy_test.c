/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of several ranks of one process through their proxies: every operation against the reference, with
 * each engine that is here, with memory that is addressed and memory that is staged. */
#include "proxy_case.h"

#include <stdlib.h>
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

/* One piece a rank. */
static void wrap(const struct proxy_rig *rig, const struct carrier_piece *pieces,
                 struct carrier_parcels *parcels)
{
    for (int r = 0; r < rig->num_ranks; r++) {
        parcels[r].num = 1;
        parcels[r].list = (struct carrier_parcel *)test_take(1, sizeof *parcels[r].list);
        memset(parcels[r].list, 0, sizeof *parcels[r].list);
        parcels[r].list->carrier = terni_courier_carrier(rig->members[r].courier);
        parcels[r].list->piece = pieces[r];
    }
}

/* One step of every rank after another. */
static enum tern_status register_all(struct proxy_rig *rig, const struct carrier_piece *pieces)
{
    struct carrier_parcels parcels[RIG_MAX_RANKS];
    enum tern_status status = TERN_OK;
    wrap(rig, pieces, parcels);
    for (int step = 0; step < CARRIER_STEPS; step++) {
        for (int r = 0; r < rig->num_ranks; r++) {
            enum tern_status mine = status == TERN_OK || step == CARRIER_STEPS - 1
                                        ? terni_carrier_step(rig->members[r].comm, &parcels[r], step)
                                        : TERN_OK;
            status = status == TERN_OK ? mine : status;
        }
    }
    for (int r = 0; r < rig->num_ranks; r++) {
        terni_carrier_finish(&parcels[r], status);
    }
    return status;
}

/* Rank 0 puts from its piece to rank 1's; how the flush ended. */
static uint32_t put_piece(struct proxy_rig *rig, const struct carrier_piece *pieces, uint64_t bytes)
{
    struct ring_step *steps = proxy_rig_steps(rig, 0, 1, 2);
    steps[0].kind = STEP_PUT;
    steps[0].ring = steps[1].ring = proxy_rig_ring(1, 1);
    steps[0].local = (char *)pieces[0].memory;
    steps[0].remote = (uint64_t)(uintptr_t)pieces[1].memory;
    steps[0].bytes = bytes;
    steps[1].kind = STEP_FLUSH;
    if (proxy_rig_launch(rig, 0, 1, 2, 20000000000ull) != TERN_OK || proxy_rig_wait(rig, 0) != TERN_OK) {
        return ~0u;
    }
    return steps[1].end;
}

static int more_memory_body(struct proxy_rig *rig, struct carrier_piece *pieces)
{
    uint32_t end;
    struct rng rng = {11};
    rng_bytes(&rng, pieces[0].memory, pieces[0].bytes);
    end = put_piece(rig, pieces, 5000);
    CHECK(end == net_failed(SYNDROME_LOCAL_PROTECTION), "before it is registered: 0x%x", end);
    return TEST_PASSED;
}

/* Memory that joins later, of different sizes; memory that leaves; a registration that fails on one rank. */
static int more_memory(struct test *t, const char *engine)
{
    struct carrier_piece pieces[2] = {{NULL, 9000, NULL, NULL}, {NULL, 7000, NULL, NULL}};
    struct proxy_rig rig;
    int result;
    uint32_t end = 0;
    for (int r = 0; r < 2; r++) {
        pieces[r].memory = test_take(1, 9000);
    }
    proxy_rig_init(&rig, 2, engine);
    result = proxy_rig_open(t, &rig, 0);
    result = result ? result : more_memory_body(&rig, pieces);
    proxy_rig_close(&rig);
    proxy_rig_init(&rig, 2, engine);
    result = result ? result : proxy_rig_open(t, &rig, 0);
    if (!result) {
        struct carrier_piece nothing[2] = {pieces[0], pieces[1]};
        nothing[1].bytes = 0;
        if (register_all(&rig, nothing) != TERN_INVALID_ARGUMENT ||
            !strstr(tern_last_error(), "rank 1: a registration of no bytes") ||
            register_all(&rig, pieces) != TERN_OK) {
            test_note(__FILE__, __LINE__, "registering: \"%s\"", tern_last_error());
            result = TEST_FAILED;
        }
    }
    if (!result) {
        end = put_piece(&rig, pieces, 7000);
        if (end != NET_OK || memcmp(pieces[0].memory, pieces[1].memory, 7000) != 0) {
            test_note(__FILE__, __LINE__, "a put there ended with 0x%x", end);
            result = TEST_FAILED;
        }
    }
    if (!result) {
        /* The target refuses, whatever the requester still believes. */
        memset(pieces[1].memory, 0, 9000);
        if (terni_proxy_release(terni_courier_proxy(rig.members[1].courier), pieces[1].memory) != TERN_OK ||
            net_status_kind(end = put_piece(&rig, pieces, 7000)) != NET_FAILED ||
            memcmp(pieces[1].memory, pieces[0].memory, 64) == 0) {
            test_note(__FILE__, __LINE__, "a put to released memory ended with 0x%x", end);
            result = TEST_FAILED;
        }
    }
    proxy_rig_close(&rig);
    for (int r = 0; r < 2; r++) {
        free(pieces[r].memory);
    }
    return result;
}

/* In the place of the next post: a judgement that the step failed. */
static const struct boot_ops *true_ops;
static enum tern_status post_failure(struct boot *boot, const void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    boot->ops = true_ops;
    return terni_boot_judge_post(boot, TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for cards"));
}

/* Registering fails at rank 1 when all have imported. */
static enum tern_status fail_late(struct proxy_rig *rig, const struct carrier_piece *pieces)
{
    struct boot *boot = rig->members[1].comm->boot;
    struct boot_ops ops = *boot->ops;
    struct carrier_parcels parcels[RIG_MAX_RANKS];
    enum tern_status ends[2];
    true_ops = boot->ops;
    ops.post = post_failure;
    wrap(rig, pieces, parcels);
    for (int step = 0; step < CARRIER_STEPS; step++) {
        for (int r = 0; r < 2; r++) {
            boot->ops = step == 1 && r == 1 ? &ops : true_ops;
            ends[r] = terni_carrier_step(rig->members[r].comm, &parcels[r], step);
        }
    }
    for (int r = 0; r < 2; r++) {
        terni_carrier_finish(&parcels[r], ends[r]);
    }
    return ends[0] == TERN_OUT_OF_MEMORY && ends[1] == TERN_OUT_OF_MEMORY ? TERN_OK : TERN_INTERNAL_ERROR;
}

/* Both ranks release and register again at the same addresses, or fail to and try again: requests find the
 * keys of now. */
static int again_body(struct proxy_rig *rig, struct carrier_piece *pieces)
{
    struct rng rng = {13};
    for (int round = 0; round < 3; round++) {
        uint32_t end;
        if (round == 1) {
            for (int r = 0; r < 2; r++) {
                OK(terni_proxy_release(terni_courier_proxy(rig->members[r].courier), pieces[r].memory));
            }
            OK(fail_late(rig, pieces));
        }
        if (round == 2) { /* rank 0 has the old key yet: the latest counts */
            OK(terni_proxy_release(terni_courier_proxy(rig->members[1].courier), pieces[1].memory));
        }
        OK(register_all(rig, pieces));
        rng_bytes(&rng, pieces[0].memory, pieces[0].bytes);
        end = put_piece(rig, pieces, pieces[1].bytes);
        CHECK(end == NET_OK, "round %d: a put ended with 0x%x", round, end);
        CHECK(memcmp(pieces[0].memory, pieces[1].memory, pieces[1].bytes) == 0, "round %d: the bytes", round);
    }
    return TEST_PASSED;
}

static int again(struct test *t, const char *engine)
{
    struct carrier_piece pieces[2] = {{NULL, 9000, NULL, NULL}, {NULL, 7000, NULL, NULL}};
    struct proxy_rig rig;
    int result;
    for (int r = 0; r < 2; r++) {
        pieces[r].memory = test_take(1, 9000);
    }
    proxy_rig_init(&rig, 2, engine);
    result = proxy_rig_open(t, &rig, 0);
    result = result ? result : again_body(&rig, pieces);
    proxy_rig_close(&rig);
    for (int r = 0; r < 2; r++) {
        free(pieces[r].memory);
    }
    return result;
}

static int tcp_again(struct test *t) { return again(t, "tcp"); }
static int rxm_again(struct test *t) { return again(t, "fabric:tcp;ofi_rxm"); }
static int tcp_more(struct test *t) { return more_memory(t, "tcp"); }
static int rxm_more(struct test *t) { return more_memory(t, "fabric:tcp;ofi_rxm"); }
static int tcp_direct(struct test *t) { return run_cases(t, "tcp", 3, 64, 0, 12); }
static int tcp_small_ring(struct test *t) { return run_cases(t, "tcp", 2, 2, 0, 6); }
static int tcp_staged(struct test *t) { return run_cases(t, "tcp", 2, 64, 1, 6); }
static int tcp_many(struct test *t) { return run_cases(t, "tcp", 8, 64, 0, 2); }

static int rxm_direct(struct test *t) { return run_cases(t, "fabric:tcp;ofi_rxm", 3, 64, 0, 6); }
static int rxm_staged(struct test *t) { return run_cases(t, "fabric:tcp;ofi_rxm", 2, 64, 1, 3); }
static int shm_direct(struct test *t) { return run_cases(t, "fabric:shm", 3, 64, 0, 6); }
static int shm_staged(struct test *t) { return run_cases(t, "fabric:shm", 2, 64, 1, 3); }

/* Refused on all ranks alike. */
static int no_such_engine(struct test *t)
{
    static const char *const engines[] = {"udp", "fabric:nonesuch"};
    static const char *const texts[] = {"TERN_PROXY=udp is not tcp, fabric:PROVIDER or none", "nonesuch"};
    static const enum tern_status wanted[] = {TERN_INVALID_ARGUMENT, TERN_UNSUPPORTED};
    (void)t;
    for (int i = 0; i < 2; i++) {
        struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
        struct courier_config c = {engines[i], 1, 64, 1000, 0, 0};
        struct courier *couriers[2] = {NULL, NULL};
        struct tern_comm *comms[2];
        config.machine = TERN_MACHINE_CPU;
        OK(tern_comm_open_all(2, &config, comms));
        for (int r = 0; r < 2; r++) {
            OK(terni_courier_open_step(comms[r], &c, 0, &couriers[r]));
        }
        for (int r = 0; r < 2; r++) {
            OK(terni_courier_open_step(comms[r], &c, 1, &couriers[r]));
        }
        for (int r = 0; r < 2; r++) {
            REFUSES(terni_courier_open_step(comms[r], &c, 2, &couriers[r]), TERN_OK, texts[i]);
        }
        for (int r = 0; r < 2; r++) {
            REFUSES(terni_courier_open_step(comms[r], &c, 3, &couriers[r]), wanted[i], texts[i]);
            terni_courier_close(couriers[r]);
        }
        for (int r = 0; r < 2; r++) {
            tern_comm_close(comms[r]);
        }
    }
    return TEST_PASSED;
}

/* ---- Old values that nobody waits for ---- */

/* A ring that no proxy serves: this test is the host. */
struct bare_ring {
    struct ring_slot slots[128];
    struct ring_words words;
    struct ring_state state;
};

/* One thread asks for old values, one after the other. */
static int fetch_some(struct proxy_rig *rig, int count, uint64_t *old)
{
    struct ring_step *steps = proxy_rig_steps(rig, 0, 1, count);
    for (int i = 0; i < count; i++) {
        steps[i].kind = STEP_FETCH;
        steps[i].ring = proxy_rig_ring(1, 0);
        steps[i].amo = NET_AMO_FETCH;
        steps[i].width = 8;
        steps[i].local = (char *)old;
    }
    OK(proxy_rig_launch(rig, 0, 1, count, 100000));
    OK(proxy_rig_wait(rig, 0));
    for (int i = 0; i < count; i++) {
        CHECK(rig->members[0].steps[i].end == NET_TIMED_OUT, "fetch %d ends with 0x%x", i,
              (unsigned)rig->members[0].steps[i].end);
    }
    return TEST_PASSED;
}

/* All words are given up, and no other is to be had before the host has done with one. */
static int give_up(struct proxy_rig *rig, struct bare_ring *bare)
{
    uint64_t *old = (uint64_t *)(void *)rig->members[0].window;
    PASS(fetch_some(rig, RING_NUM_RESULTS + 1, old));
    CHECK(bare->state.reserved == RING_NUM_RESULTS, "%llu requests",
          (unsigned long long)bare->state.reserved);
    bare->words.done = 2; /* words 0 and 1 are written */
    PASS(fetch_some(rig, 3, old));
    CHECK(bare->state.reserved == RING_NUM_RESULTS + 2, "%llu requests with two words back",
          (unsigned long long)bare->state.reserved);
    for (uint64_t i = 0; i < 2; i++) {
        CHECK(bare->slots[RING_NUM_RESULTS + i].local == 1 + i, "word %llu is used again",
              (unsigned long long)bare->slots[RING_NUM_RESULTS + i].local - 1);
    }
    return TEST_PASSED;
}

static int words_back(struct test *t)
{
    static struct bare_ring bare;
    struct proxy_rig rig;
    int result;
    proxy_rig_init(&rig, 2, "tcp");
    result = proxy_rig_open(t, &rig, 11);
    if (result == TEST_PASSED) {
        struct net_ring *ring = &rig.members[0].rings[proxy_rig_ring(1, 0)], served = *ring;
        memset(&bare, 0, sizeof bare);
        ring->slots = bare.slots;
        ring->words = &bare.words;
        ring->state = &bare.state;
        ring->depth = 128;
        result = give_up(&rig, &bare);
        *ring = served;
    }
    proxy_rig_close(&rig);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "every operation over TCP", tcp_direct);
    test_run(&t, "rings of two requests over TCP", tcp_small_ring);
    test_run(&t, "staged memory over TCP", tcp_staged);
    test_run(&t, "eight ranks over TCP", tcp_many);
    test_run(&t, "engines that there are not", no_such_engine);
    test_run(&t, "memory that joins and leaves, TCP", tcp_more);
    test_run(&t, "memory that joins and leaves, libfabric's tcp;ofi_rxm", rxm_more);
    test_run(&t, "memory that leaves and joins again, TCP", tcp_again);
    test_run(&t, "memory that leaves and joins again, libfabric's tcp;ofi_rxm", rxm_again);
    test_run(&t, "every operation over libfabric's tcp;ofi_rxm", rxm_direct);
    test_run(&t, "staged memory over libfabric's tcp;ofi_rxm", rxm_staged);
    test_run(&t, "every operation over libfabric's shm", shm_direct);
    test_run(&t, "staged memory over libfabric's shm", shm_staged);
    test_run(&t, "old values that nobody waits for", words_back);
    return test_end(&t);
}
