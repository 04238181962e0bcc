/* SPDX-License-Identifier: Apache-2.0
 *
 * What a reliable connection may be asked for. The engine itself is dialect and has no sentences. */
#include "net/key_table.h"
#include "net/rc_packet.h"

#include "core/core.h"

enum tern_status terni_rc_check_config(const struct rc_config *c)
{
    uint32_t widest = c->adaptive ? RC_ADAPTIVE_WINDOW : RC_MAX_WINDOW;

    if (c->mtu < RC_MIN_MTU || c->mtu > RC_MAX_MTU || (c->mtu & (c->mtu - 1)) != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "an MTU of %u bytes; it is a power of two from %d to %d",
                         c->mtu, RC_MIN_MTU, RC_MAX_MTU);
    }
    if (c->qpn > WQE_MAX_QPN || c->peer_qpn > WQE_MAX_QPN) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "queue pairs 0x%x and 0x%x; numbers have 24 bits", c->qpn,
                         c->peer_qpn);
    }
    if (c->pd > KEY_MAX_PD) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "protection domain %u is more than %d", c->pd, KEY_MAX_PD);
    }
    if (c->first_psn > RC_PSN_MASK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a first PSN of 0x%x; it has 24 bits", c->first_psn);
    }
    if (c->window == 0 || c->window > widest) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a window of %u packets; it has 1 to %u%s", c->window, widest,
                         c->adaptive ? " with adaptive routing" : "");
    }
    if (c->max_reads == 0 || c->max_reads > RC_MAX_READS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%u READs and atomics at once; there are 1 to %d",
                         c->max_reads, RC_MAX_READS);
    }
    if (c->timeout == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "a timeout of %d: every packet would be sent again at once",
                         0);
    }
    return TERN_OK;
}
