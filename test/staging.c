/* SPDX-License-Identifier: Apache-2.0
 *
 * See staging.h. */
#include "staging.h"
#include "ep/ep.h"

unsigned char *staging_of(const struct tern_ep *ep, uint64_t *bytes)
{
    *bytes = ep->shape.staging_bytes;
    return (unsigned char *)ep->heap->bases[ep->comm->rank] + ep->layout.staging;
}
