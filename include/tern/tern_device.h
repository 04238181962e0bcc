/* SPDX-License-Identifier: Apache-2.0
 *
 * tern_device.h - put, get, signals, atomics, waits and barriers for kernels. A kernel takes a struct
 * tern_net by value, which the host has from tern_net_view (tern_net.h), and gives its address to the calls
 * below. Without __grid_constant__ each thread copies the view to memory of its own first:
 *
 *     __global__ void send(const __grid_constant__ struct tern_net net, char *to, char *row, void *flag)
 *     {
 *         tern_put_signal_block(&net, 1, 0, to, row, 4096, flag, 8, TERN_SIGNAL_ADD, 1);
 *     }
 *
 * Where. In CUDA C++, by nvcc. On the cpu machine kernels are C, in the dialect of tern/dialect/simt/simt.h,
 * which this header brings, and link libtern.a. In CUDA C++ the dialect stays in namespace tern_dialect,
 * unless TERN_DIALECT is defined first: a kernel in the dialect, which is one source for both machines, does
 * that.
 *
 * Who calls. Names that end in _warp and _block are calls of all threads of a warp or a block together, with
 * equal arguments; all others are of one thread. What any thread of the group wrote to the source before the
 * call is what goes out, and afterwards each of them may signal, fence or quiet for it.
 *
 * Order. Nothing is ordered but what goes to one peer by one queue: there a signal comes after the puts that
 * were issued before it, and what is issued after a fence after what was issued before it. Atomics and inline
 * puts are puts in this: no signal for what came before them. A plain call returns when its local memory may
 * be used again, and a get or a fetch when it is here; one that ends in _nbi leaves that to a quiet. Quiet
 * returns when what the thread, or its group, issued is complete: visible to everybody there. What a get that
 * is not complete reads may be read again: quiet it before the memory's owner is told that it may write.
 *
 * A status is TERN_OK or a negative enum tern_status: TERN_TIMEOUT (a deadline), TERN_DISCONNECTED
 * (tern_net_abort, a peer that is lost), TERN_INVALID_ARGUMENT (bytes in no window, a word that is misaligned
 * or of another width, or no such peer, queue, operation, signal or comparison), TERN_UNSUPPORTED (nothing
 * reaches the peer), TERN_DEVICE_ERROR (a copy failed). A queue that has failed gives every later call what
 * ended it: TERN_DISCONNECTED if its peer is lost, or nobody saw in time what it was; TERN_DEVICE_ERROR if a
 * device failed, here or there; TERN_INVALID_ARGUMENT if a NIC refused what was asked. The first failure
 * is told to the host, too (tern_net_synchronize), unless net->record is NULL. Words have 4 or 8 bytes
 * (`width`) and are aligned. */
#ifndef TERN_TERN_DEVICE_H
#define TERN_TERN_DEVICE_H

#include "tern/tern.h"

#if defined(__cplusplus) && !defined(__CUDACC__)
#error "kernels of the cpu machine are C; those of GPUs are compiled by nvcc"
#endif

#if defined(__CUDACC__) && !defined(TERN_DIALECT) && !defined(TERN_SIMT_H)
#define TERN_DIALECT_INSIDE 1
#include <cuda_bf16.h>
#include <cuda_fp8.h>
namespace tern_dialect
{
#endif

#include "net/barrier.h"
#include "net/bulk.h"

/* Where this rank's device reaches the place of `memory` in the peer's window; NULL if it cannot. */
TERN_DEVICE void *tern_at_peer(const struct tern_net *net, int peer, const void *memory)
{
    return net_pointer(net, peer, memory);
}

/* ---- Put and get -------------------------------------------------------------------------------------- */

/* `remote` is a symmetric address, `local` memory of this rank; any number of bytes at any addresses,
 * which nobody looks at for 0 bytes. Of each call there are three, by who calls, here with _GROUP for
 * nothing, _warp or _block:
 *
 *     int tern_put_GROUP(net, peer, queue, remote, local, bytes)          local may be written to again
 *     int tern_put_nbi_GROUP(...)                                         after a quiet
 *     int tern_get_GROUP(net, peer, queue, local, remote, bytes)          local is here
 *     int tern_get_nbi_GROUP(...)                                         after a quiet
 *     int tern_put_signal_GROUP(net, peer, queue, remote, local, bytes, word, width, signal, value)
 *                                          as tern_put, and one enum tern_signal after it; refused, no signal
 *     int tern_put_signal_nbi_GROUP(...)   as tern_put_nbi, and likewise
 *
 * Over loads and stores nothing is outstanding when any of them returns, so there the forms are one. By a
 * proxy or a NIC the plain ones wait for a round trip, and to a NIC `local` must lie in a window, too. */
#define TERN_DEVICE_COPIES(suffix, group)                                                                    \
    TERN_DEVICE int tern_put##suffix(const struct tern_net *net, int peer, uint32_t queue, void *remote,     \
                                     const void *local, uint64_t bytes)                                      \
    {                                                                                                        \
        return route_put(net, group_of(group), peer, queue, remote, local, bytes, 1);                        \
    }                                                                                                        \
    TERN_DEVICE int tern_put_nbi##suffix(const struct tern_net *net, int peer, uint32_t queue, void *remote, \
                                         const void *local, uint64_t bytes)                                  \
    {                                                                                                        \
        return route_put(net, group_of(group), peer, queue, remote, local, bytes, 0);                        \
    }                                                                                                        \
    TERN_DEVICE int tern_get##suffix(const struct tern_net *net, int peer, uint32_t queue, void *local,      \
                                     const void *remote, uint64_t bytes)                                     \
    {                                                                                                        \
        return route_get(net, group_of(group), peer, queue, local, remote, bytes, 1);                        \
    }                                                                                                        \
    TERN_DEVICE int tern_get_nbi##suffix(const struct tern_net *net, int peer, uint32_t queue, void *local,  \
                                         const void *remote, uint64_t bytes)                                 \
    {                                                                                                        \
        return route_get(net, group_of(group), peer, queue, local, remote, bytes, 0);                        \
    }                                                                                                        \
    TERN_DEVICE int tern_put_signal##suffix(const struct tern_net *net, int peer, uint32_t queue,            \
                                            void *remote, const void *local, uint64_t bytes, void *word,     \
                                            uint32_t width, uint32_t signal, uint64_t value)                 \
    {                                                                                                        \
        return route_put_signal(net, group_of(group), peer, queue, remote, local, bytes, word, width,        \
                                signal, value, 1);                                                           \
    }                                                                                                        \
    TERN_DEVICE int tern_put_signal_nbi##suffix(const struct tern_net *net, int peer, uint32_t queue,        \
                                                void *remote, const void *local, uint64_t bytes, void *word, \
                                                uint32_t width, uint32_t signal, uint64_t value)             \
    {                                                                                                        \
        return route_put_signal(net, group_of(group), peer, queue, remote, local, bytes, word, width,        \
                                signal, value, 0);                                                           \
    }
