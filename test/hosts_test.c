/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks on hosts of their own, by the public calls alone: they meet, have windows, also such as grow and are
 * adopted, and operate on each other's by their proxies, from kernels (net_kernel.c makes every call of
 * tern_device.h) and from the host, blocking and on a stream. What must come follows from the ranks' numbers.
 *
 * With TERN_RANK in the environment the program is one rank of a job that somebody else has started, on
 * several hosts (test/proxy_hosts.sh), by the engine of TERN_PROXY. If TERN_TEST_CUT names a rank, it goes on
 * until that one is lost, and must hear its number. A job of one rank says by its exit whether the engine is
 * to be had. Without, ranks are processes of this host that share nothing. One file, because a rank's whole
 * life is told in it, and every part checks what the parts before have left. */
#define _GNU_SOURCE /* memfd_create */
#include "net_kernel.h"
#include "procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_RANKS = 4, NUM_PROCS = 3, ROUNDS = 3, WINDOWS = 3, ROW = 3001, HEAP = 1 << 17 };
enum { LONG_MS = 20000, LATE_MS = 8000 }; /* deadlines; of the network where a rank is to be lost */

TERN_KERNEL_DECLARE(net_tour);
static const struct tern_kernel net_tour = TERN_KERNEL_INIT(net_tour);

/* What a rank has in a window of another, so that nobody waits for a turn; and at home, for what it gives and
 * gets back. */
struct place {
    uint64_t wide, flag, mark;
    uint32_t narrow, narrow_flag;
    unsigned char put[ROW], signalled[ROW];
};

struct host {
    int rank, num;
    struct tern_comm *comm;
    struct tern_network *network;
    struct tern_stream *stream;
    struct tern_team *team;
    struct tern_net_team members;
    struct tour_args tour;         /* of round 1; the next round's memory is behind */
    struct place *places[WINDOWS]; /* [num] of tern_alloc, of what the heap grew by, and adopted */
    struct place *given, *back;    /* [num] in no window */
};

/* What rank `from` gives rank `to` in this turn. */
static void draw(int from, int to, uint64_t turn, void *bytes, size_t count)
{
    struct rng rng = {(uint64_t)from << 48 | (uint64_t)to << 32 | turn};
    rng_bytes(&rng, bytes, count);
}

/* ---- Opening ---- */

static int take(struct host *h, enum tern_memory kind, size_t bytes, void **memory)
{
    OK(tern_alloc(h->comm, kind, bytes, memory));
    OK(tern_fill(h->comm, *memory, 0, bytes, NULL));
    OK(tern_stream_synchronize(h->comm, NULL));
    return 0;
}

static int take_memory(struct host *h)
{
    size_t places = (size_t)h->num * sizeof(struct place), boxes = ROUNDS * sizeof(struct tour_box);
    struct tour_box *from;
    PASS(take(h, TERN_MEMORY_WINDOW, sizeof(struct tour_box), (void **)&h->tour.box));
    PASS(take(h, TERN_MEMORY_WINDOW, places, (void **)&h->places[0]));
    PASS(take(h, TERN_MEMORY_DEVICE, places, (void **)&h->given));
    PASS(take(h, TERN_MEMORY_DEVICE, places, (void **)&h->back));
    PASS(take(h, TERN_MEMORY_DEVICE, boxes, (void **)&from));
    PASS(take(h, TERN_MEMORY_DEVICE, boxes, (void **)&h->tour.seen));
    PASS(take(h, TERN_MEMORY_DEVICE, boxes, (void **)&h->tour.got));
    PASS(take(h, TERN_MEMORY_DEVICE, boxes, (void **)&h->tour.early));
    PASS(take(h, TERN_MEMORY_DEVICE, ROUNDS * TOUR_THREADS * 8, (void **)&h->tour.olds));
    PASS(take(h, TERN_MEMORY_DEVICE, TOUR_THREADS * 4, (void **)&h->tour.status));
    for (int i = 0; i < ROUNDS; i++) {
        draw(h->rank, MAX_RANKS, (uint64_t)i, &from[i], sizeof from[i]);
    }
    h->tour.from = from;
    return 0;
}

