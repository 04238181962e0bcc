/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialect on NVIDIA GPUs: the only file with inline assembly. One instruction a function, named as PTX
 * names it (PTX ISA 8.4 and later). Bulk copies and mbarriers need sm_90; below it they are absent and
 * kernels take their plain variant (TERN_HAS_BULK). Long, because it is a list. */
#ifndef TERN_PTX_H
#define TERN_PTX_H

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#define TERN_DEVICE   static __device__ __forceinline__
#define TERN_APART    static __device__ __noinline__ __attribute__((unused))
#define TERN_UNROLL   _Pragma("unroll")
#define TERN_ROLLED   _Pragma("unroll 1")
#define TERN_POPC(x)  __popc(x)
#define TERN_FFS(x)   __ffs((int)(x))
#define TERN_BSWAP(x) __byte_perm((x), 0, 0x0123)
#define TERN_RESTRICT __restrict__

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TERN_HAS_BULK 1
#else
#define TERN_HAS_BULK 0
#endif

/* Until the kernels before this one in its stream are over and what they wrote is visible, if it has been
 * made ready before (launch_stub in cuda.c); else it goes on at once. */
#if TERN_HAS_BULK
#define TERN_AWAIT_STREAM() asm volatile("griddepcontrol.wait;" : : : "memory")
#else
#define TERN_AWAIT_STREAM() ((void)0)
#endif

