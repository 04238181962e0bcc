/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading what ranks left, and refusing what is not whole or not of one run, by name. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* asprintf */
#endif
#include "trace_parts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void *trace_make(size_t num, size_t size)
{
    void *p = calloc(num ? num : 1, size);
    if (!p) {
        fprintf(stderr, "tern-trace: no memory for %zu times %zu bytes\n", num, size);
        exit(1);
    }
    return p;
}

static int refuse_event(const char *path, const struct trace_header *h, const struct stamp_event *e,
                        uint64_t i)
{
    if (e->begin > e->end || e->end > MAX_TIME || e->operation >= NUM_OPERATIONS || e->what >= NUM_WHATS ||
        e->peer < -1 || e->peer >= h->num_ranks || (e->what != STAMP_BLOCK && e->peer < 0)) {
        fprintf(
            stderr,
            "tern-trace: %s: event %llu makes no sense: from %llu to %llu, operation %u, wait %u, peer %d\n",
            path, (unsigned long long)i, (unsigned long long)e->begin, (unsigned long long)e->end,
            e->operation, e->what, e->peer);
        return 1;
    }
    return 0;
}

static int refuse_header(const char *path, const struct trace_header *h, size_t bytes)
{
    if (bytes < sizeof(h->magic) || memcmp(h->magic, TRACE_MAGIC, sizeof(h->magic)) != 0) {
        fprintf(stderr, "tern-trace: %s: no trace of Tern: it does not begin with %s\n", path, TRACE_MAGIC);
    } else if (bytes < sizeof(*h)) {
        fprintf(stderr, "tern-trace: %s: truncated: %zu bytes, a header has %zu\n", path, bytes, sizeof(*h));
    } else if (h->version != TRACE_VERSION || h->header_bytes != sizeof(*h) ||
               h->event_bytes != sizeof(struct stamp_event)) {
        fprintf(stderr,
                "tern-trace: %s: version %u with headers of %u and events of %u bytes; this program reads "
                "version %d with %zu and %zu\n",
                path, h->version, h->header_bytes, h->event_bytes, TRACE_VERSION, sizeof(*h),
                sizeof(struct stamp_event));
    } else if (h->num_ranks < 1 || h->num_ranks > TERN_MAX_RANKS || h->rank < 0 || h->rank >= h->num_ranks) {
        fprintf(stderr, "tern-trace: %s: rank %d of %d makes no sense; there are %d at most\n", path, h->rank,
                h->num_ranks, TERN_MAX_RANKS);
    } else {
        return 0;
    }
    return 1;
}

/* Names of hosts and devices come from elsewhere. */
static void clean_name(char *name, size_t bytes)
{
    name[bytes - 1] = '\0';
    for (; *name; name++) {
        *name = *name < 32 || *name > 126 ? '_' : *name; /* signed or not */
    }
}

static int read_all(struct file *f, FILE *in)
{
    struct stat s;
    size_t got = fread(&f->h, 1, sizeof(f->h), in);
    if (refuse_header(f->path, &f->h, got)) {
        return 1;
    }
    clean_name(f->h.host_name, sizeof(f->h.host_name));
    clean_name(f->h.device_name, sizeof(f->h.device_name));
    uint64_t bytes = fstat(fileno(in), &s) == 0 ? (uint64_t)s.st_size : 0;
    uint64_t held = (bytes - sizeof(f->h)) / sizeof(struct stamp_event);
    if (bytes < sizeof(f->h) || held != f->h.num_events ||
        bytes != sizeof(f->h) + held * sizeof(struct stamp_event)) {
        fprintf(stderr, "tern-trace: %s: %s: %llu bytes are not a header and %llu events\n", f->path,
                held < f->h.num_events ? "truncated" : "too long", (unsigned long long)bytes,
                (unsigned long long)f->h.num_events);
        return 1;
    }
    f->events = (struct stamp_event *)trace_make(held, sizeof(*f->events));
    if (fread(f->events, sizeof(*f->events), held, in) != held) {
        fprintf(stderr, "tern-trace: %s: %s\n", f->path, strerror(errno));
        return 1;
    }
    for (uint64_t i = 0; i < held; i++) {
        if (refuse_event(f->path, &f->h, &f->events[i], i)) {
            return 1;
        }
    }
    if (f->h.written == TRACE_OPENED) {
        fprintf(
            stderr,
            "tern-trace: warning: %s: rank %d ended before it closed its EP object; its stamps are lost\n",
            f->path, f->h.rank);
    }
    return 0;
}

