/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that use the executor as the real ones do, and some that break its rules on purpose. Some are also
 * built wrong for ThreadSanitizer to find: with -DTERN_WEAKEN_RELEASE simt_message raises its flag with a
 * relaxed store, with -DTERN_TEST_NO_PROXY_FENCE simt_pipeline stores what it wrote without the proxy fence,
 * with -DTERN_TEST_OTHER_PROXY_FENCE with that of global memory,
 * with -DTERN_TEST_VOTE_ONLY lanes of simt_lanes vote where they should synchronise, with
 * -DTERN_TEST_EARLY_FENCE simt_fence and simt_relay have their fence before what it is to cover.
 */
#include "simt_kernels.h"

#include "simt/executor.h" /* simt_overflow looks for the end of its stack */
#include "simt/simt.h"

/* Every thread writes a word, and after the barrier reads its neighbour's. */
TERN_KERNEL(simt_barrier, struct simt_args, p)
{
    uint32_t *words = p->words + bid() * nthr();
    uint32_t sum = 0;

    for (int i = 0; i < p->rounds; i++) {
        words[tid()] = (uint32_t)(i * 1000 + tid());
        sync_block();
        sum += words[(tid() + 33) % nthr()];
        if (sync_block_or(tid() == i)) {
            sum += 1;
        }
    }
    p->out[bid() * nthr() + tid()] = sum;
}

TERN_DEVICE void sync_lanes(void)
{
#ifdef TERN_TEST_VOTE_ONLY
    (void)warp_any(1);
#else
    sync_warp();
#endif
}

/* Every lane writes a word, and reads another's of its warp. */
TERN_KERNEL(simt_lanes, struct simt_args, p)
{
    uint32_t *words = p->words + bid() * nthr() + warp() * 32;
    uint32_t sum = 0;

    for (int i = 0; i < p->rounds; i++) {
        words[lane()] = (uint32_t)(i * 1000 + lane());
        sync_lanes();
        sum += words[(lane() + 5) & 31];
        sync_lanes();
    }
    p->out[bid() * nthr() + tid()] = sum;
}

TERN_KERNEL(simt_warp, struct simt_args, p)
{
    uint32_t *out = p->out + tid() * SIMT_WARP_OUTS;

    out[0] = shfl_u32((uint32_t)tid() * 3u, (lane() + 5) & 31);
    out[1] = warp_ballot(lane() % 3 == 0);
    out[2] = match_any_u32((uint32_t)lane() % 5u);
    out[3] = (uint32_t)warp_any(lane() == 7) + 2u * (uint32_t)warp_all(lane() < 32) +
             4u * (uint32_t)warp_all(lane() < 31);
    out[4] = f32_bits(shfl_xor_f32((float)lane(), 16));
    out[5] = (uint32_t)(shfl_u64((uint64_t)lane() << 40, 9) >> 40);
}

/* Block 0 sends rounds of words to block 1, which sums them and says so. */
TERN_KERNEL(simt_message, struct simt_args, p)
{
    uint64_t *sent = &p->flags[0], *taken = &p->flags[1];
    uint32_t sum = 0;

    for (int i = 0; i < p->rounds; i++) {
        if (bid() == 0) {
            while (ld_acquire_sys_u64(taken) != (uint64_t)i) {
                spin();
            }
            for (int w = tid(); w < SIMT_MESSAGE_WORDS; w += nthr()) {
                p->words[w] = (uint32_t)(i + w);
            }
            sync_block();
            if (tid() == 0) {
                st_release_sys_u64(sent, (uint64_t)i + 1); /* pairs with the acquire of block 1 below */
            }
        } else {
            while (ld_acquire_sys_u64(sent) != (uint64_t)i + 1) { /* pairs with the release of block 0 */
                spin();
            }
            for (int w = tid(); w < SIMT_MESSAGE_WORDS; w += nthr()) {
                sum += p->words[w];
            }
            sync_block();
            if (tid() == 0) {
                st_release_sys_u64(taken, (uint64_t)i + 1); /* pairs with the acquire of block 0 */
            }
        }
    }
    if (bid() == 1) {
        p->out[tid()] = sum;
    }
}

#ifdef TERN_TEST_EARLY_FENCE
#define EARLY_FENCE() fence_acqrel_sys()
#define FENCE()       ((void)0)
#else
#define EARLY_FENCE() ((void)0)
#define FENCE()       fence_acqrel_sys() /* pairs with the acquires of await_flag */
#endif

/* One thread: until the flag is `value`. */
TERN_DEVICE void await_flag(const uint64_t *flag, uint64_t value)
{
    while (ld_acquire_sys_u64(flag) != value) { /* pairs with the release of whoever raises it */
        spin();
    }
}

