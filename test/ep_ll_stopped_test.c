/* SPDX-License-Identifier: Apache-2.0
 *
 * Low latency and a sender that stops between its rows: it has told how many come, some are there, and then
 * its process ends. It is made to by memory that it may not write: the place of its row STOP_ROW at rank 0.
 * Who waits for the rest gives up at the deadline and names it, or masks it, takes exactly the rows that
 * came, and goes on with the others. Across domains rows of a rank leave in chunks: it stops in the middle of
 * its second one, of which nothing counts. Railed, rank 0 spreads them, and rank 1 waits for it a while
 * longer, also if rank 0 has begun to wait a little later: so it stops in its first chunk, of which nothing
 * comes.
 *
 * The window of a peer is memory of the process on the cpu machine only, on which this always runs. */
#include "ll_batch.h"
#include "ll_words.h"
#include "procs.h"
#include "scene.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RANKS = 4, VICTIM = 2, HERE = 0, FIRST = 1, EXPERTS = 4, STOP_ROW = 6, HIDDEN = 4096, ROUNDS = 3 };
enum { LATE_TIMES = 3 }; /* the deadline of who measures parts of it */

struct stop {
    const struct test *t;
    uint32_t ll_mask, domain_ranks;
    int is_railed;
    int is_late; /* all others but rank FIRST begin to receive a sixteenth of the deadline after it */
};

struct stopped {
    struct world world;
    struct ll_batch batch;
    struct tern_ep *eps[RANKS];
    struct tern_ep_config config;
    struct rng rng;
    int rank;
    int stop_row, chunk; /* rows that have a word together */
    int is_late;
};

/* Whether choice k of the victim's token t is rank 0's; railed, its domain's. */
static int is_here(const struct ll_batch *b, uint32_t t, uint32_t k)
{
    int64_t id = b->batch.ids[VICTIM][t * b->shape.batch.topk + k];
    return id >= 0 && id / EXPERTS / (b->shape.railed ? b->batch.world->domain_ranks : 1) == HERE;
}

/* Whether the victim's token t is a row, or a message, for rank 0. */
static int goes_here(const struct ll_batch *b, uint32_t t)
{
    int goes = 0;
    for (uint32_t k = 0; k < b->shape.batch.topk; k++) {
        goes |= is_here(b, t, k);
    }
    return goes;
}

/* The victim: pages that hold nothing but rows from STOP_ROW on are not to be written. */
static int lay_trap(const struct stopped *s)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const struct tern_ep *ep = s->eps[VICTIM];
    uint32_t row = (uint32_t)s->stop_row;
    int domain = s->config.ll_rail ? VICTIM / (int)s->config.domain_ranks : 0;
    uintptr_t begin = (uintptr_t)(s->config.ll_rail ? ll_words_message(ep, 0, 1, HERE, domain, row)
                                                    : ll_words_place(ep, 0, 1, HERE, VICTIM, row));
    uintptr_t end = (uintptr_t)(s->config.ll_rail ? ll_words_message(ep, 0, 1, HERE, domain + 1, 0)
                                                  : ll_words_place(ep, 0, 1, HERE, VICTIM + 1, 0));
    struct rlimit none = {0, 0};
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    CHECK(end - begin >= page, "a row is smaller than a page");
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL); /* not a sanitizer's */
    CHECK(mprotect((void *)begin, end - begin, PROT_READ) == 0, "the place of a row is still writable");
    return 0;
}

/* Rank 0: some of the victim's rows have come, in their order, and no more; how many. None if it stops in its
 * first chunk. */
static int check_rows(const struct stopped *s, int *came)
{
    const struct tern_ep *ep = s->eps[HERE];
    const uint64_t *words = s->config.ll_rail
                                ? ll_words_message_word(ep, 0, 1, VICTIM / (int)s->config.domain_ranks, 0)
                                : ll_words_arrivals(ep, 0, 1) + VICTIM * s->batch.batch.shape.max_tokens;
    int wanted = 0;
    for (uint32_t t = 0; t < s->batch.batch.shape.max_tokens; t++) {
        wanted += goes_here(&s->batch, t);
    }
    for (*came = 0; *came < wanted && __atomic_load_n(&words[*came], __ATOMIC_ACQUIRE) >> 32 == 1;) {
        *came += s->chunk;
    }
    CHECK((*came > 0) == (s->stop_row >= s->chunk), "%d of %d rows came", *came, wanted);
    CHECK(*came <= s->stop_row && s->stop_row < wanted, "%d of %d rows came", *came, wanted);
    for (int i = *came; i < wanted; i++) {
        CHECK(words[i] == 0, "row %d of %d came after row %d did not", i, wanted, *came);
    }
    return 0;
}

