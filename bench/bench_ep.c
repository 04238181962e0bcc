/* SPDX-License-Identifier: Apache-2.0
 *
 * `tern-bench ep`: for every number of tokens, a row for route, dispatch, combine and the three in a chain.
 *
 * Bytes. A row that moves has the bytes of its payloads (BF16: 2 x hidden; FP8: hidden and its scales); ids,
 * weights and sources are not counted. Over all ranks, dispatch moves a row for every (token, rank) pair in
 * rank layout and for every choice in expert layout, and combine moves the same rows back, in BF16. `logical`
 * is these bytes divided by the ranks and by p50; `remote` leaves out rows that stay on their rank; `wire` is
 * remote in per cent of the best all-to-all bulk push measured just before in the same process, on the same
 * memory.
 *
 * With several domains a token crosses the network once for each other domain that it goes to, and so
 * does what that domain adds on its way home: `network` is the rows that do so. `floor` is the time that
 * a modelled wire needs for those of the rank that sends or receives most, and one latency, and
 * `of-floor` that time in per cent of p50: 100 would be a wire that is never idle. */
#include "bench_ep.h"
#include "about.h"
#include "faults.h"
#include "report.h"
#include "transport.h"
#include "wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT_SMS = 24 };

enum {
    COL_TOKENS,
    COL_HIDDEN,
    COL_TOPK,
    COL_EXPERTS,
    COL_RANKS,
    COL_SMS,
    COL_DTYPE,
    COL_LAYOUT,
    COL_ROUTING,
    COL_OP,
    COL_P50,
    COL_P99,
    COL_ROW,
    COL_LOGICAL,
    COL_REMOTE,
    COL_WIRE,
    COL_NETWORK,
    COL_FLOOR,
    COL_OF_FLOOR,
    COL_DOMAINS,
    COL_LOGICAL_BYTES,
    COL_NETWORK_BYTES,
    COL_SKEW,
    COL_WRONG,
    NUM_COLS
};

static const struct column columns[NUM_COLS] = {
    {"tokens", "", 6, 0},
    {"hidden", "", 6, 0},
    {"topk", "", 4, 0},
    {"experts", "", 7, 0},
    {"ranks", "", 5, 0},
    {"sms", "", 3, 0},
    {"dtype", "", 5, -1},
    {"layout", "", 6, -1},
    {"routing", "", 9, -1},
    {"op", "", 8, -1},
    {"p50", "us", 10, 1},
    {"p99", "us", 10, 1},
    {"in-a-row", "us", 10, 1},
    {"logical", "GB/s", 7, 3},
    {"remote", "GB/s", 7, 3},
    {"wire", "%", 5, 1},
    {"network", "GB/s", 7, 3},
    {"floor", "us", 8, 1},
    {"of-floor", "%", 8, 1},
    {"domains", "", 0, 0},
    {"logical-bytes", "a rank", 0, 0},
    {"network-bytes", "a rank", 0, 0},
    {"skew", "max/mean", 8, 2},
    {"#wrong", "", 6, 0},
};
enum { OF_DOMAINS = 1u << COL_NETWORK | 1u << COL_FLOOR | 1u << COL_OF_FLOOR };

void ep_columns(struct report *report)
{
    report->columns = columns;
    report->num_columns = NUM_COLS;
    report->left_out = OF_DOMAINS;
}

enum tern_status ep_settle(struct options *o, const struct party *party)
{
    int cpu = party->machine == TERN_MACHINE_CPU;
    if (o->tokens.num == 0) {
        o->tokens.num = 1;
        o->tokens.values[0] = cpu ? 64 : 4096;
    }
    o->hidden = o->hidden != 0 ? o->hidden : cpu ? 512 : 7168;
    o->iters = o->iters != 0 ? o->iters : cpu ? 5 : 50;
    o->warmup = o->warmup != 0 ? o->warmup : cpu ? 1 : 5;
    if (o->align > 1 && o->layout != TERN_LAYOUT_EXPERT) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--align %u needs --layout expert", o->align);
    }
    if (o->net.domain_size != 0 && (uint32_t)party->num_ranks % o->net.domain_size != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--domain-size %u: %d ranks are no whole number of domains",
                         o->net.domain_size, party->num_ranks);
    }
    if (o->combine > COMBINE_PULL && o->layout != TERN_LAYOUT_RANK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--combine %s needs --layout rank",
                         options_word(COMMAND_EP, "--combine", o->combine));
    }
    if (o->drain && o->layout != TERN_LAYOUT_RANK) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--drain 1 needs --layout rank");
    }
    TERN_TRY(transport_check(o));
    TERN_TRY(faults_check(o, party));
    return routing_settle(o, party->num_ranks);
}

enum tern_status ep_sms(const struct options *o, const struct party *party, uint32_t *sms)
{
    return party_sms(party, o->sms, DEFAULT_SMS, sms);
}