/* All threads of a block that writes words in round i, once those of the round before have been read. */
TERN_DEVICE void write_words(const struct simt_args *p, int i)
{
    if (tid() == 0) {
        await_flag(&p->flags[1], (uint64_t)i);
    }
    sync_block();
    if (tid() == 0) {
        EARLY_FENCE();
    }
    for (int w = tid(); w < SIMT_MESSAGE_WORDS; w += nthr()) {
        p->words[w] = (uint32_t)(i + w);
    }
    sync_block();
}

/* All threads of the block that reads them; the sum of this thread's. */
TERN_DEVICE uint32_t read_words(const struct simt_args *p, int i)
{
    uint32_t sum = 0;
    if (tid() == 0) {
        await_flag(&p->flags[0], (uint64_t)i + 1);
    }
    sync_block();
    for (int w = tid(); w < SIMT_MESSAGE_WORDS; w += nthr()) {
        sum += p->words[w];
    }
    sync_block();
    if (tid() == 0) {
        st_release_sys_u64(&p->flags[1], (uint64_t)i + 1); /* pairs with the acquire of write_words */
    }
    return sum;
}

/* As simt_message, by a fence of one thread: behind the barrier it covers what all have written. A second
 * barrier between fence and store takes nothing away. */
TERN_KERNEL(simt_fence, struct simt_args, p)
{
    uint32_t sum = 0;

    for (int i = 0; i < p->rounds; i++) {
        if (bid() == 1) {
            sum += read_words(p, i);
            continue;
        }
        write_words(p, i);
        if (tid() == 0) {
            FENCE();
        }
        sync_block();
        if (tid() == 0) {
            st_fenced_sys_u64(&p->flags[0], (uint64_t)i + 1);
        }
    }
    if (bid() == 1) {
        p->out[tid()] = sum;
    }
}

/* The same, but block 2 raises the flag, which hears of the words by an atomic. */
TERN_KERNEL(simt_relay, struct simt_args, p)
{
    uint32_t sum = 0;

    for (int i = 0; i < p->rounds; i++) {
        if (bid() == 1) {
            sum += read_words(p, i);
        } else if (bid() == 0) {
            write_words(p, i);
            if (tid() == 0) {
                (void)atom_add_acqrel_gpu_u32(p->counter, 1); /* pairs with the same of block 2 */
            }
        } else if (tid() == 0) {
            EARLY_FENCE();
            while (atom_add_acqrel_gpu_u32(p->counter, 0) != (uint32_t)i + 1) { /* pairs with block 0's */
                spin();
            }
            FENCE();
            st_fenced_sys_u64(&p->flags[0], (uint64_t)i + 1);
        }
    }
    if (bid() == 1) {
        p->out[tid()] = sum;
    }
}

/* Each warp: chunks come in by bulk load through two stages, every word is incremented, and they go out by
 * bulk store from two more. */
TERN_KERNEL(simt_pipeline, struct simt_args, p)
{
    char *stages = shared_memory() + warp() * (4 * SIMT_CHUNK);
    uint64_t *bars = (uint64_t *)(shared_memory() + nwarps() * (4 * SIMT_CHUNK)) + warp() * 2;
    int64_t base = (int64_t)(bid() * nwarps() + warp()) * p->rounds * SIMT_CHUNK;

    if (lane() == 0) {
        mbar_init(&bars[0], 1);
        mbar_init(&bars[1], 1);
        fence_mbar_init();
        for (int i = 0; i < 2 && i < p->rounds; i++) {
            mbar_expect(&bars[i], SIMT_CHUNK);
            bulk_load(stages + i * SIMT_CHUNK, p->in + base + i * SIMT_CHUNK, SIMT_CHUNK, &bars[i]);
        }
    }
    sync_warp();
    for (int i = 0; i < p->rounds; i++) {
        const uint32_t *in = (const uint32_t *)(stages + i % 2 * SIMT_CHUNK);
        uint32_t *out = (uint32_t *)(stages + (2 + i % 2) * SIMT_CHUNK);
        while (!mbar_test(&bars[i % 2], (uint32_t)(i / 2 % 2))) {
        }
        if (lane() == 0) {
            bulk_wait_read(1); /* the store two rounds ago has left this stage */
        }
        sync_warp();
        for (int w = lane(); w < SIMT_CHUNK / 4; w += 32) {
            out[w] = in[w] + 1u;
        }
#ifdef TERN_TEST_OTHER_PROXY_FENCE
        fence_proxy_async_global();
#elif !defined(TERN_TEST_NO_PROXY_FENCE)
        fence_proxy_async_shared(); /* of `out` before the store, of reads of `in` before the next load */
#endif
        sync_warp();
        if (lane() == 0) {
            bulk_store(p->copy + base + i * SIMT_CHUNK, out, SIMT_CHUNK);
            bulk_commit();
            if (i + 2 < p->rounds) {
                mbar_expect(&bars[i % 2], SIMT_CHUNK);
                bulk_load(stages + i % 2 * SIMT_CHUNK, p->in + base + (i + 2) * SIMT_CHUNK, SIMT_CHUNK,
                          &bars[i % 2]);
            }
        }
    }
    if (lane() == 0) {
        bulk_wait(0);
    }
}