/* Rank 0, masking: exactly those are in its output. The reference has the rows of all. */
static int check_output(struct stopped *s)
{
    struct ll_batch *b = &s->batch;
    struct place source = b->ranks[HERE].source;
    uint32_t topk = b->shape.batch.topk, row = 0;
    const int32_t *seen;
    int came = 0;
    PASS(check_rows(s, &came));
    ll_expect_dispatch(b);
    seen = (const int32_t *)world_peek(&s->world, HERE, world_device(&s->world, source), source.bytes);
    CHECK(seen != NULL, "no sources");
    for (uint32_t t = 0; t < b->batch.shape.max_tokens; t++) {
        for (uint32_t k = 0; k < topk; k++) {
            if (is_here(b, t, k)) {
                uint32_t expert = (uint32_t)b->batch.ids[VICTIM][t * topk + k] - EXPERTS * HERE;
                int32_t at = seen[expert * RANKS * b->batch.shape.max_tokens +
                                  (uint32_t)b->ref.row_of[VICTIM][t * topk + k]];
                CHECK((at != -1) == ((int)row < came), "token %u, choice %u: row %u is %s, %d came", t, k,
                      row, at != -1 ? "there" : "left out", came);
            }
        }
        row += (uint32_t)goes_here(b, t);
    }
    return 0;
}

static int named(struct stopped *s, double begin)
{
    struct tern_fault f = TERN_FAULT_INIT;
    REFUSES(tern_ep_synchronize(s->eps[s->rank]), TERN_TIMEOUT, "rank 2");
    CHECK(test_seconds() - begin < s->config.timeout_ms * 1e-3 + 6.0, "rank %d ends after %.1f s", s->rank,
          test_seconds() - begin);
    OK(tern_fault_get(s->eps[s->rank], &f));
    CHECK(f.peer == VICTIM && f.operation == TERN_OP_LL_DISPATCH && f.awaited == TERN_AWAIT_DONE,
          "rank %d: operation %d, peer %d, awaited %d", s->rank, f.operation, f.peer, f.awaited);
    return 0;
}

/* The sums of the combine that follows: of every other rank's rows, and nothing of the victim's. */
static int sums_without(struct stopped *s, const unsigned char *masked)
{
    struct ll_batch *b = &s->batch;
    struct place home = b->ranks[s->rank].home;
    const void *seen;
    PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
    PASS(world_ep_synchronize(&s->world, s->eps));
    ll_expect_dispatch(b); /* from which the reference knows the rows; its output is check_output's */
    ll_expect_masks(b, masked, 1);
    ll_expect_combine(b);
    seen = world_peek(&s->world, s->rank, world_device(&s->world, home), home.bytes);
    CHECK(seen != NULL && memcmp(seen, world_image(&s->world, home), home.bytes) == 0, "rank %d: other sums",
          s->rank);
    return 0;
}

static int rounds_without(struct stopped *s, const unsigned char *masked)
{
    struct ll_batch *b = &s->batch;
    double begin = test_seconds();
    for (int round = 0; round < ROUNDS; round++) {
        ll_batch_redraw_ids(b, ROUTING_UNIFORM, &s->rng);
        ll_expect_masks(b, masked, 0);
        PASS(world_upload(&s->world));
        PASS(ll_dispatch_issue(b, TERN_LL_BOTH, 0));
        PASS(ll_combine_issue(b, TERN_LL_BOTH, 0));
        ll_expect_dispatch(b);
        ll_expect_combine(b);
        PASS(world_ep_synchronize(&s->world, s->eps));
        PASS(world_verify(&s->world, "a round without one who stopped"));
    }
    CHECK(test_seconds() - begin < ROUNDS * s->config.timeout_ms * 1e-3, "%d rounds take %.1f s", ROUNDS,
          test_seconds() - begin);
    return 0;
}

static int left_out(struct stopped *s)
{
    static const unsigned char masked[TERN_MAX_RANKS] = {0, 0, 1};
    struct tern_fault f = TERN_FAULT_INIT;
    uint64_t seen[2];
    OK(tern_ep_synchronize(s->eps[s->rank]));
    OK(tern_ll_mask_peek(s->eps[s->rank], seen));
    CHECK(seen[0] == 1u << VICTIM, "rank %d sees 0x%llx", s->rank, (unsigned long long)seen[0]);
    OK(tern_ll_mask_fault(s->eps[s->rank], VICTIM, &f));
    CHECK(f.peer == VICTIM && f.operation == TERN_OP_LL_DISPATCH, "rank %d: operation %d, peer %d", s->rank,
          f.operation, f.peer);
    PASS(s->rank == HERE ? check_output(s) : 0);
    PASS(sums_without(s, masked));
    return rounds_without(s, masked);
}

/* Rank FIRST, once all are in; the others, so long after it. */
static int receive_in_turn(struct stopped *s, struct procs_page *page)
{
    double begin = 0;
    for (int r = 0; s->rank == FIRST && r < RANKS; r++) {
        while (__atomic_load_n(ll_words_entry(s->eps[FIRST], 0, 1, r), __ATOMIC_ACQUIRE) >> 32 != 1) {
            usleep(1000);
        }
    }
    if (s->rank == FIRST) {
        begin = test_seconds();
        __atomic_store(&page->marks[0], &begin, __ATOMIC_RELEASE);
    } else {
        while (begin == 0) {
            usleep(1000);
            __atomic_load(&page->marks[0], &begin, __ATOMIC_ACQUIRE);
        }
        while (test_seconds() - begin < s->config.timeout_ms * 1e-3 / 16) {
            usleep(1000);
        }
    }
    return ll_dispatch_issue(&s->batch, TERN_LL_RECEIVE, 0);
}

