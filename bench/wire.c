/* SPDX-License-Identifier: Apache-2.0
 *
 * `tern-bench wire`: the limits that expert-parallel communication is to be compared with, measured in the
 * same process on the same memory. GB/s are bytes one rank sends (receives, in a pull) over the slowest
 * rank's time, with all ranks busy. */
#include "wire.h"
#include "about.h"
#include "progress.h"
#include "report.h"
#include "stats.h"

#include <stdio.h>
#include <string.h>

enum { COL_TEST, COL_ROW, COL_SMS, COL_BYTES, COL_P50, COL_GBS, COL_BEST, COL_SPREAD, COL_WRONG, NUM_COLS };

static const struct column columns[NUM_COLS] = {
    {"test", "", 8, -1},        {"row", "B", 7, 0},    {"sms", "", 4, 0},
    {"bytes", "a rank", 11, 0}, {"p50", "us", 10, 1},  {"rate", "GB/s", 8, 3},
    {"best", "GB/s", 8, 3},     {"spread", "%", 7, 1}, {"#wrong", "bytes", 7, 0},
};

struct run {
    const struct options *options;
    struct report *report;
    struct party party;
    struct wire wire;
    struct progress progress;
    int samples, repeats;
    struct tally tally; /* bytes, all tests */
    uint32_t done;      /* probes */
};

static const char *const names[] = {"store", "load", "push", "pull", "engine", "local"};
static const int sm_counts[] = {4, 8, 16, 24, 32, 64, 1 << 30};
enum { NUM_COUNTS = sizeof(sm_counts) / sizeof(sm_counts[0]) };

static enum tern_status run_probe(struct run *run, const struct probe *probe)
{
    double us[WIRE_MAX_SAMPLES], bytes = (double)wire_round_bytes(&run->wire, probe->mover);
    struct stats s;
    struct cell *row;
    progress_step(&run->progress, names[probe->mover], run->done++, 30);
    TERN_TRY(wire_time(&run->wire, probe, run->samples, run->repeats, us));
    s = stats_of(us, (size_t)run->samples);
    row = report_row(run->report);
    if (row == NULL) {
        return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d rows", REPORT_MAX_ROWS);
    }
    snprintf(row[COL_TEST].text, REPORT_TEXT, "%s", names[probe->mover]);
    if (probe->row_bytes != 0) {
        row[COL_ROW].number = probe->row_bytes;
    }
    if (probe->sms != 0) {
        row[COL_SMS].number = probe->sms;
    }
    row[COL_BYTES].number = bytes;
    row[COL_P50].number = s.p50;
    row[COL_GBS].number = bytes / s.p50 / 1e3;
    row[COL_BEST].number = bytes / s.best / 1e3;
    row[COL_SPREAD].number = 100 * s.spread;
    if (run->options->check) {
        struct tally tally;
        TERN_TRY(wire_verify(&run->wire, probe, run->options->corrupt != CORRUPT_NONE, &tally));
        row[COL_WRONG].number = (double)tally.wrong;
        run->tally.wrong += tally.wrong;
        run->tally.compared += tally.compared;
    }
    progress_clear(&run->progress);
    report_print_row(run->report);
    return TERN_OK;
}

/* One mover at every SM count that a rank may use. */
static enum tern_status run_counts(struct run *run, enum mover mover, uint32_t row_bytes)
{
    int limit = tern_comm_num_sms(run->party.comms[0]), i;
    if (!wire_can(&run->wire, mover)) {
        return TERN_OK;
    }
    for (i = 0; i < NUM_COUNTS; i++) {
        struct probe probe = {mover, row_bytes, sm_counts[i] < limit ? sm_counts[i] : limit, 0};
        TERN_TRY(run_probe(run, &probe));
        if (sm_counts[i] >= limit) {
            break;
        }
    }
    return TERN_OK;
}

