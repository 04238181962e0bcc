/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu machine as hosts see it: streams, events, graphs, words that kernels raise, shared memory,
 * refusals. */
#include <unistd.h>

#include "simt_rig.h"

static void test_graph(void)
{
    struct rig r;
    struct machine *m;
    struct tern_stream *s;
    struct tern_event *a, *b, *other;
    struct tern_graph *g;
    float ms = -1.0f;

    rig_open(&r, 3);
    m = r.m;
    r.args.rounds = 100;
    r.args.words = (uint32_t *)rig_alloc(&r, 400);
    r.args.out = (uint32_t *)rig_alloc(&r, 400);
    CHECK(m->ops->stream_open(m, &s) == TERN_OK);
    CHECK(m->ops->event_open(m, &a) == TERN_OK);
    CHECK(m->ops->event_open(m, &b) == TERN_OK);
    CHECK(m->ops->event_open(m, &other) == TERN_OK);
    CHECK(m->ops->event_record(m, other, NULL) == TERN_OK);
    CHECK(m->ops->graph_begin(m, s) == TERN_OK);
    CHECK(m->ops->stream_capturing(m, s) == 1);
    CHECK(m->ops->stream_capturing(m, NULL) == 0);
    CHECK(m->ops->event_record(m, a, s) == TERN_OK);
    LAUNCH(&r, simt_increment, 1, 64, 0, s);
    CHECK(m->ops->copy(m, r.args.out, r.args.words, 400, s) == TERN_OK);
    CHECK(m->ops->event_wait(m, a, s) == TERN_OK);
    CHECK(m->ops->event_record(m, b, s) == TERN_OK);
    CHECK(m->ops->event_wait(m, other, s) == TERN_UNSUPPORTED);
    CHECK(m->ops->event_wait(m, a, NULL) == TERN_UNSUPPORTED);
    CHECK(m->ops->stream_synchronize(m, s) == TERN_BAD_STATE);
    CHECK(m->ops->graph_end(m, s, &g) == TERN_OK);
    CHECK(m->ops->graph_end(m, s, &g) == TERN_BAD_STATE);
    SYNC(&r, s);
    CHECK(r.args.words[99] == 0);
    CHECK(m->ops->event_elapsed(m, a, b, &ms) == TERN_BAD_STATE);
    for (int i = 0; i < 3; i++) {
        CHECK(m->ops->graph_launch(m, g, s) == TERN_OK);
    }
    CHECK(m->ops->event_synchronize(m, b) == TERN_OK);
    SYNC(&r, s);
    CHECK(r.args.words[0] == 3 && r.args.words[99] == 3 && r.args.out[99] == 3);
    CHECK(m->ops->event_elapsed(m, a, b, &ms) == TERN_OK && ms >= 0.0f);
    m->ops->event_close(m, a);
    m->ops->event_close(m, b);
    m->ops->event_close(m, other);
    m->ops->graph_close(m, g);
    m->ops->stream_close(m, s);
    rig_close(&r);
}

/* Two streams increment the same words in turn, ordered by events alone. */
static void test_streams(void)
{
    enum { TURNS = 6 };

    for (uint64_t seed = 0; seed < 4; seed++) {
        struct rig r;
        struct machine *m;
        struct tern_stream *s[2];
        struct tern_event *e;
        rig_open(&r, seed);
        m = r.m;
        r.args.rounds = 100;
        r.args.words = (uint32_t *)rig_alloc(&r, 400);
        CHECK(m->ops->stream_open(m, &s[0]) == TERN_OK);
        CHECK(m->ops->stream_open(m, &s[1]) == TERN_OK);
        CHECK(m->ops->event_open(m, &e) == TERN_OK);
        CHECK(m->ops->event_wait(m, e, s[0]) == TERN_OK); /* never recorded: no wait */
        CHECK(m->ops->fill(m, r.args.words, 0, 400, s[0]) == TERN_OK);
        for (int i = 0; i < TURNS; i++) {
            LAUNCH(&r, simt_increment, 1, 64, 0, s[i % 2]);
            CHECK(m->ops->event_record(m, e, s[i % 2]) == TERN_OK);
            CHECK(m->ops->event_wait(m, e, s[1 - i % 2]) == TERN_OK);
        }
        CHECK(m->ops->event_synchronize(m, e) == TERN_OK);
        CHECK(r.args.words[0] == TURNS && r.args.words[99] == TURNS);
        m->ops->stream_close(m, s[0]);
        m->ops->event_close(m, e); /* s[1] still has its wait, and is closed by the machine */
        rig_close(&r);
    }
}

/* Grids of two machines that need each other run side by side. */
static void test_side_by_side(void)
{
    struct rig r;
    struct machine *m2;
    struct launch launch;

    rig_open(&r, 9);
    r.args.total = 128;
    CHECK(terni_cpu_open(r.x, &m2) == TERN_OK);
    CHECK(memcmp(r.m->info.uuid, m2->info.uuid, 16) == 0);
    LAUNCH(&r, simt_crowd, 1, 64, 0, NULL);
    launch = (struct launch){0, 1, 64, 0, &r.args, sizeof(r.args)};
    CHECK(terni_cpu_launch_function(m2, tern_cpu_simt_crowd, "simt_crowd", &launch, NULL) == TERN_OK);
    SYNC(&r, NULL);
    m2->ops->close(m2);
    CHECK(*r.args.counter == 128);
    rig_close(&r);
}