/* Block 0 stores in bulk and raises a flag, in the wrong order unless told to wait; block 1 then reads. */
TERN_KERNEL(simt_late, struct simt_args, p)
{
    if (bid() == 0) {
        uint32_t *words = (uint32_t *)shared_memory();
        words[lane()] = 7u;
        fence_proxy_async();
        sync_warp();
        if (lane() == 0) {
            bulk_store(p->words, words, 128);
            bulk_commit();
            if (p->wait_before_flag) {
                bulk_wait(0);
            }
            st_release_sys_u64(p->flags, 1); /* pairs with the acquire of block 1 */
            bulk_wait(0);
        }
    } else {
        while (ld_acquire_sys_u64(p->flags) == 0) { /* pairs with the release of block 0 */
            spin();
        }
        p->out[lane()] = p->words[lane()];
    }
}

/* Writes down the order in which threads come by. */
TERN_KERNEL(simt_trace, struct simt_args, p)
{
    for (int i = 0; i < p->rounds; i++) {
        simt_point();
        p->out[atom_add_acqrel_gpu_u32(p->counter, 1)] = (uint32_t)(bid() * nthr() + tid());
    }
}

/* Nobody leaves before all threads of all grids are there. */
TERN_KERNEL(simt_crowd, struct simt_args, p)
{
    atom_add_acqrel_gpu_u32(p->counter, 1);
    while (atom_cas_acqrel_gpu_u32(p->counter, p->total, p->total) != p->total) {
        spin();
    }
}

TERN_KERNEL(simt_increment, struct simt_args, p)
{
    for (int i = tid(); i < p->rounds; i += nthr()) {
        p->words[i] += 1u;
    }
    sync_block();
    if (tid() == 0) {
        st_release_sys_u64(p->flags, ld_relaxed_sys_u64(p->flags) + 1);
    }
}

/* What shared memory holds before anybody wrote there. */
TERN_KERNEL(simt_poison, struct simt_args, p) { p->out[tid()] = ((const uint32_t *)shared_memory())[tid()]; }

/* ---- Bugs ---- */

TERN_KERNEL(simt_diverge, struct simt_args, p)
{
    (void)p;
    if (lane() < 16) {
        sync_warp();
    } else {
        sync_block();
    }
}

TERN_KERNEL(simt_exit_early, struct simt_args, p)
{
    (void)p;
    if (lane() != 5) {
        sync_warp();
    }
}

/* Warp 1 waits for a copy that lane 0 of warp 0 could issue only after the barrier. */
TERN_KERNEL(simt_no_arrival, struct simt_args, p)
{
    (void)p;
    if (warp() == 0) {
        sync_block();
    } else {
        sync_warp();
        if (lane() == 0) {
            sync_block();
        } else {
            sync_warp();
        }
    }
}

TERN_KERNEL(simt_misaligned, struct simt_args, p)
{
    if (tid() == 0) {
        bulk_store(p->copy, shared_memory() + 8, 16);
    }
}

TERN_KERNEL(simt_misaligned_hint, struct simt_args, p)
{
    if (tid() == 0) {
        bulk_prefetch((const char *)p->copy, 16); /* which is nobody's to wait for */
        bulk_prefetch((const char *)p->copy, 24);
    }
}

TERN_KERNEL(simt_no_wait, struct simt_args, p)
{
    if (tid() == 0) {
        bulk_store(p->copy, shared_memory(), 16);
        bulk_commit();
    }
}

/* Recurs until it has written into the lowest bytes of the stack, and no further. */
static __attribute__((noinline)) uint32_t deep(const char *low)
{
    volatile uint32_t frame[16];
    uint32_t sum = 0;

    for (int i = 0; i < 16; i++) {
        frame[i] = (uint32_t)i + 1u;
    }
    if ((uintptr_t)frame > (uintptr_t)low + 64u) {
        sum = deep(low);
    }
    for (int i = 0; i < 16; i++) {
        sum += frame[i];
    }
    return sum;
}

TERN_KERNEL(simt_overflow, struct simt_args, p)
{
    if (tid() == 31) {
        p->out[0] = deep(((const struct fiber *)simt_self)->stack_low);
    }
}
