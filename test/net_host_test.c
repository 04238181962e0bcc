/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's operations, blocking, on a stream and in a graph; what a kernel's view knows of windows that
 * came later; windows that come and go while another thread operates; several domains; and places for teams.
 * One file, because every case is one kind of call on the same scene. */
#include "net_scene.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int in_image(const struct host_scene *s, struct place p, size_t offset, uint64_t value, size_t width)
{
    memcpy(image(s, p, offset), &value, width);
    return 0;
}

/* ---- Operations ---- */

/* Threads of the library, which have names: that they block signal `number`. */
static int take_no_signal(int number)
{
    DIR *tasks = opendir("/proc/self/task");
    int num = 0;
    CHECK(tasks != NULL, "there is no /proc/self/task");
    for (struct dirent *d = readdir(tasks); d != NULL; d = readdir(tasks)) {
        char path[300], line[200], name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
        FILE *status = fopen(path, "r");
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            (void)(sscanf(line, "Name: %63s", name) == 1 || sscanf(line, "SigBlk: %llx", &blocked) == 1);
        }
        if (status != NULL) {
            fclose(status);
        }
        if (strncmp(name, "tern-", 5) == 0) {
            num++;
            CHECK(blocked >> (number - 1) & 1, "thread %s takes signal %d", name, number);
        }
    }
    closedir(tasks);
    CHECK(num > 0, "no thread of the library has a name");
    return 0;
}

static int blocking_body(struct host_scene *s)
{
    uint64_t old = 0, seen = 0;
    const void *there;
    int is_met = -1;
    for (int r = 0; r < RANKS; r++) {
        struct tern_network *n = s->rig.networks[r];
        int to = (r + 1) % RANKS;
        OK(tern_net_put(n, to, 0, device(s, s->box[r], 3), device(s, s->local[r], 1), 2001));
        memcpy(image(s, s->box[to], 3), image(s, s->local[r], 1), 2001);
        net_rig_see(&s->rig);
        there = world_peek(&s->rig.world, to, device(s, s->box[to], 3), 2001);
        CHECK(there != NULL && memcmp(there, image(s, s->box[to], 3), 2001) == 0, "the put is not complete");
        OK(tern_net_signal(n, to, 0, device(s, s->words[r], 0), TERN_SIGNAL_ADD, 8, 1ull << 40));
        OK(tern_net_signal(n, to, 0, device(s, s->words[r], 8), TERN_SIGNAL_SET, 4, 7));
        OK(tern_net_atomic(n, to, 0, device(s, s->words[r], 16), TERN_AMO_ADD, 8, 5, 0, NULL));
        OK(tern_net_atomic(n, to, 0, device(s, s->words[r], 16), TERN_AMO_CAS, 8, 9, 5, &old));
        OK(tern_net_atomic(n, to, 0, device(s, s->words[r], 16), TERN_AMO_FETCH, 8, 0, 0, &seen));
        CHECK(old == 5 && seen == 9, "5 became %llu, and then %llu", (unsigned long long)old,
              (unsigned long long)seen);
        OK(tern_net_put_inline(n, to, 0, device(s, s->words[r], 24), 0xabcdef01u + (unsigned)r, 4));
        OK(tern_net_put_signal(n, to, 0, device(s, s->box[r], 2100), device(s, s->local[r], 2101), 333,
                               device(s, s->words[r], 32), TERN_SIGNAL_ADD, 8, 11));
        OK(tern_net_put_signal(n, to, 0, NULL, NULL, 0, device(s, s->words[r], 32), TERN_SIGNAL_ADD, 8, 1));
        memcpy(image(s, s->box[to], 2100), image(s, s->local[r], 2101), 333);
        OK(tern_net_test(s->rig.networks[to], device(s, s->words[to], 32), 8, TERN_COMPARE_EQ, 12, &is_met));
        CHECK(is_met == 1, "the signal behind a put is not there");
        OK(tern_net_test(s->rig.networks[to], device(s, s->words[to], 32), 8, TERN_COMPARE_GT, 12, &is_met));
        CHECK(is_met == 0, "12 is more than 12");
        OK(tern_net_quiet(n, to, 0));
        OK(tern_net_quiet(n, to, -1));
        OK(tern_net_quiet(n, -1, 0));
        OK(tern_net_quiet(n, -1, -1));
        OK(tern_net_wait(s->rig.networks[to], device(s, s->words[to], 0), 8, TERN_COMPARE_GE, 1ull << 40, 0));
        OK(tern_net_wait(s->rig.networks[to], device(s, s->words[to], 8), 4, TERN_COMPARE_EQ, 7, 1));
        in_image(s, s->words[to], 0, 1ull << 40, 8);
        in_image(s, s->words[to], 8, 7, 4);
        in_image(s, s->words[to], 16, 9, 8);
        in_image(s, s->words[to], 24, 0xabcdef01u + (unsigned)r, 4);
        in_image(s, s->words[to], 32, 12, 8);
    }
    for (int r = 0; r < RANKS; r++) {
        int from = (r + r / 2) % RANKS; /* itself, a rank of its domain, of another */
        OK(tern_net_get(s->rig.networks[r], from, 0, device(s, s->local[r], 2500), device(s, s->box[r], 3),
                        2001));
        memcpy(image(s, s->local[r], 2500), image(s, s->box[from], 3), 2001);
        there = world_peek(&s->rig.world, r, device(s, s->local[r], 2500), 2001);
        CHECK(there != NULL && memcmp(there, image(s, s->box[from], 3), 2001) == 0,
              "the get is not complete");
    }
    net_rig_see(&s->rig);
    PASS(world_verify(&s->rig.world, "calls that block"));
    return net_rig_on_cuda() ? 0 : take_no_signal(SIGTERM);
}

