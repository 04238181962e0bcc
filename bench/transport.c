/* SPDX-License-Identifier: Apache-2.0
 *
 * See transport.h. */
#include "transport.h"
#include "faults.h"

#include "../test/mock_nic.h"
#include "net/nic_provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void model(const struct options *o)
{
    struct softnic_rates *rates = &terni_nic_settings.rates;
    rates->bytes_per_s = rates->receive_bytes_per_s = (uint64_t)o->nic.gbps * 125000000;
    rates->messages_per_s = (uint64_t)o->nic.mops * 1000000;
    rates->latency_ns = (uint64_t)o->nic.latency_us * 1000;
    terni_nic_settings.nic_blocks = o->nic.sms;
}

static enum tern_status open_mock(const struct options *o, const struct party *p, struct carriage *c)
{
    if (!p->in_process || p->machine != TERN_MACHINE_CPU) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "--transport mock-mlx5: the mock is for ranks of the cpu machine in one process");
    }
    if (!mock_nic_open(0, o->seed)) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "--transport mock-mlx5: this build has no rdma-core, or there is no place for files");
    }
    c->has_mock = 1;
    return TERN_OK;
}

enum tern_status transport_check(const struct options *o)
{
    int is_modelled = o->nic.gbps != 0 || o->nic.latency_us != 0 || o->nic.mops != 0 || o->nic.sms != 0;
    if (is_modelled && o->net.transport != CARRIED_BY_SOFTNIC) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "--nic-gbps, --nic-latency-us, --nic-mops and --nic-sms need --transport softnic");
    }
    return TERN_OK;
}

enum tern_status transport_domains(const struct options *o, const struct party *p, uint32_t *ranks)
{
    *ranks = o->net.domain_size != 0 ? o->net.domain_size : (uint32_t)party_domain_ranks(p);
    if (*ranks != (uint32_t)p->num_ranks) {
        return TERN_OK;
    }
    if (o->net.transport != NOT_CHOSEN) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "--transport %s carries rows between domains, and the %d ranks are one: give "
                         "--domain-size, less than %d",
                         options_word(COMMAND_EP, "--transport", o->net.transport), p->num_ranks,
                         p->num_ranks);
    }
    if (o->net.queues != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "--queues %u lead to other domains, and the %d ranks are one: give --domain-size, "
                         "less than %d",
                         o->net.queues, p->num_ranks, p->num_ranks);
    }
    return TERN_OK;
}

enum tern_status transport_choose(const struct options *o, const struct party *party, struct carriage *c)
{
    const char *proxy = terni_env(TERN_ENV_PROXY);
    memset(c, 0, sizeof(*c));
    TERN_TRY(transport_check(o));
    switch (o->net.transport) {
    case CARRIED_BY_SOFTNIC:
        model(o);
        faults_apply(o);
        c->transport = TERN_TRANSPORT_SOFTNIC;
        return TERN_OK;
    case CARRIED_BY_MOCK_MLX5:
        c->transport = TERN_TRANSPORT_MLX5;
        return open_mock(o, party, c);
    case CARRIED_BY_PROXY_TCP:
        setenv("TERN_PROXY", "tcp", 1);
        c->transport = TERN_TRANSPORT_PROXY;
        return TERN_OK;
    case CARRIED_BY_PROXY_LIBFABRIC:
        setenv("TERN_PROXY", strncmp(proxy, "fabric:", 7) == 0 ? proxy : "fabric:tcp;ofi_rxm", 1);
        c->transport = TERN_TRANSPORT_PROXY;
        return TERN_OK;
    case CARRIED_BY_P2P:
        c->transport = TERN_TRANSPORT_P2P;
        return TERN_OK;
    default:
        c->transport = TERN_TRANSPORT_AUTO;
        return TERN_OK;
    }
}

enum tern_status transport_drop(struct carriage *c, enum tern_status status)
{
    char complaint[256];
    int complains = c->has_mock && !mock_nic_close(complaint);
    c->has_mock = 0;
    if (!complains) {
        return status;
    }
    if (status == TERN_OK) {
        return TERN_FAIL(TERN_INTERNAL_ERROR, "the mock of mlx5 complains: %s", complaint);
    }
    /* The sentence of the failure stays; this may be its consequence. */
    fprintf(stderr, "tern-bench: the mock of mlx5 complains: %s\n", complaint);
    return status;
}

enum tern_status transport_note(struct report *report, const struct options *o)
{
    const char *name = options_word(o->command, "--transport", o->net.transport);
    if (o->net.queues != 0) {
        TERN_TRY(report_note(report, "transport", "%s, %u queues to a peer", name[0] ? name : "auto",
                             o->net.queues));
    } else {
        TERN_TRY(report_note(report, "transport", "%s", name[0] ? name : "auto"));
    }
    if (o->nic.gbps != 0 || o->nic.latency_us != 0 || o->nic.mops != 0) {
        TERN_TRY(
            report_note(report, "model",
                        "a wire of %u Gb/s each way and %u million messages a second (0: unlimited), %u us "
                        "one way",
                        o->nic.gbps, o->nic.mops, o->nic.latency_us));
    }
    if (o->nic.faults != NULL) {
        TERN_TRY(report_note(report, "faults", "%s", o->nic.faults));
    }
    return TERN_OK;
}
