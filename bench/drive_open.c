/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the network, its device team, and the memory of every local rank. Windows are taken in the same order
 * on all ranks, so that their addresses are symmetric. */
#include "drive.h"

#include "core/core.h"
#include "net/group.h"

#include <string.h>

enum { DEADLINE_MS = 10000, ROW_BYTES = 14336, USUAL_SMS = 132 };
static const uint64_t most_bytes = 1ull << 32; /* to all peers, of all ranks of a process */

/* Bytes to each peer with which every group of a put or get has one of the largest operations. */
static uint64_t one_each(const struct options *o, int num_ranks)
{
    uint64_t sms = o->sms != 0 ? o->sms : USUAL_SMS, largest = 0;
    uint64_t groups = sms * (o->net.scope == GROUP_BLOCK ? 1 : o->net.warps);
    uint64_t peers = num_ranks > 1 ? (uint64_t)num_ranks - 1 : 1;
    for (uint32_t k = 0; k < o->net.bytes.num; k++) {
        largest = o->net.bytes.values[k] > largest ? o->net.bytes.values[k] : largest;
    }
    return (groups + peers - 1) / peers * largest;
}

uint64_t drive_area(const struct party *party, const struct options *options)
{
    uint64_t rows = party->num_ranks > 4 ? 2048 : 4096, each, most;
    if (party->machine == TERN_MACHINE_CPU) {
        return wire_default_bytes(party->machine, party->num_ranks);
    }
    if ((options->command & (COMMAND_PUT | COMMAND_GET)) == 0) {
        return ROW_BYTES * rows;
    }
    most = most_bytes / (uint64_t)party->num_ranks / (party->in_process ? (uint64_t)party->num_ranks : 1);
    each = one_each(options, party->num_ranks);
    each = each < most ? each : most;
    return ROW_BYTES * (each > ROW_BYTES * rows ? (each + ROW_BYTES - 1) / ROW_BYTES : rows);
}

uint64_t drive_heap_bytes(const struct party *party, uint64_t area)
{
    return wire_heap_bytes(party->num_ranks, area) + 8 * (uint64_t)DRIVE_WORDS + 4096;
}

static enum tern_status open_networks(struct drive *d)
{
    struct party *p = d->party;
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_network *networks[TERN_MAX_RANKS] = {NULL};
    config.num_queues = d->options->net.queues;
    config.num_teams = 1;
    config.timeout_ms = DEADLINE_MS;
    TERN_TRY(transport_choose(d->options, p, &d->carriage));
    config.transport = d->carriage.transport;
    TERN_TRY(p->in_process ? tern_net_open_all(p->num_ranks, p->comms, &config, networks)
                           : tern_net_open(p->comms[0], &config, &networks[0]));
    for (int i = 0; i < p->num_local; i++) {
        d->seats[i].network = networks[i];
    }
    return TERN_OK;
}

static enum tern_status open_teams(struct drive *d)
{
    static const struct tern_net_team none = TERN_NET_TEAM_INIT;
    struct party *p = d->party;
    struct tern_network *networks[TERN_MAX_RANKS];
    struct tern_team *teams[TERN_MAX_RANKS] = {NULL};
    struct tern_net_team members[TERN_MAX_RANKS];
    TERN_TRY(p->in_process ? tern_team_open_all(p->num_ranks, p->comms, TERN_TEAM_WORLD, teams)
                           : tern_team_open(p->comms[0], TERN_TEAM_WORLD, &teams[0]));
    for (int i = 0; i < p->num_local; i++) {
        d->seats[i].team = teams[i];
        networks[i] = d->seats[i].network;
        members[i] = none;
    }
    TERN_TRY(p->in_process ? tern_net_team_open_all(p->num_ranks, networks, teams, members)
                           : tern_net_team_open(networks[0], teams[0], &members[0]));
    for (int i = 0; i < p->num_local; i++) {
        d->seats[i].members = members[i];
    }
    return TERN_OK;
}

static enum tern_status open_memory(struct drive *d, int i)
{
    struct drive_seat *seat = &d->seats[i];
    void *memory = NULL;
    TERN_TRY(tern_alloc(d->party->comms[i], TERN_MEMORY_WINDOW, DRIVE_WORDS * 8, &memory));
    seat->words = (uint64_t *)memory;
    TERN_TRY(tern_fill(d->party->comms[i], seat->words, 0, DRIVE_WORDS * 8, d->party->streams[i]));
    TERN_TRY(tern_alloc(d->party->comms[i], TERN_MEMORY_DEVICE, DRIVE_LOG * 8, &memory));
    seat->log = (uint64_t *)memory;
    return TERN_OK;
}

static enum tern_status open_all(struct drive *d, uint64_t area)
{
    static const struct tern_net none = TERN_NET_INIT;
    TERN_TRY(wire_open(&d->wire, d->party, area, d->options->seed));
    for (int i = 0; i < d->party->num_local; i++) { /* before a NIC that is a kernel stays on the device */
        TERN_TRY(open_memory(d, i));
    }
    TERN_TRY(party_synchronize(d->party));
    TERN_TRY(open_networks(d));
    TERN_TRY(open_teams(d));
    for (int i = 0; i < d->party->num_local; i++) {
        d->seats[i].view = none;
        TERN_TRY(tern_net_view(d->seats[i].network, &d->seats[i].view));
    }
    return TERN_OK;
}

enum tern_status drive_open(struct drive *d, struct party *party, const struct options *options,
                            uint64_t area)
{
    memset(d, 0, sizeof(*d));
    d->party = party;
    d->options = options;
    d->wire.party = party; /* for a close before it is open */
    enum tern_status status = open_all(d, area);
    if (status != TERN_OK) {
        status = drive_close(d, status);
    }
    return status;
}

enum tern_status drive_close(struct drive *d, enum tern_status status)
{
    for (int i = 0; i < d->party->num_local; i++) {
        tern_net_close(d->seats[i].network); /* all, before memory that NICs of peers may name goes */
    }
    for (int i = 0; i < d->party->num_local; i++) {
        struct drive_seat *seat = &d->seats[i];
        if (seat->team) {
            tern_team_close(seat->team);
        }
        if (seat->log) {
            tern_free(d->party->comms[i], seat->log);
        }
        if (seat->words) {
            tern_free(d->party->comms[i], seat->words);
        }
    }
    memset(d->seats, 0, sizeof(d->seats));
    status = transport_drop(&d->carriage, status);
    wire_close(&d->wire);
    return status;
}
