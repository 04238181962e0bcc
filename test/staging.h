/* SPDX-License-Identifier: Apache-2.0
 *
 * The staging window of an EP object, which no public call shows. Apart from the tests, because the library's
 * headers cannot be read beside world.h. */
#ifndef TERN_TEST_STAGING_H
#define TERN_TEST_STAGING_H

#include "tern/tern.h"

enum { STAGING_UNIT = 256 }; /* where a tensor's rows begin, one tensor behind the other */

/* Of this rank, on the device. */
unsigned char *staging_of(const struct tern_ep *ep, uint64_t *bytes);

#endif
