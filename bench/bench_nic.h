/* SPDX-License-Identifier: Apache-2.0
 *
 * The subcommand nic. */
#ifndef TERN_BENCH_NIC_H
#define TERN_BENCH_NIC_H

#include "options.h"
#include "report.h"

enum tern_status nic_run(const struct options *options, struct report *report, struct tally *tally);

#endif