static enum tern_status run_ping(struct run *run)
{
    static const char *const names[FLAG_KINDS] = {"flag", "flag bare"};
    uint32_t rounds = run->party.machine == TERN_MACHINE_CPU ? 200 : 10000;
    double us[FLAG_KINDS] = {0};
    if (run->party.num_ranks < 2) {
        return TERN_OK;
    }
    TERN_TRY(wire_ping(&run->wire, rounds, us));
    for (int kind = 0; kind < FLAG_KINDS; kind++) {
        struct cell *row = report_row(run->report);
        if (row == NULL) {
            return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d rows", REPORT_MAX_ROWS);
        }
        snprintf(row[COL_TEST].text, REPORT_TEXT, "%s", names[kind]);
        row[COL_SMS].number = 1;
        row[COL_BYTES].number = sizeof(uint64_t);
        row[COL_P50].number = us[kind];
        report_print_row(run->report);
    }
    return TERN_OK;
}

enum tern_status wire_note(struct report *report, const struct party *party, double gb_s)
{
    if (party_domain_ranks(party) != party->num_ranks) {
        return report_note(report, "wire",
                           "not measured: domains of %d ranks, which do not address each other",
                           party_domain_ranks(party));
    }
    return report_note(report, "wire", "%.3f GB/s a rank: best all-to-all %s of this run%s", gb_s,
                       party->comms[0]->machine->info.has_bulk ? "bulk push" : "store",
                       party->machine == TERN_MACHINE_CPU ? " (cpu machine: memory copies by fibers)" : "");
}

static enum tern_status run_all(struct run *run)
{
    static const struct probe engine = {MOVE_ENGINE, 0, 0, 0}, local = {MOVE_LOCAL, 0, 0, 0};
    TERN_TRY(about_note(run->report, &run->party));
    TERN_TRY(report_note(run->report, "bytes", "%llu to each peer; %d samples of %d rounds in a row",
                         (unsigned long long)run->wire.bytes, run->samples, run->repeats));
    TERN_TRY(report_note(run->report, "time",
                         "device events around the rounds, of the slowest rank; launches included"));
    TERN_TRY(report_note(run->report, "flag",
                         "one way, ranks 0 and 1: store-release there, load-acquire here; bare: a relaxed "
                         "store, which nothing can be ordered by"));
    report_head(run->report);
    TERN_TRY(run_counts(run, MOVE_STORE, 0));
    TERN_TRY(run_counts(run, MOVE_LOAD, 0));
    TERN_TRY(run_counts(run, MOVE_PUSH, 14336));
    TERN_TRY(run_counts(run, MOVE_PUSH, 7168));
    TERN_TRY(run_counts(run, MOVE_PULL, 14336));
    TERN_TRY(run_counts(run, MOVE_PULL, 7168));
    TERN_TRY(run_probe(run, &engine));
    TERN_TRY(run_probe(run, &local));
    TERN_TRY(run_ping(run));
    return report_result(run->report, "bytes", &run->tally);
}

static enum tern_status run_open(struct run *run, uint64_t bytes)
{
    enum tern_status status;
    TERN_TRY(party_one_domain(&run->party, "wire"));
    TERN_TRY(wire_open(&run->wire, &run->party, bytes, run->options->seed));
    status = run_all(run);
    progress_clear(&run->progress);
    wire_close(&run->wire);
    return status;
}

enum tern_status wire_run(const struct options *options, struct report *report, struct tally *tally)
{
    struct run run;
    enum tern_status status;
    uint64_t bytes;
    memset(&run, 0, sizeof(run));
    run.options = options;
    run.report = report;
    report->kind = "wire";
    report->columns = columns;
    report->num_columns = NUM_COLS;
    TERN_TRY(party_init(&run.party, options));
    TERN_TRY(report_begin(report, run.party.first != 0, options->json));
    progress_init(&run.progress, report->quiet);
    run.samples = options->iters != 0 ? (int)options->iters : run.party.machine == TERN_MACHINE_CPU ? 3 : 10;
    run.repeats = run.party.machine == TERN_MACHINE_CPU ? 1 : 8;
    bytes = wire_default_bytes(run.party.machine, run.party.num_ranks);
    TERN_TRY(party_open(&run.party, wire_heap_bytes(run.party.num_ranks, bytes)));
    status = run_open(&run, bytes);
    party_close(&run.party);
    *tally = run.tally;
    return status;
}
