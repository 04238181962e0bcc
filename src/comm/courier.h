/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator's courier: the proxy (net/proxy.h) through which its kernels reach ranks that they cannot
 * address, connected over the communicator's boot, with the users' windows registered. */
#ifndef TERN_COURIER_H
#define TERN_COURIER_H

#include "comm/comm.h"
#include "net/proxy.h"

struct courier_config {
    const char *engine; /* "tcp", "fabric:PROVIDER"; NULL: TERN_PROXY */
    int num_queues;     /* a peer */
    uint32_t depth;     /* requests a queue; a power of two */
    uint32_t timeout_ms;
    int stages_all;
};

struct courier;
/* COLLECTIVE: every step on every rank as long as none fails, then finish with the outcome; *courier is NULL
 * before, and after finish on failure. All ranks fail alike. */
enum { COURIER_OPEN_STEPS = 4 };
enum tern_status terni_courier_open_step(struct tern_comm *comm, const struct courier_config *config,
                                         int step, struct courier **courier);
void terni_courier_open_finish(struct courier **courier, enum tern_status status);
/* COLLECTIVE likewise: a piece of memory that every rank registers, of any size each. After a failure nothing
 * of it is registered here. */
enum { COURIER_REGISTER_STEPS = 3 };
struct courier_piece {
    void *memory;
    uint64_t bytes;
    uint32_t access; /* KEY_* */
    int on_device;
};
enum tern_status terni_courier_register_step(struct courier *courier, const struct courier_piece *piece,
                                             int step);
/* Local; before the communicator closes, and no kernel may use a ring any more. Accepts NULL. */
void terni_courier_close(struct courier *courier);
struct proxy *terni_courier_proxy(const struct courier *courier);

#endif
