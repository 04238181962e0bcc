/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens areas in every rank's window, launches the wire kernels on all ranks and times them with the device's
 * events. Areas are found by offset: every process learns every rank's, then adds them to its own view of the
 * peers' windows. */
#include "fill.h"
#include "kernels/kernels.h"
#include "stats.h"
#include "wire.h"
#include "wire_args.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROW_BYTES = 14336, /* a BF16 token of 7168 channels */
    PUSH_WARPS = 6,    /* a block, where shared memory allows: what a 7168-byte row needs at full speed */
    CPU_WARPS = 2,     /* fibers are slow; so few keep a round below a second */
    DEADLINE_MS = 10000,
    POISON = 0xa5
};

uint64_t wire_default_bytes(enum tern_machine machine, int num_ranks)
{
    if (machine == TERN_MACHINE_CPU) {
        return ROW_BYTES * (num_ranks > 16 ? 1u : 4u);
    }
    return (uint64_t)ROW_BYTES * (num_ranks > 8 ? 1024u : 2048u);
}

uint64_t wire_heap_bytes(int num_ranks, uint64_t bytes) { return 2 * (uint64_t)num_ranks * bytes + 4096; }

static struct machine *machine_of(const struct wire *w, int i) { return w->party->comms[i]->machine; }

static int num_peers(const struct wire *w) { return w->party->num_ranks > 1 ? w->party->num_ranks - 1 : 1; }

static uint64_t area_bytes(const struct wire *w) { return w->bytes * (uint64_t)w->party->num_ranks; }

/* ---- Open and close ---- */

/* Block b of rank r's source area. */
static void fill_block(const struct wire *w, int r, int b, char *block)
{
    fill_bf16(fill_begin(w->seed, FILL_WIRE, (uint64_t)r, (uint64_t)b), (uint16_t *)(void *)block,
              (uint32_t)(w->bytes / 2));
}

static enum tern_status open_seat(struct wire *w, int i)
{
    struct tern_comm *comm = w->party->comms[i];
    struct wire_seat *seat = &w->seats[i];
    struct machine *m = comm->machine;
    void *memory = NULL, *device = NULL;
    TERN_TRY(tern_alloc(comm, TERN_MEMORY_WINDOW, area_bytes(w), &memory));
    seat->from = (char *)memory;
    TERN_TRY(tern_alloc(comm, TERN_MEMORY_WINDOW, area_bytes(w), &memory));
    seat->to = (char *)memory;
    TERN_TRY(m->ops->host_alloc(m, 2 * sizeof(uint64_t), &memory, &device));
    seat->result = (uint64_t *)memory;
    seat->device_result = (uint64_t *)device;
    TERN_TRY(m->ops->alloc(m, sizeof(struct wire_turns), &seat->turns));
    TERN_TRY(m->ops->fill(m, seat->turns, 0, sizeof(struct wire_turns), w->party->streams[i]));
    TERN_TRY(tern_event_open(comm, &seat->begin));
    return tern_event_open(comm, &seat->end);
}

static enum tern_status fill_source(void *user, int i)
{
    struct wire *w = (struct wire *)user;
    struct tern_comm *comm = w->party->comms[i];
    enum tern_status status = TERN_OK;
    void *block = NULL;
    int b;
    TERN_TRY(tern_alloc(comm, TERN_MEMORY_HOST, w->bytes, &block));
    for (b = 0; status == TERN_OK && b < w->party->num_ranks; b++) {
        fill_block(w, w->party->first + i, b, (char *)block);
        status =
            tern_copy(comm, w->seats[i].from + (uint64_t)b * w->bytes, block, w->bytes, w->party->streams[i]);
        if (status == TERN_OK) {
            status = tern_stream_synchronize(comm, w->party->streams[i]);
        }
    }
    tern_free(comm, block);
    return status;
}

