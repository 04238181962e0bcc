/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the executor share: checks, a machine with memory for kernels, and a runner of named
 * tests. Included once by each test program, which therefore needs no globals but these. */
#ifndef TERN_SIMT_RIG_H
#define TERN_SIMT_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simt/executor.h"
#include "simt_kernels.h"

#ifdef TERN_THREAD_SANITIZER
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

/* A context of ThreadSanitizer takes long to make, so schedules are fewer there. */
#define SEEDS (UNDER_TSAN ? 4u : 50u)

static int failures; /* of the running test */

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition);                                         \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

/* One machine on an executor of its own, and memory for kernels. */
struct rig {
    struct executor *x;
    struct machine *m;
    struct simt_args args;
    void *blocks[8];
    int num_blocks;
};

static inline void *rig_alloc(struct rig *r, size_t bytes)
{
    void *memory = NULL;

    if (r->m->ops->alloc(r->m, bytes, &memory) != TERN_OK) {
        abort();
    }
    memset(memory, 0, bytes);
    r->blocks[r->num_blocks++] = memory;
    return memory;
}

static inline void rig_open(struct rig *r, uint64_t seed)
{
    memset(r, 0, sizeof(*r));
    if (terni_executor_open(seed, &r->x) != TERN_OK || terni_cpu_open(r->x, &r->m) != TERN_OK) {
        printf("Bail out! no cpu machine: %s\n", tern_last_error());
        exit(1);
    }
    r->args.flags = (uint64_t *)rig_alloc(r, 64);
    r->args.counter = (uint32_t *)rig_alloc(r, 64);
}

static inline void rig_close(struct rig *r)
{
    struct machine *m = r->m;

    m->ops->stream_synchronize(m, NULL);
    for (int i = 0; i < r->num_blocks; i++) {
        m->ops->free(m, r->blocks[i]);
    }
    m->ops->close(m);
    terni_executor_release(r->x);
}

static inline enum tern_status rig_launch(struct rig *r, simt_function *function, const char *name,
                                          int num_blocks, int num_threads, uint32_t shared_bytes,
                                          struct tern_stream *s)
{
    struct launch launch = {0, num_blocks, num_threads, shared_bytes, &r->args, sizeof(r->args)};
    return terni_cpu_launch_function(r->m, function, name, &launch, s);
}

#define LAUNCH(r, kernel, num_blocks, num_threads, shared_bytes, s)                                          \
    CHECK(rig_launch((r), tern_cpu_##kernel, #kernel, (num_blocks), (num_threads), (shared_bytes), (s)) ==   \
          TERN_OK)
#define SYNC(r, s) CHECK((r)->m->ops->stream_synchronize((r)->m, (s)) == TERN_OK)

struct test {
    const char *name;
    void (*run)(void);
    int on_request; /* runs only when named */
};

/* Runs the tests that argv names, or all but those on request; the exit status of the program. */
static int run_tests(const struct test *tests, size_t num_tests, int argc, char **argv)
{
    int passed = 0, failed = 0;

    for (size_t i = 0; i < num_tests; i++) {
        int wanted = argc == 1 && !tests[i].on_request;
        for (int a = 1; a < argc; a++) {
            wanted |= strcmp(argv[a], tests[i].name) == 0;
        }
        if (!wanted) {
            continue;
        }
        failures = 0;
        tests[i].run();
        printf("%s %s\n", failures == 0 ? "ok" : "not ok", tests[i].name);
        fflush(stdout);
        *(failures == 0 ? &passed : &failed) += 1;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}

#endif
