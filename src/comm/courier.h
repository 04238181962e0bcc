/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator's courier: the proxy (net/proxy.h) through which its kernels reach ranks that they cannot
 * address, connected over the communicator's boot, with the users' windows registered. */
#ifndef TERN_COURIER_H
#define TERN_COURIER_H

#include "comm/carrier.h"
#include "net/proxy.h"

struct courier_config {
    const char *engine; /* "tcp", "fabric:PROVIDER"; NULL: TERN_PROXY */
    int num_queues;     /* a peer */
    uint32_t depth;     /* requests a queue; a power of two */
    uint32_t timeout_ms;
    int stages_all, takes_any; /* as in struct proxy_config */
};

struct courier;
/* COLLECTIVE: every step on every rank as long as none fails. *courier is NULL before; after a failure, which
 * all ranks have alike, it may be one to close. */
enum { COURIER_OPEN_STEPS = 4 };
enum tern_status terni_courier_open_step(struct tern_comm *comm, const struct courier_config *config,
                                         int step, struct courier **courier);

/* Whether TERN_PROXY names an engine, or none. What it needs may be missing all the same. */
enum tern_status terni_courier_check_environment(void);

/* Local, also of one that is linked; before the communicator closes, and no kernel may use a ring any more.
 * Accepts NULL. */
void terni_courier_close(struct courier *courier);
struct proxy *terni_courier_proxy(const struct courier *courier);
/* For memory that comes later. */
struct carrier *terni_courier_carrier(struct courier *courier);

#endif
