/* SPDX-License-Identifier: Apache-2.0
 *
 * `tern-bench put`, get, atomic, signal, pingpong and barrier: a row for each size or each operation. Beside
 * it stands the raw limit of the same run, where all ranks address each other: for bandwidth the wire's own
 * kernels with the same processors and warps, for latency the bare flag, once for each hop. */
#include "about.h"
#include "drive.h"
#include "kernels/kernels.h"
#include "net/bulk.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COL_OP,
    COL_BYTES,
    COL_OPS,
    COL_P10,
    COL_P50,
    COL_P90,
    COL_RATE,
    COL_LIMIT,
    COL_WIRE,
    COL_BARE,
    COL_FLAG,
    COL_OVER,
    COL_RANKS,
    COL_SMS,
    COL_WARPS,
    COL_QUEUES,
    COL_SCOPE,
    COL_TRANSFER,
    COL_TRANSPORT,
    COL_WRONG,
    NUM_COLS
};

static const struct column columns[NUM_COLS] = {
    {"op", "", 12, -1},   {"bytes", "an op", 8, 0}, {"ops", "a time", 8, 0},  {"p10", "us", 10, 3},
    {"p50", "us", 10, 3}, {"p90", "us", 10, 3},     {"rate", "GB/s", 8, 3},   {"limit", "GB/s", 8, 3},
    {"wire", "%", 6, 1},  {"bare", "us", 7, 3},     {"flag", "us", 7, 3},     {"over", "us", 7, 3},
    {"ranks", "", 0, 0},  {"sms", "", 0, 0},        {"warps", "", 0, 0},      {"queues", "", 0, 0},
    {"scope", "", 0, -1}, {"transfer", "", 0, -1},  {"transport", "", 0, -1}, {"#wrong", "", 7, 0},
};
enum {
    NO_LATENCY = 1u << COL_BARE | 1u << COL_FLAG | 1u << COL_OVER,
    NO_BANDWIDTH = 1u << COL_RATE | 1u << COL_LIMIT | 1u << COL_WIRE
};

/* Bytes that one sample of a ping-pong moves each way at most, and operations to all peers of one round. */
enum { PING_BYTES = 1 << 26, MOVE_OPS = 1 << 18, CPU_MOVE_OPS = 64, BULK_PIECE = 14336 };

struct run {
    struct options o; /* settled */
    struct report *report;
    struct party party;
    struct progress progress;
    struct drive *drive;
    uint64_t area;   /* of a block, before --sms is what this rank has (drive.h) */
    uint32_t rounds; /* of latencies */
    double flag_us[FLAG_KINDS], limit_gb_s;
    struct tally tally;
    uint32_t done; /* rows */
};

static int on_cpu(const struct run *r) { return r->party.machine == TERN_MACHINE_CPU; }

static int moves(const struct run *r) { return r->o.command == COMMAND_PUT || r->o.command == COMMAND_GET; }

/* Raw limits are of ranks that all address each other. */
static int has_wire(const struct run *r) { return party_domain_ranks(&r->party) == r->party.num_ranks; }

static int has_limit(const struct run *r)
{
    return has_wire(r) && (moves(r) || r->o.command == COMMAND_PINGPONG);
}

static int has_flag(const struct run *r) { return has_wire(r) && !moves(r) && r->party.num_ranks > 1; }

static const char *word_of(const char *option, uint32_t value)
{
    return options_word(COMMAND_PUT, option, value);
}

/* ---- Rows ---- */

/* What an operation is like: signals and barriers release what came before them, others order nothing. */
static int flag_of(const struct run *r, const struct shot *shot)
{
    int is_ordered = r->o.command == COMMAND_BARRIER ||
                     (shot->kernel == TERN_KERNEL_drive_ping && shot->args.kind != DRIVE_INLINE &&
                      shot->args.kind != DRIVE_ATOMIC);
    return is_ordered ? FLAG_RELEASED : FLAG_BARE;
}

