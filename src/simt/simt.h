/* SPDX-License-Identifier: Apache-2.0
 *
 * simt: the dialect in which kernels are written. One source is compiled by nvcc for GPUs (ptx.h: one
 * instruction a function) and by gcc for the cpu machine (fiber.h: every GPU thread is a fiber of the
 * executor). Kernels use this vocabulary and C; nothing else.
 *
 * Names follow PTX: operation, order, scope, type. Scopes: cta = block, gpu = one device, sys = all ranks.
 *
 * The vocabulary, identical on both sides:
 *
 *   int      tid() bid() nthr() nblk() lane() warp() nwarps()
 *   void     sync_warp() sync_block()                 all 32 lanes, all threads of the block
 *   int      sync_block_or(int)                       barrier; nonzero if any thread gave nonzero
 *   void     sync_part(n)  int sync_part_or(n, int)   the same among the block's first n threads, whole warps
 *   uint32_t warp_ballot(int)  int warp_any(int)  int warp_all(int)  whole warp
 *   uint32_t shfl_u32(v, src)  uint64_t shfl_u64  float shfl_f32  shfl_xor_u32(v, mask)  shfl_xor_f32
 *   uint32_t match_any_u32(v)                         lanes that hold the same value
 *   char    *shared_memory()                          the block's dynamic shared memory, 128-byte aligned
 *   uint32_t atom_add_cta_u32(p, v)                   relaxed, in shared memory
 *   uint32_t atom_cas_cta_u32(p, old, new)            likewise
 *   void     atom_max_cta_u64(p, v)                   likewise
 *   uint32_t atom_add_acqrel_cta_u32(p, v)            likewise, and orders
 *   uint32_t atom_add_acqrel_cta_global_u32(p, v)     in this device's memory, but among threads of a block
 *   uint32_t atom_add_acqrel_gpu_u32(p, v)            uint64_t atom_add_acqrel_gpu_u64; on this device's
 *                                                     memory
 *   uint32_t atom_cas_acqrel_gpu_u32(p, old, new)     uint64_t atom_cas_acqrel_gpu_u64
 *   uint64_t atom_add_relaxed_gpu_u64(p, v)           atom_cas_relaxed_gpu_u64(p, old, new)
 *   uint32_t atom_cas_acqrel_sys_u32(p, old, new)     uint64_t atom_cas_acqrel_sys_u64; memory of any device
 *   uint32_t atom_add_acqrel_sys_u32(p, v)            uint64_t atom_add_acqrel_sys_u64; likewise
 *   uint32_t atom_swap_acqrel_sys_u32(p, v)           uint64_t atom_swap_acqrel_sys_u64; likewise
 *   void     red_max_release_gpu_u64(p, v)            red_max_relaxed_gpu_u64(p, v)
 *   uint32_t atom_OP_relaxed_sys_u32(p, v)            uint64_t ..._u64; OP: add and or xor swap; on any
 *                                                     rank's memory
 *   uint32_t atom_cas_relaxed_sys_u32(p, old, new)    uint64_t ..._u64
 *   void     red_add_release_sys_u32(p, v)            ..._u64
 *   uint64_t ld_acquire_sys_u64(p)  ld_relaxed_sys_u64(p)
 *   uint64_t ld_published_sys_u64(p)          of a pointer to what is never changed behind it
 *   void     st_release_sys_u64(p, v)  st_relaxed_sys_u64(p, v)
 *            and the same four for uint32_t, as st_fenced_sys_u64
 *   void     st_release_gpu_u64(p, v)         for threads of this device
 *   void     fence_acqrel_sys()
 *   void     fence_compiler()         of this thread's accesses; no instruction
 *   void     fence_sc_sys()           also orders earlier stores before later loads
 *   void     st_fenced_sys_u64(p, v)                  after fence_acqrel_sys() in this thread: a release;
 *   uint64_t atom_add_fenced_sys_u64(p, v)            likewise  uint64_t atom_swap_fenced_sys_u64
 *   void     st_register_sys_u64(p, v)                likewise, to a device's register: of lanes that store
 *                                     to one at a time each store gets there (from CUDA 12.2 on)
 *   void     st_tagged_sys(p, data, tag)              16 bytes, aligned, in one access, and nothing more
 *   uint64_t ld_tag_sys(p, &data)                     the tag that is there, and the data that came with it
 *   int      ld_tagged_sys(p, tag, &data)             1: it is this tag
 *   void     st_words_sys(p, v)  struct vec16 ld_words_sys(p)    16 bytes, aligned: four words, each in an
 *                                     access of its own, in no order
 *   void     fence_proxy_async()      earlier ordinary accesses of this thread, and those it has synchronised
 *                                     with, come before later bulk copies of this thread and of threads that
 *                                     synchronise with it afterwards; global and shared memory
 *   void     fence_proxy_async_global() fence_proxy_async_shared()  the same for one of them, which takes 20
 *                                     cycles instead of 500
 *   void     mbar_init(bar, count)    then fence_mbar_init() before others use it
 *   void     mbar_inval(bar)          nobody uses it any more; before another mbar_init there
 *   void     mbar_expect(bar, bytes)  one arrival, and so many bytes to come
 *   int      mbar_test(bar, parity)   1 once the phase with that parity is complete; acquires. May take its
 *                                     time to say 0: for loops that have nothing else to do
 *   int      mbar_poll(bar, parity)   the same at once
 *   void     bulk_load(shared, global, bytes, bar)    asynchronous; 16-byte aligned, multiple of 16
 *   void     bulk_store(global, shared, bytes)        asynchronous, joins this thread's open group
 *   void     bulk_store_words(global, shared, bytes)  the same to memory that others look at meanwhile: they
 *                                     see each word as it was, or as it becomes, in no order
 *   void     bulk_prefetch(global, bytes)             asynchronous, into L2 if anywhere: a hint, which nobody
 *                                                     awaits; 16-byte aligned, multiple of 16
 *   void     bulk_commit()                            closes the group
 *   void     bulk_wait_read(n) bulk_wait(n)           until at most n of this thread's latest groups have
 *                                                     unread sources / are unfinished; n a constant from 0
 *                                                     to 7. After bulk_wait the writes are visible to this
 *                                                     thread
 *   const char *computed_once(p)                      p; a compiler that is short of registers does not
 *                                                     compute it anew wherever it is used
 *   uint64_t clock_ns()                               of the device; only differences mean anything
 *   void     spin()                                   inside every loop that waits for another thread
 *   uint32_t cvt_bf16x2(float lo, float hi)           round to nearest even, NaN becomes 0x7fff
 *   uint32_t max_bf16x2(a, b)                         of each half; the number, if only one is
 *   uint32_t cvt_e4m3x4(a, b, c, d)                   saturating, nearest even; a in the low byte
 *   struct vec16 ld_vec16(p)  void st_vec16(p, v)     16 bytes, aligned
 *   struct vec16 ld_stream_vec16(p)                   the same, read once: does not linger in L1
 *   void     st_stream_vec16(p, v)                    the same, not soon read: leaves L2 first
 *
 * Qualifiers: TERN_DEVICE (inline function), TERN_APART (one that is called, not copied), TERN_KERNEL(name,
 * struct args, p) { body }, TERN_UNROLL and TERN_ROLLED (of the loop that follows: all of it, none of it).
 * Bits of a uint32_t: TERN_POPC(x) TERN_FFS(x) TERN_BSWAP(x).
 * TERN_RARE(x): the condition x, whose code is to be out of the way. A kernel of a few microseconds runs most
 * of its instructions once, and waits for each line of them that is not the next one. */
#ifndef TERN_SIMT_H
#define TERN_SIMT_H

#include <stddef.h>
#include <stdint.h>

#define TERN_RARE(x) __builtin_expect(!!(x), 0)

struct vec16 {
    uint32_t w[4];
};

#ifdef __CUDACC__
#include "simt/ptx.h"
#else
#include "simt/fiber.h"
#endif

/* A warp-wide count of lanes before this one in a mask. */
TERN_DEVICE int popc_before(uint32_t mask, int lane_idx) { return TERN_POPC(mask & ((1u << lane_idx) - 1u)); }

TERN_DEVICE float bf16_lo(uint32_t pair) { return bits_f32(pair << 16); }

TERN_DEVICE float bf16_hi(uint32_t pair) { return bits_f32(pair & 0xffff0000u); }

#endif