static int blocking(struct test *t)
{
    (void)t;
    return in_scene(NULL, blocking_body);
}

/* One turn of rank r: gives to the next, waits for the one before, takes what came. */
static int issue_turn(struct host_scene *s, int r)
{
    struct tern_network *n = s->rig.networks[r];
    struct tern_stream *stream = lane_of(s, r);
    int to = (r + 1) % RANKS, from = (r + RANKS - 1) % RANKS;
    OK(tern_net_put_on_stream(n, to, 0, device(s, s->box[r], 0), device(s, s->local[r], 0), 1000, stream));
    OK(tern_net_signal_on_stream(n, to, 0, device(s, s->words[r], 0), TERN_SIGNAL_ADD, 8, 1, stream));
    OK(tern_net_wait_on_stream(n, device(s, s->words[r], 0), 8, TERN_COMPARE_GE, 1, 0, stream));
    OK(tern_net_get_on_stream(n, r, 0, device(s, s->local[r], 1000), device(s, s->box[r], 0), 1000, stream));
    OK(tern_net_signal_on_stream(n, r, 0, device(s, s->words[r], 0), TERN_SIGNAL_SET, 8, 0, stream));
    OK(tern_net_atomic_on_stream(n, from, 0, device(s, s->words[r], 12), TERN_AMO_ADD, 4, 3, 0,
                                 device(s, s->local[r], 4096), stream));
    OK(tern_net_put_inline_on_stream(n, from, 0, device(s, s->words[r], 24), (uint64_t)r + 1, 8, stream));
    OK(tern_net_put_signal_on_stream(n, to, 0, device(s, s->box[r], 3000), device(s, s->local[r], 0), 700,
                                     device(s, s->words[r], 32), TERN_SIGNAL_ADD, 8, 1, stream));
    OK(tern_net_wait_on_stream(n, device(s, s->words[r], 32), 8, TERN_COMPARE_EQ, 1, 0, stream));
    OK(tern_net_signal_on_stream(n, r, 0, device(s, s->words[r], 32), TERN_SIGNAL_SET, 8, 0, stream));
    OK(tern_net_get_on_stream(n, r, 0, device(s, s->local[r], 2000), device(s, s->box[r], 3000), 700,
                              stream));
    OK(tern_net_quiet_on_stream(n, -1, -1, stream));
    return 0;
}

