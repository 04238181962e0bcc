/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts and ends a provider's NIC: threads of the host, or a part of the kernel that all such NICs of a
 * device are (softnic_fleet.h), or, with packets, a kernel of its own. And the thread that rings for kernels,
 * if one does, which runs from connect to close: what it tells a NIC that pauses is found later. */
#include "kernels/kernels.h"
#include "net/softnic_packets.h"
#include "net/softnic_parts.h"
#include "net/softnic_rc.h"
#include "net/softnic_thread.h"

#include <stdlib.h>

static uint64_t *stop_word(const struct softnic_provider *p)
{
    return (uint64_t *)(void *)(p->host + p->at.stop);
}

static struct softnic_args args_of(const struct softnic_provider *p)
{
    struct softnic_args args;
    args.qps = (struct softnic_qp *)(void *)(p->device + p->at.qps);
    args.num_qps = p->num_places;
    args.hold_one_in = p->config.hold_one_in;
    args.seed = p->config.seed;
    args.stop = (const uint64_t *)(void *)(p->host_device + p->at.stop);
    args.model = p->model;
    return args;
}

/* The fleet raises and lowers the stop word of a kernel. */
static enum tern_status join(struct softnic_provider *p, const struct softnic_args *args)
{
    uint32_t most = (uint32_t)p->config.nic_blocks;
    p->crew.num_blocks = (int)(p->num_places < most ? p->num_places : most);
    p->crew.num_warps = p->config.nic_warps;
    p->crew.args = *args;
    p->crew.stop = stop_word(p);
    return terni_softnic_join(&p->crew);
}

/* A NIC in a thread of its own. */
static enum tern_status run_thread(struct softnic_provider *p, uint32_t nic)
{
    struct softnic_args args = args_of(p);
    if (terni_softnic_nic_queues(&p->config, nic) == 0) {
        return TERN_OK; /* there is nothing to do */
    }
    if (terni_softnic_has_packets(p)) {
        return terni_softnic_card_thread_open(terni_softnic_packets_cards(p) + nic, args.stop,
                                              &p->threads[nic]);
    }
    args.qps += terni_softnic_nic_first(&p->config, nic, p->num_peers);
    args.num_qps = p->num_peers * terni_softnic_nic_queues(&p->config, nic);
    args.seed += nic;
    return terni_softnic_thread_open(&args, &p->threads[nic]);
}

static enum tern_status run_threads(struct softnic_provider *p)
{
    for (uint32_t nic = 0; nic < p->config.num_nics; nic++) {
        TERN_TRY(run_thread(p, nic));
    }
    return TERN_OK;
}

/* A kernel for all cards of the rank. */
static enum tern_status run_packets(struct softnic_provider *p)
{
    struct softnic_rc_args packets = {terni_softnic_packets_cards(p), p->config.num_nics, 0, NULL,
                                      stop_word(p)};
    struct launch l = {TERN_KERNEL_softnic_rc, 1, 32 * (int)p->config.num_nics, 0, &packets, sizeof packets};
    return p->machine->ops->launch(p->machine, &l, p->stream);
}

static enum tern_status start(struct softnic_provider *p)
{
    struct softnic_args args = args_of(p);
    if (p->num_places == 0) {
        return TERN_OK;
    }
    __atomic_store_n(stop_word(p), 0, __ATOMIC_RELAXED);
    p->is_running = 1; /* some of them, if one fails */
    return !p->is_kernel ? run_threads(p) : terni_softnic_has_packets(p) ? run_packets(p) : join(p, &args);
}

static enum tern_status end(struct softnic_provider *p)
{
    p->is_running = 0;
    if (p->is_kernel && !terni_softnic_has_packets(p)) {
        return terni_softnic_leave(&p->crew);
    }
    /* Relaxed: what the NIC has done is waited for. */
    __atomic_store_n(stop_word(p), 1, __ATOMIC_RELAXED);
    if (p->is_kernel) {
        return p->machine->ops->stream_synchronize(p->machine, p->stream);
    }
    for (uint32_t nic = 0; nic < p->config.num_nics; nic++) {
        terni_softnic_thread_join(p->threads[nic]);
        p->threads[nic] = NULL;
    }
    return TERN_OK;
}

enum tern_status terni_softnic_pause(struct softnic_provider *p)
{
    p->num_pauses++;
    return p->is_running ? end(p) : TERN_OK;
}

enum tern_status terni_softnic_resume(struct softnic_provider *p)
{
    if (p->num_pauses == 0) {
        return TERN_FAIL(TERN_BAD_STATE, "the NIC of rank %d is resumed, but was not paused", p->config.rank);
    }
    return --p->num_pauses == 0 && p->is_connected ? start(p) : TERN_OK;
}

/* ---- The thread that rings ---- */

static enum tern_status relay_open(struct softnic_provider *p)
{
    if (!p->config.relay || p->num_places == 0) {
        return TERN_OK;
    }
    p->lines = (struct relay_line *)calloc(p->num_places, sizeof *p->lines);
    if (p->lines == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory to ring for %u queues", p->num_places);
    }
    for (uint32_t i = 0; i < p->num_places; i++) {
        char *line = p->host + (uint64_t)i * SOFTNIC_LINE;
        p->lines[i].published = (const uint64_t *)(void *)(line + p->at.relays);
        p->lines[i].record = (uint32_t *)(void *)(line + p->at.records);
        p->lines[i].doorbell = (uint64_t *)(void *)(line + p->at.doorbells);
        p->lines[i].qpn = 1 + i;
    }
    return terni_relay_open(p->lines, p->num_places, &p->relay);
}

enum tern_status terni_softnic_run_open(struct softnic_provider *p)
{
    TERN_TRY(relay_open(p));
    return p->num_pauses == 0 ? start(p) : TERN_OK;
}

void terni_softnic_run_close(struct softnic_provider *p)
{
    terni_relay_close(p->relay);
    free(p->lines);
    if (p->is_running && end(p) != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "%s", tern_last_error());
    }
    if (p->stream != NULL) {
        p->machine->ops->stream_close(p->machine, p->stream);
    }
    terni_softnic_discharge(&p->crew);
}
