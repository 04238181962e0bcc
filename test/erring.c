/* SPDX-License-Identifier: Apache-2.0
 *
 * See erring.h. */
#include "erring.h"

#include "ep/ep.h"
#include "net/proxy_parts.h"
#include "net/queue.h"
#include "net/softnic_parts.h"
#include "net/tcp_engine.h"
#include "pgas/pgas_nics.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { ENOUGH_PACKETS = 2000 }; /* to see each fault: one in 200 is lost */

static struct softnic_traffic traffic; /* of all objects that have closed, in threads of their own */
static pthread_mutex_t traffic_lock = PTHREAD_MUTEX_INITIALIZER;

void erring_count(const struct tern_ep *ep)
{
    struct softnic_traffic t;
    if (ep != NULL && terni_pgas_nics_traffic(ep->network, &t) == TERN_OK) {
        pthread_mutex_lock(&traffic_lock);
        traffic.sent += t.sent;
        traffic.lost += t.lost;
        traffic.doubled += t.doubled;
        traffic.delayed += t.delayed;
        traffic.reordered += t.reordered;
        traffic.resent += t.resent;
        pthread_mutex_unlock(&traffic_lock);
    }
}

int erring_stop(const struct tern_ep *ep)
{
    OK(terni_softnic_abort((struct softnic_provider *)ep->network->nics->provider.state));
    return 0;
}

int erring_cut(const struct tern_ep *ep, int peer)
{
    struct proxy *p = terni_courier_proxy(ep->network->courier);
    struct proxy_counts counts;
    int fd;
    CHECK(strncmp(p->engine->name, "tcp", 3) == 0, "the engine is %s", p->engine->name);
    fd = ((struct tcp_engine *)p->engine)->wires[peer]->fd;
    terni_proxy_counts(p, &counts); /* its thread, which will close it, comes after this look */
    CHECK(shutdown(fd, SHUT_RDWR) == 0, "there is no connection");
    return 0;
}

void erring_fail(const struct tern_ep *ep, int peer, uint32_t num_queues)
{
    const struct net_queue *queues = (const struct net_queue *)ep->network->view.queues;
    for (uint32_t q = 0; q < num_queues; q++) {
        uint64_t *error = &queues[(uint32_t)peer * ep->network->num_queues + q].state->error;
        __atomic_store_n(error, TERN_QUEUE_ERROR_SEEN | NET_SYNDROME_LOST, __ATOMIC_RELAXED);
    }
}

int erring_delay(const struct tern_ep *ep, uint64_t latency_ns)
{
    struct softnic_provider *p = (struct softnic_provider *)ep->network->nics->provider.state;
    struct softnic_rates rates = p->config.rates;
    CHECK(p->is_modelled, "this NIC has no modelled wire");
    rates.latency_ns = latency_ns;
    OK(terni_softnic_pause(p)); /* it is told of its model when it runs again */
    OK(terni_softnic_model(&rates, &p->model));
    OK(terni_softnic_resume(p));
    return 0;
}

/* 2 to 5 domains of 1 to 4 ranks. */
static void draw_world(int world[2], uint64_t seed, int max_ranks)
{
    struct rng r = {seed + 4242};
    do {
        world[1] = (int)rng_between(&r, 1, 4);
        world[0] = world[1] * (int)rng_between(&r, 2, 5);
    } while (world[0] > max_ranks);
}

static int run_seeds(struct test *t, const struct erring *e)
{
    static const int even[] = {4, 2}, odd[] = {15, 5}, small_odd[] = {6, 2};
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, e->count);
    for (uint64_t seed = first; seed <= last; seed++) {
        int drawn[2];
        draw_world(drawn, seed, e->max_ranks);
        terni_nic_settings.seed = seed;
        PASS(e->body(t, seed, even));
        PASS(e->body(t, seed, e->max_ranks < 15 ? small_odd : odd));
        PASS(e->body(t, seed, drawn));
    }
    return 0;
}

int erring_run(struct test *t, const struct erring *e)
{
    const char *machine = getenv("TERN_MACHINE");
    const struct softnic_traffic *n = &traffic;
    int result;
    if (machine != NULL && strcmp(machine, "cuda") == 0) {
        return test_skip(t, "ranks that share a GPU have no kernel each for packets");
    }
    memset(&traffic, 0, sizeof traffic);
    terni_softnic_wire_err(&terni_nic_settings.wire, e->is_adaptive);
    result = run_seeds(t, e);
    memset(&terni_nic_settings, 0, sizeof terni_nic_settings);
    PASS(result);
    test_detail(t, "of %llu packets %llu lost, %llu doubled, %llu delayed, %llu reordered; %llu times again",
                (unsigned long long)n->sent, (unsigned long long)n->lost, (unsigned long long)n->doubled,
                (unsigned long long)n->delayed, (unsigned long long)n->reordered,
                (unsigned long long)n->resent);
    CHECK(n->sent != 0, "no NIC has sent a packet");
    CHECK(n->sent < ENOUGH_PACKETS ||
              (n->lost != 0 && n->doubled != 0 && n->delayed != 0 && n->reordered != 0 && n->resent != 0),
          "the network has not erred in every way: %s", t->detail);
    return 0;
}
