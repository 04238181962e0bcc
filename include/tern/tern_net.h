/* SPDX-License-Identifier: Apache-2.0
 *
 * Put, get, signals and atomics on windows: the host's part. A program includes tern/tern.h, which includes
 * this; kernels include tern/tern_device.h. docs/pgas.md shows both.
 *
 * Addresses are symmetric. A pointer into a window of this rank (tern_alloc of TERN_MEMORY_WINDOW, or memory
 * that was adopted) names, for peer p, the place that has the same offset in p's window: what
 * tern_peer_pointer would give. A peer may be this rank itself.
 *
 * Order. Nothing is ordered but what goes to one peer by one queue: there, a signal comes after all puts that
 * were issued before it by the same thread, or in the same stream. Atomics are no signals: they order nothing
 * that came before them. A wait that has seen a signal has all that came before it. Quiet makes puts and
 * signals complete at the peer, and gets here.
 *
 * Kernels are compiled with the library that they run with. The calls of tern_device.h are inline: what one
 * version's kernels do with a view, a record or a team is that version's, and after an update of the library
 * kernels that use them must be recompiled. */
#ifndef TERN_TERN_NET_H
#define TERN_TERN_NET_H

#include "tern/tern.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tern_network;

enum tern_transport {
    TERN_TRANSPORT_AUTO = 0,  /* each peer by loads and stores where they reach it; else by RDMA NICs if every
                                 rank has one that it can use, and none fails while this opens; else, and
                                 with TERN_NICS=none, by the proxy; with TERN_PROXY=none operations on the
                                 others are refused: TERN_UNSUPPORTED */
    TERN_TRANSPORT_P2P = 1,   /* loads and stores; refused at open if that does not reach every rank */
    TERN_TRANSPORT_PROXY = 2, /* a thread of the host carries requests to every other rank, by the engine that
                                 TERN_PROXY names, also to ranks that could be addressed */
    TERN_TRANSPORT_MLX5 = 3,  /* kernels drive queue pairs of the mlx5 NICs that TERN_NICS names, to every
                                 other rank. Never run on a NIC yet */
    TERN_TRANSPORT_SOFTNIC = 4 /* they drive queue pairs of NICs in software, which read and write peers'
                                  memory by loads and stores: a thread of the host, or on GPUs a resident
                                  kernel, a rank. For tests and models of a network, where ranks share a
                                  process or a domain */
};

/* What NICs carry lies in windows at both ends: a kernel that names other local memory to a peer that is
 * reached by queue pairs is refused, TERN_INVALID_ARGUMENT. The host's calls take any memory; what lies in no
 * window goes by way of memory of the network, one call at a time. Windows may come while kernels use the
 * queues (tern_heap_grow, tern_window_adopt); on GPUs such a call may wait until kernels that run have ended.
 * One goes (tern_window_release) when no kernel names it any more. On GPUs a software NIC is a kernel that
 * stays: docs/pgas.md says what waits for it. */

/* What atomics do to a word. All give its old value to who asks for it. NVLink carries them between GPUs,
 * PCIe in general does not. Over a link that does not (cudaDevP2PAttrNativeAtomicSupported; tern-info prints
 * it) all but TERN_AMO_FETCH, and TERN_SIGNAL_ADD, are refused with TERN_UNSUPPORTED; puts, gets, barriers
 * and TERN_SIGNAL_SET do without. A rank that does not see its peer's device (CUDA_VISIBLE_DEVICES) cannot
 * ask, and refuses nothing.
 *
 * A NIC's atomics are atomic with those of the same NIC only. Where a word's owner has several, all who
 * change the word, by atomics or signals, do so by queues of one number modulo the owner's NICs. */
enum tern_amo {
    TERN_AMO_ADD = 0,
    TERN_AMO_AND = 1,
    TERN_AMO_OR = 2,
    TERN_AMO_XOR = 3,
    TERN_AMO_SWAP = 4,
    TERN_AMO_CAS = 5, /* value, if the word is compare */
    TERN_AMO_SET = 6,
    TERN_AMO_FETCH = 7 /* leaves it */
};

enum tern_signal { TERN_SIGNAL_ADD = 0, TERN_SIGNAL_SET = 1 };

/* Of unsigned numbers: the word on the left. */
enum tern_compare {
    TERN_COMPARE_EQ = 0,
    TERN_COMPARE_NE = 1,
    TERN_COMPARE_GE = 2,
    TERN_COMPARE_GT = 3,
    TERN_COMPARE_LE = 4,
    TERN_COMPARE_LT = 5
};

enum { TERN_NET_MAX_QUEUES = 64, TERN_NET_MAX_TEAMS = 64, TERN_NET_NUM_NEAR = 8, TERN_NET_MAX_NICS = 8 };
#define TERN_ALL_QUEUES UINT32_MAX /* where a fence or a quiet takes a queue */