/* Other rows than in the turn before. */
static int refill(struct host_scene *s, uint32_t turn)
{
    for (int r = 0; r < RANKS; r++) {
        struct rng rng = {turn * 100 + (uint64_t)r};
        rng_bytes(&rng, image(s, s->local[r], 0), 1000);
    }
    return world_upload(&s->rig.world);
}

static void expect_turn(struct host_scene *s, uint32_t turn)
{
    for (int r = 0; r < RANKS; r++) {
        int from = (r + RANKS - 1) % RANKS;
        uint32_t before = 3 * (turn - 1);
        memcpy(image(s, s->box[r], 0), image(s, s->local[from], 0), 1000);
        memcpy(image(s, s->local[r], 1000), image(s, s->local[from], 0), 1000);
        memcpy(image(s, s->local[r], 4096), &before, 4);
        in_image(s, s->words[r], 12, (uint64_t)3 * turn, 4);
        in_image(s, s->words[r], 24, (uint64_t)((r + 1) % RANKS) + 1, 8);
        memcpy(image(s, s->box[r], 3000), image(s, s->local[from], 0), 700);
        memcpy(image(s, s->local[r], 2000), image(s, s->local[from], 0), 700);
    }
}

static int stream_body(struct host_scene *s)
{
    struct tern_graph *graphs[RANKS];
    for (int r = 0; r < RANKS; r++) {
        PASS(issue_turn(s, r));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
    }
    net_rig_see(&s->rig);
    expect_turn(s, 1);
    PASS(world_verify(&s->rig.world, "on streams"));
    for (int r = 0; r < RANKS; r++) {
        struct tern_comm *comm = s->rig.world.members[r].comm;
        OK(tern_graph_begin(comm, lane_of(s, r)));
        PASS(issue_turn(s, r));
        OK(tern_graph_end(comm, lane_of(s, r), &graphs[r]));
    }
    for (uint32_t turn = 2; turn < 5; turn++) {
        PASS(refill(s, turn));
        for (int r = 0; r < RANKS; r++) {
            OK(tern_graph_launch(s->rig.world.members[r].comm, graphs[r], lane_of(s, r)));
        }
        for (int r = 0; r < RANKS; r++) {
            OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
        }
        net_rig_see(&s->rig);
        expect_turn(s, turn);
        PASS(world_verify(&s->rig.world, "in a graph"));
    }
    for (int r = 0; r < RANKS; r++) {
        tern_graph_close(s->rig.world.members[r].comm, graphs[r]);
    }
    return 0;
}

static int on_streams(struct test *t)
{
    (void)t;
    return in_scene(NULL, stream_body);
}

/* Every comparison, of words below, at and above the number, with the highest bit set or not. */
static int compare_body(struct host_scene *s)
{
    static const uint64_t numbers[] = {0, 1, 0x7fffffff, 0x80000000u, 0xffffffffu, 1ull << 63};
    struct tern_network *n = s->rig.networks[0];
    for (int i = 0; i < 36; i++) {
        for (uint32_t width = 4; width <= 8; width += 4) {
            uint64_t a = numbers[i / 6], b = numbers[i % 6];
            OK(tern_net_signal(n, 0, 0, device(s, s->words[0], 24), TERN_SIGNAL_SET, width, a));
            a = width == 4 ? (uint32_t)a : a;
            b = width == 4 ? (uint32_t)b : b;
            int holds[] = {a == b, a != b, a >= b, a > b, a <= b, a < b};
            for (int k = TERN_COMPARE_EQ; k <= TERN_COMPARE_LT; k++) {
                /* Bits above the width do not count. */
                EXPECT(tern_net_wait(n, device(s, s->words[0], 24), width, k, numbers[i % 6], 1),
                       holds[k] ? TERN_OK : TERN_TIMEOUT);
            }
        }
    }
    return 0;
}

