/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels have asked of the cpu machine's executor, by name. Apart from cost_test.c, because the
 * executor's own header cannot be read beside world.h. */
#ifndef TERN_TEST_COST_H
#define TERN_TEST_COST_H

#include "tern/tern.h"

enum { COST_COUNTERS = 19 };

const char *cost_name(int counter);
/* Since the executor of this stream began. Every stream of it is synchronised. */
void cost_read(const struct tern_stream *stream, uint64_t counts[COST_COUNTERS]);

#endif
