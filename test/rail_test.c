/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams between domains (kernels/rail.h): every message arrives once and whole, whatever the rings, chunks
 * and schedules, through operations of different sizes one behind the other, with counters that begin
 * anywhere; pieces leave by the warps that filled them, or by a poster; chunks that are read out of order go
 * back in order; and who waits for a receiver that has stopped ends by the deadline, with a record. */
#include "rail_kernel.h"
#include "support.h"

#include "ep/ep_rail.h"
#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

TERN_KERNEL_DECLARE(rail_operation);
static const struct tern_kernel rail_operation = TERN_KERNEL_INIT(rail_operation);

enum {
    AWAIT_CREDIT = 9,
    RANKS = 8,
    MAX_OPS = 5,
    MAX_MESSAGES = 100,
    MAX_STRIDE = 1024,
    MAX_RING = 8192,
    MAX_CHANNELS = 3
};

/* What one operation does; messages by sender, then receiver. */
struct operation {
    uint32_t stride, chunk, bulk, home, readers, posts;
    uint32_t num[RANKS][RANKS];
};

struct scene {
    struct tern_comm *comms[RANKS];
    struct tern_network *networks[RANKS];
    struct tern_stream *lanes[RANKS];
    char *windows[RANKS];
    struct rank_memory *memory[RANKS]; /* device memory, which on the cpu machine is the host's, too */
    struct rng rng;
    uint32_t domains, group, channels, queues, credit_queues, ring_bytes, hold, num_ops;
    uint64_t begin; /* of all counters */
    int stopped;    /* rank that reads nothing; -1: none */
    uint32_t timeout_ms;
    struct operation ops[MAX_OPS];
};

/* Device memory of a rank, before that of its streams. */
struct rank_memory {
    struct ep_state state;
    struct ep_record record;
    uint32_t blocks_left[MAX_OPS], wrong, results[2];
    struct {
        uint32_t to[RANKS], from[RANKS], seen[RANKS * MAX_MESSAGES];
        int32_t slots[2 * MAX_MESSAGES * RANKS];
        uint32_t num_tokens;
    } ops[MAX_OPS];
};

static uint32_t num_ranks(const struct scene *s) { return s->domains * s->group; }

/* Rank of a rail, by domain. */
static uint32_t on_rail(const struct scene *s, uint32_t rank, uint32_t domain)
{
    return domain * s->group + rank % s->group;
}

static uint32_t index_of(uint32_t own, uint32_t other) { return other - (other > own); }

static void draw_operation(struct scene *s, struct operation *op)
{
    uint32_t most = s->ring_bytes / 2 / RAIL_UNIT;
    most = most > MAX_STRIDE / RAIL_UNIT ? MAX_STRIDE / RAIL_UNIT : most;
    op->stride = RAIL_UNIT * rng_between(&s->rng, 1, most);
    /* No more chunks in a ring than have counts, some to spare, as terni_rail_chunk sees to it. */
    op->chunk =
        rng_between(&s->rng, (s->ring_bytes / op->stride + RAIL_MAX_CHUNKS - 3) / (RAIL_MAX_CHUNKS - 2),
                    s->ring_bytes / 2 / op->stride);
    op->bulk = rng_below(&s->rng, 2);
    op->home = rng_below(&s->rng, 2);
    op->readers = rng_between(&s->rng, 1, 3);
    op->posts = rng_below(&s->rng, 2);
    for (uint32_t a = 0; a < num_ranks(s); a++) {
        for (uint32_t b = 0; b < num_ranks(s); b++) {
            op->num[a][b] = rng_one_in(&s->rng, 5) ? 0 : rng_below(&s->rng, MAX_MESSAGES + 1);
        }
    }
}

