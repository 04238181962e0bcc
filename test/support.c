/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbered cases, their lines and options, random numbers. One program runs its cases in order in one thread;
 * only test_note may be called from others. */
#include "support.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void usage(const char *program)
{
    fprintf(stderr, "usage: %s [--case N] [--seeds A-B] [--list]\n", program);
    exit(2);
}

static uint64_t number(const char *text, char **end, const char *program)
{
    unsigned long long value = strtoull(text, end, 0);

    if (*end == text) {
        usage(program);
    }
    return value;
}

void test_begin(struct test *t, int argc, char **argv)
{
    const char *scale = getenv("TERN_TEST_SCALE");
    char *end;
    int i;

    memset(t, 0, sizeof *t);
    /* GPUs take part where they are asked for, with what they cannot run left out. */
    setenv("TERN_MACHINE", "cpu", 0);
    t->program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    t->scale = scale && *scale ? atoi(scale) : 100;
    if (t->scale < 1 || t->scale > 1000) {
        fprintf(stderr, "TERN_TEST_SCALE is %s; it is a per cent, 1 to 1000\n", scale);
        exit(2);
    }
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) {
            t->list = 1;
        } else if (!strcmp(argv[i], "--case") && i + 1 < argc) {
            t->only = (int)number(argv[++i], &end, t->program);
        } else if (!strcmp(argv[i], "--seeds") && i + 1 < argc) {
            t->has_seeds = 1;
            t->seeds[0] = number(argv[++i], &end, t->program);
            t->seeds[1] = *end == '-' ? number(end + 1, &end, t->program) : t->seeds[0];
        } else {
            usage(t->program);
        }
    }
    /* Ranks of one process that share a GPU need a hardware queue each, or one waits behind another that
     * waits for it. CUDA reads this when it starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

void test_run(struct test *t, const char *name, int (*body)(struct test *t))
{
    double begin = test_seconds();
    int result;

    t->number++;
    if (t->list) {
        printf("%d %s\n", t->number, name);
        return;
    }
    if (t->only && t->only != t->number) {
        return;
    }
    t->detail[0] = 0;
    result = body(t);
    if (result == TEST_SKIPPED) {
        t->skipped++;
        printf("ok %d - %s # SKIP %s\n", t->number, name, t->detail);
    } else if (result == TEST_PASSED) {
        t->passed++;
        printf("ok %d - %s%s%s (%.1f s)\n", t->number, name, t->detail[0] ? ": " : "", t->detail,
               test_seconds() - begin);
    } else {
        t->failed++;
        printf("not ok %d - %s%s%s; again: %s --case %d\n", t->number, name, t->detail[0] ? ": " : "",
               t->detail, t->program, t->number);
    }
}

int test_end(struct test *t)
{
    if (t->list) {
        return 0;
    }
    if (t->only > t->number) {
        fprintf(stderr, "--case %d: there are %d\n", t->only, t->number);
        return 2;
    }
    printf("1..%d\n", t->number);
    printf("%d passed, %d failed", t->passed, t->failed);
    if (t->skipped) {
        printf(", %d skipped", t->skipped);
    }
    printf("\n");
    return t->failed != 0;
}

int test_scaled(const struct test *t, int count)
{
    int scaled = count * t->scale / 100;

    return scaled < 1 ? 1 : scaled;
}

void test_detail(struct test *t, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(t->detail, sizeof t->detail, format, list);
    va_end(list);
}

int test_skip(struct test *t, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(t->detail, sizeof t->detail, format, list);
    va_end(list);
    return TEST_SKIPPED;
}

void test_note(const char *file, int line, const char *format, ...)
{
    const char *name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    char text[1024];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    printf("# %s:%d: %s\n", name, line, text);
}

static void silence(enum tern_log_level level, const char *file, int line, const char *text, void *user)
{
    (void)level;
    (void)file;
    (void)line;
    (void)text;
    (void)user;
}

void test_quiet(void) { tern_log_set(silence, NULL); }

double test_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int test_files(const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *entry;
    int num = 0;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        num += entry->d_name[0] != '.';
    }
    if (d != NULL) {
        closedir(d);
    }
    return num;
}

static void *no_work(void *nothing) { return nothing; }

int test_threads(int wanted)
{
    const struct timespec nap = {0, 1000000};
    pthread_t first;
    int num;
    if (pthread_create(&first, NULL, no_work, NULL) == 0) {
        pthread_join(first, NULL);
    }
    for (int i = 0; (num = test_files("/proc/self/task")) > wanted && i < (wanted < 0 ? 5 : 2000); i++) {
        nanosleep(&nap, NULL);
    }
    return num;
}

uint64_t rng_next(struct rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t rng_below(struct rng *r, uint32_t n) { return (uint32_t)(((rng_next(r) >> 32) * n) >> 32); }

uint32_t rng_between(struct rng *r, uint32_t first, uint32_t last)
{
    return first + rng_below(r, last - first + 1);
}

int rng_one_in(struct rng *r, uint32_t n) { return rng_below(r, n) == 0; }

void rng_bytes(struct rng *r, void *memory, size_t bytes)
{
    unsigned char *to = (unsigned char *)memory;

    while (bytes) {
        uint64_t value = rng_next(r);
        size_t piece = bytes < sizeof value ? bytes : sizeof value;
        memcpy(to, &value, piece);
        to += piece;
        bytes -= piece;
    }
}

void rng_bf16(struct rng *r, uint16_t *memory, size_t count, int wild)
{
    /* Zeros, subnormals, the largest, infinities, NaN. */
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x7f7f,
                                       0xff7f, 0x7f80, 0xff80, 0x7fc1};
    int wild_here = 0, none_here = 0;
    size_t i;

    for (i = 0; i < count; i++) {
        uint64_t value = rng_next(r);
        if (i % 64 == 0) { /* some stretches are wild, most are not */
            wild_here = wild && (value >> 60) < 3;
        }
        if (i % 128 == 0) { /* as many as share a scale */
            none_here = wild && (value >> 56 & 15) == 7;
        }
        /* 2^-8 to 2^8: sums round, and their order matters. */
        memory[i] = (uint16_t)((value & 0x807fu) | (119 + (value >> 32) % 16) << 7);
        if (wild_here && (value >> 16 & 15) == 0) {
            memory[i] = value >> 20 & 1 ? special[(value >> 24 & 255) % 9] : (uint16_t)value;
        }
        if (none_here) {
            /* Among them words of ones alone, and almost. */
            memory[i] = (uint16_t)((value & 0x807fu) | (value >> 40 & 1 ? 0xfffeu : 0x7f81u));
        }
    }
}

void rng_shuffle(struct rng *r, int *items, int count)
{
    int i;

    for (i = count - 1; i > 0; i--) {
        int j = (int)rng_below(r, (uint32_t)i + 1);
        int kept = items[i];
        items[i] = items[j];
        items[j] = kept;
    }
}

void *test_take(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes ? bytes : 1);

    if (!memory) {
        fprintf(stderr, "no memory for %zu x %zu bytes\n", count, bytes);
        exit(2);
    }
    return memory;
}
