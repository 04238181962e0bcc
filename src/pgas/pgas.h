/* SPDX-License-Identifier: Apache-2.0
 *
 * A network: what kernels and hosts need to operate on peers' windows. It holds a window of its own, for the
 * abort word and the words of device teams; device memory, for tables that kernels read; host memory, where
 * kernels leave results and the record of a failure; and a stream for calls that block.
 *
 *     pgas_open.c   opening, a collective in steps, and closing
 *     pgas_view.c   the windows as kernels know them
 *     pgas_team.c   device teams: a place for the words that is free on all members
 *     pgas_ops.c    operations of the host: copies of the machine, and requests to the kernel net_ops
 *     pgas_fault.c  a failure in a kernel becomes a status and a sentence
 *
 * Its own window: the abort word, then for each team place a word a rank. */
#ifndef TERN_PGAS_H
#define TERN_PGAS_H

#include "comm/comm.h"
#include "kernels/net_args.h"
#include "net/barrier.h"

/* Of the own window. */
enum { PGAS_ABORT = 0, PGAS_TEAMS = 256 };

/* A place for a team's words; `index` is the same on all members. */
struct pgas_place {
    int is_taken;
    int32_t *members; /* [num_ranks of the communicator] host copy, as many as the team has */
};

/* Device memory of the windows as they were at some time; a kernel may still have an older one. */
struct pgas_table {
    struct pgas_table *next;
    void *memory;
};

/* In host memory, written by kernels. */
struct pgas_host {
    struct tern_net_record record;
    struct net_result result; /* of a call that blocks */
};

struct tern_network {
    struct tern_comm *comm;
    struct machine *machine;
    struct comm_child child;
    uint32_t num_queues, num_teams, timeout_ms, transport;
    struct heap *heap; /* the own window */
    struct tern_stream *stream;
    struct pgas_host *host, *host_device; /* one memory, by host and device */
    char *device;                         /* of rounds and members a place, routes, claim */
    struct tern_net view;
    struct pgas_table *tables; /* the newest first */
    uint64_t windows_seen;     /* comm->num_window_changes that it knows */
    struct pgas_place *places; /* [num_teams] */
};

/* ---- Opening (pgas_open.c): every step on every rank, as long as none fails ---- */

enum { NET_OPEN_STEPS = 4 };
enum tern_status terni_network_open_step(struct tern_comm *comm, const struct tern_net_config *config,
                                         int step, struct tern_network **network);
void terni_network_close(struct tern_network *n); /* accepts NULL and half-open ones */

/* Bytes of the own window from one team place to the next, and of a place's device memory. */
uint64_t terni_pgas_team_stride(const struct tern_comm *comm);
uint64_t terni_pgas_state_stride(const struct tern_comm *comm);
/* Copies to or from the device, done on return. */
enum tern_status terni_pgas_move(struct tern_network *n, void *dst, const void *src, size_t bytes);

/* ---- pgas_view.c ---- */

enum tern_status terni_network_view(struct tern_network *n, struct tern_net *view);
void terni_pgas_tables_close(struct tern_network *n);

/* ---- pgas_team.c: opening in steps; finish with the outcome, also where the first step failed ---- */

struct pgas_joining {
    struct tern_network *network;
    struct tern_team *team;
    int place; /* -1: none yet */
};
enum { NET_TEAM_STEPS = 3 };
enum tern_status terni_net_team_step(struct pgas_joining *j, int step);
void terni_net_team_finish(struct pgas_joining *j, enum tern_status status, struct tern_net_team *view);
void terni_net_team_close(struct tern_network *n, struct tern_net_team *view);

/* ---- pgas_ops.c ---- */

/* Where a call of the host goes. */
struct pgas_call {
    struct tern_network *network;
    int peer;
    uint32_t queue;
    struct tern_stream *stream;
    int is_blocking; /* then on the network's own stream, and complete on return */
};
enum tern_status terni_pgas_put(const struct pgas_call *c, void *remote, const void *local, size_t bytes);
enum tern_status terni_pgas_get(const struct pgas_call *c, void *local, const void *remote, size_t bytes);
enum tern_status terni_pgas_signal(const struct pgas_call *c, void *remote, int signal, uint32_t width,
                                   uint64_t value);
/* What an atomic does. */
struct pgas_atomic {
    int amo;
    uint32_t width;
    uint64_t value, compare;
};
/* old: device memory for `width` bytes, or of a call that blocks a uint64_t of the host; or NULL. */
enum tern_status terni_pgas_atomic(const struct pgas_call *c, void *remote, const struct pgas_atomic *a,
                                   void *old);
enum tern_status terni_pgas_quiet(const struct pgas_call *c, int queue);
/* What is waited for. */
struct pgas_wait {
    const void *word;
    uint32_t width;
    int compare;
    uint64_t value;
    uint32_t timeout_ms; /* 0: the network's */
};
enum tern_status terni_pgas_wait(const struct pgas_call *c, const struct pgas_wait *w);
enum tern_status terni_pgas_barrier(const struct pgas_call *c, const struct tern_net_team *team);
enum tern_status terni_pgas_abort(struct tern_network *n);

/* ---- pgas_fault.c ---- */

/* The failure that kernels have recorded since the last call, if there is one. */
enum tern_status terni_pgas_fault(struct tern_network *n);
/* Fails with the record's status and sentence. */
enum tern_status terni_pgas_state(const struct tern_network *n, const struct tern_net_record *r);

#endif
