/* SPDX-License-Identifier: Apache-2.0
 *
 * See resident.h. Holds are counted, as calls of several threads overlap; during one the lock is free. */
#include "machine/resident.h"

#include <pthread.h>
#include <stddef.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock;       /* of all below */
static struct resident *residents; /* in no order */
static unsigned num_holds;

static void make_lock(void)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

void terni_residents_lock(void)
{
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

void terni_residents_unlock(void) { pthread_mutex_unlock(&lock); }

void terni_resident_add(struct resident *r)
{
    r->next = residents;
    residents = r;
}

void terni_resident_remove(struct resident *r)
{
    struct resident **at = &residents;
    while (*at != NULL && *at != r) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = r->next;
    }
}

int terni_residents_are_held(void) { return num_holds != 0; }

void terni_residents_hold(void)
{
    terni_residents_lock();
    if (num_holds++ == 0) {
        for (struct resident *r = residents; r != NULL; r = r->next) {
            r->end(r);
        }
    }
    terni_residents_unlock();
}

void terni_residents_release(void)
{
    terni_residents_lock();
    if (--num_holds == 0) {
        for (struct resident *r = residents; r != NULL; r = r->next) {
            r->start(r);
        }
    }
    terni_residents_unlock();
}