TERN_DEVICE_COPIES(, GROUP_THREAD)
TERN_DEVICE_COPIES(_warp, GROUP_WARP)
TERN_DEVICE_COPIES(_block, GROUP_BLOCK)
#undef TERN_DEVICE_COPIES

/* The same by bulk copies (compute capability 9.0), for blocks that can spare shared memory: the other
 * threads' registers and issue slots stay free. All threads of the block open `shared` once, a multiple of
 * 16, and use it for nothing else until the last such call has returned everywhere in the block; each warp
 * gets an equal part, which loads fill ahead of the stores. `bulk` is each thread's own, in registers. Then
 *
 *     int tern_put_bulk_GROUP(net, bulk, peer, queue, remote, local, bytes)    GROUP: _warp or _block
 *     int tern_get_bulk_GROUP(net, bulk, peer, queue, local, remote, bytes)
 *
 * promise what tern_put and tern_get do. Where bulk copies cannot go (other devices, ends that are not
 * equally misaligned to 16 bytes, too little memory), loads and stores do. */
TERN_DEVICE void tern_bulk_open(struct tern_bulk *bulk, void *shared, uint32_t shared_bytes)
{
    bulk_open(bulk, shared, shared_bytes);
}

#define TERN_DEVICE_BULK(suffix, group)                                                                      \
    TERN_DEVICE int tern_put_bulk##suffix(const struct tern_net *net, struct tern_bulk *bulk, int peer,      \
                                          uint32_t queue, void *remote, const void *local, uint64_t bytes)   \
    {                                                                                                        \
        return route_put_bulk(net, group_of(group), bulk, peer, queue, remote, local, bytes);                \
    }                                                                                                        \
    TERN_DEVICE int tern_get_bulk##suffix(const struct tern_net *net, struct tern_bulk *bulk, int peer,      \
                                          uint32_t queue, void *local, const void *remote, uint64_t bytes)   \
    {                                                                                                        \
        return route_get_bulk(net, group_of(group), bulk, peer, queue, local, remote, bytes);                \
    }
TERN_DEVICE_BULK(_warp, GROUP_WARP)
TERN_DEVICE_BULK(_block, GROUP_BLOCK)
#undef TERN_DEVICE_BULK

/* A value instead of memory: the least that can be sent. */
TERN_DEVICE int tern_put_inline(const struct tern_net *net, int peer, uint32_t queue, void *remote,
                                uint64_t value, uint32_t width)
{
    return route_put_inline(net, peer, queue, remote, value, width);
}

/* ---- Signals and atomics ------------------------------------------------------------------------------ */

/* After this thread's earlier puts to this peer by this queue: whoever waits for it has them. */
TERN_DEVICE int tern_signal_add(const struct tern_net *net, int peer, uint32_t queue, void *word,
                                uint64_t value, uint32_t width)
{
    return route_signal(net, peer, queue, word, width, TERN_SIGNAL_ADD, value);
}

TERN_DEVICE int tern_signal_set(const struct tern_net *net, int peer, uint32_t queue, void *word,
                                uint64_t value, uint32_t width)
{
    return route_signal(net, peer, queue, word, width, TERN_SIGNAL_SET, value);
}