enum tern_status ep_heap_bytes(const struct options *o, const struct party *party, uint64_t *bytes)
{
    uint64_t most = 0;
    uint32_t k;
    for (k = 0; k < o->tokens.num; k++) {
        struct shape shape;
        uint64_t need;
        TERN_TRY(shape_open(&shape, o, party->num_ranks, o->tokens.values[k]));
        need = shape_heap_bytes(&shape);
        shape_close(&shape);
        most = need > most ? need : most;
    }
    *bytes = most;
    return TERN_OK;
}

/* ---- Rows ---- */

/* Rows that move, over all ranks, and where. */
struct traffic {
    double rows, remote; /* over all ranks */
    double skew;         /* the busiest rank's rows over the mean */
};

static struct traffic traffic_of(const struct routing *g)
{
    struct traffic t = {0, 0, 0};
    double most = 0;
    int r;
    for (r = 0; r < g->num_ranks; r++) {
        double rows = (double)routing_rows(g, r);
        t.rows += rows;
        t.remote += rows - (double)routing_own_rows(g, r);
        most = rows > most ? rows : most;
    }
    t.skew = t.rows > 0 ? most * g->num_ranks / t.rows : NAN;
    return t;
}

static void name_row(const struct shape *s, struct cell *row, int op)
{
    static const char *const names[] = {"route", "dispatch", "combine", "chain"};
    const struct options *o = s->options;
    row[COL_TOKENS].number = s->routing.tokens;
    row[COL_HIDDEN].number = s->hidden;
    row[COL_TOPK].number = s->routing.topk;
    row[COL_EXPERTS].number = s->routing.experts;
    row[COL_RANKS].number = s->routing.num_ranks;
    row[COL_DOMAINS].number = s->routing.num_ranks / (int)s->domain_ranks;
    row[COL_SMS].number = s->sms;
    snprintf(row[COL_DTYPE].text, REPORT_TEXT, "%s", options_word(COMMAND_EP, "--dtype", o->dtype));
    snprintf(row[COL_LAYOUT].text, REPORT_TEXT, "%s", options_word(COMMAND_EP, "--layout", o->layout));
    routing_name(o, row[COL_ROUTING].text, REPORT_TEXT);
    snprintf(row[COL_OP].text, REPORT_TEXT, "%s", names[op]);
}

/* `bytes`: of a row; us: p50. */
static void add_crossing(const struct shape *s, struct cell *row, double bytes, double us)
{
    const struct options *o = s->options;
    struct routing_crossing c = routing_cross(&s->routing, s->domain_ranks);
    row[COL_NETWORK_BYTES].number = bytes * (double)c.all / s->routing.num_ranks;
    row[COL_NETWORK].number = row[COL_NETWORK_BYTES].number / us / 1e3;
    if (o->nic.gbps != 0) {
        row[COL_FLOOR].number = bytes * (double)c.most / (125.0 * o->nic.gbps) + o->nic.latency_us;
        row[COL_OF_FLOOR].number = 100 * row[COL_FLOOR].number / us;
    }
}

static enum tern_status add_row(struct report *report, const struct shape *s, int op,
                                const struct timing *timing, double wire_gb_s, const struct tally *tallies)
{
    struct traffic t = traffic_of(&s->routing);
    struct cell *row = report_row(report);
    double us = timing->alone[op].p50;
    double bytes = op == OP_DISPATCH ? s->row_bytes + s->scale_bytes : 2 * s->hidden;
    if (row == NULL) {
        return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d rows", REPORT_MAX_ROWS);
    }
    name_row(s, row, op);
    row[COL_P50].number = us;
    row[COL_P99].number = timing->alone[op].p99;
    if (op < NUM_OPERATIONS) {
        row[COL_ROW].number = timing->in_a_row[op];
        row[COL_WRONG].number = s->options->check ? (double)tallies[op].wrong : NAN;
    }
    if ((op == OP_DISPATCH || op == OP_COMBINE) && us > 0) {
        double each = bytes / s->routing.num_ranks / us / 1e3;
        row[COL_LOGICAL].number = t.rows * each;
        row[COL_REMOTE].number = t.remote * each;
        row[COL_WIRE].number = wire_gb_s > 0 ? 100 * t.remote * each / wire_gb_s : NAN;
        row[COL_SKEW].number = t.skew;
        row[COL_LOGICAL_BYTES].number = t.rows * bytes / s->routing.num_ranks;
        if ((int)s->domain_ranks < s->routing.num_ranks) {
            add_crossing(s, row, bytes, us);
        }
    }
    report_print_row(report);
    return TERN_OK;
}