static enum tern_status open_all(struct wire *w)
{
    uint64_t local[TERN_MAX_RANKS][2];
    int i;
    w->offsets = (uint64_t *)calloc((size_t)w->party->num_ranks, sizeof(local[0]));
    if (w->offsets == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the offsets of %d ranks", w->party->num_ranks);
    }
    for (i = 0; i < w->party->num_local; i++) {
        const struct heap *heap = w->party->comms[i]->heap;
        TERN_TRY(open_seat(w, i));
        local[i][0] = (uint64_t)terni_heap_offset(heap, w->seats[i].from, area_bytes(w));
        local[i][1] = (uint64_t)terni_heap_offset(heap, w->seats[i].to, area_bytes(w));
        TERN_TRY(tern_fill(w->party->comms[i], w->seats[i].to, 0, area_bytes(w), w->party->streams[i]));
    }
    TERN_TRY(party_each(w->party->num_local, fill_source, w));
    return party_gather(w->party, local, w->offsets, sizeof(local[0]));
}

enum tern_status wire_open(struct wire *w, struct party *party, uint64_t bytes, uint64_t seed)
{
    enum tern_status status;
    memset(w, 0, sizeof(*w));
    w->party = party;
    w->bytes = bytes;
    w->seed = seed;
    status = open_all(w);
    if (status != TERN_OK) {
        wire_close(w);
    }
    return status;
}

void wire_close(struct wire *w)
{
    int i;
    for (i = 0; i < w->party->num_local; i++) {
        struct tern_comm *comm = w->party->comms[i];
        struct wire_seat *seat = &w->seats[i];
        if (seat->begin != NULL) {
            tern_event_close(comm, seat->begin);
        }
        if (seat->end != NULL) {
            tern_event_close(comm, seat->end);
        }
        if (seat->result != NULL) {
            comm->machine->ops->host_free(comm->machine, seat->result);
        }
        if (seat->turns != NULL) {
            comm->machine->ops->free(comm->machine, seat->turns);
        }
        tern_free(comm, seat->to);
        tern_free(comm, seat->from);
    }
    free(w->offsets);
    memset(w->seats, 0, sizeof(w->seats));
    w->offsets = NULL;
}

/* ---- One round ---- */

int wire_can(const struct wire *w, enum mover mover)
{
    return (mover != MOVE_PUSH && mover != MOVE_PULL) || machine_of(w, 0)->info.has_bulk;
}

uint64_t wire_round_bytes(const struct wire *w, enum mover mover)
{
    return mover == MOVE_LOCAL ? area_bytes(w) : w->bytes * (uint64_t)num_peers(w);
}

static void fill_args(const struct wire *w, int i, const struct probe *probe, struct wire_args *args)
{
    const struct heap *heap = w->party->comms[i]->heap;
    int r;
    memset(args, 0, sizeof(*args));
    for (r = 0; r < w->party->num_ranks; r++) {
        args->from[r] = heap->bases[r] + w->offsets[2 * r];
        args->to[r] = heap->bases[r] + w->offsets[2 * r + 1];
    }
    args->bytes = w->bytes;
    args->deadline_ns = (uint64_t)DEADLINE_MS * 1000000u;
    args->turns = (struct wire_turns *)w->seats[i].turns;
    args->result = w->seats[i].device_result;
    args->row_bytes = probe->row_bytes;
    args->rank = w->party->first + i;
    args->num_ranks = w->party->num_ranks;
}

/* Of one warp's ring of rows. */
static uint32_t ring_bytes(const struct probe *probe)
{
    return WIRE_STAGES * (probe->row_bytes + (uint32_t)sizeof(struct wire_stage));
}

/* Warps of a block whose rings of rows fit shared memory. */
static uint32_t bulk_warps(const struct wire *w, const struct probe *probe)
{
    uint32_t fit = machine_of(w, 0)->info.max_shared_bytes / ring_bytes(probe);
    uint32_t most = w->party->machine == TERN_MACHINE_CPU ? CPU_WARPS : PUSH_WARPS;
    most = probe->warps != 0 ? (uint32_t)probe->warps : most;
    return fit < most ? fit : most;
}

