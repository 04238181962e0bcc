/* SPDX-License-Identifier: Apache-2.0
 *
 * What every test program shares: numbered cases with TAP lines, options to replay one of them, and a small
 * generator of random numbers whose seed a failure prints.
 *
 * A case is a function that returns 0, TEST_FAILED or TEST_SKIPPED. Inside it CHECK and OK leave at the first
 * thing that is wrong, so whatever must be undone belongs to the caller of the function that checks.
 *
 *     program [--case N] [--seeds A-B] [--list]
 *
 * TERN_TEST_SCALE is a per cent: below 100 the cases are fewer and their shapes smaller (for sanitizers). */
#ifndef TERN_TEST_SUPPORT_H
#define TERN_TEST_SUPPORT_H

#include "tern/tern.h"

#include <stdarg.h>

enum { TEST_PASSED = 0, TEST_FAILED = -1, TEST_SKIPPED = 1 };

struct test {
    const char *program;
    int number, passed, failed, skipped;
    int scale;         /* per cent */
    int only;          /* run this case alone; 0: all */
    int list;          /* print names, run nothing */
    int has_seeds;     /* --seeds was given */
    uint64_t seeds[2]; /* first and last */
    char detail[160];  /* what a case says of itself: after its name, or why it was skipped */
};

void test_begin(struct test *t, int argc, char **argv);
void test_run(struct test *t, const char *name, int (*body)(struct test *t));
/* Prints the closing line; the program's exit status. */
int test_end(struct test *t);

/* `count` at full scale, at least 1. */
int test_scaled(const struct test *t, int count);
void test_detail(struct test *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
int test_skip(struct test *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One "# file:line: ..." line on standard output. Any thread. */
void test_note(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Tern logs each failure; tests that provoke failures ask for silence. */
void test_quiet(void);
double test_seconds(void);
/* Entries of a folder, but for hidden ones. */
int test_files(const char *folder);
/* Threads of the process, once no more than `wanted` are left, or, with -1, what is left after a while: one
 * that was joined is listed for a moment. A sanitizer has a thread from the first one on. */
int test_threads(int wanted);

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            test_note(__FILE__, __LINE__, __VA_ARGS__);                                                      \
            return TEST_FAILED;                                                                              \
        }                                                                                                    \
    } while (0)

#define EXPECT(call, wanted)                                                                                 \
    do {                                                                                                     \
        enum tern_status status_ = (call);                                                                   \
        if (status_ != (wanted)) {                                                                           \
            test_note(__FILE__, __LINE__, "%s: %s, expected %s; last error \"%s\"", #call,                   \
                      tern_status_string(status_), tern_status_string(wanted), tern_last_error());           \
            return TEST_FAILED;                                                                              \
        }                                                                                                    \
    } while (0)

#define OK(call) EXPECT(call, TERN_OK)

/* Refused with this status and with `text` in the sentence. */
#define REFUSES(call, wanted, text)                                                                          \
    do {                                                                                                     \
        EXPECT(call, wanted);                                                                                \
        CHECK(strstr(tern_last_error(), (text)), "%s: \"%s\" does not say \"%s\"", #call, tern_last_error(), \
              (text));                                                                                       \
    } while (0)

#define PASS(call)                                                                                           \
    do {                                                                                                     \
        int result_ = (call);                                                                                \
        if (result_) {                                                                                       \
            return result_;                                                                                  \
        }                                                                                                    \
    } while (0)

struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);                      /* 0 .. n - 1; 0 if n is 0 */
uint32_t rng_between(struct rng *r, uint32_t first, uint32_t last); /* both included */
int rng_one_in(struct rng *r, uint32_t n);
void rng_bytes(struct rng *r, void *memory, size_t bytes);
/* BF16 of moderate size; `wild`: stretches with zeros, infinities, NaN and any other pattern, or of NaN
 * alone. */
void rng_bf16(struct rng *r, uint16_t *memory, size_t count, int wild);
void rng_shuffle(struct rng *r, int *items, int count);

/* Never NULL, zeroed. */
void *test_take(size_t count, size_t bytes);

#endif
