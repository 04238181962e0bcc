/* SPDX-License-Identifier: Apache-2.0
 *
 * `tern-bench nic`: what the software NIC does, first as fast as it goes, then with a modelled wire: small
 * puts a second, bandwidth and how near it is to the rate that was set, puts with a signal behind each, trips
 * beside the latency that was set; at last all other ranks to rank 1, whose link they share. */
#include "bench_nic.h"
#include "about.h"
#include "kernels/kernels.h"
#include "nic_ranks.h"
#include "progress.h"
#include "stats.h"

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
    COL_PUTS,
    COL_RATE,
    COL_MODEL,
    COL_SHARE,
    COL_LEAST,
    COL_MOST,
    COL_TRIP,
    COL_ENGINE,
    COL_RANKS,
    COL_QUEUES,
    COL_SMS,
    COL_WRONG,
    NUM_COLS
};

static const struct column columns[NUM_COLS] = {
    {"op", "", 12, -1},         {"bytes", "an op", 8, 0},     {"ops", "a time", 8, 0},
    {"p10", "us", 10, 3},       {"p50", "us", 10, 3},         {"p90", "us", 10, 3},
    {"puts", "M/s", 8, 3},      {"rate", "GB/s", 8, 3},       {"model", "GB/s", 8, 3},
    {"share", "%", 6, 1},       {"least", "a sender", 8, 3},  {"most", "GB/s", 8, 3},
    {"trip", "model us", 8, 1}, {"engine", "us an op", 8, 2}, {"ranks", "", 0, 0},
    {"queues", "", 0, 0},       {"nic-sms", "", 0, 0},        {"#wrong", "", 7, 0},
};

struct run {
    struct options o; /* settled */
    struct report *report;
    struct party party;
    struct progress progress;
    struct nic_ranks *ranks;
    struct softnic_rates rates;
    struct tally tally;
    double *us;
    struct nic_took took;
};

static int on_cpu(const struct run *r) { return r->party.machine == TERN_MACHINE_CPU; }

static const char *const kinds[] = {"put", "put by warp", "pair", "put inline", "round trip"};

/* Of a NIC: with fewer queues some have none. */
static uint32_t num_engines(const struct run *r)
{
    return on_cpu(r) ? 1 : r->o.net.queues < r->o.nic.sms ? r->o.net.queues : r->o.nic.sms;
}

/* What a sender of `bytes` gets through in a microsecond. */
static void add_senders(const struct run *r, double bytes, struct cell *row)
{
    double least = 0, most = 0;
    for (int k = 0; k < r->party.num_ranks; k++) {
        double rate = r->took.us[k] > 0 ? bytes / r->took.us[k] / 1e3 : 0;
        most = rate > most ? rate : most;
        least = rate > 0 && (least == 0 || rate < least) ? rate : least;
    }
    row[COL_LEAST].number = least;
    row[COL_MOST].number = most;
}

/* GB/s that the model lets through, whether bytes or messages are what it runs out of; 0: there is none. */
static double modelled(const struct run *r, const struct nic_shot *shot)
{
    int senders = shot->from_all ? r->party.num_ranks - 1 : 1;
    double bytes = (double)r->rates.bytes_per_s / 1e9,
           messages = (double)r->rates.messages_per_s * shot->bytes * senders / 1e9;
    int counts_bytes =
        shot->kind == NIC_PUT || shot->kind == NIC_PAIR || (shot->kind == NIC_PUT_WARP && shot->bytes > 8);
    if (shot->kind == NIC_TRIP || (r->rates.messages_per_s == 0 && !counts_bytes)) {
        return 0;
    }
    messages /= shot->kind == NIC_PAIR ? 2 : 1;
    return messages == 0 || bytes < messages ? bytes : messages;
}

/* ops: of all senders */
static enum tern_status add_row(struct run *r, const struct nic_shot *shot, uint64_t ops,
                                const struct tally *tally)
{
    struct stats s = stats_of(r->us, r->o.iters);
    struct cell *row = report_row(r->report);
    double model = modelled(r, shot);
    if (row == NULL) {
        return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d rows", REPORT_MAX_ROWS);
    }
    snprintf(row[COL_OP].text, REPORT_TEXT, "%s", shot->from_all ? "incast" : kinds[shot->kind]);
    row[COL_BYTES].number = shot->bytes;
    row[COL_OPS].number = (double)ops;
    row[COL_P10].number = s.p10;
    row[COL_P50].number = s.p50;
    row[COL_P90].number = s.p90;
    if (shot->kind == NIC_TRIP) {
        row[COL_TRIP].number = 2e-3 * (double)r->rates.latency_ns;
    } else {
        row[COL_PUTS].number = (double)ops / s.p50;
        row[COL_RATE].number = (double)ops * shot->bytes / s.p50 / 1e3;
        row[COL_ENGINE].number =
            s.p50 * num_engines(r) * (shot->from_all ? r->party.num_ranks - 1 : 1) / (double)ops;
    }
    if (model != 0) {
        row[COL_MODEL].number = model;
        row[COL_SHARE].number = 100 * row[COL_RATE].number / row[COL_MODEL].number;
    }
    if (shot->from_all) {
        add_senders(r, (double)ops * shot->bytes / (r->party.num_ranks - 1), row);
    }
    row[COL_RANKS].number = r->party.num_ranks;
    row[COL_QUEUES].number = r->o.net.queues;
    row[COL_SMS].number = r->o.nic.sms;
    if (r->o.check) {
        row[COL_WRONG].number = (double)tally->wrong;
        r->tally.wrong += tally->wrong;
        r->tally.compared += tally->compared;
    }
    progress_clear(&r->progress);
    report_print_row(r->report);
    return TERN_OK;
}

