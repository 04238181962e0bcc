/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that rings doorbells for kernels. It sleeps for a while when nothing has come for long, since
 * others want the processor too. */
#include "net/relay.h"

#include "core/core.h"
#include "net/mlx5_format.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { SPIN_LOOKS = 256, YIELD_LOOKS = 1024, NAP_NS = 20000 };

struct relay {
    struct relay_line *lines;
    uint32_t num;
    int stop; /* atomic */
    pthread_t thread;
};

/* Everything stored so far, write-combined registers included, is on its way before what follows. An
 * exchange, as in fiber.h, because ThreadSanitizer does not know fences. */
static void drain_stores(void)
{
    uint32_t word = 0;
    (void)__atomic_exchange_n(&word, 1, __ATOMIC_SEQ_CST);
}

static void ring(struct relay_line *line, uint64_t next)
{
    /* The NIC reads entries that a GPU wrote: our acquire of the word they were published with, then this
     * release. Pairs with softnic_look, or with a NIC's reading of the record. */
    __atomic_store_n(line->record + DOORBELL_RECORD_SEND, doorbell_record((uint32_t)next), __ATOMIC_RELEASE);
    drain_stores();
    __atomic_store_n(line->doorbell, doorbell_value(line->qpn, (uint32_t)next), __ATOMIC_RELEASE);
    drain_stores();
    line->rung = next;
}

uint32_t terni_relay_step(struct relay_line *lines, uint32_t num)
{
    uint32_t rung = 0;
    for (uint32_t i = 0; i < num; i++) {
        /* Pairs with queue_tell's store, which comes after the entries. */
        uint64_t next = __atomic_load_n(lines[i].published, __ATOMIC_ACQUIRE);
        if (next > lines[i].rung) {
            ring(&lines[i], next);
            rung++;
        }
    }
    return rung;
}

static void *relay_main(void *argument)
{
    struct relay *r = (struct relay *)argument;
    const struct timespec nap = {0, NAP_NS};
    uint32_t quiet = 0;

    for (;;) {
        /* Pairs with terni_relay_close. Before the look: what was published before the call to close is then
         * seen by the last one. */
        int stop = __atomic_load_n(&r->stop, __ATOMIC_ACQUIRE);
        quiet = terni_relay_step(r->lines, r->num) != 0 ? 0 : quiet + 1;
        if (stop) {
            return NULL;
        }
        if (quiet > YIELD_LOOKS) {
            nanosleep(&nap, NULL);
        } else if (quiet > SPIN_LOOKS) {
            sched_yield();
        }
    }
}

enum tern_status terni_relay_open(struct relay_line *lines, uint32_t num, struct relay **relay)
{
    struct relay *r = (struct relay *)calloc(1, sizeof(*r));

    if (r == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the relay of %u doorbells", num);
    }
    r->lines = lines;
    r->num = num;
    enum tern_status status = terni_thread_open(&r->thread, "tern-relay", relay_main, r);
    if (status != TERN_OK) {
        free(r);
        return status;
    }
    *relay = r;
    return TERN_OK;
}

void terni_relay_close(struct relay *relay)
{
    if (relay != NULL) {
        __atomic_store_n(&relay->stop, 1, __ATOMIC_RELEASE); /* pairs with relay_main's load */
        pthread_join(relay->thread, NULL);
        free(relay);
    }
}