static void draw_scene(struct scene *s, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->rng.state = seed;
    s->domains = rng_between(&s->rng, 2, 4);
    s->group = rng_between(&s->rng, 1, 2);
    s->channels = rng_between(&s->rng, 1, MAX_CHANNELS);
    s->queues = rng_between(&s->rng, 1, s->channels);
    s->credit_queues = rng_below(&s->rng, 3);
    s->ring_bytes = RAIL_UNIT * rng_between(&s->rng, 2, rng_one_in(&s->rng, 2) ? 8 : MAX_RING / RAIL_UNIT);
    s->num_ops = rng_between(&s->rng, 1, MAX_OPS);
    s->begin = rng_below(&s->rng, 3) * ((1ull << 32) - RAIL_UNIT * rng_below(&s->rng, 40));
    s->stopped = -1;
    s->timeout_ms = 60000;
    s->hold = s->ring_bytes / 2;
    for (uint32_t o = 0; o < s->num_ops; o++) {
        draw_operation(s, &s->ops[o]);
        uint32_t room = s->ring_bytes - s->ops[o].chunk * s->ops[o].stride,
                 gap = s->ops[o].stride - RAIL_UNIT;
        s->hold = s->hold > room - gap ? room - gap : s->hold;
    }
}

/* Home's tokens: each asks for the next message of some domains, until all are asked for. */
static void draw_tokens(struct scene *s, uint32_t o, struct rank_memory *m)
{
    uint32_t num = s->domains - 1, next[RANKS] = {0}, t = 0;
    for (int left = 1; left;) {
        left = 0;
        for (uint32_t x = 0; x < num; x++) {
            int takes = next[x] < m->ops[o].from[x] && (t >= MAX_MESSAGES || rng_below(&s->rng, 3) > 0);
            m->ops[o].slots[t * num + x] = takes ? (int32_t)next[x]++ : -1;
            left |= next[x] < m->ops[o].from[x];
        }
        t++;
    }
    m->ops[o].num_tokens = t;
}

/* A rank's window: rings, words, the abort word. */
static uint64_t word_offset(const struct scene *s)
{
    return (terni_rail_ring_bytes(s->domains, s->channels, s->ring_bytes) + 255) / 256 * 256;
}

static uint64_t abort_offset(const struct scene *s)
{
    return word_offset(s) + terni_rail_word_bytes(s->domains, s->channels);
}

static void place_rails(const struct scene *s, uint32_t r, struct rail_args *rail)
{
    memset(rail, 0, sizeof *rail);
    rail->world.num_ranks = (int32_t)num_ranks(s);
    rail->world.num_domains = (int32_t)s->domains;
    rail->world.domain = (int32_t)(r / s->group);
    rail->world.domain_ranks = (int32_t)s->group;
    rail->num_channels = s->channels;
    rail->put_queues = s->queues;
    rail->credit_queues = s->credit_queues;
    rail->ring_bytes = s->ring_bytes;
    rail->hold = s->hold;
    terni_rail_place(rail, s->windows[r], s->windows[r] + word_offset(s), (char *)(s->memory[r] + 1));
}

static void fill_rank(struct scene *s, uint32_t r)
{
    uint32_t own = r / s->group;
    struct rail_args rail;
    struct rank_memory *m = s->memory[r];
    memset(m, 0, sizeof *m + terni_rail_state_bytes(s->domains, s->channels));
    memset(s->windows[r], 0, abort_offset(s) + 2 * sizeof(uint64_t));
    place_rails(s, r, &rail);
    for (uint32_t i = 0; i < (s->domains - 1) * s->channels; i++) {
        rail.tails[i] = rail.credits[i] = rail.sent[i] = rail.taken[i] = s->begin;
    }
    m->results[0] = m->results[1] = 1;
    for (uint32_t o = 0; o < s->num_ops; o++) {
        for (uint32_t e = 0; e < s->domains; e++) {
            if (e != own) {
                m->ops[o].to[index_of(own, e)] = s->ops[o].num[r][on_rail(s, r, e)];
                m->ops[o].from[index_of(own, e)] = s->ops[o].num[on_rail(s, r, e)][r];
            }
        }
        draw_tokens(s, o, m);
    }
}

static int open_scene(struct scene *s, uint64_t seed)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config net = TERN_NET_CONFIG_INIT;
    uint64_t window = abort_offset(s) + 2 * sizeof(uint64_t);
    config.machine = TERN_MACHINE_CPU; /* its memory is looked into */
    config.cpu_seed = seed;
    config.heap_bytes = window;
    net.num_queues = s->queues + s->credit_queues;
    OK(tern_comm_open_all((int)num_ranks(s), &config, s->comms));
    OK(tern_net_open_all((int)num_ranks(s), s->comms, &net, s->networks));
    for (uint32_t r = 0; r < num_ranks(s); r++) {
        uint64_t device = sizeof(struct rank_memory) + terni_rail_state_bytes(s->domains, s->channels);
        OK(tern_stream_open(s->comms[r], &s->lanes[r]));
        OK(tern_alloc(s->comms[r], TERN_MEMORY_WINDOW, window, (void **)&s->windows[r]));
        OK(tern_alloc(s->comms[r], TERN_MEMORY_DEVICE, device, (void **)&s->memory[r]));
        fill_rank(s, r);
    }
    return 0;
}

