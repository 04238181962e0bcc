/* SPDX-License-Identifier: Apache-2.0
 *
 * Deadlines that tests change while an object is open. Where something is to be seen missing a short one,
 * sound operations come before and behind it, and these may take their time on a machine with other things to
 * do. */
#ifndef TERN_TEST_PATIENCE_H
#define TERN_TEST_PATIENCE_H

#include "tern/tern.h"

#include <stdint.h>

enum { PATIENCE_MS = 60000 };

/* Of operations that this object is given from now on; returns what it was. All ranks want the same. */
uint32_t patience_set(struct tern_ep *ep, uint32_t timeout_ms);

#endif