/* While the network is open: what comes must be known to it. */
static int add_windows(struct host *h)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = ((size_t)h->num * sizeof(struct place) + page - 1) / page * page;
    int fd = memfd_create("hosts", MFD_CLOEXEC);
    void *adopted;
    EXPECT(tern_alloc(h->comm, TERN_MEMORY_WINDOW, HEAP, (void **)&h->places[1]), TERN_OUT_OF_MEMORY);
    OK(tern_heap_grow(h->comm, 2 * HEAP));
    PASS(take(h, TERN_MEMORY_WINDOW, HEAP, (void **)&h->places[1]));
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, "no memfd of %zu bytes", bytes);
    adopted = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(adopted != MAP_FAILED, "no mapping of %zu bytes", bytes);
    OK(tern_window_adopt(h->comm, adopted, bytes));
    close(fd);
    h->places[2] = (struct place *)adopted;
    return 0;
}

/* No rank reaches another's memory by itself, in no window. */
static int check_apart(const struct host *h)
{
    for (int w = 0; w < WINDOWS; w++) {
        for (int r = 0; r < h->num; r++) {
            void *pointer = NULL;
            OK(tern_peer_pointer(h->comm, h->places[w], r, &pointer));
            CHECK(pointer == (r == h->rank ? h->places[w] : NULL), "window %d of rank %d is at %p", w, r,
                  pointer);
        }
    }
    return 0;
}

static int open_host(struct host *h, const struct tern_id *id, uint32_t timeout_ms)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config net_config = TERN_NET_CONFIG_INIT;
    struct tern_net view = TERN_NET_INIT;
    struct tern_net_team none = TERN_NET_TEAM_INIT;
    config.machine = TERN_MACHINE_CPU;
    config.heap_bytes = HEAP;
    config.heap_max_bytes = 4 * HEAP;
    config.timeout_ms = LONG_MS;
    OK(tern_comm_open(id, h->rank, h->num, &config, &h->comm));
    PASS(take_memory(h));
    net_config.num_queues = 2;
    net_config.timeout_ms = timeout_ms;
    net_config.transport = h->num == 1 ? TERN_TRANSPORT_PROXY : TERN_TRANSPORT_AUTO;
    OK(tern_net_open(h->comm, &net_config, &h->network));
    OK(tern_stream_open(h->comm, &h->stream));
    PASS(add_windows(h));
    PASS(check_apart(h));
    OK(tern_team_open(h->comm, TERN_TEAM_WORLD, &h->team));
    h->members = none;
    OK(tern_net_team_open(h->network, h->team, &h->members));
    OK(tern_net_view(h->network, &view));
    h->tour.net = view;
    h->tour.team = h->members;
    OK(tern_comm_barrier(h->comm));
    return 0;
}

static void close_host(struct host *h)
{
    if (h->team != NULL) {
        tern_team_close(h->team);
    }
    if (h->network != NULL) {
        tern_net_close(h->network);
    }
    if (h->stream != NULL) {
        tern_stream_close(h->comm, h->stream);
    }
    if (h->comm != NULL) {
        tern_comm_close(h->comm);
    }
}

/* ---- Kernels ---- */

static int launch_tour(struct host *h, uint64_t round)
{
    struct tern_launch_args args = TERN_LAUNCH_ARGS_INIT;
    struct tour_args p = h->tour;
    uint64_t i = (round - 1) % ROUNDS;
    p.from += i;
    p.seen += i;
    p.got += i;
    p.early += i;
    p.olds += i * TOUR_THREADS;
    p.round = round;
    args.num_blocks = 1;
    args.num_threads = TOUR_THREADS;
    args.args = &p;
    args.args_bytes = sizeof p;
    args.shared_bytes = TOUR_SHARED;
    OK(tern_launch(h->comm, &net_tour, &args, h->stream));
    return 0;
}

static int check_tour(const struct host *h, uint64_t round)
{
    uint64_t i = round - 1;
    int before = (h->rank + h->num - 1) % h->num;
    const struct tour_box *mine = &h->tour.from[i], *got = &h->tour.got[i], *early = &h->tour.early[i];
    unsigned char taken[TOUR_THREADS] = {0};
    struct tour_box given, box;
    draw(before, MAX_RANKS, i, &given, sizeof given);
    box = tour_box_of(&given, round);
    CHECK(memcmp(&box, &h->tour.seen[i], sizeof box) == 0, "round %d brought something else", (int)round);
    CHECK(memcmp(got->cells, mine->cells, sizeof got->cells) == 0 &&
              memcmp(got->strips, mine->strips, sizeof got->strips) == 0 &&
              memcmp(got->sheets, mine->sheets, sizeof got->sheets) == 0,
          "round %d: gets brought something else", (int)round);
    CHECK(memcmp(early->cells[0], mine->cells[0], sizeof early->cells[0]) == 0 &&
              memcmp(early->strips[0], mine->strips[0], sizeof early->strips[0]) == 0 &&
              memcmp(early->sheets[0], mine->sheets[0], sizeof early->sheets[0]) == 0,
          "round %d: plain gets came late", (int)round);
    for (int t = 0; t < TOUR_THREADS; t++) {
        uint64_t ticket = h->tour.olds[i * TOUR_THREADS + (uint64_t)t] - i * TOUR_THREADS;
        CHECK(ticket < TOUR_THREADS && !taken[ticket], "round %d: a ticket twice, or of another round",
              (int)round);
        taken[ticket] = 1;
        CHECK(h->tour.status[t] == 0, "a call of thread %d ended with %d", t, h->tour.status[t]);
        CHECK(got->stored[t] == given.stored[TOUR_THREADS - 1 - t], "round %d: word %d", (int)round, t);
    }
    return 0;
}