static int comparisons(struct test *t)
{
    (void)t;
    return in_scene(NULL, compare_body);
}

/* ---- Windows that come later ---- */

/* Through a kernel of rank 0: 8 bytes to the same place of rank 1. */
static int kernel_puts(struct host_scene *s, void *remote, int status)
{
    struct net_shape shape = {GROUP_THREAD, 1, 32, 1};
    struct net_request *q;
    net_rig_clear(&s->rig);
    q = net_rig_add(&s->rig, 0);
    q->kind = NET_REQUEST_PUT;
    q->peer = 1;
    q->remote = remote;
    q->local = device(s, s->local[0], 0);
    q->bytes = 8;
    PASS(net_rig_launch(&s->rig, 0, &shape, NULL));
    PASS(net_rig_collect(&s->rig));
    PASS(net_rig_all(&s->rig, status));
    return 0;
}

static int has_come(struct host_scene *s, const void *at)
{
    const void *seen = world_peek(&s->rig.world, 1, at, 8);
    CHECK(seen != NULL && memcmp(seen, image(s, s->local[0], 0), 8) == 0, "nothing has come");
    return 0;
}

static int adopt_later(struct host_scene *s, struct tern_comm **comms, void **mine)
{
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_DEVICE, 4096, &mine[r]));
        OK(tern_fill(comms[r], mine[r], 0, 4096, lane_of(s, r)));
        OK(tern_stream_synchronize(comms[r], lane_of(s, r)));
    }
    OK(tern_window_adopt_all(RANKS, comms, mine, 4096));
    PASS(kernel_puts(s, (char *)mine[0] + 8, TERN_INVALID_ARGUMENT)); /* the view is older */
    REFUSES(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)), TERN_INVALID_ARGUMENT, "in no window");
    OK(tern_net_view(s->rig.networks[0], &s->rig.views[0]));
    PASS(kernel_puts(s, (char *)mine[0] + 8, TERN_OK));
    PASS(has_come(s, (char *)mine[1] + 8));
    OK(tern_net_put(s->rig.networks[0], 1, 0, (char *)mine[0] + 4088, device(s, s->local[0], 0), 8));
    net_rig_see(&s->rig);
    PASS(has_come(s, (char *)mine[1] + 4088));
    REFUSES(tern_net_wait(s->rig.networks[1], (char *)mine[1] + 16, 8, TERN_COMPARE_EQ, 1, 1), TERN_TIMEOUT,
            "offset 16 of its adopted window");
    for (int r = 0; r < RANKS; r++) {
        tern_window_release(comms[r], mine[r]);
    }
    OK(tern_net_view(s->rig.networks[0], &s->rig.views[0]));
    PASS(kernel_puts(s, mine[0], TERN_INVALID_ARGUMENT));
    REFUSES(tern_net_synchronize(s->rig.networks[0], lane_of(s, 0)), TERN_INVALID_ARGUMENT, "in no window");
    return 0;
}

/* 8 bytes of rank 1. */
static int is_word(struct host_scene *s, const void *at, uint64_t value)
{
    const uint64_t *seen = (const uint64_t *)world_peek(&s->rig.world, 1, at, 8);
    CHECK(seen != NULL && *seen == value, "the word is not %llu", (unsigned long long)value);
    return 0;
}

/* The host's calls know of it by themselves. What rank 0 gives later has the same address, but at rank 1 it
 * is other memory. */