/* hops: of the flag. */
static enum tern_status add_row(struct run *r, const char *op, const struct shot *shot, double *us, int hops,
                                uint64_t num_ops, const struct tally *tally)
{
    struct stats s = stats_of(us, r->o.iters);
    struct cell *row = report_row(r->report);
    if (!row) {
        return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d rows", REPORT_MAX_ROWS);
    }
    snprintf(row[COL_OP].text, REPORT_TEXT, "%s", op);
    if (r->o.command != COMMAND_BARRIER) {
        row[COL_BYTES].number = (double)shot->args.bytes;
    }
    row[COL_OPS].number = (double)num_ops;
    row[COL_P10].number = s.p10;
    row[COL_P50].number = s.p50;
    row[COL_P90].number = s.p90;
    if (shot->args.bytes > 0) {
        row[COL_RATE].number = (double)shot->args.bytes * (double)(moves(r) ? num_ops : 1) / s.p50 / 1e3;
    }
    if (has_limit(r)) {
        row[COL_LIMIT].number = r->limit_gb_s;
        row[COL_WIRE].number = 100 * row[COL_RATE].number / r->limit_gb_s;
    }
    if (has_flag(r)) {
        row[COL_BARE].number = hops * r->flag_us[FLAG_BARE];
        row[COL_FLAG].number = hops * r->flag_us[FLAG_RELEASED];
        row[COL_OVER].number = s.p50 - hops * r->flag_us[flag_of(r, shot)];
    }
    row[COL_RANKS].number = r->party.num_ranks;
    row[COL_SMS].number = shot->blocks;
    row[COL_WARPS].number = shot->warps;
    if (r->o.net.queues != 0) {
        row[COL_QUEUES].number = r->o.net.queues;
    }
    snprintf(row[COL_SCOPE].text, REPORT_TEXT, "%s", word_of("--scope", (uint32_t)shot->args.scope));
    snprintf(row[COL_TRANSFER].text, REPORT_TEXT, "%s", word_of("--transfer", r->o.net.bulk));
    snprintf(row[COL_TRANSPORT].text, REPORT_TEXT, "%s", word_of("--transport", r->o.net.transport));
    if (r->o.check) {
        row[COL_WRONG].number = (double)tally->wrong;
        r->tally.wrong += tally->wrong;
        r->tally.compared += tally->compared;
    }
    progress_clear(&r->progress);
    report_print_row(r->report);
    return TERN_OK;
}

static struct shot shot_of(const struct run *r, int kernel, uint64_t bytes)
{
    struct shot s;
    memset(&s, 0, sizeof(s));
    s.kernel = kernel;
    s.blocks = 1;
    s.warps = 1;
    s.repeats = 1;
    s.num_ranks = 2;
    s.args.bytes = bytes;
    s.args.rounds = r->rounds;
    s.args.width = 8;
    return s;
}

/* One size of put or get. */
static enum tern_status run_move(struct run *r, uint64_t bytes, double *us)
{
    uint64_t most = on_cpu(r) ? CPU_MOVE_OPS : MOVE_OPS, area = r->drive->wire.bytes;
    uint64_t peers = r->party.num_ranks > 1 ? (uint64_t)r->party.num_ranks - 1 : 1;
    struct shot s = shot_of(r, r->o.net.bulk ? TERN_KERNEL_drive_bulk : TERN_KERNEL_drive_move, bytes);
    struct tally tally = {0, 0};
    most = (most + peers - 1) / peers;
    s.blocks = (int)r->o.sms;
    s.warps = (int)r->o.net.warps;
    s.repeats = on_cpu(r) ? 1 : 8;
    s.num_ranks = r->party.num_ranks;
    s.args.ops = (uint32_t)(area / bytes < most ? area / bytes : most);
    s.args.scope = (int32_t)r->o.net.scope;
    s.args.pull = r->o.command == COMMAND_GET;
    if (r->o.net.bulk) {
        uint32_t fit = r->party.comms[0]->machine->info.max_shared_bytes;
        uint32_t wanted = r->o.net.warps * BULK_STAGES * (BULK_PIECE + 8);
        s.shared_bytes = wanted < fit ? wanted : fit / 16 * 16;
    }
    TERN_TRY(drive_fit(r->drive, &s, 0));
    TERN_TRY(drive_by_events(r->drive, &s, us));
    if (r->o.check) {
        TERN_TRY(drive_check_blocks(r->drive, &s, s.args.ops * bytes, &tally));
    }
    return add_row(r, r->o.command == COMMAND_GET ? "get" : "put", &s, us, 0, s.args.ops * peers, &tally);
}