static enum tern_status launch_mover(struct wire *w, int i, const struct probe *probe,
                                     const struct wire_args *args)
{
    struct machine *m = machine_of(w, i);
    struct launch launch = {TERN_KERNEL_wire_store, probe->sms, 1024, 0, args, sizeof(*args)};
    if (probe->mover == MOVE_STORE || probe->mover == MOVE_LOAD) {
        launch.kernel = probe->mover == MOVE_STORE ? TERN_KERNEL_wire_store : TERN_KERNEL_wire_load;
        launch.num_threads = probe->warps != 0                       ? 32 * probe->warps
                             : w->party->machine == TERN_MACHINE_CPU ? 32 * CPU_WARPS
                                                                     : 1024;
    } else {
        uint32_t warps = bulk_warps(w, probe);
        if (warps == 0) {
            return TERN_FAIL(TERN_UNSUPPORTED, "rows of %u bytes do not fit the %u bytes of shared memory",
                             probe->row_bytes, m->info.max_shared_bytes);
        }
        launch.kernel = probe->mover == MOVE_PUSH ? TERN_KERNEL_wire_push : TERN_KERNEL_wire_pull;
        launch.num_threads = (int)(32 * warps);
        launch.shared_bytes = warps * ring_bytes(probe);
    }
    return m->ops->launch(m, &launch, w->party->streams[i]);
}

/* One round of local rank i, on its stream. */
static enum tern_status move(struct wire *w, int i, const struct probe *probe, const struct wire_args *args)
{
    struct machine *m = machine_of(w, i);
    struct tern_stream *stream = w->party->streams[i];
    char *to = w->seats[i].to;
    if (probe->mover == MOVE_ENGINE) {
        to = args->to[(args->rank + 1) % args->num_ranks];
    } else if (probe->mover != MOVE_LOCAL) {
        return launch_mover(w, i, probe, args);
    }
    return m->ops->copy(m, to, w->seats[i].from, wire_round_bytes(w, probe->mover), stream);
}

static enum tern_status check_deadlines(const struct wire *w)
{
    int i;
    for (i = 0; i < w->party->num_local; i++) {
        if (w->seats[i].result[0] != 0) {
            return TERN_FAIL(TERN_TIMEOUT, "a wire kernel of rank %d waited more than %d ms",
                             w->party->first + i, (int)DEADLINE_MS);
        }
    }
    return TERN_OK;
}

static enum tern_status issue_sample(struct wire *w, const struct probe *probe, int repeats)
{
    int i, k;
    for (i = 0; i < w->party->num_local; i++) {
        struct tern_comm *comm = w->party->comms[i];
        struct tern_stream *stream = w->party->streams[i];
        struct wire_args args;
        fill_args(w, i, probe, &args);
        TERN_TRY(tern_event_record(comm, w->seats[i].begin, stream));
        for (k = 0; k < repeats; k++) {
            TERN_TRY(move(w, i, probe, &args));
        }
        TERN_TRY(tern_event_record(comm, w->seats[i].end, stream));
    }
    TERN_TRY(party_synchronize(w->party));
    return check_deadlines(w);
}

enum tern_status wire_time(struct wire *w, const struct probe *probe, int samples, int repeats, double *us)
{
    float local[TERN_MAX_RANKS], all[TERN_MAX_RANKS];
    int s, i;
    for (s = -1; s < samples; s++) { /* sample -1 warms up */
        float slowest = 0;
        TERN_TRY(party_barrier(w->party));
        TERN_TRY(issue_sample(w, probe, repeats));
        for (i = 0; i < w->party->num_local; i++) {
            TERN_TRY(tern_event_elapsed(w->party->comms[i], w->seats[i].begin, w->seats[i].end, &local[i]));
        }
        TERN_TRY(party_gather(w->party, local, all, sizeof(float)));
        for (i = 0; i < w->party->num_ranks; i++) {
            slowest = all[i] > slowest ? all[i] : slowest;
        }
        if (s >= 0) {
            us[s] = 1e3 * (double)slowest / repeats;
        }
    }
    return TERN_OK;
}

/* ---- Checks ---- */

struct verify {
    struct wire *w;
    enum mover mover;
    int num_ranks;                        /* that have moved */
    uint64_t bytes;                       /* of a block */
    struct tally tallies[TERN_MAX_RANKS]; /* [num_local] */
};

/* Whose source block, and which, lies in block b of local rank i's destination; 0: none was to come. */
static int origin(const struct verify *v, int i, int b, int *rank, int *block)
{
    int me = v->w->party->first + i, n = v->w->party->num_ranks;
    switch (v->mover) {
    case MOVE_LOCAL:
        *rank = me;
        *block = b;
        return 1;
    case MOVE_ENGINE:
        *rank = (me + n - 1) % n;
        *block = b;
        return b < num_peers(v->w);
    default:
        *rank = b;
        *block = me;
        return me < v->num_ranks && b < v->num_ranks && (b != me || n == 1);
    }
}

