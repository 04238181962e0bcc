/* SPDX-License-Identifier: Apache-2.0
 *
 * From a rank's ring of stamps to its file. The file is there from the start, with no events in it: so a
 * folder that cannot be written is told of at once, and a rank that dies leaves a sign. Events are written
 * when the object is closed, and when tern_ep_synchronize first returns its fault, for programs that end
 * without closing. A reset, after which epochs begin again, writes what there is and begins another file. A
 * file is replaced as a whole, never written over. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ep/ep_trace.h"
#include "ep/trace_file.h"

enum { MIN_EVENTS = 64, MAX_EVENTS = 1 << 24, PATH_BYTES = 4096 };
enum { AFTER_RESET = 1 << 20 }; /* each reset adds it to the object's number */

static atomic_flag has_told_of_kernels = ATOMIC_FLAG_INIT;

static struct trace_header header_of(const struct tern_ep *ep, uint32_t written)
{
    const struct tern_comm *comm = ep->comm;
    const struct rank_card *card = &comm->cards[comm->rank];
    struct trace_header h;
    memset(&h, 0, sizeof(h));
    memcpy(h.magic, TRACE_MAGIC, sizeof(h.magic));
    h.version = TRACE_VERSION;
    h.header_bytes = sizeof(h);
    h.event_bytes = sizeof(struct stamp_event);
    h.rank = comm->rank;
    h.num_ranks = comm->num_ranks;
    h.object = ep->trace_number;
    memcpy(h.cookie, comm->cookie, sizeof(h.cookie));
    h.host = card->host;
    memcpy(h.device, card->uuid, sizeof(h.device));
    h.pid = card->pid;
    h.capacity = ep->trace_events;
    h.clock = ep->machine->info.kind == TERN_MACHINE_CUDA ? TRACE_CLOCK_GPU : TRACE_CLOCK_HOST;
    h.written = written;
    snprintf(h.host_name, sizeof(h.host_name), "%.63s", card->host_name);
    snprintf(h.device_name, sizeof(h.device_name), "%.63s", card->device_name);
    return h;
}

static void name_file(const struct tern_ep *ep, const char *suffix, char path[PATH_BYTES])
{
    const unsigned char *c = ep->comm->cookie;
    uint32_t resets = ep->trace_number / AFTER_RESET;
    char after[16] = "";
    if (resets) {
        snprintf(after, sizeof(after), "-%u", resets);
    }
    snprintf(path, PATH_BYTES, "%s/tern.%d.%02x%02x%02x%02x.%u%s.trace%s", terni_env(TERN_ENV_TRACE),
             ep->comm->rank, c[0], c[1], c[2], c[3], ep->trace_number % AFTER_RESET, after, suffix);
}

/* 0, or the errno of what failed. */
static int write_bytes(FILE *file, const void *bytes, size_t size, size_t num)
{
    errno = 0;
    return num == 0 || fwrite(bytes, size, num, file) == num ? 0 : errno ? errno : EIO;
}

/* Warns of what goes wrong, and leaves an older file of that name as it was. */
static int write_file(const struct tern_ep *ep, const struct trace_header *h,
                      const struct stamp_event *events)
{
    char part[PATH_BYTES], path[PATH_BYTES];
    name_file(ep, ".part", part);
    name_file(ep, "", path);
    FILE *file = fopen(part, "wb");
    int error = file ? write_bytes(file, h, sizeof(*h), 1) : errno;
    if (file) {
        error = error ? error : write_bytes(file, events, sizeof(*events), h->num_events);
        errno = 0;
        error = fclose(file) != 0 && !error ? errno : error;
        error = !error && rename(part, path) != 0 ? errno : error;
    }
    if (error) {
        TERN_LOG(TERN_LOG_WARN, "%s: the trace of rank %d cannot be written: %s: %s",
                 terni_env_name(TERN_ENV_TRACE), ep->comm->rank, path, strerror(error));
        (void)unlink(part);
    }
    return error == 0;
}

static void give_back(struct tern_ep *ep)
{
    ep->machine->ops->free(ep->machine, ep->stamps);
    ep->stamps = NULL;
}

/* The host's bytes to the device's, or the other way. */
static enum tern_status copy(const struct tern_ep *ep, void *to, const void *from, size_t bytes)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct tern_stream *stream = ops->own_stream(ep->machine);
    TERN_TRY(ops->copy(ep->machine, to, from, bytes, stream));
    return ops->stream_synchronize(ep->machine, stream);
}

static size_t ring_bytes(const struct tern_ep *ep)
{
    return sizeof(struct stamp_ring) + ep->trace_events * sizeof(struct stamp_event);
}

