/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu machine: one rank's view of an executor. Device memory is memory of the process, shared memory that
 * of cpu_share.c; everything on streams goes to the executor (simt/). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "kernels/table_cpu.h"
#include "machine/cpu_machine.h"
#include "simt/executor.h"

#define ALIGNMENT 256
#define MAX_SMS   1024

struct cpu_machine {
    struct machine base; /* first */
    struct executor *executor;
    int ordinal;                        /* on the executor */
    struct tern_stream *default_stream; /* the user's: NULL means it */
    struct tern_stream *own;            /* own_stream: the user's work is never in its way */
    pthread_mutex_t lock;
    struct tern_stream *streams; /* under lock: all, these two among them */
};

static struct cpu_machine *cpu_of(struct machine *m) { return (struct cpu_machine *)m; }

static struct tern_stream *stream_of(struct machine *m, struct tern_stream *s)
{
    return s != NULL ? s : cpu_of(m)->default_stream;
}

/* ---- Memory ---- */

static enum tern_status cpu_alloc(struct machine *m, size_t bytes, void **memory)
{
    void *p = NULL;

    (void)m;
    if (posix_memalign(&p, ALIGNMENT, bytes != 0 ? bytes : 1) != 0) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    }
    *memory = p;
    return TERN_OK;
}

static void cpu_free(struct machine *m, void *memory)
{
    (void)m;
    free(memory);
}

static enum tern_status cpu_host_alloc(struct machine *m, size_t bytes, void **host, void **device)
{
    void *p = NULL;

    TERN_TRY(cpu_alloc(m, bytes, &p));
    memset(p, 0, bytes);
    *host = p;
    *device = p;
    return TERN_OK;
}

/* ---- For NICs: kernels run on the processor, whose addresses they use ---- */

static enum tern_status cpu_io_map(struct machine *m, void *registers, size_t bytes, void **device)
{
    (void)m;
    (void)bytes;
    *device = registers;
    return TERN_OK;
}

static void cpu_io_unmap(struct machine *m, void *registers)
{
    (void)m;
    (void)registers;
}

static enum tern_status cpu_dmabuf(struct machine *m, void *memory, uint64_t bytes, int *fd, uint64_t *offset)
{
    (void)m;
    (void)fd;
    (void)offset;
    return TERN_FAIL(TERN_UNSUPPORTED, "%llu bytes at %p are memory of the host: a NIC finds them by address",
                     (unsigned long long)bytes, memory);
}

/* ---- Streams ---- */

static enum tern_status cpu_copy(struct machine *m, void *dst, const void *src, size_t bytes,
                                 struct tern_stream *s)
{
    return terni_stream_copy(stream_of(m, s), dst, src, bytes);
}

static enum tern_status cpu_fill(struct machine *m, void *dst, int byte, size_t bytes, struct tern_stream *s)
{
    return terni_stream_fill(stream_of(m, s), dst, byte, bytes);
}

static enum tern_status cpu_store(struct machine *m, uint64_t *word, uint64_t value, struct tern_stream *s)
{
    return terni_stream_store(stream_of(m, s), word, value);
}

static enum tern_status cpu_launch(struct machine *m, const struct launch *launch, struct tern_stream *s)
{
    const struct cpu_kernel *kernel;

    if (launch->kernel < 0 || launch->kernel >= TERN_KERNEL_COUNT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kernel %d does not exist", launch->kernel);
    }
    kernel = terni_cpu_kernel(launch->kernel);
    if (kernel->function == NULL) {
        return TERN_FAIL(TERN_UNSUPPORTED, "kernel %s is not part of this program", kernel->name);
    }
    if (launch->num_threads > kernel->max_threads) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kernel %s: blocks of %d threads, more than its bound %d",
                         kernel->name, launch->num_threads, kernel->max_threads);
    }
    return terni_stream_launch(stream_of(m, s), kernel->function, kernel->name, launch);
}

enum tern_status terni_cpu_launch_function(struct machine *m, simt_function *function, const char *name,
                                           const struct launch *launch, struct tern_stream *s)
{
    return terni_stream_launch(stream_of(m, s), function, name, launch);
}

static enum tern_status cpu_launch_other(struct machine *m, const struct tern_kernel *kernel,
                                         const struct launch *launch, struct tern_stream *s)
{
    if (kernel->cpu == NULL) {
        return TERN_FAIL(TERN_UNSUPPORTED, "kernel %s was not compiled for the cpu machine", kernel->name);
    }
    return terni_stream_launch(stream_of(m, s), kernel->cpu, kernel->name, launch);
}

