/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a libfabric endpoint: peers that are here are told, so that nobody takes it for dead, and what
 * they were promised is sent.
 *
 * The endpoint ends before the regions, which it writes to. Where a provider binds regions to endpoints
 * (FI_MR_ENDPOINT) it may not: then it ends right behind them.
 *
 * The shm provider's endpoints use the memory of those in their process as it is: a message to one that has
 * closed, or a glance at what came from it, is a fault of the process. A farewell does not help, for nobody
 * knows when it is read. So what the library has for such an endpoint is kept until the last of its process
 * and communicator leaves. Nothing moves there meanwhile, because nobody reads its completion queue. */
#include "net/fabric.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FAREWELL_MS = 100 };

struct kept {
    struct fabric_objects its;
    unsigned char cookie[16]; /* of the communicator */
    struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fabric_engine *open_engines;
static struct kept *kept;

static int shares_memory(const struct fabric_engine *f) { return strncmp(f->base.name, "shm", 3) == 0; }

enum tern_status terni_fabric_enter(struct fabric_engine *f)
{
    if (shares_memory(f)) {
        f->kept = (struct kept *)calloc(1, sizeof *f->kept);
        if (f->kept == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the end of an endpoint");
        }
    }
    pthread_mutex_lock(&lock);
    f->next_open = open_engines;
    open_engines = f;
    pthread_mutex_unlock(&lock);
    return TERN_OK;
}

static void say_farewell(struct fabric_engine *f)
{
    uint64_t end_ns = terni_clock_ns() + FAREWELL_MS * 1000000ull;
    int waiting = 1, busy = 0;
    (void)f->base.ops->poll(&f->base, &busy); /* who has left meanwhile */
    for (int r = 0; r < f->base.num_ranks; r++) {
        int hears = r != f->base.rank && f->base.peers[r].lost == TERN_OK && f->peers[r].is_here;
        f->peers[r].greeting = hears ? WIRE_BYE : 0;
    }
    while (waiting && terni_clock_ns() < end_ns) {
        struct timespec nap = {0, 100000};
        int num_free = 0;
        busy = 0;
        (void)f->base.ops->poll(&f->base, &busy);
        for (const struct letter *l = f->free_answers; l != NULL; l = l->next) {
            num_free++;
        }
        waiting = num_free < NUM_ANSWERS;
        for (int r = 0; r < f->base.num_ranks; r++) {
            waiting |= f->peers[r].greeting != 0;
        }
        if (!busy) {
            nanosleep(&nap, NULL);
        }
    }
}

static void close_one(struct fid *fid)
{
    if (fid != NULL) {
        fi_close(fid);
    }
}
#define CLOSE(object) close_one((object) != NULL ? &(object)->fid : NULL)

static void close_objects(struct fabric_objects *its)
{
    CLOSE(its->ep);
    CLOSE(its->cq);
    CLOSE(its->av);
    CLOSE(its->domain);
    CLOSE(its->fabric);
    if (its->info != NULL) {
        its->lib->freeinfo(its->info);
    }
}

/* One that is busy can be tried again; after any other error nobody knows what is left of it. */
static void close_endpoint(struct fabric_engine *f)
{
    if (f->its.ep != NULL) {
        f->close_error = fi_close(&f->its.ep->fid);
        f->its.ep = f->close_error == -FI_EBUSY ? f->its.ep : NULL;
    }
}

void terni_fabric_farewell(struct fabric_engine *f)
{
    if (f->letters != NULL) {
        say_farewell(f);
    }
    if (!shares_memory(f)) {
        close_endpoint(f);
    }
}

int terni_fabric_end_endpoint(struct fabric_engine *f)
{
    if (!shares_memory(f)) {
        close_endpoint(f);
    }
    if (f->close_error != 0) {
        TERN_LOG(TERN_LOG_WARN, "%s keeps an endpoint, and its buffers stay: %s", f->base.name,
                 f->its.lib->strerror(-f->close_error));
    }
    return f->close_error == 0;
}

static int of_one(const unsigned char a[16], const unsigned char b[16]) { return memcmp(a, b, 16) == 0; }

/* Under the lock. */
static void close_kept(const unsigned char cookie[16])
{
    struct kept **link = &kept;
    while (*link != NULL) {
        struct kept *k = *link;
        if (of_one(k->cookie, cookie)) {
            *link = k->next;
            close_objects(&k->its);
            free(k);
        } else {
            link = &k->next;
        }
    }
}

void terni_fabric_leave(struct fabric_engine *f)
{
    struct fabric_engine **link = &open_engines;
    const struct fabric_engine *other;
    pthread_mutex_lock(&lock);
    while (*link != NULL && *link != f) {
        link = &(*link)->next_open;
    }
    if (*link != NULL) {
        *link = f->next_open;
    }
    other = open_engines;
    while (other != NULL && !of_one(other->cookie, f->cookie)) {
        other = other->next_open;
    }
    if (f->kept != NULL && other != NULL) {
        f->kept->its = f->its;
        memcpy(f->kept->cookie, f->cookie, sizeof f->kept->cookie);
        f->kept->next = kept;
        kept = f->kept;
    } else {
        close_objects(&f->its);
        free(f->kept);
    }
    if (other == NULL) {
        close_kept(f->cookie);
    }
    pthread_mutex_unlock(&lock);
}