/* Equal on all ranks. */
struct tern_net_config {
    size_t size;
    uint32_t num_queues; /* to each peer, 1 to TERN_NET_MAX_QUEUES. Default: one for each NIC that num_nics
                            says or TERN_NICS names, as many as the rank with most has, else 1 */
    uint32_t num_teams;  /* device teams open at once on a rank, to TERN_NET_MAX_TEAMS; default 4 */
    uint32_t timeout_ms; /* of a wait that names none; default: the communicator's */
    uint32_t transport;  /* enum tern_transport */
    /* NICs of a rank, to TERN_NET_MAX_NICS: queue i to any peer is on NIC i modulo their number, so that who
     * uses as many queues uses all of them. Default: those that are nearest; in software one. Where TERN_NICS
     * names some it is these. What is more than num_queues is left out, with a warning in the log. */
    uint32_t num_nics;
    uint32_t reserved; /* 0 */
};
#define TERN_NET_CONFIG_INIT                                                                                 \
    {                                                                                                        \
        sizeof(struct tern_net_config), 0, 0, 0, 0, 0, 0                                                     \
    }

/* One window, as kernels know it. */
struct tern_net_window {
    char *own;
    uint64_t bytes;
    char *const *bases; /* [num_ranks] where each one's begins, as its route names it; NULL: no route */
};

/* Where the first failure of a kernel is written, in memory of the host; tern_net_synchronize makes a
 * sentence of it. Tern's, but written by what is compiled into kernels. */
struct tern_net_record {
    uint64_t written; /* last, and then the rest is whole */
    int32_t fault, status;
    int32_t peer; /* awaited at a barrier, or operated on */
    uint32_t width, compare, num_ranks;
    int32_t block, warp;
    uint64_t word; /* its address */
    uint64_t expected, seen, elapsed_ns;
    uint64_t late[2]; /* at a barrier: members 0 to 127 that have not come */
};

/* What a kernel gets, by value: plain words, all of them Tern's to write. tern_net_view fills it. */
struct tern_net {
    size_t size;
    int32_t rank, num_ranks;
    uint32_t num_queues, num_windows;
    uint64_t timeout_ns;
    struct tern_net_window heap;           /* of tern_alloc: addresses to which it may grow */
    const struct tern_net_window *windows; /* [num_windows] the network's own and adopted ones, by address */
    const unsigned char *routes;           /* [num_ranks] how each peer is reached */
    const uint64_t *abort_word;
    struct tern_net_record
        *record;        /* where a wait that fails tells the host; NULL: it tells only who called */
    uint32_t *claim;    /* who may write it */
    const void *rings;  /* [num_ranks * num_queues] to the proxy, peer major; NULL: there is none */
    const void *queues; /* likewise, to NICs */
    char *near_bases[TERN_NET_NUM_NEAR]; /* heap.bases of ranks first_near, ..., by loads, stores and atomics;
                                            NULL: another way, or none */
    int32_t first_near;
    uint32_t reserved;
};
#define TERN_NET_INIT                                                                                        \
    {                                                                                                        \
        sizeof(struct tern_net), 0, 0, 0, 0, 0, {NULL, 0, NULL}, NULL, NULL, NULL, NULL, NULL, NULL, NULL,   \
            {NULL}, 0, 0                                                                                     \
    }

/* A team, as kernels know it; likewise. tern_net_team_open fills it. */
struct tern_net_team {
    size_t size;
    int32_t rank, num_ranks; /* in the team */
    const int32_t *members;  /* [num_ranks] numbers in the communicator */
    uint64_t *words; /* [ranks of the communicator] in a window: the round that each member has come to */
    uint64_t *round; /* the last that has ended here */
};
#define TERN_NET_TEAM_INIT                                                                                   \
    {                                                                                                        \
        sizeof(struct tern_net_team), 0, 0, NULL, NULL, NULL                                                 \
    }

/* COLLECTIVE over the communicator, blocking. The ranks are judged together, as in tern_ep_open;
 * TERN_MISMATCH names the field. Takes a window of its own, 8 bytes a rank and team, beside heap_bytes, and a
 * stream: as tern_stream_open, before any rank of the device begins an operation. NULL: defaults. */
TERN_API enum tern_status tern_net_open(struct tern_comm *comm, const struct tern_net_config *config,
                                        struct tern_network **network);
/* The same for all ranks of tern_comm_open_all, by one thread. */
TERN_API enum tern_status tern_net_open_all(int num_ranks, struct tern_comm **comms,
                                            const struct tern_net_config *config,
                                            struct tern_network **networks);
/* Local. Kernels that have its view must have ended, here and at peers that operate on this rank; not while
 * this rank is in tern_heap_grow or tern_window_adopt. Its device teams close with it. Gives memory back as
 * tern_comm_close does: not while a peer's operation waits for this rank. NULL: nothing. */
