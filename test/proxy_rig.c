/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening ranks with couriers, and running lists of steps on them. */
#include "proxy_rig.h"

#include "simt/executor.h"

#include <stdlib.h>
#include <string.h>

void proxy_rig_init(struct proxy_rig *rig, int num_ranks, const char *engine)
{
    memset(rig, 0, sizeof *rig);
    rig->num_ranks = num_ranks;
    rig->self = -1;
    rig->config.engine = engine;
    rig->config.num_queues = RIG_QUEUES;
    rig->config.depth = 64;
    rig->config.timeout_ms = 20000;
}

int proxy_rig_is_here(const struct proxy_rig *rig, int rank) { return rig->self < 0 || rig->self == rank; }

/* The rings as kernels get them, and where the peers' windows are. */
static enum tern_status equip(struct proxy_rig *rig, int rank)
{
    struct proxy_member *m = &rig->members[rank];
    struct machine *machine = m->comm->machine;
    struct proxy *proxy = terni_courier_proxy(m->courier);
    size_t n = (size_t)rig->num_ranks * RIG_QUEUES;
    void *rings;
    m->window = m->comm->heap->bases[rank];
    TERN_TRY(machine->ops->alloc(machine, n * sizeof *m->rings, &rings));
    m->rings = (struct net_ring *)rings;
    for (size_t i = 0; i < n; i++) {
        m->rings[i] = *terni_proxy_ring(proxy, (int)i / RIG_QUEUES, (int)i % RIG_QUEUES);
    }
    TERN_TRY(machine->ops->stream_open(machine, &m->stream));
    m->peers_window = (uint64_t *)test_take((size_t)rig->num_ranks, sizeof *m->peers_window);
    return TERN_OK;
}

static struct tern_comm_config comm_config(uint64_t seed, uint32_t timeout_ms)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    config.machine = TERN_MACHINE_CPU;
    config.heap_bytes = RIG_WINDOW_BYTES;
    config.cpu_seed = seed;
    config.timeout_ms = timeout_ms;
    return config;
}

static enum tern_status open_all(struct proxy_rig *rig, uint64_t seed)
{
    struct tern_comm_config config = comm_config(seed, 20000);
    struct tern_comm *comms[RIG_MAX_RANKS];
    enum tern_status status = TERN_OK;
    TERN_TRY(tern_comm_open_all(rig->num_ranks, &config, comms));
    for (int r = 0; r < rig->num_ranks; r++) {
        rig->members[r].comm = comms[r];
    }
    for (int step = 0; step < COURIER_OPEN_STEPS; step++) {
        for (int r = 0; r < rig->num_ranks && status == TERN_OK; r++) {
            status = terni_courier_open_step(comms[r], &rig->config, step, &rig->members[r].courier);
        }
    }
    for (int r = 0; r < rig->num_ranks && status != TERN_OK; r++) {
        terni_courier_close(rig->members[r].courier);
        rig->members[r].courier = NULL;
    }
    for (int r = 0; r < rig->num_ranks && status == TERN_OK; r++) {
        status = equip(rig, r);
    }
    for (int r = 0; r < rig->num_ranks * rig->num_ranks && status == TERN_OK; r++) {
        rig->members[r / rig->num_ranks].peers_window[r % rig->num_ranks] =
            (uint64_t)(uintptr_t)rig->members[r % rig->num_ranks].window;
    }
    return status;
}

int proxy_rig_open(struct test *t, struct proxy_rig *rig, uint64_t seed)
{
    enum tern_status status = open_all(rig, seed);
    if (status == TERN_UNSUPPORTED) {
        return test_skip(t, "%s", tern_last_error());
    }
    OK(status);
    return TEST_PASSED;
}

enum tern_status proxy_rig_join(struct proxy_rig *rig, int rank, const struct tern_id *id,
                                uint32_t timeout_ms)
{
    struct tern_comm_config config = comm_config(0, timeout_ms);
    struct proxy_member *m = &rig->members[rank];
    enum tern_status status = TERN_OK;
    uint64_t window;
    rig->self = rank;
    TERN_TRY(tern_comm_open(id, rank, rig->num_ranks, &config, &m->comm));
    for (int step = 0; step < COURIER_OPEN_STEPS && status == TERN_OK; step++) {
        status = terni_courier_open_step(m->comm, &rig->config, step, &m->courier);
    }
    if (status != TERN_OK) {
        terni_courier_close(m->courier);
        m->courier = NULL;
        return status;
    }
    TERN_TRY(equip(rig, rank));
    window = (uint64_t)(uintptr_t)m->window;
    return terni_comm_allgather(m->comm, &window, m->peers_window, sizeof window);
}

void proxy_rig_close(struct proxy_rig *rig)
{
    for (int r = 0; r < rig->num_ranks; r++) {
        struct proxy_member *m = &rig->members[r];
        if (m->comm != NULL) {
            struct machine *machine = m->comm->machine;
            if (m->stream != NULL) {
                machine->ops->stream_close(machine, m->stream);
            }
            machine->ops->free(machine, m->steps);
            machine->ops->free(machine, m->rings);
            terni_courier_close(m->courier);
            tern_comm_close(m->comm);
        }
        free(m->peers_window);
        memset(m, 0, sizeof *m);
    }
}

struct ring_step *proxy_rig_steps(struct proxy_rig *rig, int rank, int num_threads, int num_steps)
{
    struct proxy_member *m = &rig->members[rank];
    struct machine *machine = m->comm->machine;
    size_t bytes = (size_t)(num_threads + 31) / 32 * 32 * (size_t)num_steps * sizeof *m->steps;
    void *memory = NULL;
    machine->ops->free(machine, m->steps);
    m->steps = NULL;
    if (machine->ops->alloc(machine, bytes, &memory) != TERN_OK) {
        abort();
    }
    memset(memory, 0, bytes);
    m->steps = (struct ring_step *)memory;
    return m->steps;
}

enum tern_status proxy_rig_launch(struct proxy_rig *rig, int rank, int num_threads, int num_steps,
                                  uint64_t timeout_ns)
{
    struct proxy_member *m = &rig->members[rank];
    struct ring_steps_args args = {m->rings, m->steps, (uint32_t)num_steps, timeout_ns};
    struct launch launch = {0, (num_threads + 31) / 32, 32, 0, &args, sizeof args};
    return terni_cpu_launch_function(m->comm->machine, tern_cpu_ring_steps, "ring_steps", &launch, m->stream);
}

enum tern_status proxy_rig_wait(struct proxy_rig *rig, int rank)
{
    struct proxy_member *m = &rig->members[rank];
    return m->comm->machine->ops->stream_synchronize(m->comm->machine, m->stream);
}

uint32_t proxy_rig_ring(int peer, int queue) { return (uint32_t)(peer * RIG_QUEUES + queue); }

uint64_t proxy_rig_at(const struct proxy_rig *rig, int rank, uint64_t offset)
{
    for (int r = 0; r < rig->num_ranks; r++) {
        if (rig->members[r].peers_window != NULL) {
            return rig->members[r].peers_window[rank] + offset;
        }
    }
    return 0;
}
