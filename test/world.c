/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas with images, and the ranks that own them. One rule keeps one thread able to drive several ranks on
 * one device: between issuing an operation on the first rank and on the last, nothing is called that may
 * wait. */
#include "world.h"

#include "erring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, ALIGNMENT = 256 };

void world_init(struct world *w, int num_ranks, int self)
{
    memset(w, 0, sizeof *w);
    w->num_ranks = num_ranks;
    w->self = self;
    w->num_lanes = NUM_LANES;
    w->members = (struct member *)test_take((size_t)num_ranks, sizeof *w->members);
}

int world_local(const struct world *w, int rank) { return w->self < 0 || w->self == rank; }

static void grow(struct arena *a, size_t bytes)
{
    size_t old = a->capacity;

    if (bytes <= old) {
        return;
    }
    a->capacity = bytes > 2 * old ? bytes : 2 * old;
    a->image = (unsigned char *)realloc(a->image, a->capacity);
    if (!a->image) {
        fprintf(stderr, "no memory for an image of %zu bytes\n", a->capacity);
        exit(2);
    }
    memset(a->image + old, POISON, a->capacity - old);
}

struct place world_take(struct world *w, int rank, int arena, size_t bytes, const char *name)
{
    struct arena *a = &w->members[rank].arenas[arena];
    struct place place = {rank, arena, 0, bytes};
    struct mark *mark;