static int run_kernels(struct host *h)
{
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        PASS(launch_tour(h, round));
    }
    OK(tern_net_synchronize(h->network, h->stream));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        PASS(check_tour(h, round));
    }
    return 0;
}

/* ---- Operations of the host ---- */

static uint64_t changed(int amo, uint64_t is, uint64_t value, uint64_t compare)
{
    switch (amo) {
    case TERN_AMO_ADD:
        return is + value;
    case TERN_AMO_AND:
        return is & value;
    case TERN_AMO_OR:
        return is | value;
    case TERN_AMO_XOR:
        return is ^ value;
    case TERN_AMO_CAS:
        return is == compare ? value : is;
    case TERN_AMO_FETCH:
        return is;
    default:
        return value;
    }
}

/* Every atomic on a word that nobody else changes, asking for the old value and not. */
static int change_word(struct host *h, int peer, void *word, uint32_t width)
{
    const uint64_t mask = width == 4 ? UINT32_MAX : UINT64_MAX;
    uint64_t is = 0xf0e1d2c3b4a59687ull & mask, old = 0;
    OK(tern_net_put_inline(h->network, peer, 0, word, is, width));
    for (int amo = TERN_AMO_ADD; amo <= TERN_AMO_FETCH; amo++) {
        for (int i = 0; i < 3; i++) {
            uint64_t value = 0x9e3779b97f4a7c15ull * (uint64_t)(3 * amo + i + 1) & mask,
                     compare = i == 1 ? ~is & mask : is; /* CAS: not that time */
            OK(tern_net_atomic(h->network, peer, 0, word, amo, width, value, compare, i == 2 ? NULL : &old));
            CHECK(i == 2 || old == is, "atomic %d of %u bytes: the word was %llx, not %llx", amo, width,
                  (unsigned long long)old, (unsigned long long)is);
            is = changed(amo, is, value, compare) & mask;
        }
    }
    OK(tern_net_atomic(h->network, peer, 0, word, TERN_AMO_FETCH, width, 0, 0, &old));
    CHECK(old == is, "the word is %llx, not %llx", (unsigned long long)old, (unsigned long long)is);
    return 0;
}

/* `at`: this rank's place in the peer's window. */
static int speak(struct host *h, int peer, struct place *at, uint64_t turn)
{
    struct place *given = &h->given[peer], *back = &h->back[peer];
    draw(h->rank, peer, turn, given->put, ROW);
    OK(tern_net_put(h->network, peer, 0, at->put, given->put, ROW));
    OK(tern_net_get(h->network, peer, 1, back->put, at->put, ROW));
    CHECK(memcmp(back->put, given->put, ROW) == 0, "a get from rank %d brought something else", peer);
    PASS(change_word(h, peer, &at->wide, 8));
    PASS(change_word(h, peer, &at->narrow, 4));
    OK(tern_net_signal(h->network, peer, 0, &at->narrow_flag, TERN_SIGNAL_SET, 4, turn));
    OK(tern_net_put_signal(h->network, peer, 0, at->signalled, given->put, ROW, &at->flag, TERN_SIGNAL_ADD, 8,
                           1));
    OK(tern_net_quiet(h->network, peer, -1));
    return 0;
}

static int speak_on_stream(struct host *h, int peer, struct place *at, uint64_t turn)
{
    struct place *given = &h->given[peer], *back = &h->back[peer];
    draw(h->rank, peer, turn, given->put, ROW);
    OK(tern_net_put_on_stream(h->network, peer, 0, at->put, given->put, ROW, h->stream));
    OK(tern_net_put_inline_on_stream(h->network, peer, 0, &at->wide, turn, 8, h->stream));
    OK(tern_net_quiet_on_stream(h->network, peer, 0, h->stream));
    OK(tern_net_get_on_stream(h->network, peer, 1, back->put, at->put, ROW, h->stream));
    OK(tern_net_atomic_on_stream(h->network, peer, 0, &at->wide, TERN_AMO_SWAP, 8, 0, 0, &back->wide,
                                 h->stream));
    OK(tern_net_signal_on_stream(h->network, peer, 0, &at->narrow_flag, TERN_SIGNAL_SET, 4, turn, h->stream));
    OK(tern_net_put_signal_on_stream(h->network, peer, 0, at->signalled, given->put, ROW, &at->flag,
                                     TERN_SIGNAL_ADD, 8, 1, h->stream));
    return 0;
}