/* So many operations of each sender, or a few more, by warps of which each queue has as many. */
static enum tern_status run_from(struct run *r, int from_all, enum drive_nic_kind kind, uint32_t bytes,
                                 uint64_t ops)
{
    struct nic_shot shot;
    struct tally tally = {0, 0};
    uint64_t senders = from_all ? (uint64_t)r->party.num_ranks - 1 : 1;
    uint32_t lanes = kind == NIC_PUT_WARP ? 32 : 1, queues = r->o.net.queues, warps;
    shot.kind = (uint32_t)kind;
    shot.from_all = from_all;
    shot.bytes = bytes < nic_part(r->ranks, &shot) ? bytes : (uint32_t)nic_part(r->ranks, &shot);
    shot.warps = kind == NIC_TRIP ? 1 : on_cpu(r) ? 1 : 2;
    shot.blocks = kind == NIC_TRIP ? 1 : (int)queues;
    warps = (uint32_t)(shot.warps * shot.blocks);
    shot.ops = (uint32_t)((ops + (uint64_t)warps * lanes - 1) / ((uint64_t)warps * lanes));
    ops = (uint64_t)shot.ops * warps * lanes;
    TERN_TRY(nic_time(r->ranks, &shot, r->us, &r->took));
    if (r->o.check) {
        TERN_TRY(nic_check(r->ranks, &shot, (kind == NIC_TRIP ? ops + 1 : ops) * shot.bytes, &tally));
    }
    return add_row(r, &shot, ops * senders, &tally);
}

static enum tern_status run_shot(struct run *r, enum drive_nic_kind kind, uint32_t bytes, uint64_t ops)
{
    return run_from(r, 0, kind, bytes, ops);
}

static uint64_t num_small(const struct run *r) { return on_cpu(r) ? 256 : 100000; }

/* Some 20 ms at 50 GB/s. */
static uint64_t num_large(const struct run *r, uint32_t bytes)
{
    uint64_t all = on_cpu(r) ? 1 << 16 : 1 << 30, most = num_small(r);
    return all / bytes < most ? all / bytes : most;
}

static enum tern_status run_small(struct run *r)
{
    TERN_TRY(run_shot(r, NIC_PUT_WARP, 8, num_small(r)));
    TERN_TRY(run_shot(r, NIC_INLINE, 8, num_small(r)));
    return run_shot(r, NIC_TRIP, 8, on_cpu(r) ? 8 : 1000);
}

/* Below this by warps: threads that post one at a time may be slower than the NIC. */
enum { BY_WARP_BYTES = 65536 };

static enum drive_nic_kind kind_of(const struct run *r, uint32_t bytes)
{
    return !on_cpu(r) && bytes < BY_WARP_BYTES ? NIC_PUT_WARP : NIC_PUT;
}

/* Of a put with a signal: a chunk of dispatch across domains. */
static uint32_t pair_bytes(const struct run *r) { return on_cpu(r) ? 4096 : 65536; }

static enum tern_status run_sizes(struct run *r)
{
    for (uint32_t k = 0; k < r->o.net.bytes.num; k++) {
        uint32_t bytes = r->o.net.bytes.values[k];
        progress_step(&r->progress, "size", k, r->o.net.bytes.num);
        TERN_TRY(run_shot(r, kind_of(r, bytes), bytes, num_large(r, bytes)));
    }
    return run_shot(r, NIC_PAIR, pair_bytes(r), num_large(r, pair_bytes(r)));
}

/* Longer, so that what is under way at the end counts for little. */
static enum tern_status run_largest(struct run *r)
{
    uint32_t bytes = r->o.net.bytes.values[r->o.net.bytes.num - 1];
    return run_shot(r, NIC_PUT, bytes, num_large(r, bytes) / 2 + 1);
}

/* Together as long as one alone. */
static enum tern_status run_incast(struct run *r)
{
    uint32_t bytes = r->o.net.bytes.values[r->o.net.bytes.num - 1];
    uint64_t ops = num_large(r, bytes) / (uint64_t)(r->party.num_ranks - 1) + 1;
    return run_from(r, 1, NIC_PUT, bytes, ops);
}