    place.offset = (a->bytes + GUARD_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    a->bytes = place.offset + bytes;
    grow(a, a->bytes + GUARD_BYTES);
    a->marks = (struct mark *)realloc(a->marks, (size_t)(a->num_marks + 1) * sizeof *a->marks);
    if (!a->marks) {
        exit(2);
    }
    mark = &a->marks[a->num_marks++];
    mark->name = name;
    mark->offset = place.offset;
    mark->bytes = bytes;
    return place;
}

void *world_image(const struct world *w, struct place place)
{
    return place.arena ? w->members[place.rank].arenas[place.arena].image + place.offset : NULL;
}

void *world_device(const struct world *w, struct place place)
{
    return place.arena ? w->members[place.rank].arenas[place.arena].device + place.offset : NULL;
}

void world_poison(const struct world *w, struct place place)
{
    if (place.arena) {
        memset(world_image(w, place), POISON, place.bytes);
    }
}

static size_t arena_bytes(const struct arena *a) { return a->bytes + GUARD_BYTES; }

enum { FIRST_BYTES = 65536, GROWTHS = 3 };

/* Windows of `bytes` and something in between pieces, so that arenas lie across their borders. */
static int grow_windows(struct world *w, struct tern_comm **comms, size_t bytes)
{
    for (int i = 0; i < GROWTHS; i++) {
        if (w->self >= 0) {
            OK(tern_heap_grow(w->members[w->self].comm, bytes / GROWTHS + 1));
        } else {
            OK(tern_heap_grow_all(w->num_ranks, comms, bytes / GROWTHS + 1));
        }
    }
    return 0;
}

static int open_comms(struct world *w, const struct tern_id *id, const struct tern_comm_config *config)
{
    struct tern_comm_config c = *config;
    struct tern_comm **comms;
    enum tern_status status;
    size_t most = 0;
    char size[16];
    int r, result;

    if (w->self >= 0 && w->members[w->self].comm) {
        return 0;
    }
    for (r = 0; r < w->num_ranks; r++) {
        size_t bytes = arena_bytes(&w->members[r].arenas[ARENA_WINDOW]);
        most = bytes > most ? bytes : most;
    }
    c.heap_bytes = w->grows ? FIRST_BYTES : most + 65536;
    c.heap_max_bytes = w->grows ? FIRST_BYTES + most + (GROWTHS << 22) : 0; /* a granule a growth */
    if (w->self >= 0) {
        OK(tern_comm_open(id, w->self, w->num_ranks, &c, &w->members[w->self].comm));
        return w->grows ? grow_windows(w, NULL, most) : 0;
    }
    comms = (struct tern_comm **)test_take((size_t)w->num_ranks, sizeof *comms);
    if (w->forces_domains) {
        snprintf(size, sizeof size, "%d", w->domain_ranks);
        setenv("TERN_DOMAIN_SIZE", size, 1);
    }
    status = tern_comm_open_all(w->num_ranks, &c, comms);
    if (w->forces_domains) {
        unsetenv("TERN_DOMAIN_SIZE");
    }
    for (r = 0; r < w->num_ranks; r++) {
        w->members[r].comm = comms[r];
    }
    result = status == TERN_OK && w->grows ? grow_windows(w, comms, most) : 0;
    free(comms);
    OK(status);
    return result;
}

static int open_member(struct member *m, int num_lanes)
{
    int i;

    for (i = 0; i < num_lanes; i++) {
        OK(tern_stream_open(m->comm, &m->lanes[i]));
    }
    for (i = ARENA_WINDOW; i < NUM_ARENAS; i++) {
        struct arena *a = &m->arenas[i];
        enum tern_memory kind = i == ARENA_WINDOW ? TERN_MEMORY_WINDOW : TERN_MEMORY_DEVICE;
        grow(a, arena_bytes(a));
        OK(tern_alloc(m->comm, kind, arena_bytes(a), (void **)&a->device));
        OK(tern_alloc(m->comm, TERN_MEMORY_HOST, arena_bytes(a), (void **)&a->staging));
    }
    OK(tern_alloc(m->comm, TERN_MEMORY_HOST, SCRATCH_BYTES, &m->scratch));
    return 0;
}

int world_open(struct world *w, const struct tern_id *id, const struct tern_comm_config *config)
{
    int r;

    PASS(open_comms(w, id, config));
    for (r = 0; r < w->num_ranks; r++) {
        if (world_local(w, r)) {
            PASS(open_member(&w->members[r], w->num_lanes));
        }
    }
    return 0;
}

int world_synchronize(struct world *w)
{
    int r, i;

    for (r = 0; r < w->num_ranks; r++) {
        for (i = 0; i < w->num_lanes && world_local(w, r); i++) {
            OK(tern_stream_synchronize(w->members[r].comm, w->members[r].lanes[i]));
        }
    }
    return 0;
}

int world_upload(struct world *w)
{
    int r, i;

    PASS(world_synchronize(w)); /* what runs on other lanes still reads the old bytes */
    for (r = 0; r < w->num_ranks; r++) {
        struct member *m = &w->members[r];
        for (i = ARENA_WINDOW; i < NUM_ARENAS && world_local(w, r); i++) {
            struct arena *a = &m->arenas[i];
            memcpy(a->staging, a->image, arena_bytes(a));
            OK(tern_copy(m->comm, a->device, a->staging, arena_bytes(a), m->lanes[0]));
        }
    }
    return world_synchronize(w);
}

/* Where a wrong byte lies, in words. */
static void locate(const struct arena *a, size_t offset, char *text, size_t text_bytes)
{
    int i;

    snprintf(text, text_bytes, "a guard at %zu", offset);
    for (i = 0; i < a->num_marks; i++) {
        const struct mark *mark = &a->marks[i];
        if (offset >= mark->offset && offset < mark->offset + mark->bytes) {
            snprintf(text, text_bytes, "%s, byte %zu of %zu", mark->name, offset - mark->offset, mark->bytes);
        } else if (offset >= mark->offset + mark->bytes &&
                   offset < mark->offset + mark->bytes + GUARD_BYTES) {
            snprintf(text, text_bytes, "the guard %zu bytes past %s", offset - mark->offset - mark->bytes,
                     mark->name);
        }
    }
}

static int verify_arena(struct world *w, int rank, int arena, const char *step)
{
    const struct arena *a = &w->members[rank].arenas[arena];
    size_t i, wrong = 0, first = 0;
    char where[160];

    if (!memcmp(a->staging, a->image, arena_bytes(a))) {
        return 0;
    }
    for (i = 0; i < arena_bytes(a); i++) {
        if (a->staging[i] != a->image[i]) {
            first = wrong ? first : i;
            wrong++;
        }
    }
    locate(a, first, where, sizeof where);
    CHECK(0, "%s: rank %d of %d, %s arena: %zu bytes are wrong, the first in %s: 0x%02x, expected 0x%02x",
          step, rank, w->num_ranks, arena == ARENA_WINDOW ? "window" : "device", wrong, where,
          a->staging[first], a->image[first]);
}

int world_verify(struct world *w, const char *step)
{
    int r, i;

    PASS(world_synchronize(w));
    for (r = 0; r < w->num_ranks; r++) {
        struct member *m = &w->members[r];
        for (i = ARENA_WINDOW; i < NUM_ARENAS && world_local(w, r); i++) {
            struct arena *a = &m->arenas[i];
            OK(tern_copy(m->comm, a->staging, a->device, arena_bytes(a), m->lanes[0]));
        }
    }
    PASS(world_synchronize(w));
    for (r = 0; r < w->num_ranks; r++) {
        for (i = ARENA_WINDOW; i < NUM_ARENAS && world_local(w, r); i++) {
            PASS(verify_arena(w, r, i, step));
        }
    }
    return 0;
}

const void *world_peek(struct world *w, int rank, const void *device, size_t bytes)
{
    struct member *m = &w->members[rank];

    if (bytes > SCRATCH_BYTES) {
        test_note(__FILE__, __LINE__, "%zu bytes do not fit into scratch", bytes);
        return NULL;
    }
    if (bytes && (tern_copy(m->comm, m->scratch, device, bytes, m->lanes[0]) != TERN_OK ||
                  tern_stream_synchronize(m->comm, m->lanes[0]) != TERN_OK)) {
        test_note(__FILE__, __LINE__, "a copy of %zu bytes failed: %s", bytes, tern_last_error());
        return NULL;
    }
    return m->scratch;
}

static void release(struct tern_comm *comm, void **memory)
{
    if (*memory) {
        tern_free(comm, *memory);
    }
    *memory = NULL;
}

void world_close(struct world *w)
{
    int r, i;

    for (r = 0; r < w->num_ranks; r++) {
        struct member *m = &w->members[r];
        if (!m->comm) {
            continue;
        }
        for (i = ARENA_WINDOW; i < NUM_ARENAS; i++) {
            release(m->comm, (void **)&m->arenas[i].device);
            release(m->comm, (void **)&m->arenas[i].staging);
        }
        release(m->comm, &m->scratch);
        for (i = 0; i < w->num_lanes; i++) {
            if (m->lanes[i]) {
                tern_stream_close(m->comm, m->lanes[i]);
            }
            m->lanes[i] = NULL;
        }
    }
    for (r = 0; r < w->num_ranks; r++) {
        tern_comm_close(w->members[r].comm);
        w->members[r].comm = NULL;
    }
}

void world_fini(struct world *w)
{
    int r, i;

    world_close(w);
    for (r = 0; w->members && r < w->num_ranks; r++) {
        for (i = 0; i < NUM_ARENAS; i++) {
            free(w->members[r].arenas[i].image);
            free(w->members[r].arenas[i].marks);
        }
    }
    free(w->members);
    w->members = NULL;
}

int world_ep_open(struct world *w, const struct tern_ep_config *config, struct tern_ep **eps)
{
    struct tern_comm **comms;
    enum tern_status status;
    int r;

    if (w->self >= 0) {
        OK(tern_ep_open(w->members[w->self].comm, config, &eps[w->self]));
        return 0;
    }
    comms = (struct tern_comm **)test_take((size_t)w->num_ranks, sizeof *comms);
    for (r = 0; r < w->num_ranks; r++) {
        comms[r] = w->members[r].comm;
    }
    status = tern_ep_open_all(w->num_ranks, comms, config, eps);
    free(comms);
    OK(status);
    return 0;
}

int world_ep_synchronize(struct world *w, struct tern_ep **eps)
{
    int r;

    for (r = 0; r < w->num_ranks; r++) {
        if (world_local(w, r)) {
            OK(tern_ep_synchronize(eps[r]));
        }
    }
    return 0;
}

void world_ep_close(struct world *w, struct tern_ep **eps)
{
    int r;

    for (r = 0; r < w->num_ranks; r++) {
        erring_count(eps[r]);
        tern_ep_close(eps[r]);
        eps[r] = NULL;
    }
}
