/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks whose NICs speak packets, over a network that errs: what of it programs see. Message passing that
 * is promised holds in every run, and what is not promised is caught in some; faults of the network end
 * operations by name and syndrome, or late and well. That results are right is in the other net tests, which
 * all run over packets too. */
#include "net_scene.h"

#include "pgas/pgas_nics.h"

#include <stdlib.h>
#include <string.h>

/* ---- Message passing ---- */

enum { SEEDS = 6, ROUNDS = 60, ROW = 1500 };

struct litmus {
    const char *name;
    uint32_t flag_kind, flag_queue; /* of the data is queue 0 */
    int promised_by;                /* RIG_PACKETS: only where writes of a queue stay in order */
    int has_fence;                  /* of all queues to the peer, between the two */
    uint32_t signal, width;         /* 0: TERN_SIGNAL_ADD, 8 */
    uint32_t num_nics;              /* 0: one */
};

struct passing {
    struct net_rig rig;
    struct place from[2], boxes[2], log[2], flags[2];
};

static void *at(const struct passing *p, struct place place, size_t offset)
{
    return (char *)world_device(&p->rig.world, place) + offset;
}

static void take(struct passing *p)
{
    struct rng rng = {11};
    memset(p, 0, sizeof *p);
    net_rig_init(&p->rig, 2);
    for (int r = 0; r < 2; r++) {
        p->from[r] = world_take(&p->rig.world, r, ARENA_WINDOW, ROUNDS * ROW, "what is sent");
        p->boxes[r] = world_take(&p->rig.world, r, ARENA_WINDOW, ROUNDS * ROW, "boxes");
        p->flags[r] = world_take(&p->rig.world, r, ARENA_WINDOW, ROUNDS * 8, "flags");
        p->log[r] = world_take(&p->rig.world, r, ARENA_WINDOW, ROUNDS * ROW, "what was seen");
        memset(world_image(&p->rig.world, p->boxes[r]), 0, ROUNDS * ROW);
        memset(world_image(&p->rig.world, p->flags[r]), 0, ROUNDS * 8);
    }
    rng_bytes(&rng, world_image(&p->rig.world, p->from[0]), ROUNDS * ROW);
}

/* Rank 0 sends a row, then raises its flag. */
static void add_sending(struct passing *p, const struct litmus *l, int round)
{
    struct net_request *q = net_rig_add(&p->rig, 0);
    q->kind = NET_REQUEST_PUT;
    q->peer = 1;
    q->remote = at(p, p->boxes[0], (size_t)round * ROW);
    q->local = at(p, p->from[0], (size_t)round * ROW);
    q->bytes = ROW;
    if (l->has_fence) {
        q = net_rig_add(&p->rig, 0);
        q->kind = NET_REQUEST_FENCE;
        q->peer = 1;
        q->queue = TERN_ALL_QUEUES;
    }
    q = net_rig_add(&p->rig, 0);
    q->kind = l->flag_kind;
    q->peer = 1;
    q->queue = l->flag_queue;
    q->remote = at(p, p->flags[0], (size_t)round * 8);
    q->width = l->width != 0 ? l->width : 8;
    q->op = l->signal != 0 ? l->signal : (uint32_t)TERN_SIGNAL_ADD;
    q->value = 1;
}

/* Rank 1 waits for the flag and looks at the row. */
static void add_looking(struct passing *p, const struct litmus *l, int round)
{
    struct net_request *q = net_rig_add(&p->rig, 1);
    q->kind = NET_REQUEST_WAIT;
    q->peer = 1;
    q->remote = at(p, p->flags[1], (size_t)round * 8);
    q->width = l->width != 0 ? l->width : 8;
    q->op = TERN_COMPARE_EQ;
    q->value = 1;
    q->timeout_ns = round % 2 ? ~0ull : 0; /* no deadline, or the network's */
    q = net_rig_add(&p->rig, 1);
    q->kind = NET_REQUEST_GET;
    q->peer = 1;
    q->remote = at(p, p->boxes[1], (size_t)round * ROW);
    q->local = at(p, p->log[1], (size_t)round * ROW);
    q->bytes = ROW;
}

