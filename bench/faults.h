/* SPDX-License-Identifier: Apache-2.0
 *
 * --nic-faults: NICs in software that speak packets, over a network that errs as the option says; and what it
 * has done to them, for the report. */
#ifndef TERN_BENCH_FAULTS_H
#define TERN_BENCH_FAULTS_H

#include "net/nic_provider.h"
#include "party.h"

struct tern_ep;

/* Refuses what the option says, or what it does not go with. Without the option all is well. */
enum tern_status faults_check(const struct options *options, const struct party *party);
/* Sets it for networks that open from now on; it has been checked. */
void faults_apply(const struct options *options);

/* Adds what the NICs of an object have done so far. */
enum tern_status faults_count(struct softnic_traffic *sum, const struct tern_ep *ep);
/* COLLECTIVE. With the option: the note "packets", of all ranks' sums. */
enum tern_status faults_note(struct report *report, const struct options *options, struct party *party,
                             const struct softnic_traffic *sum);

#endif
