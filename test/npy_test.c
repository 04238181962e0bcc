/* SPDX-License-Identifier: Apache-2.0
 *
 * The .npy reader of tern-bench: good files of every type, files that are wrong in one way each (the sentence
 * must hold the offending value), and files with random bytes changed, which may be read or refused but never
 * lead outside the buffer. Each buffer is an allocation of exactly its size, so that AddressSanitizer sees a
 * byte too far; without it, every element of an accepted file is read.
 *
 * The reader belongs to tern-bench and not to the library: this program compiles it in. */
#include "../bench/npy.c"
#include "support.h"

enum { MAX_FILE = 512 };

/* A file under construction. */
struct file {
    unsigned char bytes[MAX_FILE];
    size_t size;
};

static struct file make_file(int version, const char *header, const void *data, size_t data_bytes)
{
    struct file f;
    size_t length = strlen(header), prefix = version == 1 ? 10 : 12;
    memset(&f, 0, sizeof(f));
    memcpy(f.bytes, "\x93NUMPY", 6);
    f.bytes[6] = (unsigned char)version;
    f.bytes[8] = (unsigned char)(length & 255);
    f.bytes[9] = (unsigned char)(length >> 8);
    memcpy(f.bytes + prefix, header, length);
    memcpy(f.bytes + prefix + length, data, data_bytes);
    f.size = prefix + length + data_bytes;
    return f;
}

/* Parses a copy of exactly the file's size and reads all elements; `sum` may be NULL. */
static enum tern_status parse(const struct file *f, struct npy *npy, double *sum)
{
    void *copy = malloc(f->size);
    enum tern_status status;
    uint64_t i;
    if (copy == NULL) {
        return TERN_OUT_OF_MEMORY;
    }
    memcpy(copy, f->bytes, f->size);
    status = npy_parse("test.npy", copy, f->size, npy);
    for (i = 0; status == TERN_OK && i < npy->count; i++) {
        double v = npy_is_integer(npy) ? (double)npy_get_int(npy, i) : (double)npy_get_float(npy, i);
        if (sum != NULL) {
            *sum += v;
        }
    }
    free(copy);
    return status;
}

static int reads_every_type(struct test *t)
{
    static const uint8_t u1[] = {1, 2, 3, 255};
    static const int32_t i4[] = {-1, 70000, 3};
    static const int64_t i8[] = {-1, (int64_t)1 << 40};
    static const uint16_t f2[] = {0x3c00, 0xc000, 0x3555, 0x0001}; /* 1, -2, about 1/3, 2^-24 */
    static const float f4[] = {0.5f, -3.0f};
    static const struct {
        const char *header;
        const void *data;
        size_t bytes;
        enum npy_type type;
        int dims;
        double sum;
    } good[] = {
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2), }\n", u1, sizeof(u1), NPY_UINT8, 2, 261},
        {"{'descr': '<u1', 'fortran_order': False, 'shape': (4,)}", u1, sizeof(u1), NPY_UINT8, 1, 261},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", i4, sizeof(i4), NPY_INT32, 1, 70002},
        {"{'shape': (1, 2, 1), 'fortran_order': False, 'descr': '<i8'}", i8, sizeof(i8), NPY_INT64, 3,
         1099511627775.0},
        {"{\"descr\":\"<f2\",\"fortran_order\":False,\"shape\":(4,)}", f2, sizeof(f2), NPY_FLOAT16, 1,
         -1 + 1365.0 / 4096 + 1.0 / 16777216},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }  \n", f4, sizeof(f4), NPY_FLOAT32, 1,
         -2.5},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", f4, 4, NPY_FLOAT32, 0, 0.5},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 8), }", f4, 0, NPY_FLOAT32, 2, 0},
    };
    size_t i;
    int version;
    for (i = 0; i < 2 * sizeof(good) / sizeof(good[0]); i++) {
        struct npy npy;
        struct file f;
        double sum = 0;
        version = 1 + (int)(i % 2);
        f = make_file(version, good[i / 2].header, good[i / 2].data, good[i / 2].bytes);
        CHECK(parse(&f, &npy, &sum) == TERN_OK, "version %d of %s refused: %s", version, good[i / 2].header,
              tern_last_error());
        CHECK(npy.type == good[i / 2].type && npy.num_dims == good[i / 2].dims && sum == good[i / 2].sum,
              "version %d of %s: type %s, %d dimensions, sum %.9g", version, good[i / 2].header,
              npy_type_name(npy.type), npy.num_dims, sum);
    }
    test_detail(t, "%zu files", i);
    return TEST_PASSED;
}

static int refuses_by_value(struct test *t)
{
    static const struct {
        const char *header; /* followed by four bytes of data */
        const char *value;  /* that the sentence must hold */
    } bad[] = {
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "'>f4'"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", "'<c8'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (1,), }", "''"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "True"},
        {"{'descr': '<f4', 'fortran_order': Fals", "byte 34"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "2 elements of 4 bytes, but 4 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), 'shape': (), }", "'shape'"},
        {"{'descr': '<f4', 'fortran_order': False, }", "lacks shape"},
        {"{'descr': '<f4', 'shape': (1,), }", "lacks fortran_order"},
        {"{'fortran_order': False, 'shape': (1,), }", "lacks descr"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", "0x78"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1), }", "0x31"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "byte 51"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", "more than 8"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "byte 51"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "4294967296"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }",
         "4611686018427387904"},
        {"{'descr': '<f4 and much more than a type', 'fortran_order': False}", "15 bytes"},
        {"{'colour': '<f4'}", "'colour'"},
        {"", "'{'"},
        {"{", "ends"},
    };
    static const float data = 1;
    size_t i;
    test_quiet();
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct file f = make_file(1, bad[i].header, &data, sizeof(data));
        struct npy npy;
        CHECK(parse(&f, &npy, NULL) == TERN_INVALID_ARGUMENT, "accepted: %s", bad[i].header);
        CHECK(strstr(tern_last_error(), bad[i].value) != NULL, "\"%s\" does not say %s of %s",
              tern_last_error(), bad[i].value, bad[i].header);
    }
    test_detail(t, "%zu files", i);
    return TEST_PASSED;
}