/* `amo` is an enum tern_amo; `compare` counts for TERN_AMO_CAS only. Where the peer has several NICs, all who
 * change a word, by atomics or signals, do so by queues that are of one NIC there (enum tern_amo). */
TERN_DEVICE int tern_atomic(const struct tern_net *net, int peer, uint32_t queue, void *word, uint32_t amo,
                            uint64_t value, uint64_t compare, uint32_t width)
{
    uint64_t old;
    return route_atomic(net, peer, queue, word, width, amo, value, compare, 0, &old);
}

/* Likewise, and *old is the word as it was. */
TERN_DEVICE int tern_atomic_fetch(const struct tern_net *net, int peer, uint32_t queue, void *word,
                                  uint32_t amo, uint64_t value, uint64_t compare, uint32_t width,
                                  uint64_t *old)
{
    return route_atomic(net, peer, queue, word, width, amo, value, compare, 1, old);
}

/* ---- Order and completion ----------------------------------------------------------------------------- */

/* Peer -1: to every peer; queue TERN_ALL_QUEUES: by every queue. */
TERN_DEVICE int tern_fence(const struct tern_net *net, int peer, uint32_t queue)
{
    return route_quiet(net, peer, queue);
}

TERN_DEVICE int tern_quiet(const struct tern_net *net, int peer, uint32_t queue)
{
    return route_quiet(net, peer, queue);
}

/* To every peer, by every queue. */
TERN_DEVICE int tern_fence_all(const struct tern_net *net) { return route_quiet(net, -1, TERN_ALL_QUEUES); }
TERN_DEVICE int tern_quiet_all(const struct tern_net *net) { return route_quiet(net, -1, TERN_ALL_QUEUES); }

/* ---- Waits -------------------------------------------------------------------------------------------- */

/* Until the word, in this rank's memory, compares so to value (enum tern_compare, unsigned), but no longer
 * than timeout_ns, 0 for the network's, ~0 for no deadline. What came before the signal that ends the wait is
 * here then. */
TERN_DEVICE int tern_wait(const struct tern_net *net, const void *word, uint32_t compare, uint64_t value,
                          uint32_t width, uint64_t timeout_ns)
{
    uint64_t seen;
    return net_wait(net, word, width, compare, value, timeout_ns, &seen);
}

/* One look: 1 or 0, or TERN_INVALID_ARGUMENT. A 1 brings what a wait brings. */
TERN_DEVICE int tern_test(const void *word, uint32_t compare, uint64_t value, uint32_t width)
{
    return net_test(word, width, compare, value);
}

/* ---- Barriers ----------------------------------------------------------------------------------------- */

/* One group of every member calls, each round once, and in one team's kernels of a rank one after the other.
 * What the group issued before is complete at all members when it returns. After a failure a member may come
 * again to the same round. */
TERN_DEVICE int tern_barrier(const struct tern_net *net, const struct tern_net_team *team)
{
    return route_barrier(net, team, group_of(GROUP_THREAD));
}

TERN_DEVICE int tern_barrier_warp(const struct tern_net *net, const struct tern_net_team *team)
{
    return route_barrier(net, team, group_of(GROUP_WARP));
}

TERN_DEVICE int tern_barrier_block(const struct tern_net *net, const struct tern_net_team *team)
{
    return route_barrier(net, team, group_of(GROUP_BLOCK));
}

#ifdef TERN_DIALECT_INSIDE
}
#define TERN_DEVICE_GROUPS(name)                                                                             \
    using tern_dialect::name;                                                                                \
    using tern_dialect::name##_warp;                                                                         \
    using tern_dialect::name##_block;
TERN_DEVICE_GROUPS(tern_put)
TERN_DEVICE_GROUPS(tern_put_nbi)
TERN_DEVICE_GROUPS(tern_get)
TERN_DEVICE_GROUPS(tern_get_nbi)
TERN_DEVICE_GROUPS(tern_put_signal)
TERN_DEVICE_GROUPS(tern_put_signal_nbi)
TERN_DEVICE_GROUPS(tern_barrier)
#undef TERN_DEVICE_GROUPS
using tern_dialect::tern_at_peer;
using tern_dialect::tern_atomic;
using tern_dialect::tern_atomic_fetch;
using tern_dialect::tern_bulk;
using tern_dialect::tern_bulk_open;
using tern_dialect::tern_fence;
using tern_dialect::tern_fence_all;
using tern_dialect::tern_get_bulk_block;
using tern_dialect::tern_get_bulk_warp;
using tern_dialect::tern_put_bulk_block;
using tern_dialect::tern_put_bulk_warp;
using tern_dialect::tern_put_inline;
using tern_dialect::tern_quiet;
using tern_dialect::tern_quiet_all;
using tern_dialect::tern_signal_add;
using tern_dialect::tern_signal_set;
using tern_dialect::tern_test;
using tern_dialect::tern_wait;
#undef bulk_wait
#undef bulk_wait_read
#endif

#endif