static void close_scene(struct scene *s)
{
    for (uint32_t r = 0; r < num_ranks(s); r++) {
        if (s->lanes[r] != NULL) {
            (void)tern_stream_synchronize(s->comms[r], s->lanes[r]);
        }
    }
    for (uint32_t r = 0; r < num_ranks(s); r++) {
        if (s->comms[r] != NULL) {
            tern_net_close(s->networks[r]);
            tern_free(s->comms[r], s->memory[r]);
            tern_free(s->comms[r], s->windows[r]);
            tern_stream_close(s->comms[r], s->lanes[r]);
        }
    }
    for (uint32_t r = 0; r < num_ranks(s); r++) {
        tern_comm_close(s->comms[r]);
    }
}

static int launch(struct scene *s, uint32_t r, uint32_t o)
{
    const struct operation *op = &s->ops[o];
    struct rank_memory *m = s->memory[r];
    struct rail_test_args p;
    struct tern_launch_args args = TERN_LAUNCH_ARGS_INIT;
    memset(&p, 0, sizeof p);
    p.f.first_rank = (int32_t)(r / s->group * s->group);
    p.f.rank = (int32_t)(r % s->group);
    p.f.num_ranks = (int32_t)s->group;
    p.f.own = s->windows[r];
    p.f.ep_bases = s->windows + p.f.first_rank;
    p.f.abort_offset = abort_offset(s);
    p.f.state = &m->state;
    p.f.record = &m->record;
    p.f.timeout_ns = s->timeout_ms * 1000000ull;
    place_rails(s, r, &p.rail);
    p.rail.world.net.size = sizeof p.rail.world.net;
    OK(tern_net_view(s->networks[r], &p.rail.world.net));
    p.rail.stride = op->stride;
    p.rail.chunk = op->chunk;
    p.number = o + 1;
    p.bulk = op->bulk;
    p.home = op->home;
    p.stops = (int)r == s->stopped;
    p.readers = op->readers;
    p.posts = op->posts;
    p.num_tokens = m->ops[o].num_tokens;
    p.slots = m->ops[o].slots;
    p.to = m->ops[o].to;
    p.from = m->ops[o].from;
    p.max_messages = MAX_MESSAGES;
    p.seen = m->ops[o].seen;
    p.wrong = &m->wrong;
    p.left = &m->blocks_left[o];
    p.results = m->results;
    args.num_blocks = (int)op->readers + 1;
    args.num_threads = RAIL_TEST_THREADS;
    args.shared_bytes = RAIL_TEST_WARPS * (op->stride + (uint32_t)sizeof(uint64_t) + POSTER_PRODUCER_BYTES) +
                        POSTER_DESK_BYTES + POSTER_NEAR_BYTES;
    args.args = &p;
    args.args_bytes = sizeof p;
    OK(tern_launch(s->comms[r], &rail_operation, &args, s->lanes[r]));
    return 0;
}

static int run_scene(struct scene *s, uint64_t seed)
{
    PASS(open_scene(s, seed));
    /* Operation after operation on one rank: the others are behind by as much as the schedule likes. */
    for (uint32_t r = 0; r < num_ranks(s); r++) {
        for (uint32_t o = 0; o < s->num_ops; o++) {
            PASS(launch(s, r, o));
        }
    }
    for (uint32_t r = 0; r < num_ranks(s); r++) {
        OK(tern_stream_synchronize(s->comms[r], s->lanes[r]));
    }
    return 0;
}

