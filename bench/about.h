/* SPDX-License-Identifier: Apache-2.0
 *
 * The notes that every report begins with: what ran where. */
#ifndef TERN_BENCH_ABOUT_H
#define TERN_BENCH_ABOUT_H

#include "party.h"
#include "report.h"

enum tern_status about_note(struct report *report, const struct party *party);

#endif
