/* SPDX-License-Identifier: Apache-2.0
 *
 * The default stream is the caller's. What waits there for a peer must not stop the library's own short work:
 * a rank may issue an operation on one object and then open or reset another, while its peer does so in the
 * other order. Where ranks share a GPU and with it the default stream, it is refused by either name. */
#include "support.h"

#include <pthread.h>
#include <string.h>

enum { RANKS = 2, DEADLINE_MS = 6000 };

struct member {
    pthread_t thread;
    struct tern_id id;
    int rank, result;
    int reset; /* the second object is open already and is reset */
    struct tern_comm *comm;
    struct tern_ep *ep, *other;
};

static struct tern_ep_config ep_config(void)
{
    struct tern_ep_config c = TERN_EP_CONFIG_INIT;
    c.num_experts = RANKS;
    c.max_topk = 1;
    c.max_tokens = 4;
    c.max_row_bytes = 64;
    return c;
}

static enum tern_status route(struct tern_ep *ep, struct tern_stream *stream)
{
    struct tern_route_args a = TERN_ROUTE_ARGS_INIT;
    struct tern_route *r = NULL;
    a.topk = 1;
    return tern_route_open(ep, &a, stream, &r);
}

static enum tern_status open_or_reset(struct member *m)
{
    struct tern_ep_config c = ep_config();
    return m->reset ? tern_ep_reset(m->other) : tern_ep_open(m->comm, &c, &m->other);
}

/* Rank 0's route waits for rank 1, which comes to it only after the collective on the other object. */
static int cross(struct member *m)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config c = ep_config();
    config.machine = TERN_MACHINE_CPU; /* where every rank has a default stream of its own */
    config.heap_bytes = 1 << 20;
    config.timeout_ms = DEADLINE_MS;
    OK(tern_comm_open(&m->id, m->rank, RANKS, &config, &m->comm));
    OK(tern_ep_open(m->comm, &c, &m->ep));
    if (m->reset) {
        OK(tern_ep_open(m->comm, &c, &m->other));
        OK(route(m->other, NULL)); /* done, but nobody has waited for it when the other's work follows */
    }
    if (m->rank == 0) {
        OK(route(m->ep, NULL));
        OK(open_or_reset(m));
    } else {
        OK(open_or_reset(m));
        OK(route(m->ep, NULL));
    }
    OK(tern_ep_synchronize(m->ep));
    return 0;
}

static void *member_main(void *user)
{
    struct member *m = (struct member *)user;
    m->result = cross(m);
    tern_ep_close(m->other);
    tern_ep_close(m->ep);
    tern_comm_close(m->comm);
    return NULL;
}

static int cross_all(int reset)
{
    struct member members[RANKS];
    int result = 0;
    memset(members, 0, sizeof(members));
    OK(tern_id_create(NULL, &members[0].id));
    for (int r = 0; r < RANKS; r++) {
        members[r].id = members[0].id;
        members[r].rank = r;
        members[r].reset = reset;
        CHECK(pthread_create(&members[r].thread, NULL, member_main, &members[r]) == 0, "no thread %d", r);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(members[r].thread, NULL);
        result = members[r].result ? members[r].result : result;
    }
    return result;
}

static int opening(struct test *t)
{
    (void)t;
    return cross_all(0);
}

static int resetting(struct test *t)
{
    (void)t;
    return cross_all(1);
}

static int refuse(struct tern_comm **comms, struct tern_ep **eps)
{
    struct tern_ep_config c = ep_config();
    struct tern_stream *legacy = (struct tern_stream *)(uintptr_t)1; /* the value of cudaStreamLegacy */
    OK(tern_ep_open_all(RANKS, comms, &c, eps));
    REFUSES(route(eps[0], NULL), TERN_INVALID_ARGUMENT, "stream is NULL, but 2 ranks share device 0");
    REFUSES(route(eps[1], legacy), TERN_INVALID_ARGUMENT, "stream is cudaStreamLegacy, but 2 ranks share");
    return 0;
}

static int shared_gpu(struct test *t)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comms[RANKS] = {NULL};
    struct tern_ep *eps[RANKS] = {NULL};
    int is_cuda, result;
    config.heap_bytes = 1 << 20;
    config.device = TERN_DEVICE_ORDINAL(0);
    test_quiet();
    OK(tern_comm_open_all(RANKS, &config, comms));
    is_cuda = tern_comm_machine(comms[0]) == TERN_MACHINE_CUDA;
    result = is_cuda ? refuse(comms, eps)
                     : test_skip(t, "on the cpu machine every rank has a default stream of its own");
    for (int r = 0; r < RANKS; r++) {
        tern_ep_close(eps[r]);
        tern_comm_close(comms[r]);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "an object opens while the default stream waits for a peer", opening);
    test_run(&t, "an object is reset while the default stream waits for a peer", resetting);
    test_run(&t, "ranks that share a GPU are refused its default stream", shared_gpu);
    return test_end(&t);
}