static int read_file(struct traces *t, const char *path)
{
    FILE *in = fopen(path, "rb");
    size_t bytes = (t->num_files + 1) * sizeof(*t->files);
    struct file *files = in ? (struct file *)realloc(t->files, bytes) : NULL;
    if (!files) {
        fprintf(stderr, "tern-trace: %s: %s\n", path, strerror(errno));
        if (in) {
            fclose(in);
        }
        return 1;
    }
    t->files = files;
    struct file *f = &files[t->num_files];
    memset(f, 0, sizeof(*f));
    t->num_files++;
    f->path = (char *)trace_make(strlen(path) + 1, 1);
    memcpy(f->path, path, strlen(path));
    int refused = read_all(f, in);
    fclose(in);
    return refused;
}

static int is_trace(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 6 && strcmp(d->d_name + n - 6, ".trace") == 0;
}

int trace_read_path(struct traces *t, const char *path)
{
    struct stat s;
    struct dirent **names = NULL;
    int refused = 0;
    if (stat(path, &s) != 0 || !S_ISDIR(s.st_mode)) {
        return read_file(t, path);
    }
    int num = scandir(path, &names, is_trace, alphasort);
    if (num <= 0) {
        fprintf(stderr, "tern-trace: %s: %s\n", path,
                num < 0 ? strerror(errno) : "a folder without files *.trace");
        refused = 1;
    }
    for (int i = 0; i < num; i++) {
        char *name = NULL;
        refused |= asprintf(&name, "%s/%s", path, names[i]->d_name) < 0 || read_file(t, name);
        free(name);
        free(names[i]);
    }
    free(names);
    return refused;
}

/* Numbers communicators; refuses what cannot be of one run. */
int trace_join_files(struct traces *t)
{
    for (size_t i = 0; i < t->num_files; i++) {
        struct file *f = &t->files[i];
        f->comm = -1;
        for (size_t j = 0; j < i; j++) {
            const struct file *g = &t->files[j];
            if (memcmp(f->h.cookie, g->h.cookie, sizeof(f->h.cookie)) != 0) {
                continue;
            }
            f->comm = g->comm;
            if (f->h.num_ranks != g->h.num_ranks || (f->h.rank == g->h.rank && f->h.object == g->h.object)) {
                fprintf(stderr, "tern-trace: %s and %s: rank %d of %d and rank %d of %d, both of object %u\n",
                        g->path, f->path, g->h.rank, g->h.num_ranks, f->h.rank, f->h.num_ranks, f->h.object);
                return 1;
            }
        }
        f->comm = f->comm < 0 ? t->num_comms++ : f->comm;
    }
    for (size_t i = 0; i < t->num_files; i++) {
        struct file *f = &t->files[i];
        for (int64_t below = -1, next; below < (int64_t)f->h.object; below = next) { /* each object once */
            next = f->h.object;
            for (size_t j = 0; j < t->num_files; j++) {
                int64_t object = t->files[j].h.object;
                next = t->files[j].comm == f->comm && object > below && object < next ? object : next;
            }
            f->place += next < (int64_t)f->h.object;
        }
    }
    return 0;
}

void trace_drop(struct traces *t)
{
    for (size_t i = 0; i < t->num_files; i++) {
        free(t->files[i].path);
        free(t->files[i].events);
        free(t->files[i].blocks);
        free(t->files[i].waits);
        free(t->files[i].in_order);
    }
    free(t->files);
    free(t->clocks);
}