static int adopt_unseen(struct host_scene *s, struct tern_comm **comms, void **mine)
{
    struct tern_network *n = s->rig.networks[0];
    void *first[RANKS], *word;
    uint64_t old = 0;
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_DEVICE, 8192, &mine[r]));
        first[r] = (char *)mine[r] + (r == 1 ? 4096 : 0);
    }
    word = (char *)mine[0] + 16;
    OK(tern_window_adopt_all(RANKS, comms, first, 4096));
    OK(tern_net_signal(n, 1, 0, word, TERN_SIGNAL_SET, 8, 77));
    PASS(is_word(s, (char *)first[1] + 16, 77));
    for (int r = 0; r < RANKS; r++) {
        tern_window_release(comms[r], first[r]);
    }
    OK(tern_window_adopt_all(RANKS, comms, mine, 4096));
    OK(tern_net_signal(n, 1, 0, word, TERN_SIGNAL_SET, 8, 78));
    PASS(is_word(s, (char *)first[1] + 16, 77));
    PASS(is_word(s, (char *)mine[1] + 16, 78));
    OK(tern_net_atomic(n, 1, 0, word, TERN_AMO_ADD, 8, 1, 0, &old));
    PASS(is_word(s, (char *)mine[1] + 16, 79));
    CHECK(old == 78, "78 was %llu", (unsigned long long)old);
    for (int r = 0; r < RANKS; r++) {
        tern_window_release(comms[r], mine[r]);
    }
    REFUSES(tern_net_signal(n, 1, 0, word, TERN_SIGNAL_SET, 8, 78), TERN_INVALID_ARGUMENT, "in no window");
    return 0;
}

static int windows_body(struct host_scene *s)
{
    struct tern_comm *comms[RANKS];
    void *later[RANKS], *mine[RANKS] = {NULL}, *unseen[RANKS] = {NULL};
    int result;
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
    }
    OK(tern_heap_grow_all(RANKS, comms, 1 << 20));
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(comms[r], TERN_MEMORY_WINDOW, 900000, &later[r]));
    }
    PASS(kernel_puts(s, (char *)later[0] + 800000, TERN_OK)); /* by a view that is older */
    PASS(has_come(s, (char *)later[1] + 800000));
    result = adopt_unseen(s, comms, unseen);
    result = result ? result : adopt_later(s, comms, mine);
    for (int r = 0; r < RANKS; r++) {
        if (unseen[r] != NULL) {
            tern_free(comms[r], unseen[r]);
        }
        if (mine[r] != NULL) {
            tern_free(comms[r], mine[r]);
        }
        tern_free(comms[r], later[r]);
    }
    return result;
}

/* Networks that one rank has closed and the others have not are no obstacle. */
static int windows_beside(struct host_scene *s)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *more[RANKS];
    struct tern_comm *comms[RANKS];
    int result;
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
    }
    config.transport = net_rig_transport();
    OK(tern_net_open_all(RANKS, comms, &config, more));
    tern_net_close(more[0]);
    result = windows_body(s);
    for (int r = 1; r < RANKS; r++) {
        tern_net_close(more[r]);
    }
    return result;
}

static int windows(struct test *t)
{
    static struct host_scene s;
    int result;
    (void)t;
    memset(&s, 0, sizeof s);
    net_rig_init(&s.rig, RANKS);
    s.rig.world.grows = 1;
    for (int r = 0; r < RANKS; r++) {
        s.local[r] = world_take(&s.rig.world, r, net_rig_local_arena(), 64, "local memory");
        memset(world_image(&s.rig.world, s.local[r]), 0x3c + r, 64);
    }
    result = net_rig_open(&s.rig, NULL, 3);
    result = result ? result : world_upload(&s.rig.world);
    result = result ? result : windows_beside(&s);
    net_rig_close(&s.rig);
    return result;
}

/* ---- Windows that come and go while another thread operates ---- */

struct traffic {
    struct tern_comm *comms[RANKS];
    struct tern_network *networks[RANKS];
    void *kept[RANKS], *passing[RANKS]; /* adopted: all the time; now and then */
    int turns, result, is_over;
};

static int come_and_go(struct traffic *t)
{
    for (int i = 0; i < t->turns; i++) {
        OK(tern_window_adopt_all(RANKS, t->comms, t->passing, 4096));
        for (int r = 0; r < RANKS; r++) {
            tern_window_release(t->comms[r], t->passing[r]);
        }
    }
    return 0;
}