static int run_passing(struct passing *p, const struct litmus *l, uint64_t seed, int *stale)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct net_shape shape = {GROUP_THREAD, 1, 32, 3 * ROUNDS};
    const char *seen, *sent = (const char *)world_image(&p->rig.world, p->from[0]);
    config.num_queues = 2;
    config.num_nics = l->num_nics;
    PASS(net_rig_open(&p->rig, &config, seed));
    PASS(world_upload(&p->rig.world));
    for (int round = 0; round < ROUNDS; round++) {
        add_sending(p, l, round);
        add_looking(p, l, round);
    }
    PASS(net_rig_launch(&p->rig, 1, &shape, NULL));
    PASS(net_rig_launch(&p->rig, 0, &shape, NULL));
    PASS(net_rig_collect(&p->rig));
    PASS(net_rig_all(&p->rig, TERN_OK));
    seen = (const char *)world_peek(&p->rig.world, 1, at(p, p->log[1], 0), ROUNDS * ROW);
    CHECK(seen != NULL, "what was seen cannot be read");
    for (int round = 0; round < ROUNDS; round++) {
        *stale += memcmp(seen + (size_t)round * ROW, sent + (size_t)round * ROW, ROW) != 0;
    }
    return 0;
}

static int litmus(struct test *t, const struct litmus *l)
{
    int is_promised = net_rig_way()->packets <= l->promised_by, stale = 0;
    int seeds = is_promised ? test_scaled(t, SEEDS) : SEEDS;
    static struct passing p;
#ifdef TERN_THREAD_SANITIZER
    if (!is_promised) {
        return test_skip(t, "a race on purpose");
    }
#endif
    for (int seed = 1; seed <= seeds; seed++) {
        int result;
        take(&p);
        result = run_passing(&p, l, (uint64_t)seed, &stale);
        net_rig_close(&p.rig);
        CHECK(result == 0, "seed %d", seed);
    }
    test_detail(t, "%d of %d rows stale", stale, seeds * ROUNDS);
    CHECK(is_promised ? stale == 0 : stale > 0 && stale < seeds * ROUNDS, "%s: %d of %d rows are stale",
          l->name, stale, seeds * ROUNDS);
    return 0;
}

static int by_signal(struct test *t)
{
    static const struct litmus l = {"data, then a signal", NET_REQUEST_SIGNAL, 0, RIG_ADAPTIVE, 0, 0, 0, 0};
    return litmus(t, &l);
}

static int by_set(struct test *t)
{
    static const struct litmus l = {"data, then a signal of 4 bytes that sets",
                                    NET_REQUEST_SIGNAL,
                                    0,
                                    RIG_ADAPTIVE,
                                    0,
                                    TERN_SIGNAL_SET,
                                    4,
                                    0};
    return litmus(t, &l);
}

static int by_write(struct test *t)
{
    static const struct litmus l = {
        "data, then a flag that is put", NET_REQUEST_PUT_INLINE, 0, RIG_PACKETS, 0, 0, 0, 0};
    return litmus(t, &l);
}

static int by_fenced_write(struct test *t)
{
    static const struct litmus l = {
        "data, a fence, a flag that is put", NET_REQUEST_PUT_INLINE, 0, RIG_ADAPTIVE, 1, 0, 0, 0};
    return litmus(t, &l);
}

static int by_other_queue(struct test *t)
{
    static const struct litmus l = {
        "data, then a signal by another queue", NET_REQUEST_SIGNAL, 1, RIG_NO_PACKETS, 0, 0, 0, 0};
    return litmus(t, &l);
}

static int by_fenced_queue(struct test *t)
{
    static const struct litmus l = {
        "data, a fence, a signal by another queue", NET_REQUEST_SIGNAL, 1, RIG_ADAPTIVE, 1, 0, 0, 0};
    return litmus(t, &l);
}

/* Each queue is on a NIC of its own, at both ends: what one has acknowledged may still be on its way to
 * memory when the other raises the flag, unless the fence has pushed it on. */
static int by_fenced_nic(struct test *t)
{
    static const struct litmus l = {
        "data, a fence, a signal by another NIC", NET_REQUEST_SIGNAL, 1, RIG_ADAPTIVE, 1, 0, 0, 2};
    return litmus(t, &l);
}