static int live_or_stop(struct stopped *s, struct procs_page *page)
{
    struct tern_comm_config comm = TERN_COMM_CONFIG_INIT;
    double begin;
    int came;
    comm.machine = TERN_MACHINE_CPU;
    PASS(world_open(&s->world, &page->id, &comm));
    PASS(world_ep_open(&s->world, &s->config, s->eps));
    ll_words_forbid(s->eps[s->rank]); /* which row has come is told by arrival words */
    PASS(world_upload(&s->world));
    if (s->rank == VICTIM) {
        PASS(lay_trap(s));
    }
    begin = test_seconds();
    PASS(ll_dispatch_issue(&s->batch, s->is_late ? TERN_LL_SEND : TERN_LL_BOTH, 0));
    if (s->is_late) {
        OK(tern_ep_synchronize(s->eps[s->rank])); /* sending waits for nobody, and the victim ends */
        PASS(receive_in_turn(s, page));
    }
    if (s->config.ll_mask) {
        return left_out(s);
    }
    PASS(named(s, begin));
    return s->rank == HERE ? check_rows(s, &came) : 0;
}

static int body(int rank, struct procs_page *page, void *user)
{
    const struct stop *stop = (const struct stop *)user;
    static const struct tern_ep_config defaults = TERN_EP_CONFIG_INIT;
    struct stopped s;
    struct ll_shape shape;
    int result;
    test_quiet();
    memset(&s, 0, sizeof s);
    memset(&shape, 0, sizeof shape);
    shape.batch = scene_shape(RANKS, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    shape.hidden = HIDDEN;
    s.rng.state = 71;
    s.rank = rank;
    s.config = defaults;
    s.config.num_experts = shape.batch.num_experts;
    s.config.max_topk = shape.batch.topk;
    s.config.max_tokens = 1;
    s.config.max_row_bytes = 16;
    s.is_late = stop->is_late;
    s.config.timeout_ms = (stop->t->scale < 100 ? 4000 : 1200) * (s.is_late ? LATE_TIMES : 1);
    s.config.ll_mask = stop->ll_mask;
    s.config.domain_ranks = stop->domain_ranks;
    s.chunk = stop->domain_ranks ? ll_words_chunk() : 1;
    s.stop_row = s.is_late ? s.chunk / 2 : stop->domain_ranks ? s.chunk + s.chunk / 2 : STOP_ROW;
    shape.railed = stop->is_railed;
    ll_config_add(&s.config, &shape, 1);
    world_init(&s.world, RANKS, rank);
    s.world.domain_ranks = (int)stop->domain_ranks;
    ll_batch_init(&s.batch, &s.world, s.eps, &shape, &s.rng);
    ll_batch_redraw_ids(&s.batch, ROUTING_UNIFORM, &s.rng);
    if (!s.batch.ranks[HERE].source.arena) {
        s.batch.ranks[HERE].source =
            world_take(&s.world, HERE, ARENA_DEVICE, (size_t)EXPERTS * RANKS * MAX_TOKENS * 4, "out_source");
    }
    s.batch.ranks[VICTIM].num_sms = 1; /* one block: rows go in the order of tokens */
    result = live_or_stop(&s, page);
    ll_batch_fini(&s.batch);
    world_ep_close(&s.world, s.eps);
    world_fini(&s.world);
    return result;
}

static int stop(struct test *t, uint32_t ll_mask, uint32_t domain_ranks, int is_railed, int is_late)
{
    struct stop it = {t, ll_mask, domain_ranks, is_railed, is_late};
    return procs_run(RANKS, VICTIM, 60, body, &it);
}

static int is_named(struct test *t) { return stop(t, 0, 0, 0, 0); }
static int is_masked(struct test *t) { return stop(t, 1, 0, 0, 0); }
static int far_is_named(struct test *t) { return stop(t, 0, 2, 0, 0); }
static int far_is_masked(struct test *t) { return stop(t, 1, 2, 0, 0); }
static int railed_is_named(struct test *t) { return stop(t, 0, 2, 1, 0); }
static int late_is_named(struct test *t) { return stop(t, 0, 2, 1, 1); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "a rank that stops between its rows is named", is_named);
    test_run(&t, "a rank that stops between its rows is masked, and the others go on", is_masked);
    test_run(&t, "a far rank that stops in the middle of a chunk is named", far_is_named);
    test_run(&t, "a far rank that stops in the middle of a chunk is masked, and the others go on",
             far_is_masked);
    test_run(&t, "railed, a far rank that stops in the middle of a chunk is named by all", railed_is_named);
    test_run(&t, "likewise, though who spreads its rows begins to wait after its mate", late_is_named);
    return test_end(&t);
}