/* Every shorter file, and every wrong byte of the part before the header. */
static int refuses_truncation(struct test *t)
{
    static const uint8_t data[] = {1, 2, 3, 4};
    struct file f =
        make_file(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }", data, sizeof(data));
    struct npy npy;
    size_t size = f.size;
    test_quiet();
    for (f.size = size - 1; f.size > 0; f.size--) {
        CHECK(parse(&f, &npy, NULL) == TERN_INVALID_ARGUMENT, "accepted the first %zu of %zu bytes", f.size,
              size);
    }
    f.size = size;
    f.bytes[1] = 'M';
    CHECK(parse(&f, &npy, NULL) == TERN_INVALID_ARGUMENT && strstr(tern_last_error(), "4d") != NULL,
          "magic with an M: \"%s\"", tern_last_error());
    f.bytes[1] = 'N';
    f.bytes[6] = 3;
    CHECK(parse(&f, &npy, NULL) == TERN_INVALID_ARGUMENT && strstr(tern_last_error(), "version 3.0") != NULL,
          "version 3: \"%s\"", tern_last_error());
    f.bytes[6] = 1;
    f.bytes[9] = 0xff;
    CHECK(parse(&f, &npy, NULL) == TERN_INVALID_ARGUMENT && strstr(tern_last_error(), "65337") != NULL,
          "header length: \"%s\"", tern_last_error());
    test_detail(t, "%zu lengths", size - 1);
    return TEST_PASSED;
}

static int loads_files(struct test *t)
{
    struct npy npy;
    test_quiet();
    CHECK(npy_load("no/such/file.npy", &npy) == TERN_SYSTEM_ERROR, "opened a file that is not there");
    CHECK(strstr(tern_last_error(), "no/such/file.npy") != NULL, "\"%s\"", tern_last_error());
    CHECK(npy_load("test", &npy) == TERN_SYSTEM_ERROR, "read a folder as an array");
    EXPECT(npy_load("data/routing_topk_idx.npy", &npy), TERN_OK);
    CHECK(npy.type == NPY_UINT8 && npy.num_dims == 3 && npy.dims[0] == 2 && npy.dims[1] == 32768 &&
              npy.dims[2] == 8,
          "ids: %s, %d dimensions, %llu elements", npy_type_name(npy.type), npy.num_dims,
          (unsigned long long)npy.count);
    npy_free(&npy);
    EXPECT(npy_load("data/routing_topk_weights.npy", &npy), TERN_OK);
    CHECK(npy.type == NPY_FLOAT16 && npy.dims[1] == 8192, "weights: %s, %llu tokens", npy_type_name(npy.type),
          (unsigned long long)npy.dims[1]);
    npy_free(&npy);
    test_detail(t, "the project's own");
    return TEST_PASSED;
}

/* xorshift64. */
static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int survives_mutation(struct test *t)
{
    static const char *const headers[] = {
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 8), }\n",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (8,), }",
        "{'shape': (1, 2, 1), 'fortran_order': False, 'descr': '<i8'}",
    };
    /* Bytes that mean something to the reader come up more often than others. */
    static const char words[] = "{}(),:' 0123456789<|>u1i4f8FT\n\x93";
    static const uint8_t data[16] = {1};
    uint64_t state = 0x7e41;
    int i, accepted = 0, rounds = test_scaled(t, 20000);
    test_quiet();
    for (i = 0; i < rounds; i++) {
        struct file f = make_file(1 + i % 2, headers[i % 3], data, sizeof(data));
        struct npy npy;
        int changes = (int)(next(&state) % 4) + 1;
        enum tern_status status;
        while (changes-- > 0) {
            uint64_t r = next(&state);
            f.bytes[r % f.size] = r >> 32 & 1 ? (unsigned char)words[(r >> 33) % (sizeof(words) - 1)]
                                              : (unsigned char)(r >> 40);
        }
        if (next(&state) % 4 == 0) {
            f.size = 1 + next(&state) % f.size;
        }
        status = parse(&f, &npy, NULL);
        CHECK(status == TERN_OK || status == TERN_INVALID_ARGUMENT, "round %d: %s", i,
              tern_status_string(status));
        accepted += status == TERN_OK;
    }
    CHECK(accepted > 0 && accepted < rounds,
          "%d of %d mutants accepted: the mutation does not reach both sides", accepted, rounds);
    test_detail(t, "%d mutants, %d still arrays", rounds, accepted);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "every type and both versions are read", reads_every_type);
    test_run(&t, "wrong headers are refused by value", refuses_by_value);
    test_run(&t, "truncated and foreign files are refused", refuses_truncation);
    test_run(&t, "files are loaded from disk", loads_files);
    test_run(&t, "random changes never lead outside the buffer", survives_mutation);
    return test_end(&t);
}