static enum tern_status compare_blocks(struct verify *v, int i, char *seen, char *wanted)
{
    struct wire *w = v->w;
    int b, rank, block;
    uint64_t k;
    for (b = 0; b < w->party->num_ranks; b++) {
        int moved = origin(v, i, b, &rank, &block);
        TERN_TRY(tern_copy(w->party->comms[i], seen, w->seats[i].to + (uint64_t)b * w->bytes, w->bytes,
                           w->party->streams[i]));
        TERN_TRY(tern_stream_synchronize(w->party->comms[i], w->party->streams[i]));
        if (moved) {
            fill_block(w, rank, block, wanted);
        }
        memset(wanted + (moved ? v->bytes : 0), POISON, w->bytes - (moved ? v->bytes : 0));
        v->tallies[i].compared += moved ? v->bytes : 0;
        if (memcmp(seen, wanted, w->bytes) != 0) {
            for (k = 0; k < w->bytes; k++) {
                v->tallies[i].wrong += seen[k] != wanted[k];
            }
        }
    }
    return TERN_OK;
}

static enum tern_status compare_rank(void *user, int i)
{
    struct verify *v = (struct verify *)user;
    struct tern_comm *comm = v->w->party->comms[i];
    enum tern_status status = TERN_OK;
    char *wanted = (char *)malloc(v->w->bytes);
    void *seen = NULL;
    if (wanted == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %llu bytes", (unsigned long long)v->w->bytes);
    }
    status = tern_alloc(comm, TERN_MEMORY_HOST, v->w->bytes, &seen);
    if (status == TERN_OK) {
        status = compare_blocks(v, i, (char *)seen, wanted);
        tern_free(comm, seen);
    }
    free(wanted);
    return status;
}

enum tern_status wire_poison(struct wire *w)
{
    int i;
    for (i = 0; i < w->party->num_local; i++) {
        TERN_TRY(tern_fill(w->party->comms[i], w->seats[i].to, POISON, area_bytes(w), w->party->streams[i]));
    }
    TERN_TRY(party_synchronize(w->party));
    return party_barrier(w->party); /* every destination is poisoned before anybody writes */
}

static enum tern_status compare(struct wire *w, enum mover mover, int num_ranks, uint64_t bytes,
                                struct tally *tally)
{
    struct verify v;
    memset(&v, 0, sizeof(v));
    v.w = w;
    v.mover = mover;
    v.num_ranks = num_ranks;
    v.bytes = bytes;
    TERN_TRY(party_barrier(w->party)); /* every peer has written */
    TERN_TRY(party_each(w->party->num_local, compare_rank, &v));
    return party_tally(w->party, v.tallies, 1, tally);
}

enum tern_status wire_compare(struct wire *w, int num_ranks, uint64_t bytes, struct tally *tally)
{
    return compare(w, MOVE_STORE, num_ranks, bytes, tally); /* all movers but the machine's own copies */
}

enum tern_status wire_flip(struct wire *w, int num_ranks)
{
    struct party *p = w->party;
    char *at = w->seats[0].to + (num_ranks > 1 ? w->bytes : 0);
    char byte = 0;
    if (p->first != 0) {
        return TERN_OK;
    }
    TERN_TRY(tern_copy(p->comms[0], &byte, at, 1, p->streams[0]));
    TERN_TRY(tern_stream_synchronize(p->comms[0], p->streams[0]));
    byte ^= 4;
    TERN_TRY(tern_copy(p->comms[0], at, &byte, 1, p->streams[0]));
    return tern_stream_synchronize(p->comms[0], p->streams[0]);
}

enum tern_status wire_verify(struct wire *w, const struct probe *probe, int corrupt, struct tally *tally)
{
    TERN_TRY(wire_poison(w));
    TERN_TRY(issue_sample(w, probe, 1));
    if (corrupt) {
        TERN_TRY(party_barrier(w->party)); /* what peers give is here, and now to be spoilt */
        TERN_TRY(wire_flip(w, w->party->num_ranks));
    }
    return compare(w, probe->mover, w->party->num_ranks, w->bytes, tally);
}