static void *come_and_go_main(void *argument)
{
    struct traffic *t = (struct traffic *)argument;
    t->result = come_and_go(t);
    __atomic_store_n(&t->is_over, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* From rank 0 to rank 1, in the window that stays. */
static int operate(const struct traffic *t, uint64_t turn)
{
    struct tern_network *n = t->networks[0];
    char *here = (char *)t->kept[0], *there = (char *)t->kept[1];
    uint64_t old = 0;
    int is_met = 0;
    OK(tern_net_put_signal(n, 1, 0, here + 1024, here, 512, here + 8, TERN_SIGNAL_SET, 8, turn));
    OK(tern_net_wait(t->networks[1], there + 8, 8, TERN_COMPARE_EQ, turn, 0));
    OK(tern_net_test(t->networks[1], there + 8, 8, TERN_COMPARE_GT, turn, &is_met));
    CHECK(is_met == 0, "turn %llu was passed", (unsigned long long)turn);
    OK(tern_net_get(n, 1, 0, here + 2048, here + 1024, 512));
    OK(tern_net_atomic(n, 1, 0, here + 16, TERN_AMO_ADD, 8, 1, 0, &old));
    CHECK(old == turn - 1, "%llu was added before turn %llu", (unsigned long long)old,
          (unsigned long long)turn);
    REFUSES(tern_net_wait(t->networks[1], there + 8, 8, TERN_COMPARE_EQ, 0, 1), TERN_TIMEOUT,
            "offset 8 of its adopted window");
    return 0;
}

static int operate_beside(struct traffic *t)
{
    pthread_t thread;
    int result = 0;
    CHECK(pthread_create(&thread, NULL, come_and_go_main, t) == 0, "a thread");
    for (uint64_t turn = 1; result == 0 && (turn < 4 || !__atomic_load_n(&t->is_over, __ATOMIC_ACQUIRE));
         turn++) {
        result = operate(t, turn);
    }
    pthread_join(thread, NULL);
    return result ? result : t->result;
}

static int open_traffic(struct traffic *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    for (int r = 0; r < RANKS; r++) {
        OK(tern_alloc(t->comms[r], TERN_MEMORY_DEVICE, 4096, &t->kept[r]));
        OK(tern_alloc(t->comms[r], TERN_MEMORY_DEVICE, 4096, &t->passing[r]));
        memset(t->kept[r], 0, 4096);
    }
    config.transport = net_rig_transport();
    OK(tern_net_open_all(RANKS, t->comms, &config, t->networks));
    OK(tern_window_adopt_all(RANKS, t->comms, t->kept, 4096));
    return 0;
}

static int beside(struct test *test)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct traffic t;
    int result;
    memset(&t, 0, sizeof t);
    /* Fewer than old lists of keys are kept for: that nobody reads what is freed then is ordered by the one
     * thread that runs all kernels (net/key_lists.h), which ThreadSanitizer does not see. */
    t.turns = net_rig_scaled(test, 800);
    config.heap_bytes = 1 << 20;
    config.machine = TERN_MACHINE_CPU;
    OK(tern_comm_open_all(RANKS, &config, t.comms));
    result = open_traffic(&t);
    result = result ? result : operate_beside(&t);
    for (int r = 0; r < RANKS; r++) {
        tern_net_close(t.networks[r]);
    }
    close_comms(t.comms);
    return result;
}

/* ---- Domains and teams ---- */

static int domain_body(struct host_scene *s)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_comm *comms[RANKS];
    struct tern_network *more[RANKS];
    struct tern_team *teams[RANKS];
    struct tern_net_team views[RANKS];
    struct net_request q = {NET_REQUEST_SIGNAL, 8, 0, 0, 2, 0, NULL, NULL, 8, NULL, 1, 0, 0, NULL, 0, 0};
    for (int r = 0; r < RANKS; r++) {
        comms[r] = s->rig.world.members[r].comm;
    }
    REFUSES(tern_net_put(s->rig.networks[1], 2, 0, device(s, s->box[1], 0), device(s, s->local[1], 0), 8),
            TERN_UNSUPPORTED, "nothing leads from rank 1 to rank 2");
    q.remote = device(s, s->words[0], 0);
    PASS(kernel_refuses(s, &q, TERN_UNSUPPORTED, "operated on rank 2, to which nothing leads"));
    OK(tern_net_put(s->rig.networks[0], 1, 0, device(s, s->box[0], 0), device(s, s->local[0], 0), 8));
    config.transport = TERN_TRANSPORT_P2P;
    REFUSES(tern_net_open_all(RANKS, comms, &config, more), TERN_UNSUPPORTED, "TERN_TRANSPORT_P2P");
    config.transport = TERN_TRANSPORT_PROXY;
    REFUSES(tern_net_open_all(RANKS, comms, &config, more), TERN_UNSUPPORTED, "TERN_PROXY=none");
    OK(tern_team_open_all(RANKS, comms, TERN_TEAM_WORLD, teams));
    for (int r = 0; r < RANKS; r++) {
        memset(&views[r], 0, sizeof views[r]);
        views[r].size = sizeof views[r];
    }
    REFUSES(tern_net_team_open_all(RANKS, s->rig.networks, teams, views), TERN_UNSUPPORTED,
            "nothing leads from rank 0 to rank 2");
    for (int r = 0; r < RANKS; r++) {
        tern_team_close(teams[r]);
    }
    PASS(open_teams(s, TERN_TEAM_DOMAIN, teams, views));
    for (int r = 0; r < RANKS; r++) {
        CHECK(views[r].num_ranks == 2 && views[r].rank == r % 2, "rank %d is %d of %d", r, views[r].rank,
              views[r].num_ranks);
        OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)));
        tern_net_team_close(s->rig.networks[r], &views[r]);
        tern_team_close(teams[r]);
    }
    return 0;
}

