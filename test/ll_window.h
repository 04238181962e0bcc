/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of low latency in a rank's window, for tests that play what a network or a death does to them. */
#ifndef TERN_TEST_LL_WINDOW_H
#define TERN_TEST_LL_WINDOW_H

#include "tern/tern.h"

/* Word w of rank `from`'s entry, in lane 0 of this rank's window, of operation `epoch`. */
uint64_t *ll_window_entry(const struct tern_ep *ep, uint64_t epoch, int from, int w);
/* Arrival word number i likewise. */
uint64_t *ll_window_arrival(const struct tern_ep *ep, uint64_t epoch, uint64_t i);

#endif
