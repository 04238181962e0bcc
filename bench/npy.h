/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads arrays in NumPy's .npy format, versions 1 and 2: little-endian uint8, int32, int64, float16, float32
 * in C order. Every file that is something else is refused with a sentence that holds the value. */
#ifndef TERN_BENCH_NPY_H
#define TERN_BENCH_NPY_H

#include "core/core.h"

enum npy_type { NPY_UINT8, NPY_INT32, NPY_INT64, NPY_FLOAT16, NPY_FLOAT32 };
enum { NPY_MAX_DIMS = 8 };

struct npy {
    enum npy_type type;
    int num_dims;
    uint64_t dims[NPY_MAX_DIMS];
    uint64_t count;            /* elements: the product of dims */
    const unsigned char *data; /* unaligned */
    void *file;                /* what npy_load allocated; NULL after npy_parse */
};

/* The array in `bytes`, which must outlive it. `name` is used in error sentences only. Untrusted input is
 * safe. */
enum tern_status npy_parse(const char *name, const void *bytes, size_t size, struct npy *npy);
/* Reads a whole file; npy_free releases it. */
enum tern_status npy_load(const char *path, struct npy *npy);
void npy_free(struct npy *npy);

/* "uint8" and so on. */
const char *npy_type_name(enum npy_type type);
int npy_is_integer(const struct npy *npy);
/* Element i < count of an integer array; of any array, as a float. */
int64_t npy_get_int(const struct npy *npy, uint64_t i);
float npy_get_float(const struct npy *npy, uint64_t i);

#endif
