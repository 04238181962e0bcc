/* SPDX-License-Identifier: Apache-2.0
 *
 * Version, commit, machine, devices and driver. A figure without them cannot be compared with anything. */
#include "about.h"

/* The commit the binary was built from; the build gives it. */
#ifndef TERN_COMMIT
#define TERN_COMMIT "unknown"
#endif

enum tern_status about_note(struct report *report, const struct party *party)
{
    const struct tern_comm *comm = party->comms[0];
    const struct machine_info *info = &comm->machine->info;
    uint32_t version = tern_version();
    TERN_TRY(report_note(report, "tern", "%u.%u.%u, commit %s", version >> 16, version >> 8 & 255,
                         version & 255, TERN_COMMIT));
    TERN_TRY(report_note(report, "machine", "%s%s", party->machine == TERN_MACHINE_CPU ? "" : "cuda, ",
                         info->name));
    if (party->machine == TERN_MACHINE_CPU) {
        TERN_TRY(report_note(report, "caution",
                             "on the cpu machine fibers copy memory: the figures say nothing "
                             "of GPUs"));
    }
    if (info->driver[0] != 0) {
        TERN_TRY(report_note(report, "driver", "%s", info->driver));
    }
    TERN_TRY(report_note(report, "ranks", "%d, %s, %d on a device, %d processors each, bulk copies: %s",
                         party->num_ranks, party->in_process ? "one process drives all" : "a process each",
                         comm->ranks_on_device, tern_comm_num_sms(comm), info->has_bulk ? "yes" : "no"));
    return report_note(report, "host", "%s", comm->cards[comm->rank].host_name);
}