static int cpu_is_thread_stream(struct machine *m, struct tern_stream *s)
{
    (void)m;
    (void)s;
    return 0;
}

static struct tern_stream *cpu_own_stream(struct machine *m) { return cpu_of(m)->own; }

static enum tern_status cpu_stream_open(struct machine *m, struct tern_stream **stream)
{
    struct cpu_machine *cpu = cpu_of(m);
    struct tern_stream *s;

    TERN_TRY(terni_stream_open(cpu->executor, cpu->ordinal, m->info.num_sms, &s));
    pthread_mutex_lock(&cpu->lock);
    s->next = cpu->streams;
    cpu->streams = s;
    pthread_mutex_unlock(&cpu->lock);
    *stream = s;
    return TERN_OK;
}

static int cpu_stream_is_open(struct machine *m, struct tern_stream *s)
{
    struct cpu_machine *cpu = cpu_of(m);
    const struct tern_stream *at;

    pthread_mutex_lock(&cpu->lock);
    for (at = cpu->streams; at != NULL && at != s; at = at->next) {
    }
    pthread_mutex_unlock(&cpu->lock);
    return at != NULL;
}

static void cpu_stream_close(struct machine *m, struct tern_stream *s)
{
    struct cpu_machine *cpu = cpu_of(m);
    struct tern_stream **link = &cpu->streams;
    int is_ours;

    if (s == NULL) {
        return;
    }
    pthread_mutex_lock(&cpu->lock);
    while (*link != NULL && *link != s) {
        link = &(*link)->next;
    }
    is_ours = *link != NULL;
    if (is_ours) {
        *link = s->next;
    }
    pthread_mutex_unlock(&cpu->lock);
    if (is_ours) {
        terni_stream_close(s);
    } else {
        TERN_LOG(TERN_LOG_ERROR, "tern_stream_close of %p, which was not opened here or is closed",
                 (void *)s);
    }
}

static enum tern_status cpu_stream_synchronize(struct machine *m, struct tern_stream *s)
{
    return terni_stream_synchronize(stream_of(m, s));
}

static int cpu_stream_capturing(struct machine *m, struct tern_stream *s)
{
    return stream_of(m, s)->capture != NULL;
}

static uint64_t cpu_stream_capture(struct machine *m, struct tern_stream *s)
{
    const struct tern_graph *capture = stream_of(m, s)->capture;
    return capture ? capture->number : 0;
}

static int cpu_is_default_stream(struct machine *m, struct tern_stream *s)
{
    return stream_of(m, s) == cpu_of(m)->default_stream;
}

/* ---- Events and graphs ---- */

static enum tern_status cpu_event_open(struct machine *m, struct tern_event **e)
{
    (void)m;
    return terni_event_open(e);
}

static void cpu_event_close(struct machine *m, struct tern_event *e)
{
    (void)m;
    if (e != NULL) {
        terni_event_unref(e);
    }
}

static enum tern_status cpu_event_record(struct machine *m, struct tern_event *e, struct tern_stream *s)
{
    return terni_event_record(e, stream_of(m, s));
}

static enum tern_status cpu_event_wait(struct machine *m, struct tern_event *e, struct tern_stream *s)
{
    return terni_event_wait(e, stream_of(m, s));
}

static enum tern_status cpu_event_synchronize(struct machine *m, struct tern_event *e)
{
    return terni_event_synchronize(cpu_of(m)->executor, e);
}

static enum tern_status cpu_event_elapsed(struct machine *m, struct tern_event *a, struct tern_event *b,
                                          float *ms)
{
    (void)m;
    return terni_event_elapsed(a, b, ms);
}

static enum tern_status cpu_graph_begin(struct machine *m, struct tern_stream *s)
{
    return terni_graph_begin(stream_of(m, s));
}

static enum tern_status cpu_graph_end(struct machine *m, struct tern_stream *s, struct tern_graph **g)
{
    return terni_graph_end(stream_of(m, s), g);
}

static enum tern_status cpu_graph_launch(struct machine *m, struct tern_graph *g, struct tern_stream *s)
{
    return terni_graph_launch(g, stream_of(m, s));
}

static void cpu_graph_close(struct machine *m, struct tern_graph *g)
{
    (void)m;
    terni_graph_close(g);
}

