/* SPDX-License-Identifier: Apache-2.0
 *
 * Traces of an EP object: TERN_TRACE=DIR gives the rank's kernels a ring for their stamps and writes it to
 * a file of DIR. None of this ever fails: what goes wrong is a warning, and the program loses its trace
 * alone. */
#ifndef TERN_EP_TRACE_H
#define TERN_EP_TRACE_H

#include "ep/ep.h"

/* Once the object's device memory is there and zeroed. */
void terni_ep_trace_open(struct tern_ep *ep);
/* A reset has zeroed the state, and no operation runs: the trace until here is written, and kernels find an
 * empty ring again, which goes to another file. */
void terni_ep_trace_arm(struct tern_ep *ep);
/* No operation of the object runs. `written`: TRACE_AT_FAULT, _RESET or _CLOSE. */
void terni_ep_trace_write(struct tern_ep *ep, uint32_t written);
/* Before device memory is given back. */
void terni_ep_trace_close(struct tern_ep *ep);

#endif
