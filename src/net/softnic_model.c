/* SPDX-License-Identifier: Apache-2.0
 *
 * Rates as people name them become ticks. The bounds keep a message of 2^30 bytes within 64 bits, and a rate
 * within 1 % of what was asked for. */
#include "net/softnic_model.h"

#include "core/core.h"

#include <string.h>

/* Long enough that an engine that was away for a while, as to copy 64 KiB and raise a word, finds the sender
 * still taken: no time is lost, and no queue pair its turn. */
enum { AHEAD_NS = 10000 };

static enum tern_status check(const char *name, uint64_t value, uint64_t low, uint64_t high)
{
    if (value != 0 && (value < low || value > high)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s of a software NIC is %llu; it is 0, or %llu to %llu",
                         name, (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
    }
    return TERN_OK;
}

/* Rounded; so many of a thing in a second. */
static uint64_t ticks_each(uint64_t per_s, int fraction)
{
    const unsigned __int128 second = (unsigned __int128)1000000000u * SOFTNIC_TICKS << fraction;
    return per_s == 0 ? 0 : (uint64_t)((second + per_s / 2) / per_s);
}

enum tern_status terni_softnic_model(const struct softnic_rates *r, struct softnic_model *m)
{
    TERN_TRY(check("bytes_per_s", r->bytes_per_s, SOFTNIC_MIN_BYTES_PER_S, SOFTNIC_MAX_BYTES_PER_S));
    TERN_TRY(check("receive_bytes_per_s", r->receive_bytes_per_s, SOFTNIC_MIN_BYTES_PER_S,
                   SOFTNIC_MAX_BYTES_PER_S));
    TERN_TRY(
        check("messages_per_s", r->messages_per_s, SOFTNIC_MIN_MESSAGES_PER_S, SOFTNIC_MAX_MESSAGES_PER_S));
    TERN_TRY(check("latency_ns", r->latency_ns, 0, SOFTNIC_MAX_LATENCY_NS));
    memset(m, 0, sizeof *m);
    m->send_byte = ticks_each(r->bytes_per_s, SOFTNIC_FRACTION);
    m->receive_byte = ticks_each(r->receive_bytes_per_s, SOFTNIC_FRACTION);
    m->message = ticks_each(r->messages_per_s, 0);
    m->latency = r->latency_ns * SOFTNIC_TICKS;
    m->ahead = AHEAD_NS * SOFTNIC_TICKS;
    return TERN_OK;
}