static int domains(struct test *t)
{
    int result;
    (void)t;
    setenv("TERN_DOMAIN_SIZE", "2", 1);
    setenv("TERN_PROXY", "none", 1);
    result = in_scene(NULL, domain_body);
    unsetenv("TERN_PROXY");
    unsetenv("TERN_DOMAIN_SIZE");
    return result;
}

/* Two places: a third team finds none, and takes the one that a closed team leaves, and counts
 * on from its six rounds, and one that a member may have begun. */
static int places_body(struct host_scene *s)
{
    struct tern_team *teams[3][RANKS];
    struct tern_net_team views[3][RANKS], extra[RANKS];
    for (int i = 0; i < 2; i++) {
        PASS(open_teams(s, TERN_TEAM_WORLD, teams[i], views[i]));
    }
    memset(extra, 0, sizeof extra);
    for (int r = 0; r < RANKS; r++) {
        extra[r].size = sizeof extra[r];
    }
    REFUSES(tern_net_team_open_all(RANKS, s->rig.networks, teams[0], extra), TERN_NO_SPACE,
            "none of the 2 places");
    for (int round = 0; round < 6; round++) { /* side by side: on one stream in turn, but not all alike */
        for (int r = 0; r < RANKS; r++) {
            for (int i = 0; i < 2; i++) {
                OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[i][r],
                                              s->rig.world.members[r].lanes[i]));
            }
        }
    }
    for (int r = 0; r < RANKS; r++) {
        OK(tern_net_synchronize(s->rig.networks[r], s->rig.world.members[r].lanes[0]));
        OK(tern_net_synchronize(s->rig.networks[r], s->rig.world.members[r].lanes[1]));
        tern_net_team_close(s->rig.networks[r], &views[0][r]);
    }
    PASS(open_teams(s, TERN_TEAM_RAIL, teams[2], views[2]));
    PASS(world_synchronize(&s->rig.world));
    for (int r = 0; r < RANKS; r++) {
        const uint64_t *round = (const uint64_t *)world_peek(&s->rig.world, r, views[2][r].round, 8);
        uint64_t begins = round != NULL ? *round : 0;
        const uint64_t *word = (const uint64_t *)world_peek(&s->rig.world, r, views[2][r].words, 8);
        CHECK(begins == 7 && word != NULL && *word <= begins, "a new team begins behind round %llu",
              (unsigned long long)begins);
        tern_net_team_close(s->rig.networks[r], &views[1][r]);
        tern_net_team_close(s->rig.networks[r], &views[2][r]);
        for (int i = 0; i < 3; i++) {
            tern_team_close(teams[i][r]);
        }
    }
    return 0;
}

