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
 *     pgas_proxy.c  the way to ranks that are not addressed: a courier, and what kernels see of it
 *     pgas_queue.c  another: NICs whose queue pairs kernels drive
 *
 * Its own window: the abort word; four words a NIC, of a modelled wire; then for each team place a word a
 * rank; then what an EP object that opened it has there (ep/layout.h); then packets of NICs in software, if
 * they send any (net/nic_provider.h). */
#ifndef TERN_PGAS_H
#define TERN_PGAS_H

#include "comm/comm.h"
#include "comm/courier.h"
#include "kernels/net_args.h"
#include "net/barrier.h"

/* Of the own window. */
enum { PGAS_ABORT = 0, PGAS_LINK = 128, PGAS_TEAMS = 384 };

/* A place for a team's words; `index` is the same on all members. */
struct pgas_place {
    int is_taken, is_used; /* is_used: some team had it, perhaps this one */
    int32_t *members;      /* [num_ranks of the communicator] host copy, as many as the team has */
};

/* Device memory of the windows as they were at some time; a kernel may still have an older one. */
struct pgas_table {
    struct pgas_table *next;
    void *memory;
};

/* Whose failure a record is for: kernels, and calls on streams; or the call that blocks. Each has a claim. */
enum pgas_teller { PGAS_KERNELS = 0, PGAS_CALL = 1, PGAS_TELLERS = 2 };

/* In host memory, written by kernels. */
struct pgas_host {
    struct tern_net_record records[PGAS_TELLERS];
    struct net_result result; /* of a call that blocks */
    struct net_result told[]; /* [num_ranks] pgas_abort.c */
};

struct tern_network {
    struct tern_comm *comm;
    struct machine *machine;
    struct comm_child child;
    uint32_t num_queues, num_teams, timeout_ms, transport, num_nics;
    struct heap *heap;            /* the own window */
    uint64_t wire_at, wire_bytes; /* in it: packets, to its end */
    struct tern_stream *stream;   /* for calls that block */
    int has_stream;               /* of its own; an EP object's network takes the machine's */
    /* Not 0, of an EP object's network: NICs have queues to the ranks alone that have this one's place in
     * other runs of so many ranks. Its kernels name no others in other domains. */
    uint32_t rail_ranks;
    /* Likewise: there are none to other ranks of its run of so many, which its kernels reach otherwise. */
    uint32_t near_ranks;
    struct pgas_host *host, *host_device; /* one memory, by host and device */
    char *device;                         /* of rounds and members a place, routes, claims */
    unsigned char *routes;                /* [num_ranks] host copy: enum net_route */
    struct courier *courier;              /* NULL: no route is a ring */
    struct pgas_nics *nics;               /* NULL: no route is a queue */
    struct carrier_parcels parcels;       /* while it opens */
    void *rings;    /* [2 * num_ranks * num_queues] device memory: struct net_ring; the second half
                                    knows no abort word */
    int is_telling; /* pgas_abort.c */
    struct tern_net view, first; /* as kernels get it now; as it was when this opened */
    struct pgas_table *tables;   /* the newest first */
    char *const *own_row;        /* in the newest: the own window's bases */
    uint64_t windows_seen;       /* comm->num_window_changes that it knows */
    struct pgas_place *places;   /* [num_teams] */
};

/* ---- Opening (pgas_open.c): every step on every rank, as long as none fails ---- */

enum { PGAS_NICS_STEPS = 4 + CARRIER_STEPS };
enum { PGAS_PROXY_STEPS = COURIER_OPEN_STEPS + CARRIER_STEPS };
enum { NET_OPEN_STEPS = 4 + PGAS_NICS_STEPS + PGAS_PROXY_STEPS + 3 };
/* window_bytes, equal on all ranks: of the own window; beyond the network's words it is for who opens it. 0:
 * no more than those. */
enum tern_status terni_network_open_step(struct tern_comm *comm, const struct tern_net_config *config,
                                         uint64_t window_bytes, int step, struct tern_network **network);
void terni_network_close(struct tern_network *n); /* accepts NULL and half-open ones */

/* Of the own window: the network's words. */
uint64_t terni_pgas_own_bytes(int num_ranks, uint32_t num_teams);
/* Bytes of the own window from one team place to the next, and of a place's device memory. */
uint64_t terni_pgas_team_stride(const struct tern_comm *comm);
uint64_t terni_pgas_state_stride(const struct tern_comm *comm);
/* In device memory: queues that kernels have seen to lose their peer. */
uint64_t *terni_pgas_lost_word(const struct tern_network *n);
/* Into v: a window's bases at the first ranks of the domain, whose words are waited for most. */
void terni_pgas_lay_near(const struct tern_network *n, char *const *bases, struct tern_net *v);
/* Copies to or from the device, done on return. */
enum tern_status terni_pgas_move(const struct tern_network *n, void *dst, const void *src, size_t bytes);

/* ---- pgas_view.c ---- */

enum tern_status terni_network_view(struct tern_network *n, struct tern_net *view);
/* For kernels that name addresses of the own window alone, which is found without the table of windows: it
 * has the place of tern_alloc's, of which they then know nothing. */