/* One way between ranks 0 and 1. */
static enum tern_status run_ping(struct run *r, const char *name, struct shot *shot, double *us)
{
    struct tally tally = {0, 0}, blocks = {0, 0};
    TERN_TRY(drive_fit(r->drive, shot, 1));
    TERN_TRY(drive_by_clock(r->drive, shot, us));
    for (uint32_t k = 0; k < r->o.iters; k++) {
        us[k] /= 2;
    }
    if (r->o.check) {
        TERN_TRY(drive_check_log(r->drive, shot, &tally));
    }
    if (r->o.check && shot->args.kind == DRIVE_PUT_SIGNAL) {
        TERN_TRY(drive_check_blocks(r->drive, shot, shot->args.bytes, &blocks));
    }
    tally.wrong += blocks.wrong;
    tally.compared += blocks.compared;
    return add_row(r, name, shot, us, 1, 2 * ((uint64_t)shot->args.rounds + 1), &tally);
}

/* A thread raises a word. */
static enum tern_status run_word(struct run *r, const char *name, uint32_t kind, uint32_t amo, uint32_t width,
                                 double *us)
{
    struct shot s = shot_of(r, TERN_KERNEL_drive_ping, width);
    s.args.kind = kind;
    s.args.amo = amo;
    s.args.width = width;
    s.args.scope = GROUP_THREAD;
    return run_ping(r, name, &s, us);
}

/* ---- Subcommands ---- */

static enum tern_status run_moves(struct run *r, double *us)
{
    for (uint32_t k = 0; k < r->o.net.bytes.num; k++) {
        progress_step(&r->progress, "size", k, r->o.net.bytes.num);
        TERN_TRY(run_move(r, r->o.net.bytes.values[k], us));
    }
    return TERN_OK;
}

static enum tern_status run_pingpong(struct run *r, double *us)
{
    TERN_TRY(run_word(r, "put inline", DRIVE_INLINE, 0, 4, us));
    TERN_TRY(run_word(r, "put inline", DRIVE_INLINE, 0, 8, us));
    for (uint32_t k = 0; k < r->o.net.bytes.num; k++) {
        uint64_t bytes = r->o.net.bytes.values[k], most = PING_BYTES / bytes;
        struct shot s = shot_of(r, TERN_KERNEL_drive_ping, bytes);
        progress_step(&r->progress, "size", k, r->o.net.bytes.num);
        s.warps = (int)r->o.net.warps;
        s.args.kind = DRIVE_PUT_SIGNAL;
        s.args.scope = (int32_t)r->o.net.scope;
        s.args.rounds = most < r->rounds ? (uint32_t)most : r->rounds;
        TERN_TRY(run_ping(r, "put signal", &s, us));
    }
    return TERN_OK;
}

static enum tern_status run_signals(struct run *r, double *us)
{
    for (uint32_t width = 4; width <= 8; width += 4) {
        TERN_TRY(run_word(r, "signal add", DRIVE_SIGNAL_ADD, 0, width, us));
        TERN_TRY(run_word(r, "signal set", DRIVE_SIGNAL_SET, 0, width, us));
    }
    return TERN_OK;
}

static enum tern_status run_fetch(struct run *r, const char *name, uint32_t amo, uint32_t width, double *us)
{
    struct shot s = shot_of(r, TERN_KERNEL_drive_fetch, width);
    struct tally tally = {0, 0};
    char text[REPORT_TEXT];
    s.num_ranks = 1;
    s.args.amo = amo;
    s.args.width = width;
    s.args.scope = GROUP_THREAD;
    TERN_TRY(drive_fit(r->drive, &s, 1));
    TERN_TRY(drive_by_clock(r->drive, &s, us));
    if (r->o.check) {
        TERN_TRY(drive_check_log(r->drive, &s, &tally));
    }
    snprintf(text, sizeof(text), "%s%s", name, amo == TERN_AMO_FETCH ? "" : ".fetch");
    return add_row(r, text, &s, us, 2, (uint64_t)s.args.rounds + 1, &tally);
}

static enum tern_status run_atomics(struct run *r, double *us)
{
    static const char *const names[] = {"add", "and", "or", "xor", "swap", "cas", "set", "fetch"};
    for (uint32_t width = 4; width <= 8; width += 4) {
        for (uint32_t amo = TERN_AMO_ADD; amo <= TERN_AMO_FETCH; amo++) {
            /* Others cannot give a word any value that it did not have. */
            if (amo == TERN_AMO_ADD || (amo >= TERN_AMO_XOR && amo <= TERN_AMO_SET)) {
                TERN_TRY(run_word(r, names[amo], DRIVE_ATOMIC, amo, width, us));
            }
            TERN_TRY(run_fetch(r, names[amo], amo, width, us));
        }
    }
    return TERN_OK;
}