/* ---- Faults ---- */

/* A NIC gives up after three fourths of a network's deadline at most; the rest is for a machine with other
 * things to do. */
enum { FAULT_MS = 4000 };

/* The first packets of a kind are dropped, of every rank's to every other. */
static void fault(struct rc_faults *f, uint32_t kind, uint64_t last)
{
    f->kinds = 1u << kind;
    f->nth_fault = RC_FAULT_DROP;
    f->nth_first = 1;
    f->nth_last = last;
}

static int read_word(struct host_scene *s, uint32_t queue, uint64_t wanted)
{
    uint64_t seen = 0;
    OK(tern_net_get(s->rig.networks[0], 2, queue, &seen, device(s, s->words[0], 0), 8));
    CHECK(seen == wanted, "the word is %llu, not %llu", (unsigned long long)seen, (unsigned long long)wanted);
    return 0;
}

static int swallowed_body(struct host_scene *s)
{
    PASS(put_ends(s, s->box[0], 1, (char *)device(s, s->box[0], 0), 1000, TERN_DISCONNECTED,
                  "queue 1 to rank 2 has failed with syndrome 0x15, transport retry counter exceeded"));
    return read_word(s, 0, 0); /* a request of another kind, by another queue */
}

static int answer_lost_body(struct host_scene *s)
{
    uint64_t old = 0;
    REFUSES(tern_net_atomic(s->rig.networks[0], 2, 1, device(s, s->words[0], 0), TERN_AMO_ADD, 8, 3, 0, &old),
            TERN_DISCONNECTED, "queue 1 to rank 2 has failed with syndrome 0x15");
    return read_word(s, 0, 3); /* once, although it was asked for again and again */
}

static int late_body(struct host_scene *s)
{
    struct softnic_traffic t;
    uint64_t old = 9;
    PASS(put_ends(s, s->box[0], 1, (char *)device(s, s->box[0], 0), 1000, TERN_OK, ""));
    OK(tern_net_atomic(s->rig.networks[0], 2, 1, device(s, s->words[0], 0), TERN_AMO_ADD, 8, 3, 0, &old));
    CHECK(old == 0, "the old value is %llu", (unsigned long long)old);
    PASS(read_word(s, 0, 3));
    OK(terni_softnic_traffic((struct softnic_provider *)s->rig.networks[0]->nics->provider.state, &t));
    CHECK(t.lost >= 3 && t.resent >= 3, "%llu packets were lost, %llu times some were sent again",
          (unsigned long long)t.lost, (unsigned long long)t.resent);
    return 0;
}

/* A peer's queue pairs are put into error, as by its driver: it is silent, and flushes what is its own. */
static int stopped_body(struct host_scene *s)
{
    struct tern_network *n = s->rig.networks[2];
    PASS(put_ends(s, s->box[0], 1, (char *)device(s, s->box[0], 0), 1000, TERN_OK, ""));
    OK(terni_softnic_abort((struct softnic_provider *)n->nics->provider.state));
    PASS(put_ends(s, s->box[0], 1, (char *)device(s, s->box[0], 0), 1000, TERN_DISCONNECTED,
                  "queue 1 to rank 2 has failed with syndrome 0x15"));
    OK(tern_net_put(s->rig.networks[0], 3, 1, device(s, s->box[0], 0), device(s, s->box[0], 0), 1000));
    return 0;
}

/* fault_of: what the network does, or NULL. */
static int with_fault(void (*fault_of)(struct softnic_wire *w), uint32_t timeout_ms,
                      int (*body)(struct host_scene *s))
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct softnic_wire *w = &terni_nic_settings.wire;
    struct rc_faults none;
    memset(&none, 0, sizeof none);
    w->requests = w->answers = none;
    if (fault_of != NULL) {
        fault_of(w);
    }
    config.num_queues = 2;
    config.timeout_ms = timeout_ms;
    return in_scene(&config, body);
}

