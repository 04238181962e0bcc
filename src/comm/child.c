/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects that live on a communicator: how many are open, and on which stream each last issued work. An
 * object orders itself after that work only when somebody asks, so it must learn when the stream closes. */
#include "comm/comm.h"

void terni_comm_adopt(struct tern_comm *comm, struct comm_child *child)
{
    pthread_mutex_lock(&comm->children_lock);
    child->next = comm->children;
    comm->children = child;
    pthread_mutex_unlock(&comm->children_lock);
}

void terni_comm_disown(struct tern_comm *comm, struct comm_child *child)
{
    struct comm_child **at = &comm->children;

    pthread_mutex_lock(&comm->children_lock);
    while (*at && *at != child) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = child->next;
    }
    pthread_mutex_unlock(&comm->children_lock);
}

int terni_comm_num_children(struct tern_comm *comm)
{
    int n = 0;

    pthread_mutex_lock(&comm->children_lock);
    for (const struct comm_child *c = comm->children; c; c = c->next) {
        n++;
    }
    pthread_mutex_unlock(&comm->children_lock);
    return n;
}

/* A key, so that one word says whether there is a stream and which: NULL and small numbers are streams
 * too. */
enum { STREAM_KEY = 16 };

void terni_child_used(struct comm_child *child, struct tern_stream *stream)
{
    __atomic_store_n(&child->stream_key, (uintptr_t)stream + STREAM_KEY, __ATOMIC_RELAXED);
}

int terni_child_stream(const struct comm_child *child, struct tern_stream **stream)
{
    uintptr_t key = __atomic_load_n(&child->stream_key, __ATOMIC_RELAXED);

    *stream = (struct tern_stream *)(key - STREAM_KEY);
    return key != 0;
}

void terni_child_idle(struct comm_child *child) { __atomic_store_n(&child->stream_key, 0, __ATOMIC_RELAXED); }

/* Relaxed: the word is all that is exchanged. A child in another thread changes its word meanwhile only if
 * its stream is another one. */
void terni_comm_stream_closed(struct tern_comm *comm, struct tern_stream *stream)
{
    pthread_mutex_lock(&comm->children_lock);
    for (struct comm_child *c = comm->children; c; c = c->next) {
        uintptr_t key = (uintptr_t)stream + STREAM_KEY;
        __atomic_compare_exchange_n(&c->stream_key, &key, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&comm->children_lock);
}