static enum tern_status run_barrier(struct run *r, double *us)
{
    struct shot s = shot_of(r, TERN_KERNEL_drive_barrier, 0);
    struct tally tally = {0, 0};
    s.warps = (int)r->o.net.warps;
    s.num_ranks = r->party.num_ranks;
    s.args.scope = (int32_t)r->o.net.scope;
    TERN_TRY(drive_fit(r->drive, &s, 1));
    TERN_TRY(drive_by_clock(r->drive, &s, us));
    if (r->o.check) {
        TERN_TRY(drive_check_log(r->drive, &s, &tally));
    }
    return add_row(r, "barrier", &s, us, 1, (uint64_t)s.args.rounds + 1, &tally);
}

/* ---- Limits and notes ---- */

static enum tern_status measure_limit(struct run *r)
{
    enum { SAMPLES = 5 };
    struct probe probe = {MOVE_STORE, 0, moves(r) ? (int)r->o.sms : 1, (int)r->o.net.warps};
    static const uint32_t rows[] = {14336, 7168};
    int bulk = moves(r) && r->o.net.bulk, get = r->o.command == COMMAND_GET;
    double us[SAMPLES], gb;
    for (int k = 0; k < (bulk ? 2 : 1); k++) {
        probe.mover = bulk ? (get ? MOVE_PULL : MOVE_PUSH) : get ? MOVE_LOAD : MOVE_STORE;
        probe.row_bytes = bulk ? rows[k] : 0;
        TERN_TRY(wire_time(&r->drive->wire, &probe, SAMPLES, on_cpu(r) ? 1 : 8, us));
        if (r->o.check) {
            TERN_TRY(wire_prove(&r->drive->wire, &probe, 0));
        }
        gb = (double)wire_round_bytes(&r->drive->wire, probe.mover) / stats_of(us, SAMPLES).p50 / 1e3;
        r->limit_gb_s = gb > r->limit_gb_s ? gb : r->limit_gb_s;
    }
    return report_note(r->report, "limit",
                       "%.3f GB/s a rank: %s of tern-bench wire in this run, %d "
                       "processors, %u warps on each",
                       r->limit_gb_s,
                       bulk  ? (get ? "pull" : "push")
                       : get ? "load"
                             : "store",
                       probe.sms, r->o.net.warps);
}

static enum tern_status note_times(struct run *r)
{
    if (moves(r)) {
        return report_note(
            r->report, "time",
            "of all operations of a rank, all ranks at once: device events around them, launch "
            "included, slowest rank, %u samples after %u",
            r->o.iters, r->o.warmup);
    }
    TERN_TRY(report_note(r->report, "time",
                         "of one operation by the device's clock: up to %u in one kernel, without its "
                         "launch; %u samples after %u",
                         r->rounds, r->o.iters, r->o.warmup));
    if (r->o.command == COMMAND_ATOMIC) {
        TERN_TRY(report_note(r->report, "fetch", "the old value is brought home: beside twice the flags"));
    }
    if (!has_flag(r)) {
        return TERN_OK;
    }
    if (r->o.command != COMMAND_BARRIER) {
        return report_note(
            r->report, "over",
            "p50 less the flag, of inline puts and atomics less the bare flag; one way, ranks 0 "
            "and 1 in turn, as the flags are measured");
    }
    return report_note(r->report, "over",
                       "p50 less the flag: each rank raises a word at every other at once");
}

static enum tern_status note_settings(struct run *r)
{
    TERN_TRY(transport_note(r->report, &r->o));
    if (moves(r)) {
        TERN_TRY(report_note(r->report, "scope",
                             "%s, %s; %u blocks of %u warps; at most %llu bytes to a peer",
                             word_of("--scope", r->o.net.scope), word_of("--transfer", r->o.net.bulk),
                             r->o.sms, r->o.net.warps, (unsigned long long)r->drive->wire.bytes));
    } else {
        TERN_TRY(report_note(r->report, "scope", "%s, one block; words are a thread's",
                             word_of("--scope", r->o.net.scope)));
    }
    return note_times(r);
}