TERN_API void tern_net_close(struct tern_network *network);

/* Local. What a kernel needs, good until the network closes. tern_heap_grow changes nothing in it: memory
 * that comes later is reached by an older view as well. A window adopted later is known only to views that
 * are taken after tern_window_adopt, and one that is released must not be used by any view. Calls of the
 * host below know the windows as they are, also where another thread adopts and releases them; the first one
 * after a change, or this, prepares a table in device memory, which cannot be done while the calling thread
 * captures a stream. */
TERN_API enum tern_status tern_net_view(struct tern_network *network, struct tern_net *view);

/* COLLECTIVE over `team`, blocking: what kernels need for barriers of the team. Judged together.
 * TERN_NO_SPACE if num_teams are open; TERN_UNSUPPORTED, on all members, if nothing leads from one of them to
 * another. The team itself may close before. */
TERN_API enum tern_status tern_net_team_open(struct tern_network *network, struct tern_team *team,
                                             struct tern_net_team *view);
/* The same by one thread for all members: networks[i], teams[i] and views[i] are one rank's. A NULL team is
 * that of a rank in none, whose view stays. */
TERN_API enum tern_status tern_net_team_open_all(int num, struct tern_network **networks,
                                                 struct tern_team **teams, struct tern_net_team *views);
/* Local, after the last barrier of the team has ended here. */
TERN_API void tern_net_team_close(struct tern_network *network, struct tern_net_team *view);

/* ---- Operations on a stream --------------------------------------------------------------------------- */

/* They run in the order of the stream; each is small, but for the copies of put and get. `remote` is a
 * symmetric address, `local` this rank's memory that its device reaches. `queue` is below num_queues. A
 * `width` is 4 or 8 bytes, of an address that is a multiple of it. Put and get of 0 bytes look at no address.
 * All can be captured in a graph. */
TERN_API enum tern_status tern_net_put_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                                 void *remote, const void *local, size_t bytes,
                                                 struct tern_stream *stream);
TERN_API enum tern_status tern_net_get_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                                 void *local, const void *remote, size_t bytes,
                                                 struct tern_stream *stream);
/* `signal` is an enum tern_signal. */
TERN_API enum tern_status tern_net_signal_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                                    void *remote, int signal, uint32_t width, uint64_t value,
                                                    struct tern_stream *stream);
/* A put and a signal behind it, to a word of the peer: who waits for it has the bytes. Refused, no signal. */
TERN_API enum tern_status tern_net_put_signal_on_stream(struct tern_network *network, int peer,
                                                        uint32_t queue, void *remote, const void *local,
                                                        size_t bytes, void *word, int signal, uint32_t width,
                                                        uint64_t value, struct tern_stream *stream);
/* A value instead of memory: `remote`, a word, becomes it. */
TERN_API enum tern_status tern_net_put_inline_on_stream(struct tern_network *network, int peer,
                                                        uint32_t queue, void *remote, uint64_t value,
                                                        uint32_t width, struct tern_stream *stream);
/* `amo` is an enum tern_amo. *old, of `width` bytes of this rank's memory, becomes the word as it was; NULL:
 * nobody asks. */
TERN_API enum tern_status tern_net_atomic_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                                    void *remote, int amo, uint32_t width, uint64_t value,
                                                    uint64_t compare, void *old, struct tern_stream *stream);
/* What was issued on the stream to this peer by this queue is complete. Peer -1: to every peer; queue -1: by
 * every queue. It serves as a fence, too: what comes after it on the stream is issued later. */
TERN_API enum tern_status tern_net_quiet_on_stream(struct tern_network *network, int peer, int queue,
                                                   struct tern_stream *stream);
/* The stream goes on once the word, of this rank's memory, compares so (enum tern_compare), or after the
 * deadline, 0 for the network's: tern_net_synchronize tells. It holds a processor meanwhile. */
TERN_API enum tern_status tern_net_wait_on_stream(struct tern_network *network, const void *word,
                                                  uint32_t width, int compare, uint64_t value,
                                                  uint32_t timeout_ms, struct tern_stream *stream);
/* What was issued on the stream before is complete, on all members' streams, when the stream goes on.
 * Likewise. */
TERN_API enum tern_status tern_net_barrier_on_stream(struct tern_network *network,
                                                     const struct tern_net_team *team,
                                                     struct tern_stream *stream);
/* Blocks until the stream has run. Then the first failure of a wait, a barrier or an operation in a kernel
 * since the last call, if there was one: TERN_TIMEOUT names rank, word, what was expected and what was seen,
 * TERN_DISCONNECTED who gave up, TERN_INVALID_ARGUMENT and TERN_UNSUPPORTED the address or peer,
 * TERN_DEVICE_ERROR the copy that failed. The network remains good: a word may still come, and a barrier that
 * failed is entered again by those it failed for. */