/* With NICs whose wire has this part of the rate, and the rest of the model; 0: none is modelled. */
static enum tern_status with(struct run *r, uint64_t part, enum tern_status (*body)(struct run *r))
{
    enum tern_status status;
    memset(&r->rates, 0, sizeof(r->rates));
    if (part != 0) {
        r->rates.bytes_per_s = (uint64_t)r->o.nic.gbps * 125000000 / part;
        r->rates.receive_bytes_per_s = r->rates.bytes_per_s;
        r->rates.messages_per_s = (uint64_t)r->o.nic.mops * 1000000;
        r->rates.latency_ns = (uint64_t)r->o.nic.latency_us * 1000;
    }
    status = nic_start(r->ranks, &r->rates);
    status = status == TERN_OK ? body(r) : status;
    nic_end(r->ranks);
    return status;
}

static enum tern_status run_all(struct run *r)
{
    TERN_TRY(report_note(r->report, "nic", "rank 0 posts to rank 1 by %u queues, incast: %d ranks do; %s",
                         r->o.net.queues, r->party.num_ranks - 1,
                         on_cpu(r) ? "a thread of the host each" : "a resident kernel each"));
    TERN_TRY(
        report_note(r->report, "model",
                    "%u Gb/s a direction, %u million messages a second (0: any number), %u us one way; rows "
                    "without a model go as fast as they can",
                    r->o.nic.gbps, r->o.nic.mops, r->o.nic.latency_us));
    TERN_TRY(report_note(r->report, "time",
                         "of all operations until the last has completed, launch included; of a round trip "
                         "one put with its completion; %u samples after %u",
                         r->o.iters, r->o.warmup));
    report_head(r->report);
    TERN_TRY(with(r, 0, run_small));
    TERN_TRY(with(r, 0, run_sizes));
    TERN_TRY(with(r, 1, run_small));
    TERN_TRY(with(r, 1, run_sizes));
    for (uint64_t part = 2; part <= 8; part *= 2) {
        TERN_TRY(with(r, part, run_largest));
    }
    TERN_TRY(with(r, 1, run_incast));
    return report_result(r->report, "bytes", &r->tally);
}

/* ---- Start ---- */

static enum tern_status settle(struct run *r)
{
    struct options *o = &r->o;
    o->iters = o->iters != 0 ? o->iters : on_cpu(r) ? 3 : 20;
    o->warmup = o->warmup != 0 ? o->warmup : on_cpu(r) ? 1 : 3;
    o->nic.gbps = o->nic.gbps != 0 ? o->nic.gbps : on_cpu(r) ? 1 : 400;
    if (o->net.bytes.num == 0) {
        for (uint32_t b = on_cpu(r) ? 512 : 4096; b <= (on_cpu(r) ? 8192u : 1u << 20); b *= 4) {
            o->net.bytes.values[o->net.bytes.num++] = b;
        }
    }
    if (r->party.num_ranks < 2) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--ranks 1: a put is from one to another");
    }
    for (uint32_t k = 0; k < o->net.bytes.num; k++) {
        if (o->net.bytes.values[k] > nic_area(&r->party)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "--bytes %u: a peer has room for %llu here",
                             o->net.bytes.values[k], (unsigned long long)nic_area(&r->party));
        }
    }
    return TERN_OK;
}

static enum tern_status run_open(struct run *r)
{
    enum tern_status status;
    TERN_TRY(party_one_domain(&r->party, "nic"));
    TERN_TRY(about_note(r->report, &r->party));
    TERN_TRY(nic_ranks_open(r->ranks, &r->party, &r->o));
    status = run_all(r);
    progress_clear(&r->progress);
    nic_ranks_close(r->ranks);
    return status;
}

enum tern_status nic_run(const struct options *options, struct report *report, struct tally *tally)
{
    struct run r;
    enum tern_status status;
    memset(&r, 0, sizeof(r));
    r.o = *options;
    r.report = report;
    report->kind = "nic";
    report->columns = columns;
    report->num_columns = NUM_COLS;
    TERN_TRY(party_init(&r.party, options));
    TERN_TRY(report_begin(report, r.party.first != 0, options->json));
    TERN_TRY(settle(&r));
    progress_init(&r.progress, report->quiet);
    TERN_TRY(party_open(&r.party, nic_heap_bytes(&r.party)));
    r.ranks = (struct nic_ranks *)calloc(1, sizeof(*r.ranks));
    r.us = (double *)calloc(r.o.iters, sizeof(*r.us));
    status = r.ranks != NULL && r.us != NULL
                 ? run_open(&r)
                 : TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %u samples", r.o.iters);
    free(r.us);
    free(r.ranks);
    party_close(&r.party);
    *tally = r.tally;
    return status;
}