static void test_word(void)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct rig r;
        void *host, *device;
        rig_open(&r, seed);
        r.args.rounds = 100;
        r.args.words = (uint32_t *)rig_alloc(&r, 400);
        CHECK(r.m->ops->host_alloc(r.m, 64, &host, &device) == TERN_OK);
        r.args.flags = (uint64_t *)device;
        LAUNCH(&r, simt_increment, 1, 32, 0, NULL);
        CHECK(r.m->ops->wait_word(r.m, (uint64_t *)host, 1, terni_clock_ns() + 20000000000ull) == TERN_OK);
        CHECK(r.args.words[99] == 1); /* ordered by the word alone */
        CHECK(r.m->ops->wait_word(r.m, (uint64_t *)host, 2, terni_clock_ns() + 20000000ull) == TERN_TIMEOUT);
        CHECK(r.m->ops->wait_word(r.m, (uint64_t *)host, 1, 1) == TERN_OK); /* late, but it is there */
        SYNC(&r, NULL);
        r.m->ops->host_free(r.m, host);
        rig_close(&r);
    }
}

static void test_share(void)
{
    struct rig r;
    struct machine *m;
    struct share owned, imported, local;
    uint64_t page, piece;
    char *base;
    int fds[2], none = 5;

    rig_open(&r, 0);
    m = r.m;
    page = m->info.share_granule;
    piece = 4 * page;
    CHECK(m->ops->share_reserve(m, SHARE_EXPORTED, 0, &owned) == TERN_INVALID_ARGUMENT);
    CHECK(m->ops->share_reserve(m, SHARE_EXPORTED, 3 * piece, &owned) == TERN_OK);
    CHECK(m->ops->share_reserve(m, SHARE_EXPORTED, 3 * piece, &imported) == TERN_OK);
    base = imported.base;
    for (int i = 0; i < 2; i++) {
        CHECK(m->ops->share_add(m, &owned, piece, &fds[i]) == TERN_OK);
        CHECK(m->ops->share_import(m, &imported, fds[i], 0, 2 * piece) == TERN_INVALID_ARGUMENT);
        CHECK(m->ops->share_import(m, &imported, fds[i], 0, piece) == TERN_OK);
    }
    CHECK(m->ops->share_add(m, &owned, 2 * piece, &fds[0]) == TERN_INTERNAL_ERROR);
    CHECK(owned.bytes == 2 * piece && imported.bytes == 2 * piece && imported.base == base);
    for (uint64_t i = 0; i < 2 * piece; i += page) {
        CHECK(imported.base[i] == 0);
        owned.base[i] = (char)(i / page + 1);
        CHECK(imported.base[i] == (char)(i / page + 1));
    }
    m->ops->share_trim(m, &owned, piece);
    CHECK(owned.bytes == piece && imported.base[piece] == 5); /* the importer's mapping keeps the memory */
    CHECK(m->ops->share_add(m, &owned, piece, &fds[0]) == TERN_OK);
    CHECK(owned.base[0] == 1 && owned.base[piece] == 0);
    close(fds[0]);
    CHECK(m->ops->share_reserve(m, SHARE_LOCAL, 1 << 20, &local) == TERN_OK);
    CHECK(m->ops->share_add(m, &local, 1 << 20, &none) == TERN_OK);
    CHECK(none == -1 && local.base[99] == 0);
    m->ops->share_free(m, &imported);
    m->ops->share_free(m, &owned);
    m->ops->share_free(m, &local);
    CHECK(!owned.base && !owned.bytes && !owned.reserved);
    rig_close(&r);
}

static void test_refusals(void)
{
    struct rig r;
    struct launch launch = {1 << 20, 1, 32, 0, NULL, 0};

    rig_open(&r, 0);
    CHECK(r.m->ops->launch(r.m, &launch, NULL) == TERN_INVALID_ARGUMENT);
    CHECK(rig_launch(&r, tern_cpu_simt_trace, "simt_trace", 1, 33, 0, NULL) == TERN_INVALID_ARGUMENT);
    CHECK(rig_launch(&r, tern_cpu_simt_trace, "simt_trace", 0, 32, 0, NULL) == TERN_INVALID_ARGUMENT);
    CHECK(rig_launch(&r, tern_cpu_simt_trace, "simt_trace", 1, 32, 228 << 10, NULL) == TERN_INVALID_ARGUMENT);
    CHECK(strstr(tern_last_error(), "simt_trace") != NULL);
    rig_close(&r);
}

static const struct test tests[] = {
    {"graph", test_graph, 0}, {"streams", test_streams, 0}, {"side_by_side", test_side_by_side, 0},
    {"word", test_word, 0},   {"share", test_share, 0},     {"refusals", test_refusals, 0},
};

int main(int argc, char **argv) { return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv); }
