/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of softnic_thread.h: the engine's steps, with the dialect of simt/thread.h. */
#define TERN_HOST_THREAD
#include "net/softnic_thread.h"

#include "core/core.h"
#include "net/softnic_engine.h"
#include "net/softnic_rc.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_LOOKS = 256, YIELD_LOOKS = 1024, NAP_NS = 20000 };

struct softnic_thread {
    struct softnic_args args;
    struct softnic_card *card; /* or, with args.stop alone */
    pthread_t thread;
};

/* After a look that found nothing, of so many in a row. */
static void rest(uint32_t quiet)
{
    const struct timespec nap = {0, NAP_NS};
    if (quiet > YIELD_LOOKS) {
        nanosleep(&nap, NULL);
    } else if (quiet > SPIN_LOOKS) {
        sched_yield();
    }
}

/* Whether something is to happen here at a time that nobody announces. */
static int is_in_flight(const struct softnic_qp *qp)
{
    return qp->flights != NULL && qp->num_ended != qp->num_taken;
}

static void *thread_main(void *argument)
{
    const struct softnic_thread *t = (const struct softnic_thread *)argument;
    struct softnic_engine e = softnic_engine_of(&t->args, 0, 1);
    struct softnic_work w;
    uint32_t quiet = 0;

    memset(&w, 0, sizeof w);
    while (e.num != 0 && ld_relaxed_sys_u64(t->args.stop) == 0) {
        int found = softnic_step_alone(&e, &w, clock_ns());
        quiet = found != SOFTNIC_NOTHING || is_in_flight(w.qp) ? 0 : quiet + 1;
        rest(quiet);
    }
    return NULL;
}

/* It may sleep while packets are under way: they wait. */
static void *card_main(void *argument)
{
    const struct softnic_thread *t = (const struct softnic_thread *)argument;
    uint32_t quiet = 0;
    while (ld_relaxed_sys_u64(t->args.stop) == 0) {
        quiet = softnic_card_work(t->card, clock_ns()) ? 0 : quiet + 1;
        rest(quiet);
    }
    return NULL;
}

static enum tern_status begin(const struct softnic_thread *image, void *(*body)(void *),
                              struct softnic_thread **thread)
{
    struct softnic_thread *t = (struct softnic_thread *)calloc(1, sizeof *t);
    if (t == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the thread of a software NIC, %zu bytes",
                         sizeof *t);
    }
    *t = *image;
    enum tern_status status = terni_thread_open(&t->thread, "tern-nic", body, t);
    if (status != TERN_OK) {
        free(t);
        return status;
    }
    *thread = t;
    return TERN_OK;
}

enum tern_status terni_softnic_thread_open(const struct softnic_args *args, struct softnic_thread **thread)
{
    struct softnic_thread image;
    memset(&image, 0, sizeof image);
    image.args = *args;
    return begin(&image, thread_main, thread);
}

enum tern_status terni_softnic_card_thread_open(struct softnic_card *card, const uint64_t *stop,
                                                struct softnic_thread **thread)
{
    struct softnic_thread image;
    memset(&image, 0, sizeof image);
    image.args.stop = stop;
    image.card = card;
    return begin(&image, card_main, thread);
}

void terni_softnic_thread_join(struct softnic_thread *thread)
{
    if (thread != NULL) {
        pthread_join(thread->thread, NULL);
        free(thread);
    }
}