TERN_API enum tern_status tern_net_synchronize(struct tern_network *network, struct tern_stream *stream);

/* ---- Blocking operations ------------------------------------------------------------------------------ */

/* As above, and complete when they return: put and signal at the peer, get and *old (8 bytes of host memory,
 * whatever the width) here. */
TERN_API enum tern_status tern_net_put(struct tern_network *network, int peer, uint32_t queue, void *remote,
                                       const void *local, size_t bytes);
TERN_API enum tern_status tern_net_get(struct tern_network *network, int peer, uint32_t queue, void *local,
                                       const void *remote, size_t bytes);
TERN_API enum tern_status tern_net_signal(struct tern_network *network, int peer, uint32_t queue,
                                          void *remote, int signal, uint32_t width, uint64_t value);
TERN_API enum tern_status tern_net_atomic(struct tern_network *network, int peer, uint32_t queue,
                                          void *remote, int amo, uint32_t width, uint64_t value,
                                          uint64_t compare, uint64_t *old);
TERN_API enum tern_status tern_net_put_signal(struct tern_network *network, int peer, uint32_t queue,
                                              void *remote, const void *local, size_t bytes, void *word,
                                              int signal, uint32_t width, uint64_t value);
TERN_API enum tern_status tern_net_put_inline(struct tern_network *network, int peer, uint32_t queue,
                                              void *remote, uint64_t value, uint32_t width);
/* For kernels of this rank that have ended: what they issued is complete. */
TERN_API enum tern_status tern_net_quiet(struct tern_network *network, int peer, int queue);
/* Looks again and again, and lets the device do other work in between. */
TERN_API enum tern_status tern_net_wait(struct tern_network *network, const void *word, uint32_t width,
                                        int compare, uint64_t value, uint32_t timeout_ms);
/* One look: *is_met becomes 1 or 0. A 1 brings what a wait brings. */
TERN_API enum tern_status tern_net_test(struct tern_network *network, const void *word, uint32_t width,
                                        int compare, uint64_t value, int *is_met);
/* Returns when all members are in it, each by a thread of its own; else as tern_net_synchronize tells. */
TERN_API enum tern_status tern_net_barrier(struct tern_network *network, const struct tern_net_team *team);
/* Local. Every wait of this network that is in progress or comes later, on all ranks that this one reaches,
 * ends with TERN_DISCONNECTED, unless its word is there: that one still returns TERN_OK. If a rank cannot be
 * told, the others are, and the first failure is returned. Nothing takes it back but another network. Other
 * threads may call it at any time. */
TERN_API enum tern_status tern_net_abort(struct tern_network *network);

/* ---- Kernels of the program's own -------------------------------------------------------------------- */

/* A kernel in the dialect, TERN_KERNEL(name, struct arguments, p) in a file that includes tern_device.h. The
 * file is compiled by a C compiler for the cpu machine, by nvcc for GPUs, or by both, each leaving a function
 * here. */
struct tern_kernel {
    const char *name; /* for sentences; lives as long as the kernel may run */
    void (*cpu)(const void *args);
    void (*cuda)(void); /* nvcc's; the same that cudaLaunchKernel takes */
};
#if defined(__GNUC__)
/* For a kernel that may be compiled for one machine only: what is absent is NULL. Such a reference brings no
 * member out of a static archive: give the linker the kernel's object by itself. */
#define TERN_KERNEL_DECLARE(name)                                                                            \
    void tern_cpu_##name(const void *args) __attribute__((weak));                                            \
    void tern_cuda_##name(void) __attribute__((weak))
#define TERN_KERNEL_INIT(name)                                                                               \
    {                                                                                                        \
#name, tern_cpu_##name, tern_cuda_##name                                                             \
    }
#endif

struct tern_launch_args {
    size_t size;
    int32_t num_blocks;
    int32_t num_threads;   /* of a block; a multiple of 32, to 1024 and what the kernel was compiled for */
    const void *args;      /* the kernel's structure, read before the call returns */
    uint32_t args_bytes;   /* to 4000 */
    uint32_t shared_bytes; /* of a block, to what the device has */
};
#define TERN_LAUNCH_ARGS_INIT                                                                                \
    {                                                                                                        \
        sizeof(struct tern_launch_args), 0, 0, NULL, 0, 0                                                    \
    }

/* TERN_UNSUPPORTED if the kernel was not compiled for the communicator's machine. On cuda, a kernel's first
 * launch may wait until the device is idle, which it is not while a kernel there waits for this rank: launch
 * each once before, or set CUDA_MODULE_LOADING=EAGER. */
TERN_API enum tern_status tern_launch(struct tern_comm *comm, const struct tern_kernel *kernel,
                                      const struct tern_launch_args *args, struct tern_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
