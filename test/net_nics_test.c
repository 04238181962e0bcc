/* SPDX-License-Identifier: Apache-2.0
 *
 * Networks of ranks that have two NICs each: queue i is on NIC i modulo two at both ends, everything arrives,
 * and both NICs carry their share. Random programs over several NICs are in net_ops_test.c. */
#include "net_scene.h"

#include "mock_nic.h"
#include "pgas/pgas_nics.h"

#include <stdlib.h>
#include <string.h>

enum { NICS = 2, QUEUES = 5, CELL = 200, TURNS = 8 };

static const struct net_queue *queue_of(const struct host_scene *s, int rank, int peer, uint32_t index)
{
    return (const struct net_queue *)s->rig.views[rank].queues + peer * QUEUES + (int)index;
}

/* Everybody puts a cell to everybody by every queue, and adds to a word. */
static int all_to_all(struct host_scene *s)
{
    struct net_shape shape = {GROUP_WARP, 1, 64, TURNS * QUEUES * RANKS};
    net_rig_clear(&s->rig);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < TURNS * QUEUES * RANKS; i++) {
            int peer = i % RANKS;
            uint32_t queue = (uint32_t)(i / RANKS % QUEUES);
            struct net_request *q = net_rig_add(&s->rig, r);
            q->kind = NET_REQUEST_PUT_SIGNAL;
            q->peer = peer;
            q->queue = queue;
            q->remote = device(s, s->box[r], ((size_t)r * QUEUES + queue) * CELL);
            q->local = device(s, s->box[r], (size_t)RANKS * QUEUES * CELL);
            q->bytes = CELL;
            q->word = device(s, s->words[r], 8 * queue);
            q->width = 8;
            q->op = TERN_SIGNAL_ADD;
            q->value = 1;
            memcpy(image(s, s->box[peer], ((size_t)r * QUEUES + queue) * CELL),
                   image(s, s->box[r], (size_t)RANKS * QUEUES * CELL), CELL);
        }
        for (int k = 0; k < QUEUES; k++) {
            uint64_t raised = (uint64_t)TURNS * RANKS;
            memcpy(image(s, s->words[r], 8 * (size_t)k), &raised, 8);
        }
    }
    for (int r = 0; r < RANKS; r++) {
        PASS(net_rig_launch(&s->rig, r, &shape, NULL));
    }
    PASS(net_rig_collect(&s->rig));
    PASS(net_rig_all(&s->rig, TERN_OK));
    return world_verify(&s->rig.world, "cells by every queue of two NICs");
}

/* What each NIC of the mock has been asked for, by its name: three of five queues are on the first. */
static int mock_shares(void)
{
    uint64_t first = mock_nic_carried("mlx5_0"), second = mock_nic_carried("mlx5_1");
    CHECK(first * NICS == second * (QUEUES - QUEUES / 2) && second > 0 && mock_nic_carried("mlx5_2") == 0 &&
              mock_nic_carried("mlx5_3") == 0,
          "mlx5_0 has carried %llu entries, mlx5_1 %llu, mlx5_2 %llu", (unsigned long long)first,
          (unsigned long long)second, (unsigned long long)mock_nic_carried("mlx5_2"));
    return 0;
}

/* Of NICs in software: the wire of each has been taken; or its queue pairs are at its card. */
static int soft_shares(struct host_scene *s)
{
    for (int r = 0; r < RANKS; r++) {
        struct softnic_provider *p = (struct softnic_provider *)s->rig.networks[r]->nics->provider.state;
        const struct softnic_link *links =
            (const struct softnic_link *)(void *)(s->rig.networks[r]->heap->bases[r] + PGAS_LINK);
        uint64_t done[NICS] = {0};
        for (int peer = 0; peer < RANKS; peer++) {
            for (uint32_t i = 0; peer != r && i < QUEUES; i++) {
                struct softnic_state state;
                OK(terni_softnic_inspect(p, peer, i, &state));
                CHECK(state.nic == i % NICS && state.reported == queue_of(s, r, peer, i)->state->consumed,
                      "queue %u to rank %d is on NIC %u, at %llu", i, peer, state.nic,
                      (unsigned long long)state.reported);
                done[state.nic] += state.reported;
            }
        }
        CHECK(done[0] * NICS == done[1] * (QUEUES - QUEUES / 2) && done[1] > 0,
              "rank %d: its NICs have carried %llu and %llu blocks", r, (unsigned long long)done[0],
              (unsigned long long)done[1]);
        CHECK(net_rig_way()->packets ||
                  (links[0].sends != 0 && links[1].sends != 0 && links[1].receives != 0),
              "rank %d: its wires are taken until %llu and %llu", r, (unsigned long long)links[0].sends,
              (unsigned long long)links[1].sends);
    }
    return 0;
}

static int share_body(struct host_scene *s)
{
    PASS(all_to_all(s));
    if (net_rig_way()->nics == TERN_TRANSPORT_SOFTNIC) {
        return net_rig_on_cuda() ? 0 : soft_shares(s); /* tables of queues are in the GPU's memory there */
    }
    return net_rig_way()->domain_size == NULL ? mock_shares() : 0;
}

static int shares(struct test *t)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    int result;
    (void)t;
    config.num_nics = NICS;
    config.num_queues = QUEUES;
    if (!net_rig_way()->packets) {
        terni_nic_settings.rates.bytes_per_s = terni_nic_settings.rates.receive_bytes_per_s = 10000000000ull;
    }
    if (net_rig_way()->domain_size == NULL) {
        setenv("TERN_NICS", "mlx5_0,mlx5_1", 1);
    }
    result = in_scene(&config, share_body);
    unsetenv("TERN_NICS");
    return result;
}

/* More NICs than queues, or not as many on all ranks. */
static int refusals(struct test *t)
{
    struct tern_comm_config comm_config = TERN_COMM_CONFIG_INIT;
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *network = NULL;
    struct tern_comm *comm;
    (void)t;
    comm_config.heap_bytes = 1 << 20;
    comm_config.machine = TERN_MACHINE_CPU;
    OK(tern_comm_open_all(1, &comm_config, &comm));
    config.num_nics = 3;
    config.num_queues = 2;
    REFUSES(tern_net_open_all(1, &comm, &config, &network), TERN_INVALID_ARGUMENT,
            "num_nics is 3, but num_queues 2");
    config.num_nics = TERN_NET_MAX_NICS + 1;
    REFUSES(tern_net_open_all(1, &comm, &config, &network), TERN_INVALID_ARGUMENT, "num_nics");
    config.num_nics = 3;
    config.num_queues = 0;
    OK(tern_net_open_all(1, &comm, &config, &network));
    CHECK(network->num_queues == 3, "%u queues for 3 NICs", network->num_queues);
    tern_net_close(network);
    tern_comm_close(comm);
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    net_rig_nic_cases(&t, "two NICs a rank", shares);
    test_run(&t, "numbers of NICs that do not fit", refusals);
    return test_end(&t);
}
