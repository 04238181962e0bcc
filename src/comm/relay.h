/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator's relay: the proxy (net/proxy.h) through which its kernels reach ranks that they cannot
 * address, connected over the communicator's boot, with the users' windows registered. */
#ifndef TERN_RELAY_H
#define TERN_RELAY_H

#include "comm/comm.h"
#include "net/proxy.h"

struct relay_config {
    const char *engine; /* "tcp", "fabric:PROVIDER"; NULL: TERN_PROXY */
    int num_queues;     /* a peer */
    uint32_t depth;     /* requests a queue; a power of two */
    uint32_t timeout_ms;
    int stages_all;
};

struct relay;
/* COLLECTIVE: every step on every rank as long as none fails, then finish with the outcome; *relay is NULL
 * before, and after finish on failure. All ranks fail alike. */
enum { RELAY_OPEN_STEPS = 4 };
enum tern_status terni_relay_open_step(struct tern_comm *comm, const struct relay_config *config, int step,
                                       struct relay **relay);
void terni_relay_open_finish(struct relay **relay, enum tern_status status);
/* COLLECTIVE likewise: a piece of memory that every rank registers, of any size each. After a failure nothing
 * of it is registered here. */
enum { RELAY_REGISTER_STEPS = 3 };
struct relay_piece {
    void *memory;
    uint64_t bytes;
    uint32_t access; /* KEY_* */
    int on_device;
};
enum tern_status terni_relay_register_step(struct relay *relay, const struct relay_piece *piece, int step);
/* Local; before the communicator closes, and no kernel may use a ring any more. Accepts NULL. */
void terni_relay_close(struct relay *relay);
struct proxy *terni_relay_proxy(const struct relay *relay);

#endif