enum tern_status wire_prove(struct wire *w, const struct probe *probe, int corrupt)
{
    struct tally tally;
    TERN_TRY(wire_verify(w, probe, corrupt, &tally));
    if (tally.wrong != 0) {
        return TERN_FAIL(TERN_INTERNAL_ERROR,
                         "the wire, by %d processors, moved %llu of %llu bytes wrong: its speed is no limit",
                         probe->sms, (unsigned long long)tally.wrong, (unsigned long long)tally.compared);
    }
    return TERN_OK;
}

/* ---- Flag and best push ---- */

static enum tern_status ping(struct wire *w, uint32_t rounds, uint32_t is_bare, double *us)
{
    struct probe probe = {MOVE_STORE, 0, 1, 0};
    double local[TERN_MAX_RANKS], all[TERN_MAX_RANKS];
    int i;
    /* The flags lie in the destination areas, which movers used. */
    for (i = 0; i < w->party->num_local; i++) {
        TERN_TRY(tern_fill(w->party->comms[i], w->seats[i].to, 0, sizeof(uint64_t), w->party->streams[i]));
    }
    TERN_TRY(party_synchronize(w->party));
    TERN_TRY(party_barrier(w->party));
    for (i = 0; i < w->party->num_local; i++) {
        struct machine *m = machine_of(w, i);
        struct wire_args args;
        struct launch launch = {TERN_KERNEL_wire_ping, 1, 32, 0, &args, sizeof(args)};
        fill_args(w, i, &probe, &args);
        args.rounds = rounds;
        args.is_bare = is_bare;
        if (args.rank < 2) {
            TERN_TRY(m->ops->launch(m, &launch, w->party->streams[i]));
        }
    }
    TERN_TRY(party_synchronize(w->party));
    TERN_TRY(check_deadlines(w));
    for (i = 0; i < w->party->num_local; i++) {
        local[i] = (double)w->seats[i].result[1] / 1e3 / rounds / 2;
    }
    TERN_TRY(party_gather(w->party, local, all, sizeof(double)));
    *us = all[0];
    return TERN_OK;
}

enum tern_status wire_ping(struct wire *w, uint32_t rounds, double us[FLAG_KINDS])
{
    TERN_TRY(ping(w, rounds, 0, &us[FLAG_RELEASED]));
    return ping(w, rounds, 1, &us[FLAG_BARE]);
}

enum tern_status wire_best(struct wire *w, const struct options *o, double *gb_s)
{
    enum { SAMPLES = 5 };
    static const int counts[] = {8, 24, 64};
    enum mover mover = wire_can(w, MOVE_PUSH) ? MOVE_PUSH : MOVE_STORE;
    int cpu = w->party->machine == TERN_MACHINE_CPU;
    int limit = tern_comm_num_sms(w->party->comms[0]), i;
    struct probe winner = {mover, ROW_BYTES, 0, 0};
    double us[SAMPLES], best = 0;
    for (i = 0; i < (int)(sizeof(counts) / sizeof(counts[0])); i++) {
        struct probe probe = {mover, ROW_BYTES, counts[i] < limit ? counts[i] : limit, 0};
        double gb;
        TERN_TRY(wire_time(w, &probe, cpu ? 3 : SAMPLES, cpu ? 1 : 4, us));
        gb = (double)wire_round_bytes(w, mover) / stats_of(us, cpu ? 3 : SAMPLES).p50 / 1e3;
        if (gb > best) {
            best = gb;
            winner = probe;
        }
        if (counts[i] >= limit) {
            break;
        }
    }
    *gb_s = best;
    return o->check ? wire_prove(w, &winner, o->corrupt == CORRUPT_WIRE) : TERN_OK;
}

enum tern_status wire_measure(struct party *party, const struct options *o, double *gb_s)
{
    struct wire wire;
    enum tern_status status;
    *gb_s = 0;
    if (party_domain_ranks(party) != party->num_ranks) {
        return o->corrupt != CORRUPT_WIRE
                   ? TERN_OK
                   : TERN_FAIL(TERN_INVALID_ARGUMENT, "--corrupt wire: several domains have none");
    }
    TERN_TRY(wire_open(&wire, party, wire_default_bytes(party->machine, party->num_ranks), o->seed));
    status = wire_best(&wire, o, gb_s);
    wire_close(&wire);
    return status;
}