/* What a peer has said in this turn is here. */
static int hear(struct host *h, int peer, const struct place *at, uint64_t turn)
{
    unsigned char row[ROW];
    int is_met = 0;
    OK(tern_net_test(h->network, &at->flag, 8, TERN_COMPARE_EQ, turn, &is_met));
    CHECK(is_met, "turn %d of rank %d was awaited, and is not met", (int)turn, peer);
    OK(tern_net_test(h->network, &at->narrow_flag, 4, TERN_COMPARE_NE, turn, &is_met));
    CHECK(!is_met, "the narrow flag of rank %d is not the turn's", peer);
    draw(peer, h->rank, turn, row, ROW);
    CHECK(memcmp(at->put, row, ROW) == 0 && memcmp(at->signalled, row, ROW) == 0,
          "turn %d of rank %d brought something else", (int)turn, peer);
    return 0;
}

static int take_turn(struct host *h, struct place *places, uint64_t turn)
{
    for (int i = 1; i < h->num; i++) {
        PASS(speak(h, (h->rank + i) % h->num, &places[h->rank], turn));
    }
    for (int r = 0; r < h->num; r++) {
        if (r != h->rank) {
            OK(tern_net_wait(h->network, &places[r].flag, 8, TERN_COMPARE_GE, turn, LONG_MS));
            PASS(hear(h, r, &places[r], turn));
        }
    }
    OK(tern_net_barrier(h->network, &h->members)); /* all have heard: the next turn may come */
    return 0;
}

static int take_turn_on_stream(struct host *h, struct place *places, uint64_t turn)
{
    for (int i = 1; i < h->num; i++) {
        PASS(speak_on_stream(h, (h->rank + i) % h->num, &places[h->rank], turn));
    }
    for (int r = 0; r < h->num; r++) {
        if (r != h->rank) {
            OK(tern_net_wait_on_stream(h->network, &places[r].flag, 8, TERN_COMPARE_GE, turn, LONG_MS,
                                       h->stream));
        }
    }
    OK(tern_net_quiet_on_stream(h->network, -1, -1, h->stream));
    OK(tern_net_barrier_on_stream(h->network, &h->members, h->stream));
    OK(tern_net_synchronize(h->network, h->stream));
    for (int r = 0; r < h->num; r++) {
        if (r != h->rank) {
            PASS(hear(h, r, &places[r], turn));
            CHECK(memcmp(h->back[r].put, h->given[r].put, ROW) == 0 && h->back[r].wide == turn,
                  "what came back from rank %d is something else", r);
        }
    }
    OK(tern_net_barrier(h->network, &h->members));
    return 0;
}

static int run_all(struct host *h)
{
    PASS(run_kernels(h));
    for (int w = 0; w < WINDOWS; w++) {
        PASS(take_turn(h, h->places[w], 1));
        PASS(take_turn_on_stream(h, h->places[w], 2));
    }
    return 0;
}

/* ---- One is lost ---- */

static int names(int rank)
{
    char name[16];
    snprintf(name, sizeof name, "rank %d", rank);
    return strstr(tern_last_error(), name) != NULL;
}

/* Kernels, until one fails: with a sentence that names the rank that is cut off; that one itself hears of
 * another. */
static int until_lost(struct host *h, int cut)
{
    double end = test_seconds() + 40;
    enum tern_status status = TERN_OK;
    uint64_t round;
    printf("# rank %d goes on\n", h->rank);
    fflush(stdout);
    for (round = ROUNDS + 1; status == TERN_OK && test_seconds() < end; round++) {
        PASS(launch_tour(h, round));
        status = tern_net_synchronize(h->network, h->stream);
    }
    CHECK(status == TERN_DISCONNECTED || status == TERN_TIMEOUT, "rank %d: round %d: %s: \"%s\"", h->rank,
          (int)round, tern_status_string(status), tern_last_error());
    for (int r = 0, named = 0; r < h->num; r++) {
        named |= r != h->rank && (h->rank == cut || r == cut) && names(r);
        CHECK(named || r + 1 < h->num, "rank %d: \"%s\"", h->rank, tern_last_error());
    }
    printf("# rank %d: %s\n", h->rank, tern_last_error());
    return 0;
}