static void swallow(struct softnic_wire *w) { fault(&w->requests, RC_WRITE, UINT64_MAX); }
static void lose_answers(struct softnic_wire *w) { fault(&w->answers, RC_ATOMIC_ANSWER, UINT64_MAX); }
static void lose_three(struct softnic_wire *w)
{
    fault(&w->requests, RC_WRITE, 3);
    fault(&w->answers, RC_ATOMIC_ANSWER, 3);
}

static int swallows(struct test *t)
{
    (void)t;
    return with_fault(swallow, FAULT_MS, swallowed_body);
}

static int loses_answers(struct test *t)
{
    (void)t;
    return with_fault(lose_answers, FAULT_MS, answer_lost_body);
}

static int is_late(struct test *t)
{
    (void)t;
    return with_fault(lose_three, 20000, late_body);
}

static int is_stopped(struct test *t)
{
    (void)t;
    return with_fault(NULL, FAULT_MS, stopped_body);
}

/* ---- Asked for by the environment ---- */

static int open_as(const char *text, enum tern_status wanted, const char *sentence)
{
    struct tern_comm_config comm_config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[2];
    struct tern_comm *comms[2];
    enum tern_status status;
    int has_packets;
    comm_config.heap_bytes = 1 << 20;
    comm_config.machine = TERN_MACHINE_CPU;
    config.transport = TERN_TRANSPORT_SOFTNIC;
    OK(tern_comm_open_all(2, &comm_config, comms));
    setenv("TERN_SOFTNIC", text, 1);
    status = tern_net_open_all(2, comms, &config, networks);
    unsetenv("TERN_SOFTNIC");
    has_packets = status == TERN_OK && networks[0]->wire_bytes != 0;
    for (int r = 0; r < 2; r++) {
        if (status == TERN_OK) {
            tern_net_close(networks[r]);
        }
    }
    for (int r = 0; r < 2; r++) {
        tern_comm_close(comms[r]);
    }
    CHECK(status == wanted && has_packets == (status == TERN_OK && text[0] != '\0'),
          "TERN_SOFTNIC=%s: %s, packets %d", text, tern_status_string(status), has_packets);
    CHECK(status == TERN_OK || strstr(tern_last_error(), sentence) != NULL, "\"%s\"", tern_last_error());
    return 0;
}

static int environment(struct test *t)
{
    static const char *const wrong[] = {"packet", "packetsx", "adaptive:", "adaptive:1x", "packets:-1", "1"};
    if (net_rig_on_cuda()) {
        return test_skip(t, "ranks that share a GPU cannot have NICs there");
    }
    PASS(open_as("", TERN_OK, ""));
    PASS(open_as("packets", TERN_OK, ""));
    PASS(open_as("adaptive", TERN_OK, ""));
    PASS(open_as("adaptive:77", TERN_OK, ""));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        PASS(open_as(wrong[i], TERN_INVALID_ARGUMENT, "is neither packets nor adaptive"));
    }
    /* Without a mapping there is nowhere to send packets to. */
    setenv("TERN_DOMAIN_SIZE", "1", 1);
    int result = open_as("packets", TERN_UNSUPPORTED, "sends no packets to that of rank 1");
    unsetenv("TERN_DOMAIN_SIZE");
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_packet_cases(&t, "data, then a signal", by_signal);
    net_rig_packet_cases(&t, "data, then a signal of 4 bytes that sets", by_set);
    net_rig_packet_cases(&t, "data, then a flag that is put", by_write);
    net_rig_packet_cases(&t, "data, a fence, a flag that is put", by_fenced_write);
    net_rig_packet_cases(&t, "data, then a signal by another queue", by_other_queue);
    net_rig_packet_cases(&t, "data, a fence, a signal by another queue", by_fenced_queue);
    net_rig_packet_cases(&t, "data, a fence, a signal by another NIC", by_fenced_nic);
    net_rig_packet_cases(&t, "requests are swallowed: 0x15", swallows);
    net_rig_packet_cases(&t, "an atomic's answers are lost for ever: once, and 0x15", loses_answers);
    net_rig_packet_cases(&t, "three packets are lost: late success", is_late);
    net_rig_packet_cases(&t, "a peer's queue pairs are stopped: 0x15", is_stopped);
    test_run(&t, "packets by TERN_SOFTNIC", environment);
    return test_end(&t);
}