/* The kernel's argument is one structure by value, read in place. */
#define TERN_KERNEL(name, type, p)                                                                           \
    static __device__ __forceinline__ void name##_body(const type *p);                                       \
    extern "C" __global__ void __launch_bounds__(TERN_THREADS_##name, 1)                                     \
        tern_cuda_##name(const __grid_constant__ type args)                                                  \
    {                                                                                                        \
        TERN_AWAIT_STREAM();                                                                                 \
        name##_body(&args);                                                                                  \
    }                                                                                                        \
    static __device__ __forceinline__ void name##_body(const type *p)

/* The same, but profilers show it as space::function(arguments), which programs look for that time kernels by
 * C++ names. C code gets what it launches from tern_cuda_at_NAME. */
#define TERN_KERNEL_AS(space, function, name, type, p)                                                       \
    static __device__ __forceinline__ void name##_body(const type *p);                                       \
    namespace space                                                                                          \
    {                                                                                                        \
    __global__ void __launch_bounds__(TERN_THREADS_##name, 1) function(const __grid_constant__ type args)    \
    {                                                                                                        \
        TERN_AWAIT_STREAM();                                                                                 \
        name##_body(&args);                                                                                  \
    }                                                                                                        \
    }                                                                                                        \
    extern "C" const void *tern_cuda_at_##name(void) { return (const void *)space::function; }               \
    static __device__ __forceinline__ void name##_body(const type *p)

TERN_DEVICE int tid(void) { return (int)threadIdx.x; }
TERN_DEVICE int bid(void) { return (int)blockIdx.x; }
TERN_DEVICE int nthr(void) { return (int)blockDim.x; }
TERN_DEVICE int nblk(void) { return (int)gridDim.x; }
TERN_DEVICE int lane(void) { return (int)(threadIdx.x & 31u); }
TERN_DEVICE int warp(void) { return (int)(threadIdx.x >> 5); }
TERN_DEVICE int nwarps(void) { return (int)(blockDim.x >> 5); }

TERN_DEVICE void sync_warp(void) { __syncwarp(); }
TERN_DEVICE void sync_block(void) { __syncthreads(); }
TERN_DEVICE int sync_block_or(int v) { return __syncthreads_or(v); }
/* Barrier 1; 0 is that of the whole block. */
TERN_DEVICE void sync_part(int threads) { asm volatile("bar.sync 1, %0;" : : "r"(threads) : "memory"); }
TERN_DEVICE int sync_part_or(int threads, int v)
{
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %2, 0; bar.red.or.pred q, 1, %1, p; "
                 "selp.s32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(threads), "r"(v)
                 : "memory");
    return any;
}
TERN_DEVICE uint32_t warp_ballot(int v) { return __ballot_sync(0xffffffffu, v); }
TERN_DEVICE int warp_any(int v) { return __any_sync(0xffffffffu, v); }
TERN_DEVICE int warp_all(int v) { return __all_sync(0xffffffffu, v); }
TERN_DEVICE uint32_t shfl_u32(uint32_t v, int src) { return __shfl_sync(0xffffffffu, v, src); }
TERN_DEVICE uint64_t shfl_u64(uint64_t v, int src)
{
    return (uint64_t)__shfl_sync(0xffffffffu, (unsigned long long)v, src);
}
TERN_DEVICE float shfl_f32(float v, int src) { return __shfl_sync(0xffffffffu, v, src); }
TERN_DEVICE uint32_t shfl_xor_u32(uint32_t v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TERN_DEVICE float shfl_xor_f32(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TERN_DEVICE uint32_t match_any_u32(uint32_t v) { return __match_any_sync(0xffffffffu, v); }

TERN_DEVICE char *shared_memory(void)
{
    extern __shared__ __align__(128) char tern_shared[];
    return tern_shared;
}

TERN_DEVICE float bits_f32(uint32_t v) { return __uint_as_float(v); }
TERN_DEVICE uint32_t f32_bits(float v) { return __float_as_uint(v); }

TERN_DEVICE uint32_t atom_add_cta_u32(uint32_t *p, uint32_t v) { return atomicAdd(p, v); }

TERN_DEVICE uint32_t atom_cas_cta_u32(uint32_t *p, uint32_t expected, uint32_t v)
{
    return atomicCAS(p, expected, v);
}

TERN_DEVICE uint32_t atom_add_acqrel_cta_u32(uint32_t *p, uint32_t v)
{
    uint32_t old, at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("atom.add.acq_rel.cta.shared.u32 %0, [%1], %2;" : "=r"(old) : "r"(at), "r"(v) : "memory");
    return old;
}

TERN_DEVICE uint32_t atom_add_acqrel_cta_global_u32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.add.acq_rel.cta.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

TERN_DEVICE uint32_t atom_add_acqrel_gpu_u32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_add_acqrel_gpu_u64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

TERN_DEVICE uint32_t atom_cas_acqrel_gpu_u32(uint32_t *p, uint32_t expected, uint32_t desired)
{
    uint32_t old;
    asm volatile("atom.cas.acq_rel.gpu.global.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_cas_acqrel_gpu_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    uint64_t old;
    asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE uint32_t atom_cas_acqrel_sys_u32(uint32_t *p, uint32_t expected, uint32_t desired)
{
    uint32_t old;
    asm volatile("atom.cas.acq_rel.sys.global.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_cas_acqrel_sys_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    uint64_t old;
    asm volatile("atom.cas.acq_rel.sys.global.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE uint32_t atom_add_acqrel_sys_u32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.add.acq_rel.sys.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_add_acqrel_sys_u64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.add.acq_rel.sys.global.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

TERN_DEVICE uint32_t atom_swap_acqrel_sys_u32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.exch.acq_rel.sys.global.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_swap_acqrel_sys_u64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.exch.acq_rel.sys.global.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

TERN_DEVICE void red_max_release_gpu_u64(uint64_t *p, uint64_t v)
{
    asm volatile("red.release.gpu.global.max.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TERN_DEVICE void red_max_relaxed_gpu_u64(uint64_t *p, uint64_t v)
{
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TERN_DEVICE void atom_max_cta_u64(uint64_t *p, uint64_t v)
{
    atomicMax((unsigned long long *)p, (unsigned long long)v);
}

TERN_DEVICE uint64_t atom_cas_relaxed_gpu_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    uint64_t old;
    asm volatile("atom.cas.relaxed.gpu.global.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_add_relaxed_gpu_u64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.add.relaxed.gpu.global.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

/* Words of any rank's memory, of 4 and 8 bytes: atom_OP_relaxed_sys_uN gives the old value back. */
#define PTX_ATOM(name, ptx, bits, type, register)                                                            \
    TERN_DEVICE uint##bits##_t name##_u##bits(uint##bits##_t *p, uint##bits##_t v)                           \
    {                                                                                                        \
        uint##bits##_t old;                                                                                  \
        asm volatile("atom.relaxed.sys.global." ptx "." type #bits " %0, [%1], %2;"                          \
                     : "=" register(old)                                                                     \
                     : "l"(p), register(v)                                                                   \
                     : "memory");                                                                            \
        return old;                                                                                          \
    }
PTX_ATOM(atom_add_relaxed_sys, "add", 32, "u", "r")
PTX_ATOM(atom_add_relaxed_sys, "add", 64, "u", "l")
PTX_ATOM(atom_and_relaxed_sys, "and", 32, "b", "r")
PTX_ATOM(atom_and_relaxed_sys, "and", 64, "b", "l")
PTX_ATOM(atom_or_relaxed_sys, "or", 32, "b", "r")
PTX_ATOM(atom_or_relaxed_sys, "or", 64, "b", "l")
PTX_ATOM(atom_xor_relaxed_sys, "xor", 32, "b", "r")
PTX_ATOM(atom_xor_relaxed_sys, "xor", 64, "b", "l")
PTX_ATOM(atom_swap_relaxed_sys, "exch", 32, "b", "r")
PTX_ATOM(atom_swap_relaxed_sys, "exch", 64, "b", "l")
#undef PTX_ATOM

TERN_DEVICE uint32_t atom_cas_relaxed_sys_u32(uint32_t *p, uint32_t expected, uint32_t desired)
{
    uint32_t old;
    asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE uint64_t atom_cas_relaxed_sys_u64(uint64_t *p, uint64_t expected, uint64_t desired)
{
    uint64_t old;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
}

TERN_DEVICE void red_add_release_sys_u32(uint32_t *p, uint32_t v)
{
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

TERN_DEVICE void red_add_release_sys_u64(uint64_t *p, uint64_t v)
{
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TERN_DEVICE uint64_t ld_acquire_sys_u64(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

TERN_DEVICE uint64_t ld_relaxed_sys_u64(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* Not an acquire, which would empty L1: what *p points to was written before *p was, in memory that no kernel
 * of this device that runs now had read before, so that L1 has no older copy of it. */
TERN_DEVICE uint64_t ld_published_sys_u64(const uint64_t *p) { return ld_relaxed_sys_u64(p); }

TERN_DEVICE void st_release_gpu_u64(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TERN_DEVICE void st_release_sys_u64(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TERN_DEVICE void st_relaxed_sys_u64(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TERN_DEVICE uint32_t ld_acquire_sys_u32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

TERN_DEVICE uint32_t ld_relaxed_sys_u32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

TERN_DEVICE void st_release_sys_u32(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

TERN_DEVICE void st_relaxed_sys_u32(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

/* A fence and a relaxed store are a release; one fence serves many stores. */
TERN_DEVICE void st_fenced_sys_u64(uint64_t *p, uint64_t v) { st_relaxed_sys_u64(p, v); }
TERN_DEVICE void st_fenced_sys_u32(uint32_t *p, uint32_t v) { st_relaxed_sys_u32(p, v); }
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 2)
TERN_DEVICE void st_register_sys_u64(uint64_t *p, uint64_t v)
{
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}
#else
TERN_DEVICE void st_register_sys_u64(uint64_t *p, uint64_t v) { st_relaxed_sys_u64(p, v); }
#endif
TERN_DEVICE uint64_t atom_add_fenced_sys_u64(uint64_t *p, uint64_t v)
{
    return atom_add_relaxed_sys_u64(p, v);
}
TERN_DEVICE uint64_t atom_swap_fenced_sys_u64(uint64_t *p, uint64_t v)
{
    return atom_swap_relaxed_sys_u64(p, v);
}

/* A .b128 is one value to the memory model, where the elements of a .v2 are two. */
TERN_DEVICE void st_tagged_sys(uint64_t *p, uint64_t data, uint64_t tag)
{
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v; }"
                 :
                 : "l"(p), "l"(data), "l"(tag)
                 : "memory");
}

TERN_DEVICE uint64_t ld_tag_sys(const uint64_t *p, uint64_t *data)
{
    uint64_t tag;
    asm volatile("{ .reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(*data), "=l"(tag)
                 : "l"(p)
                 : "memory");
    return tag;
}

TERN_DEVICE int ld_tagged_sys(const uint64_t *p, uint64_t tag, uint64_t *data)
{
    return ld_tag_sys(p, data) == tag;
}

TERN_DEVICE void st_words_sys(void *p, struct vec16 v)
{
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

TERN_DEVICE struct vec16 ld_words_sys(const void *p)
{
    struct vec16 v;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p)
                 : "memory");
    return v;
}

TERN_DEVICE void fence_acqrel_sys(void) { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
TERN_DEVICE void fence_sc_sys(void) { asm volatile("fence.sc.sys;" : : : "memory"); }

/* The compiler does not know where it comes from, and so keeps it. */
TERN_DEVICE const char *computed_once(const char *p)
{
    asm volatile("" : "+l"(p));
    return p;
}

TERN_DEVICE uint64_t clock_ns(void)
{
    uint64_t v;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
    return v;
}

TERN_DEVICE void spin(void) {}

TERN_DEVICE void fence_compiler(void) { asm volatile("" : : : "memory"); }

TERN_DEVICE struct vec16 ld_vec16(const void *p)
{
    struct vec16 r;
    uint4 v = *(const uint4 *)p;
    r.w[0] = v.x;
    r.w[1] = v.y;
    r.w[2] = v.z;
    r.w[3] = v.w;
    return r;
}

TERN_DEVICE struct vec16 ld_stream_vec16(const void *p)
{
    struct vec16 r;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
                 : "l"(p)
                 : "memory");
    return r;
}

TERN_DEVICE void st_vec16(void *p, struct vec16 v)
{
    *(uint4 *)p = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}

TERN_DEVICE void st_stream_vec16(void *p, struct vec16 v)
{
    __stcs((uint4 *)p, make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]));
}

TERN_DEVICE uint32_t cvt_bf16x2(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

TERN_DEVICE uint32_t max_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

TERN_DEVICE uint32_t cvt_e4m3x4(float a, float b, float c, float d)
{
    uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    uint32_t hi = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return lo | hi << 16;
}

/* ---- Bulk copies and mbarriers, sm_90 ---- */

#if TERN_HAS_BULK

TERN_DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

TERN_DEVICE void fence_proxy_async(void) { asm volatile("fence.proxy.async;" : : : "memory"); }
TERN_DEVICE void fence_proxy_async_global(void) { asm volatile("fence.proxy.async.global;" : : : "memory"); }
TERN_DEVICE void fence_proxy_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

TERN_DEVICE void mbar_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(shared_address(bar)), "r"(count)
                 : "memory");
}

TERN_DEVICE void mbar_inval(uint64_t *bar)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(shared_address(bar)) : "memory");
}

TERN_DEVICE void fence_mbar_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    fence_proxy_async_shared();
}

TERN_DEVICE void mbar_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}

TERN_DEVICE int mbar_test(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
    return (int)done;
}

TERN_DEVICE int mbar_poll(uint64_t *bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
    return (int)done;
}

TERN_DEVICE void bulk_load(void *shared, const void *global, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}

TERN_DEVICE void bulk_store(void *global, const void *shared, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(global), "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

/* What the async proxy writes, the others see in L2: whoever looks there sees words. */
TERN_DEVICE void bulk_store_words(void *global, const void *shared, uint32_t bytes)
{
    bulk_store(global, shared, bytes);
}

TERN_DEVICE void bulk_prefetch(const void *global, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(global), "r"(bytes) : "memory");
}

TERN_DEVICE void bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }

/* The count is an immediate operand: callers pass constants. */
#define bulk_wait_read(n) asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(n) : "memory")
#define bulk_wait(n)      asm volatile("cp.async.bulk.wait_group %0;" : : "n"(n) : "memory")

#else

/* Never reached: launchers choose the plain variant for such devices. */
TERN_DEVICE void fence_proxy_async(void) {}
TERN_DEVICE void fence_proxy_async_global(void) {}
TERN_DEVICE void fence_proxy_async_shared(void) {}
TERN_DEVICE void mbar_init(uint64_t *, uint32_t) { __trap(); }
TERN_DEVICE void mbar_inval(uint64_t *) { __trap(); }
TERN_DEVICE void fence_mbar_init(void) {}
TERN_DEVICE void mbar_expect(uint64_t *, uint32_t) { __trap(); }
TERN_DEVICE int mbar_test(uint64_t *, uint32_t)
{
    __trap();
    return 1;
}

TERN_DEVICE int mbar_poll(uint64_t *, uint32_t)
{
    __trap();
    return 1;
}
TERN_DEVICE void bulk_load(void *, const void *, uint32_t, uint64_t *) { __trap(); }
TERN_DEVICE void bulk_store(void *, const void *, uint32_t) { __trap(); }
TERN_DEVICE void bulk_store_words(void *, const void *, uint32_t) { __trap(); }
TERN_DEVICE void bulk_prefetch(const void *, uint32_t) {}
TERN_DEVICE void bulk_commit(void) {}
#define bulk_wait_read(n) ((void)(n))
#define bulk_wait(n)      ((void)(n))

#endif
#endif
