/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of one process address each other's windows directly, and may close in any order, from any thread: a
 * part lives until the last of them has let go. They find it by name in a list of this process rather than by
 * a pointer in a message, because a rank that failed may have freed its part while the message was on its
 * way. */
#include "comm/part.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct part {
    struct part *next;
    struct part_name name;
    struct share share;
    int num_references; /* under lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct part *parts; /* under lock: all of this process that are open */

enum tern_status terni_part_open(const struct part_name *name, const struct share *share, struct part **part)
{
    struct part *p = (struct part *)calloc(1, sizeof *p);
    if (p == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *p);
    }
    p->name = *name;
    p->share = *share;
    p->num_references = 1;
    pthread_mutex_lock(&lock);
    p->next = parts;
    parts = p;
    pthread_mutex_unlock(&lock);
    *part = p;
    return TERN_OK;
}

struct part *terni_part_find(const struct part_name *name)
{
    struct part *p;
    pthread_mutex_lock(&lock);
    for (p = parts; p != NULL; p = p->next) {
        if (memcmp(&p->name, name, sizeof *name) == 0) {
            p->num_references++;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return p;
}

char *terni_part_base(const struct part *part) { return part->share.base; }

struct share *terni_part_share(struct part *part) { return &part->share; }

void terni_part_release(struct part *part, struct machine *machine)
{
    int is_last;
    if (part == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    is_last = --part->num_references == 0;
    if (is_last) {
        struct part **at = &parts;
        while (*at != part) {
            at = &(*at)->next;
        }
        *at = part->next;
    }
    pthread_mutex_unlock(&lock);
    if (is_last) {
        machine->ops->share_free(machine, &part->share);
        free(part);
    }
}
