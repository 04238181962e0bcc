/* SPDX-License-Identifier: Apache-2.0
 *
 * What carries operations between ranks, as --transport and its model say. It is chosen before any network
 * or EP object opens, and given up after the last has closed: settings of NICs in software are the process's,
 * since no program could ask for them. */
#ifndef TERN_BENCH_TRANSPORT_H
#define TERN_BENCH_TRANSPORT_H

#include "party.h"

/* Zeroed: nothing was chosen. */
struct carriage {
    uint32_t transport; /* enum tern_transport */
    int has_mock;       /* of mlx5's libraries */
};

/* TERN_INVALID_ARGUMENT: a model without a software NIC. For callers who do something before they choose. */
enum tern_status transport_check(const struct options *options);
/* The same, and TERN_UNSUPPORTED: this build or machine has none. */
enum tern_status transport_choose(const struct options *options, const struct party *party,
                                  struct carriage *carriage);
/* Ranks of a domain, as asked or, of a party that is open, as found. TERN_INVALID_ARGUMENT: there is one, and
 * options say what carries rows to others. */
enum tern_status transport_domains(const struct options *options, const struct party *party, uint32_t *ranks);
/* `status`, of what was carried; if that is TERN_OK, TERN_INTERNAL_ERROR where a mock complains of it. */
enum tern_status transport_drop(struct carriage *carriage, enum tern_status status);
/* The notes "transport", "model" and "faults". */
enum tern_status transport_note(struct report *report, const struct options *options);

#endif