enum tern_status terni_network_own_view(struct tern_network *n, struct tern_net *view);
void terni_pgas_tables_close(struct tern_network *n);
/* Its windows for a carrier, into n->parcels: that of tern_alloc if it does not know it, the own one, then
 * the adopted ones by their numbers: as long on all ranks, with gaps where one was released. */
enum tern_status terni_pgas_list_windows(struct tern_network *n, struct carrier *carrier, int with_heap);

/* ---- pgas_team.c: opening in steps; finish with the outcome, also where the first step failed ---- */

struct pgas_joining {
    struct tern_network *network;
    struct tern_team *team;
    int place;      /* -1: none yet */
    uint64_t round; /* that counts as passed already */
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
/* A value for a word. */
struct pgas_signal {
    void *word; /* symmetric */
    int signal;
    uint32_t width;
    uint64_t value;
};
enum tern_status terni_pgas_signal(const struct pgas_call *c, const struct pgas_signal *s);
enum tern_status terni_pgas_put_signal(const struct pgas_call *c, void *remote, const void *local,
                                       size_t bytes, const struct pgas_signal *s);
enum tern_status terni_pgas_put_inline(const struct pgas_call *c, void *remote, uint64_t value,
                                       uint32_t width);
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
enum tern_status terni_pgas_test(const struct pgas_call *c, const struct pgas_wait *w, int *is_met);
enum tern_status terni_pgas_barrier(const struct pgas_call *c, const struct tern_net_team *team);

/* ---- pgas_abort.c ---- */

enum tern_status terni_pgas_abort(struct tern_network *n);

/* ---- pgas_proxy.c ---- */

/* Whether any rank is reached by the proxy, on whatever rank: equal on all. */
int terni_pgas_needs_proxy(const struct tern_comm *comm, uint32_t transport); /* where there are no NICs */
/* The steps of the courier's opening, and then of registering the windows, as long as none fails. */
enum tern_status terni_pgas_proxy_step(struct tern_network *n, int step);
/* Its rings, for kernels. */
enum tern_status terni_pgas_lay_rings(struct tern_network *n);
/* The same without an abort word, in device memory. */
const void *terni_pgas_rings_calm(const struct tern_network *n);
/* What this thread has written, or has seen done, comes before what the proxy's thread does for a peer that
 * hears of it. The kernel of the system gives that anyhow; this says so to the program. */
void terni_pgas_proxy_sees(struct tern_network *n);
void terni_pgas_proxy_close(struct tern_network *n);
/* "; rank 2 has ...", of the first peer that the proxy has lost; leaves "" if there is none. */
void terni_pgas_proxy_print_lost(const struct tern_network *n, char *text, size_t bytes);

/* ---- pgas_queue.c ---- */

/* What a rank sees of its own: whether the transport can serve it at all. */
enum tern_status terni_pgas_nics_check(const struct tern_comm *comm, uint32_t transport);
/* Processors that kernels of a rank may use, besides what NICs in software take. */
int terni_pgas_num_sms(const struct tern_comm *comm, uint32_t transport);
enum tern_status terni_pgas_nics_step(struct tern_network *n, int step);
/* Whether they have queues to rank r. */
int terni_pgas_nics_reach(const struct tern_network *n, int r);
/* Its queues, for kernels. Then, as the last of all that can fail, it runs, and all ranks hear whether
 * everybody's does; where one's does not, closing ends the others. Without NICs, which no rank has then,
 * nothing. */
void terni_pgas_nics_lay(struct tern_network *n);
enum tern_status terni_pgas_nics_run_post(struct tern_network *n);
enum tern_status terni_pgas_nics_run_wait(struct tern_network *n);
void terni_pgas_nics_close(struct tern_network *n);
void terni_pgas_bounce(const struct tern_network *n, struct net_bounce *bounce);
/* Queues for a kernel whose waits do not end by the abort word. Done on return. */
enum tern_status terni_pgas_nics_calm(struct tern_network *n, struct tern_stream *stream,
                                      const void **queues);
/* "; rank 2 is lost: ...", likewise of the first that a kernel has found to be; or what else ended its
 * queue. */
void terni_pgas_nics_print_lost(const struct tern_network *n, char *text, size_t bytes);
/* ": why", of a queue that has failed, or "". 1: that is what failed first. */
int terni_pgas_nics_explain(const struct tern_network *n, int peer, uint32_t queue, char *text, size_t bytes);

/* ---- pgas_fault.c ---- */

/* TERN_DISCONNECTED, and why: nothing that is handed over for this rank arrives any more, by a queue at
 * least. */
enum tern_status terni_pgas_reaches(const struct tern_network *n, int rank);

/* "; rank 2 ...", of the first peer that is known to be lost, or "". */
void terni_pgas_lost_print(const struct tern_network *n, char *text, size_t bytes);
/* The failure that was recorded for `teller` since the last call, if there is one. */
enum tern_status terni_pgas_fault(struct tern_network *n, enum pgas_teller teller);
/* Fails with the record's status and sentence. */
enum tern_status terni_pgas_state(const struct tern_network *n, const struct tern_net_record *r);
/* Fails: what needs an atomic on this peer. `where`: " (block 0, warp 1)" or "". */
enum tern_status terni_pgas_refuse_atomic(const struct tern_network *n, int peer, const char *where);

#endif