static int places(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.num_teams = 2;
    return in_scene(&config, places_body);
}

/* A barrier on ranks that are given, and how it ends for them. */
static int barrier_of(struct host_scene *s, struct tern_net_team *views, int r, int status)
{
    OK(tern_net_barrier_on_stream(s->rig.networks[r], &views[r], lane_of(s, r)));
    EXPECT(tern_net_synchronize(s->rig.networks[r], lane_of(s, r)), (enum tern_status)status);
    return 0;
}

static int open_part(struct host_scene *s, struct tern_team **world, int start, int stride,
                     struct tern_team **teams, struct tern_net_team *views)
{
    for (int r = 0; r < RANKS; r++) {
        memset(&views[r], 0, sizeof views[r]);
        views[r].size = sizeof views[r];
        teams[r] = NULL;
    }
    OK(tern_team_split_all(RANKS, world, start, stride, 2, teams));
    OK(tern_net_team_open_all(RANKS, s->rig.networks, teams, views));
    return 0;
}

/* Rank 1 has given up the first barrier of {1, 3}, which rank 3 then passes; so rank 3 closes the team, and
 * its place goes to {2, 3}. Rank 1 comes to its barrier again: its signal is not one of rank 2. */
static int stale_body(struct host_scene *s)
{
    struct tern_team *world[RANKS], *first[RANKS], *second[RANKS];
    struct tern_net_team world_views[RANKS], first_views[RANKS], second_views[RANKS];
    PASS(open_teams(s, TERN_TEAM_WORLD, world, world_views));
    PASS(open_part(s, world, 1, 2, first, first_views));
    PASS(barrier_of(s, first_views, 1, TERN_TIMEOUT));
    PASS(barrier_of(s, first_views, 3, TERN_OK));
    uint64_t *words = first_views[3].words;
    tern_net_team_close(s->rig.networks[3], &first_views[3]);
    PASS(open_part(s, world, 2, 1, second, second_views));
    CHECK(second_views[3].words == words, "the second team has another place");
    PASS(barrier_of(s, first_views, 1, TERN_OK));
    PASS(barrier_of(s, second_views, 3, TERN_TIMEOUT)); /* rank 2 has not come */
    PASS(barrier_of(s, second_views, 2, TERN_OK));
    PASS(barrier_of(s, second_views, 3, TERN_OK));
    for (int r = 0; r < RANKS; r++) {
        tern_team_close(first[r]);
        tern_team_close(second[r]);
        tern_team_close(world[r]);
    }
    return 0;
}

static int stale(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    (void)t;
    config.num_teams = 2;
    config.timeout_ms = 60;
    return in_scene(&config, stale_body);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_cases(&t, "operations that block", blocking);
    net_rig_cases(&t, "operations on streams and in graphs", on_streams);
    test_run(&t, "comparisons", comparisons);
    net_rig_cases(&t, "windows that come later", windows);
    net_rig_cases(&t, "windows that come and go beside operations", beside);
    test_run(&t, "domains without a proxy", domains);
    test_run(&t, "places for teams", places);
    test_run(&t, "a late signal of another team", stale);
    return test_end(&t);
}
