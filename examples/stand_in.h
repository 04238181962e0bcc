/* SPDX-License-Identifier: Apache-2.0
 *
 * Work that stands where a model multiplies matrices: it takes time on the device, and gives its input back
 * bit for bit. On GPUs with cuBLAS, which is looked for when the program runs, it is a product with the unit
 * matrix, a real GEMM; elsewhere copies of device memory, which the same call issues if cuBLAS fails. */
#ifndef TERN_STAND_IN_H
#define TERN_STAND_IN_H

#include <dlfcn.h>

#include "example.h"

enum { STAND_IN_COPY = 2 << 20 }; /* bytes that one unit of copying moves */

/* Values of cublas_api.h and library_types.h, which need not be there. */
enum { CUBLAS_N = 0, CUBLAS_BF16 = 14, CUBLAS_FP32_SUMS = 68, CUBLAS_ANY_ALGORITHM = -1 };

struct stand_in {
    struct tern_comm *comm;
    int channels;
    void *unit_matrix; /* [channels, channels] BF16 */
    char *scratch;     /* two times what is copied */
    void *handle;      /* of cuBLAS; NULL: copies */
    int (*stream_context)(void *stream, void **context);
    int (*set_context)(void *context);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*gemm)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                const void *a, int a_type, int a_stride, const void *b, int b_type, int b_stride,
                const void *beta, void *c, int c_type, int c_stride, int sums, int algorithm);
};

static inline const char *stand_in_name(const struct stand_in *s)
{
    return s->handle ? "GEMMs of cuBLAS" : "copies of device memory";
}

/* 1 if `error`, of cuBLAS or the driver, is none; else says what failed and that copies are taken from now
 * on. */
static inline int stand_in_good(struct stand_in *s, int error, const char *call)
{
    if (error != 0) {
        fprintf(stderr, "%s returned %d: copies of device memory stand in for GEMMs\n", call, error);
        s->handle = NULL; /* left open: the device may be what is broken */
    }
    return error == 0;
}

/* A function as bytes: ISO C has no cast from what dlsym returns. */
static inline int stand_in_find(void *library, const char *symbol, void *function)
{
    void *found = library ? dlsym(library, symbol) : NULL;
    memcpy(function, &found, sizeof(found));
    return found != NULL;
}

static inline int stand_in_load(struct stand_in *s)
{
    static const char *const names[] = {"libcublas.so", "libcublas.so.13", "libcublas.so.12",
                                        "libcublas.so.11", "/usr/local/cuda/lib64/libcublas.so"};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *blas = NULL;
    for (size_t i = 0; !blas && i < sizeof(names) / sizeof(names[0]); i++) {
        blas = dlopen(names[i], RTLD_NOW);
    }
    return stand_in_find(driver, "cuStreamGetCtx", &s->stream_context) &&
           stand_in_find(driver, "cuCtxSetCurrent", &s->set_context) &&
           stand_in_find(blas, "cublasCreate_v2", &s->create) &&
           stand_in_find(blas, "cublasDestroy_v2", &s->destroy) &&
           stand_in_find(blas, "cublasSetStream_v2", &s->set_stream) &&
           stand_in_find(blas, "cublasGemmEx", &s->gemm);
}

/* cuBLAS works on the thread's current device: the stream's. */
static inline int stand_in_enter(struct stand_in *s, struct tern_stream *stream)
{
    void *context = NULL;
    return stand_in_good(s, s->stream_context(stream, &context), "cuStreamGetCtx") &&
           stand_in_good(s, s->set_context(context), "cuCtxSetCurrent");
}

/* Row-major out = in * unit matrix is column-major out^T = unit matrix * in^T. FP32 sums of one value and
 * zeros are exact. */
static inline int stand_in_multiply(struct stand_in *s, void *out, const void *in, int rows)
{
    const float one = 1, zero = 0;
    int h = s->channels;
    return stand_in_good(s,
                         s->gemm(s->handle, CUBLAS_N, CUBLAS_N, h, rows, h, &one, s->unit_matrix, CUBLAS_BF16,
                                 h, in, CUBLAS_BF16, h, &zero, out, CUBLAS_BF16, h, CUBLAS_FP32_SUMS,
                                 CUBLAS_ANY_ALGORITHM),
                         "cublasGemmEx");
}

/* On `stream`: out becomes in, [rows, channels] BF16, after so many units of work. */
static inline void stand_in_run(struct stand_in *s, void *out, const void *in, int rows, int units,
                                struct tern_stream *stream)
{
    int done = 0;
    if (s->handle && stand_in_enter(s, stream) &&
        stand_in_good(s, s->set_stream(s->handle, stream), "cublasSetStream")) {
        while (done < units && stand_in_multiply(s, out, in, rows)) {
            done++;
        }
    }
    if (!s->handle) {
        for (; done < units; done++) {
            must(tern_copy(s->comm, s->scratch, s->scratch + STAND_IN_COPY, STAND_IN_COPY, stream));
        }
        must(tern_copy(s->comm, out, in, (size_t)rows * (size_t)s->channels * 2, stream));
    }
}

static inline void stand_in_open(struct stand_in *s, struct tern_comm *comm, int channels,
                                 struct tern_stream *stream)
{
    uint16_t *unit = (uint16_t *)calloc((size_t)channels * (size_t)channels, sizeof(uint16_t));
    for (int i = 0; i < channels; i++) {
        unit[i * (channels + 1)] = 0x3f80;
    }
    memset(s, 0, sizeof(*s));
    s->comm = comm;
    s->channels = channels;
    s->unit_matrix = put(comm, unit, (size_t)channels * (size_t)channels * sizeof(uint16_t));
    s->scratch = (char *)take(comm, TERN_MEMORY_DEVICE, 2 * STAND_IN_COPY);
    free(unit);
    must(tern_fill(comm, s->scratch, 0, 2 * STAND_IN_COPY, stream));
    if (tern_comm_machine(comm) == TERN_MACHINE_CUDA && stand_in_load(s) && stand_in_enter(s, stream)) {
        stand_in_good(s, s->create(&s->handle), "cublasCreate");
    }
}

static inline void stand_in_close(struct stand_in *s, struct tern_stream *stream)
{
    if (s->handle && stand_in_enter(s, stream)) {
        stand_in_good(s, s->destroy(s->handle), "cublasDestroy");
    }
}

#endif