static enum tern_status cpu_wait_word(struct machine *m, const uint64_t *word, uint64_t value,
                                      uint64_t deadline_ns)
{
    return terni_executor_word(cpu_of(m)->executor, word, value, deadline_ns);
}

/* ---- Open and close ---- */

static void cpu_settle(struct machine *m)
{
    for (struct tern_stream *s = cpu_of(m)->streams; s != NULL; s = s->next) {
        if (s->capture == NULL && terni_stream_synchronize(s) != TERN_OK) {
            TERN_LOG(TERN_LOG_WARN, "%s", tern_last_error());
        }
    }
}

/* Streams that the user left open are closed too; memory, events and graphs are their owners'. */
static void cpu_close(struct machine *m)
{
    struct cpu_machine *cpu = cpu_of(m);

    while (cpu->streams != NULL) {
        struct tern_stream *s = cpu->streams;
        cpu->streams = s->next;
        terni_stream_close(s);
    }
    terni_executor_release(cpu->executor);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}

static const struct machine_ops cpu_ops = {
    .close = cpu_close,
    .settle = cpu_settle,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_free,
    .share_reserve = terni_cpu_share_reserve,
    .share_add = terni_cpu_share_add,
    .share_import = terni_cpu_share_import,
    .share_trim = terni_cpu_share_trim,
    .peer_enable = terni_cpu_peer_enable,
    .lacks_atomics = terni_cpu_lacks_atomics,
    .share_free = terni_cpu_share_free,
    .share_lend = terni_cpu_share_lend,
    .io_map = cpu_io_map,
    .io_unmap = cpu_io_unmap,
    .dmabuf = cpu_dmabuf,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .store = cpu_store,
    .launch = cpu_launch,
    .launch_other = cpu_launch_other,
    .stream_open = cpu_stream_open,
    .stream_is_open = cpu_stream_is_open,
    .stream_close = cpu_stream_close,
    .stream_synchronize = cpu_stream_synchronize,
    .stream_capturing = cpu_stream_capturing,
    .stream_capture = cpu_stream_capture,
    .is_default_stream = cpu_is_default_stream,
    .is_thread_stream = cpu_is_thread_stream,
    .own_stream = cpu_own_stream,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_synchronize = cpu_event_synchronize,
    .event_elapsed = cpu_event_elapsed,
    .graph_begin = cpu_graph_begin,
    .graph_end = cpu_graph_end,
    .graph_launch = cpu_graph_launch,
    .graph_close = cpu_graph_close,
    .wait_word = cpu_wait_word,
};

static void describe(struct cpu_machine *cpu, int num_sms)
{
    struct machine_info *info = &cpu->base.info;
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);

    info->kind = TERN_MACHINE_CPU;
    snprintf(info->name, sizeof(info->name), "cpu machine with %d processors", num_sms);
    memcpy(info->uuid, cpu->executor->uuid, sizeof(info->uuid));
    info->num_sms = num_sms;
    info->max_shared_bytes = SIMT_SHARED_BYTES;
    info->has_bulk = 1;
    info->nic_writes_ordered = 1;
    info->has_stamps = terni_cpu_stamps();
    info->share_granule = page_bytes > 0 ? (uint64_t)page_bytes : 4096;
    info->memory_bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

enum tern_status terni_cpu_open(struct executor *x, struct machine **machine)
{
    struct cpu_machine *cpu;
    uint64_t num_sms;
    enum tern_status status;

    TERN_TRY(terni_env_uint(TERN_ENV_CPU_SMS, MAX_SMS, &num_sms));
    if (num_sms == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is 0: a machine needs a processor",
                         terni_env_name(TERN_ENV_CPU_SMS));
    }
    cpu = (struct cpu_machine *)calloc(1, sizeof(*cpu));
    if (cpu == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a machine of %zu bytes", sizeof(*cpu));
    }
    cpu->base.ops = &cpu_ops;
    pthread_mutex_init(&cpu->lock, NULL);
    cpu->executor = x;
    cpu->ordinal = terni_executor_ref(x);
    describe(cpu, (int)num_sms);
    status = cpu_stream_open(&cpu->base, &cpu->default_stream);
    if (status == TERN_OK) {
        status = cpu_stream_open(&cpu->base, &cpu->own);
    }
    if (status != TERN_OK) {
        cpu_close(&cpu->base);
        return status;
    }
    *machine = &cpu->base;
    return TERN_OK;
}