static int check_rank(const struct scene *s, uint32_t r)
{
    const struct rank_memory *m = s->memory[r];
    CHECK(m->results[0] && m->results[1] && !m->record.written, "rank %u: an operation was abandoned", r);
    CHECK(m->wrong == 0, "rank %u: %u words are wrong", r, m->wrong);
    for (uint32_t o = 0; o < s->num_ops; o++) {
        uint32_t times = s->ops[o].home ? RAIL_TEST_PARTS : 1;
        for (uint32_t x = 0; x + 1 < s->domains; x++) {
            for (uint32_t i = 0; i < MAX_MESSAGES; i++) {
                uint32_t seen = m->ops[o].seen[x * MAX_MESSAGES + i];
                CHECK(seen == (i < m->ops[o].from[x] ? times : 0),
                      "rank %u, operation %u, domain %u: message %u of %u was read %u times", r, o, x, i,
                      m->ops[o].from[x], seen);
            }
        }
    }
    return 0;
}

static int check_release(const struct rail_release *e)
{
    CHECK(e->pending == 0 && e->next == 0, "%u pending, %u next", e->pending, e->next);
    for (uint32_t k = 0; k < RAIL_MAX_CHUNKS; k++) {
        CHECK(e->counts[k] == 0, "chunk %u counts %u", k, e->counts[k]);
    }
    return 0;
}

/* At the end everything that was sent has been read, and given back but for what the reader holds for the
 * next operation. */
static int check_counters(const struct scene *s, uint32_t r)
{
    struct rail_args rail;
    place_rails(s, r, &rail);
    for (uint32_t i = 0; i < (s->domains - 1) * s->channels; i++) {
        uint32_t own = r / s->group, e = i / s->channels;
        struct rail_args peer;
        e += e >= own;
        place_rails(s, on_rail(s, r, e), &peer);
        const uint32_t held = peer.releases[index_of(e, own) * s->channels + i % s->channels].held;
        CHECK(rail.credits[i] + held == rail.sent[i] && rail.tails[i] == rail.taken[i],
              "rank %u, stream %u: sent %llu, given back %llu and held %u; arrived %llu, read %llu", r, i,
              (unsigned long long)rail.sent[i], (unsigned long long)rail.credits[i], held,
              (unsigned long long)rail.tails[i], (unsigned long long)rail.taken[i]);
        CHECK(held <= s->hold, "rank %u, stream %u: %u bytes of %u are held", r, i, held, s->hold);
        PASS(check_release(&rail.releases[i]));
    }
    return 0;
}

static int streams(struct test *t)
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, 60);
    static struct scene s;
    for (uint64_t seed = first; seed <= last; seed++) {
        int result;
        draw_scene(&s, seed);
        result = run_scene(&s, seed);
        for (uint32_t r = 0; !result && r < num_ranks(&s); r++) {
            result = check_rank(&s, r);
            result = result ? result : check_counters(&s, r);
        }
        close_scene(&s);
        CHECK(result == 0, "seed %llu: %u domains of %u, %u channels, rings of %u bytes, %u operations",
              (unsigned long long)seed, s.domains, s.group, s.channels, s.ring_bytes, s.num_ops);
    }
    return 0;
}

/* Rank 1 reads nothing: rank 0 fills its ring and gives up, and says on whom. */
static int check_stopped(const struct scene *s, double seconds)
{
    const struct rank_memory *m = s->memory[0];
    CHECK(!m->results[0], "rank 0 has sent more than a ring holds");
    CHECK(m->record.written && m->record.status == TERN_TIMEOUT && m->record.awaited == AWAIT_CREDIT &&
              m->record.peer == 1 && m->record.rank == 0,
          "the record says status %d, awaited %d, peer %d of rank %d", m->record.status, m->record.awaited,
          m->record.peer, m->record.rank);
    CHECK(seconds < 10, "that took %.1f s", seconds);
    return 0;
}

static int stopped(struct test *t)
{
    static struct scene s;
    (void)t;
    for (uint32_t home = 0; home < 2; home++) {
        double begin;
        int result;
        draw_scene(&s, 5);
        s.domains = 2;
        s.group = 1;
        s.ring_bytes = 4 * RAIL_UNIT;
        s.num_ops = 1;
        s.stopped = 1;
        s.timeout_ms = 300;
        s.ops[0] = (struct operation){RAIL_UNIT, 1, 0, home, 1, home, {{0, 50}, {3, 0}}};
        begin = test_seconds();
        result = run_scene(&s, 0);
        result = result ? result : check_stopped(&s, test_seconds() - begin);
        close_scene(&s);
        PASS(result);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "every message once, in whatever order", streams);
    test_run(&t, "a receiver that has stopped", stopped);
    return test_end(&t);
}