static enum tern_status run_shape(struct bench *b, struct report *report, double wire_gb_s,
                                  struct tally *tally)
{
    struct tally tallies[NUM_OPERATIONS] = {{0, 0}, {0, 0}, {0, 0}};
    struct timing timing;
    enum tern_status status;
    int op;
    TERN_TRY(bench_open(b));
    status = bench_time(b, &timing);
    if (status == TERN_OK && b->shape.options->check) {
        status = bench_check(b, tallies);
    }
    for (op = 0; status == TERN_OK && op <= NUM_OPERATIONS; op++) {
        status = add_row(report, &b->shape, op, &timing, wire_gb_s, tallies);
        if (op < NUM_OPERATIONS) {
            tally->wrong += tallies[op].wrong;
            tally->compared += tallies[op].compared;
        }
    }
    for (int i = 0; status == TERN_OK && i < b->party->num_local; i++) {
        status = faults_count(&b->packets, b->seats[i].ep);
    }
    bench_close(b);
    return status;
}

enum tern_status ep_rows(const struct options *o, struct report *report, struct party *party,
                         double wire_gb_s, struct tally *tally)
{
    struct carriage carriage;
    struct progress progress;
    struct bench *b = (struct bench *)calloc(1, sizeof(*b));
    enum tern_status status = TERN_OK;
    uint32_t k;
    if (b == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d ranks", party->num_local);
    }
    progress_init(&progress, report->quiet);
    b->party = party;
    b->progress = &progress;
    status = transport_choose(o, party, &carriage);
    for (k = 0; status == TERN_OK && k < o->tokens.num; k++) {
        status = shape_open(&b->shape, o, party->num_ranks, o->tokens.values[k]);
        b->shape.transport = carriage.transport;
        if (status == TERN_OK) {
            status = run_shape(b, report, wire_gb_s, tally);
            shape_close(&b->shape);
        }
    }
    status = transport_drop(&carriage, status);
    progress_clear(&progress);
    if (status == TERN_OK) {
        status = faults_note(report, o, party, &b->packets);
    }
    free(b);
    return status;
}

/* ---- The subcommand ---- */

static enum tern_status note_shape(struct report *report, const struct options *o, const struct party *party,
                                   double wire)
{
    TERN_TRY(routing_note(report, o));
    TERN_TRY(
        report_note(report, "options",
                    "out %s, meta %s, align %u, transfer %s, combine %s, drain %u, %u iterations after %u",
                    o->tensor ? "tensor" : "window", o->meta ? "1" : "0", o->align,
                    options_word(COMMAND_EP, "--transfer", o->transfer),
                    options_word(COMMAND_EP, "--combine", o->combine), o->drain, o->iters, o->warmup));
    if (o->drain && !o->tensor) {
        TERN_TRY(report_note(report, "drain", "outputs are in windows: nothing is to be drained"));
    }
    TERN_TRY(report_note(report, "time",
                         "device events around one operation, slowest rank; the chain is route, dispatch, "
                         "combine with no host in between"));
    TERN_TRY(
        report_note(report, "in-a-row", "many of one operation between two events, divided by their number"));
    TERN_TRY(report_note(report, "GB/s",
                         "bytes of rows over p50, mean of the ranks; remote: without rows that stay"));
    if (report->left_out == 0) {
        TERN_TRY(transport_note(report, o));
        TERN_TRY(
            report_note(report, "network",
                        "rows between domains, a token once to each; floor: the model's time for those of "
                        "the busiest rank, and a latency; of-floor: floor over p50"));
    }
    return wire_note(report, party, wire);
}

static enum tern_status run_open(const struct options *o, struct report *report, struct party *party,
                                 struct tally *tally)
{
    double wire = 0;
    uint32_t sms, domain_ranks;
    TERN_TRY(ep_sms(o, party, &sms)); /* refused before anything is measured or printed */
    TERN_TRY(transport_domains(o, party, &domain_ranks));
    report->left_out = (int)domain_ranks < party->num_ranks ? 0 : OF_DOMAINS;
    TERN_TRY(about_note(report, party));
    TERN_TRY(wire_measure(party, o, &wire));
    TERN_TRY(note_shape(report, o, party, wire));
    report_head(report);
    TERN_TRY(ep_rows(o, report, party, wire, tally));
    return report_result(report, "elements", tally);
}

enum tern_status ep_run(const struct options *options, struct report *report, struct tally *tally)
{
    struct options o = *options;
    struct party party;
    enum tern_status status;
    uint64_t shapes = 0, wire;
    report->kind = "ep";
    ep_columns(report);
    TERN_TRY(party_init(&party, &o));
    TERN_TRY(report_begin(report, party.first != 0, o.json));
    TERN_TRY(ep_settle(&o, &party));
    TERN_TRY(ep_heap_bytes(&o, &party, &shapes));
    wire = wire_heap_bytes(party.num_ranks, wire_default_bytes(party.machine, party.num_ranks));
    TERN_TRY(party_open(&party, shapes > wire ? shapes : wire));
    status = run_open(&o, report, &party, tally);
    party_close(&party);
    return status;
}