static enum tern_status empty_ring(const struct tern_ep *ep)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct stamp_ring head = {0, ep->trace_events, {0, 0}};
    TERN_TRY(ops->fill(ep->machine, ep->stamps, 0, ring_bytes(ep), ops->own_stream(ep->machine)));
    return copy(ep, ep->stamps, &head, sizeof(head));
}

static enum tern_status open_ring(struct tern_ep *ep)
{
    uint64_t events;
    void *ring;
    TERN_TRY(terni_env_uint(TERN_ENV_TRACE_EVENTS, MAX_EVENTS, &events));
    ep->trace_events = MIN_EVENTS;
    while (ep->trace_events < events) {
        ep->trace_events *= 2;
    }
    TERN_TRY(ep->machine->ops->alloc(ep->machine, ring_bytes(ep), &ring));
    ep->stamps = (struct stamp_ring *)ring;
    return empty_ring(ep);
}

/* An empty ring (`status`) gets a file without events, and kernels find it. */
static void begin_file(struct tern_ep *ep, enum tern_status status)
{
    struct trace_header h = header_of(ep, TRACE_OPENED);
    char *at = ep->device_memory + ep->layout.state + offsetof(struct ep_state, stamps);
    int is_written = status == TERN_OK && write_file(ep, &h, NULL);
    if (is_written) {
        status = copy(ep, at, &ep->stamps, sizeof(ep->stamps));
    }
    if (status != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "rank %d has no trace: %s", ep->comm->rank, tern_last_error());
    }
    if (!is_written && ep->stamps) {
        give_back(ep);
    }
}

void terni_ep_trace_open(struct tern_ep *ep)
{
    const char *folder = terni_env(TERN_ENV_TRACE);
    if (folder[0] == '\0') {
        return;
    }
    if (!ep->machine->info.has_stamps) {
        if (!atomic_flag_test_and_set(&has_told_of_kernels)) {
            TERN_LOG(TERN_LOG_WARN,
                     "%s is %s, but the kernels of this library take no time stamps, and there will be no "
                     "trace: use the library that make VARIANT=trace builds",
                     terni_env_name(TERN_ENV_TRACE), folder);
        }
        return;
    }
    (void)mkdir(folder, 0777); /* if it is not there then, the file says so */
    ep->trace_number = ep->number;
    begin_file(ep, open_ring(ep));
}

/* Puts the whole events in order, oldest first, and makes lanes count from 0. Returns how many there are. */
static uint64_t sort_events(const struct tern_ep *ep, const struct stamp_ring *ring, struct stamp_event *to)
{
    const struct stamp_event *from = (const struct stamp_event *)(ring + 1);
    uint64_t held = ring->claimed < ring->capacity ? ring->claimed : ring->capacity, num = 0;
    uint64_t copies = 2 * ep->layout.ll.entry_bytes;
    for (uint64_t n = ring->claimed - held; n < ring->claimed; n++) {
        struct stamp_event e = from[n & (ring->capacity - 1)];
        if (e.number == (uint32_t)n + 1) {
            if (e.operation >= TERN_OP_LL_DISPATCH && copies != 0) {
                e.lane = (uint8_t)(e.lane - ep->layout.ll_entries / copies);
            }
            to[num++] = e;
        }
    }
    return num;
}

void terni_ep_trace_write(struct tern_ep *ep, uint32_t written)
{
    if (!ep->stamps) {
        return;
    }
    size_t event_bytes = ep->trace_events * sizeof(struct stamp_event), bytes = ring_bytes(ep);
    struct stamp_ring *ring = (struct stamp_ring *)malloc(bytes);
    struct stamp_event *events = (struct stamp_event *)malloc(event_bytes);
    struct trace_header h = header_of(ep, written);
    if (!ring || !events) {
        TERN_LOG(TERN_LOG_WARN, "rank %d has no trace: no host memory for %zu bytes", ep->comm->rank, bytes);
    } else if (copy(ep, ring, ep->stamps, bytes) != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "rank %d has no trace: %s", ep->comm->rank, tern_last_error());
    } else {
        h.num_events = sort_events(ep, ring, events);
        h.num_dropped = ring->claimed - h.num_events;
        write_file(ep, &h, events);
    }
    free(ring);
    free(events);
}

void terni_ep_trace_arm(struct tern_ep *ep)
{
    if (ep->stamps) {
        terni_ep_trace_write(ep, TRACE_AT_RESET);
        ep->trace_number += AFTER_RESET;
        begin_file(ep, empty_ring(ep));
    }
}

void terni_ep_trace_close(struct tern_ep *ep)
{
    if (ep->stamps) {
        terni_ep_trace_write(ep, TRACE_AT_CLOSE);
        give_back(ep);
    }
}