static enum tern_status run_all(struct run *r, double *us)
{
    TERN_TRY(note_settings(r));
    if (!has_wire(r)) {
        TERN_TRY(wire_note(r->report, &r->party, 0));
    }
    if (has_limit(r)) {
        TERN_TRY(measure_limit(r));
    }
    if (has_flag(r)) {
        TERN_TRY(wire_ping(&r->drive->wire, on_cpu(r) ? 200 : 10000, r->flag_us));
        TERN_TRY(report_note(r->report, "flag",
                             "%.3f us one way: store-release there, load-acquire here, as in tern-bench "
                             "wire; bare, by a relaxed store, %.3f us",
                             r->flag_us[FLAG_RELEASED], r->flag_us[FLAG_BARE]));
    }
    report_head(r->report);
    TERN_TRY(moves(r)                           ? run_moves(r, us)
             : r->o.command == COMMAND_PINGPONG ? run_pingpong(r, us)
             : r->o.command == COMMAND_SIGNAL   ? run_signals(r, us)
             : r->o.command == COMMAND_ATOMIC   ? run_atomics(r, us)
                                                : run_barrier(r, us));
    return report_result(r->report, moves(r) ? "bytes" : "values", &r->tally);
}

/* ---- Start ---- */

static enum tern_status settle(struct run *r)
{
    struct options *o = &r->o;
    o->iters = o->iters != 0 ? o->iters : on_cpu(r) ? 3 : 20;
    o->warmup = o->warmup != 0 ? o->warmup : on_cpu(r) ? 1 : 3;
    r->rounds = on_cpu(r) ? 20 : 1000;
    if (o->net.bytes.num == 0) {
        for (uint32_t b = 8; b <= (on_cpu(r) ? 1u << 13 : 1u << 22); b *= 2) {
            o->net.bytes.values[o->net.bytes.num++] = b;
        }
    }
    if (o->net.bulk && o->net.scope == GROUP_THREAD) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--transfer bulk needs --scope warp or block");
    }
    if (r->party.num_ranks < 2 && !moves(r) && o->command != COMMAND_BARRIER) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--ranks 1: a latency is between two");
    }
    if (o->net.warps == 0) {
        o->net.warps = o->net.bulk                   ? (on_cpu(r) ? 2 : 4)
                       : o->net.scope == GROUP_BLOCK ? (on_cpu(r) ? 2 : 16)
                                                     : 1;
    }
    if (o->net.scope != GROUP_BLOCK && o->net.warps > 1 && !moves(r)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--warps %u needs --scope block: others are of one warp",
                         o->net.warps);
    }
    TERN_TRY(transport_check(o));
    r->area = drive_area(&r->party, o);
    for (uint32_t k = 0; k < o->net.bytes.num; k++) {
        if (o->net.bytes.values[k] > r->area) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "--bytes %u: a peer has room for %llu here",
                             o->net.bytes.values[k], (unsigned long long)r->area);
        }
    }
    return TERN_OK;
}

static enum tern_status run_open(struct run *r)
{
    double *us = (double *)calloc(r->o.iters, sizeof(*us));
    enum tern_status status = party_sms(&r->party, r->o.sms, UINT32_MAX, &r->o.sms);
    if (status == TERN_OK && r->o.net.bulk && !r->party.comms[0]->machine->info.has_bulk) {
        status = TERN_FAIL(TERN_UNSUPPORTED, "--transfer bulk: this device has no bulk copies");
    }
    if (status == TERN_OK && (!us || !r->drive)) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %u samples", r->o.iters);
    }
    status = status != TERN_OK ? status : about_note(r->report, &r->party);
    if (status == TERN_OK) {
        status = drive_open(r->drive, &r->party, &r->o, r->area);
        if (status == TERN_OK) {
            status = run_all(r, us);
            progress_clear(&r->progress);
            status = drive_close(r->drive, status);
        }
    }
    free(us);
    return status;
}

enum tern_status drive_run(const struct options *options, struct report *report, struct tally *tally)
{
    static const char *const kinds[] = {"put", "get", "atomic", "signal", "pingpong", "barrier"};
    struct run r;
    memset(&r, 0, sizeof(r));
    r.o = *options;
    r.report = report;
    report->kind = kinds[__builtin_ctz(options->command / COMMAND_PUT)];
    report->columns = columns;
    report->num_columns = NUM_COLS;
    TERN_TRY(party_init(&r.party, options));
    report->left_out = moves(&r) ? NO_LATENCY : options->command == COMMAND_PINGPONG ? 0 : NO_BANDWIDTH;
    TERN_TRY(report_begin(report, r.party.first != 0, options->json));
    TERN_TRY(settle(&r));
    progress_init(&r.progress, report->quiet);
    TERN_TRY(party_open(&r.party, drive_heap_bytes(&r.party, r.area)));
    r.drive = (struct drive *)calloc(1, sizeof(*r.drive));
    enum tern_status status = run_open(&r);
    free(r.drive);
    party_close(&r.party);
    *tally = r.tally;
    return status;
}
