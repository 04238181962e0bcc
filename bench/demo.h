/* SPDX-License-Identifier: Apache-2.0
 *
 * `tern-bench demo`: the main job, on whatever this machine has. */
#ifndef TERN_BENCH_DEMO_H
#define TERN_BENCH_DEMO_H

#include "options.h"
#include "report.h"

enum tern_status demo_run(const struct options *options, struct report *report, struct tally *tally);

#endif