/* What else is wanted of the lost rank ends so, too; the others are reached as before. */
static int others_go_on(struct host *h, int cut)
{
    struct place *at = &h->places[0][h->rank];
    enum tern_status status = tern_net_put(h->network, cut, 0, at->put, h->given[cut].put, ROW);
    CHECK(status == TERN_DISCONNECTED && names(cut), "a put to rank %d: %s: \"%s\"", cut,
          tern_status_string(status), tern_last_error());
    printf("# rank %d: %s\n", h->rank, tern_last_error());
    for (int r = 0; r < h->num; r++) {
        if (r != h->rank && r != cut) {
            OK(tern_net_put(h->network, r, 0, at->put, h->given[r].put, ROW));
            /* Who has it may leave before it has said so. */
            (void)tern_net_signal(h->network, r, 0, &at->mark, TERN_SIGNAL_ADD, 8, 1);
        }
    }
    for (int r = 0; r < h->num; r++) {
        if (r != h->rank && r != cut) {
            OK(tern_net_wait(h->network, &h->places[0][r].mark, 8, TERN_COMPARE_EQ, 1, LONG_MS));
        }
    }
    return 0;
}

/* ---- Ranks of this host ---- */

static int operations_body(int rank, struct procs_page *page, void *user)
{
    struct host h;
    int result;
    (void)user;
    memset(&h, 0, sizeof h);
    h.rank = rank;
    h.num = NUM_PROCS;
    result = open_host(&h, &page->id, LONG_MS);
    result = result ? result : run_all(&h);
    result = result || tern_comm_barrier(h.comm) != TERN_OK; /* a peer may still want something */
    close_host(&h);
    return result;
}

static int killed_body(int rank, struct procs_page *page, void *user)
{
    const int victim = *(const int *)user;
    struct host h;
    int result;
    memset(&h, 0, sizeof h);
    h.rank = rank;
    h.num = NUM_PROCS;
    result = open_host(&h, &page->id, LATE_MS);
    result = result ? result : run_kernels(&h);
    /* The victim's last signals have arrived everywhere. */
    result = result || tern_comm_barrier(h.comm) != TERN_OK;
    if (rank == victim && result == 0) {
        PASS(launch_tour(&h, ROUNDS + 1));
        usleep(2000); /* somewhere in it */
        raise(SIGKILL);
    }
    result = result ? result : until_lost(&h, victim);
    result = result ? result : others_go_on(&h, victim);
    close_host(&h);
    return result;
}

static int apart(int victim, int (*body)(int rank, struct procs_page *page, void *user))
{
    int result;
    setenv("TERN_DOMAIN_SIZE", "1", 1);
    setenv("TERN_NICS", "none", 1);
    setenv("TERN_PROXY", "tcp", 1);
    result = procs_run(NUM_PROCS, victim, 120, body, &victim);
    unsetenv("TERN_PROXY");
    unsetenv("TERN_NICS");
    unsetenv("TERN_DOMAIN_SIZE");
    return result;
}

static int operations(struct test *t)
{
    (void)t;
    return apart(-1, operations_body);
}

static int killed(struct test *t)
{
    (void)t;
    return apart(NUM_PROCS - 1, killed_body);
}

/* ---- One rank of somebody's job ---- */

static int one_rank(void)
{
    const char *cut = getenv("TERN_TEST_CUT");
    struct host h;
    struct tern_id id;
    int result;
    memset(&h, 0, sizeof h);
    OK(tern_id_from_environment(&id, &h.rank, &h.num));
    CHECK(h.num <= MAX_RANKS, "%d ranks", h.num);
    result = open_host(&h, &id, cut != NULL ? LATE_MS : LONG_MS);
    if (result == 0 && cut == NULL) {
        result = run_all(&h);
        result = result || tern_comm_barrier(h.comm) != TERN_OK;
    } else if (result == 0) {
        result = run_kernels(&h);
        result = result ? result : until_lost(&h, atoi(cut));
        result = result || h.rank == atoi(cut) ? result : others_go_on(&h, atoi(cut));
    }
    close_host(&h);
    printf("# rank %d of %d: %s\n", h.rank, h.num, result ? "failed" : "done");
    return result ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    if (getenv("TERN_RANK") != NULL) {
        return one_rank();
    }
    test_run(&t, "processes that share nothing: windows, kernels, operations of the host", operations);
    test_run(&t, "one of them is killed, and the others name it and go on", killed);
    return test_end(&t);
}
