/* SPDX-License-Identifier: Apache-2.0
 *
 * See patience.h. */
#include "patience.h"

#include "ep/ep.h"

uint32_t patience_set(struct tern_ep *ep, uint32_t timeout_ms)
{
    uint32_t before = ep->shape.timeout_ms;

    ep->shape.timeout_ms = timeout_ms;
    return before;
}
