/* SPDX-License-Identifier: Apache-2.0
 *
 * `tern-bench ll`: for every number of tokens, a row for low-latency dispatch, for combine and for the pair
 * of them with no host and no event in between; with --hook also for each phase.
 *
 * Bytes are those of the busiest rank (ll_traffic.c): remote ones cross the wire, logical ones are what the
 * model gives or gets. The floor is the time that the remote bytes take at the best
 * all-to-all speed that this run measured just before, in the same process. */
#include "bench_ll.h"
#include "about.h"
#include "faults.h"
#include "transport.h"
#include "wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEFAULT_EXPERTS = 288 };

enum {
    COL_TOKENS,
    COL_OP,
    COL_P10,
    COL_P50,
    COL_P90,
    COL_ROW,
    COL_FLOOR,
    COL_WIRE,
    COL_REMOTE,
    COL_NETWORK,
    COL_LOGICAL,
    COL_SKEW,
    COL_WAITED,
    COL_HIDDEN,
    COL_TOPK,
    COL_EXPERTS,
    COL_RANKS,
    COL_SMS,
    COL_LANES,
    COL_HOOK,
    COL_GRAPH,
    COL_CAST,
    COL_WEIGHTS,
    COL_LAYOUT,
    COL_COMPRESSION,
    COL_MASK,
    COL_DOMAIN,
    COL_RAIL,
    COL_TRANSPORT,
    COL_ROUTING,
    COL_WRONG,
    NUM_COLS
};

/* Settings, which are the same in every row, stand in the notes and in the rows of the JSON. */
static const struct column columns[NUM_COLS] = {
    {"tokens", "", 6, 0},       {"op", "", 13, -1},       {"p10", "us", 9, 1},
    {"p50", "us", 9, 1},        {"p90", "us", 9, 1},      {"in-a-row", "us", 9, 1},
    {"floor", "us", 8, 2},      {"wire", "%", 5, 1},      {"remote", "kB", 9, 1},
    {"network", "kB", 9, 1},    {"logical", "kB", 9, 1},  {"skew", "max/mean", 8, 2},
    {"waited", "us", 8, 1},     {"hidden", "", 0, 0},     {"topk", "", 0, 0},
    {"experts", "", 0, 0},      {"ranks", "", 0, 0},      {"sms", "", 0, 0},
    {"lanes", "", 0, 0},        {"hook", "", 0, 0},       {"graph", "", 0, 0},
    {"cast", "", 0, -1},        {"weights", "", 0, -1},   {"layout", "", 0, -1},
    {"compression", "", 0, -1}, {"mask", "", 0, 0},       {"domain-size", "", 0, 0},
    {"rail", "", 0, 0},         {"transport", "", 0, -1}, {"routing", "", 0, -1},
    {"#wrong", "", 6, 0},
};

static const char *const unit_names[NUM_UNITS] = {
    "dispatch", "combine", "pair", "dispatch.send", "dispatch.recv", "combine.send", "combine.recv",
};

static enum tern_status settle(struct options *o, const struct party *party)
{
    static const struct sweep few = {6, {1, 8, 32, 128, 512, 1024}};
    int cpu = party->machine == TERN_MACHINE_CPU;
    if (o->tokens.num == 0) {
        o->tokens = few;
        if (cpu) {
            o->tokens.num = 1;
            o->tokens.values[0] = 16;
        }
    }
    o->hidden = o->hidden != 0 ? o->hidden : cpu ? 512 : 7168;
    o->iters = o->iters != 0 ? o->iters : cpu ? 5 : 50;
    o->warmup = o->warmup != 0 ? o->warmup : cpu ? 1 : 5;
    if (o->ll.weights == NOT_CHOSEN) { /* rows by rank come home one a rank: nothing else is possible */
        o->ll.weights =
            o->ll.layout == TERN_LL_BY_RANK ? TERN_LL_WEIGHTS_AT_DISPATCH : TERN_LL_WEIGHTS_AT_COMBINE;
    }
    if (!o->routing && o->experts == 0) {
        o->experts = DEFAULT_EXPERTS;
    }
    TERN_TRY(faults_check(o, party));
    return routing_settle(o, party->num_ranks);
}

/* ---- Rows ---- */

static void name_row(const struct ll_shape *s, struct cell *row, int unit)
{
    const struct options *o = s->options;
    row[COL_TOKENS].number = s->routing.tokens;
    snprintf(row[COL_OP].text, REPORT_TEXT, "%s", unit_names[unit]);
    row[COL_HIDDEN].number = s->hidden;
    row[COL_TOPK].number = s->routing.topk;
    row[COL_EXPERTS].number = s->routing.experts;
    row[COL_RANKS].number = s->routing.num_ranks;
    row[COL_SMS].number = s->sms;
    row[COL_LANES].number = o->ll.lanes;
    row[COL_HOOK].number = o->ll.hook;
    row[COL_GRAPH].number = o->ll.graph;
    snprintf(row[COL_CAST].text, REPORT_TEXT, "%s", options_word(COMMAND_LL, "--cast", o->ll.cast));
    snprintf(row[COL_WEIGHTS].text, REPORT_TEXT, "%s", options_word(COMMAND_LL, "--weights", o->ll.weights));
    snprintf(row[COL_LAYOUT].text, REPORT_TEXT, "%s", options_word(COMMAND_LL, "--layout", o->ll.layout));
    snprintf(row[COL_COMPRESSION].text, REPORT_TEXT, "%s",
             options_word(COMMAND_LL, "--compression", o->ll.compression));
    row[COL_MASK].number = o->ll.mask != NO_MASK ? (double)o->ll.mask : NAN;
    row[COL_DOMAIN].number = o->net.domain_size != 0 ? (double)o->net.domain_size : NAN;
    row[COL_RAIL].number = o->ll.rail;
    snprintf(row[COL_TRANSPORT].text, REPORT_TEXT, "%s",
             o->net.domain_size != 0 ? options_word(COMMAND_LL, "--transport", o->net.transport) : "");
    routing_name(o, row[COL_ROUTING].text, REPORT_TEXT);
}

static struct ll_traffic traffic_of(const struct ll_shape *s, int unit)
{
    struct ll_traffic d = ll_traffic(s, LL_OP_DISPATCH), c = ll_traffic(s, LL_OP_COMBINE);
    struct ll_traffic pair = {d.remote + c.remote, d.network + c.network, d.logical + c.logical};
    return unit == UNIT_DISPATCH ? d : unit == UNIT_COMBINE ? c : pair;
}

/* Microseconds that the bytes take at the speed of the wire or, modelled, of a NIC, whichever is longer. */
static double floor_of(const struct options *o, const struct ll_traffic *t, int unit, double wire_gb_s)
{
    double wire = (t->remote - t->network) / wire_gb_s / 1e3, trips = unit == UNIT_PAIR ? 2 : 1;
    double network = t->network / (o->nic.gbps != 0 ? o->nic.gbps / 8.0 : wire_gb_s) / 1e3;
    double latency = t->network > 0 ? trips * o->nic.latency_us : 0;
    if (o->nic.gbps == 0) { /* by the same wire, the others while the network's last are on their way */
        return network + (wire > latency ? wire : latency);
    }
    network += latency;
    return network > wire ? network : wire;
}

static enum tern_status add_row(struct report *report, const struct ll_shape *s, int unit,
                                const struct ll_timing *timing, double wire_gb_s, const struct tally *tallies)
{
    struct cell *row = report_row(report);
    if (!row) {
        return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d rows", REPORT_MAX_ROWS);
    }
    name_row(s, row, unit);
    row[COL_P10].number = timing->alone[unit].p10;
    row[COL_P50].number = timing->alone[unit].p50;
    row[COL_P90].number = timing->alone[unit].p90;
    row[COL_ROW].number = timing->in_a_row[unit];
    if (unit <= UNIT_PAIR) {
        struct ll_traffic t = traffic_of(s, unit);
        row[COL_REMOTE].number = t.remote / 1e3;
        row[COL_NETWORK].number = t.network / 1e3;
        row[COL_LOGICAL].number = t.logical / 1e3;
        if (wire_gb_s > 0) {
            row[COL_FLOOR].number = floor_of(s->options, &t, unit, wire_gb_s);
            row[COL_WIRE].number = 100 * row[COL_FLOOR].number / row[COL_P50].number;
        }
    }
    if (unit < UNIT_PAIR) {
        int op = unit == UNIT_DISPATCH ? LL_OP_DISPATCH : LL_OP_COMBINE;
        row[COL_SKEW].number = ll_skew(s);
        row[COL_WAITED].number = timing->waited[op];
        row[COL_WRONG].number = s->options->check ? (double)tallies[op].wrong : NAN;
    }
    report_print_row(report);
    return TERN_OK;
}

static enum tern_status run_shape(struct ll_bench *b, struct report *report, double wire_gb_s,
                                  struct tally *tally)
{
    int num_units = b->shape.options->ll.hook ? NUM_UNITS : UNIT_PAIR + 1;
    struct tally tallies[NUM_LL_OPERATIONS] = {{0, 0}, {0, 0}};
    struct ll_timing timing;
    TERN_TRY(ll_open(b));
    enum tern_status status = ll_time(b, &timing);
    if (status == TERN_OK && b->shape.options->check) {
        status = ll_check(b, tallies);
    }
    for (int unit = 0; status == TERN_OK && unit < num_units; unit++) {
        status = add_row(report, &b->shape, unit, &timing, wire_gb_s, tallies);
    }
    for (int op = 0; op < NUM_LL_OPERATIONS; op++) {
        tally->wrong += tallies[op].wrong;
        tally->compared += tallies[op].compared;
    }
    for (int i = 0; status == TERN_OK && i < b->party->num_local; i++) {
        status = faults_count(&b->packets, b->seats[i].ep);
    }
    ll_close(b);
    return status;
}

static enum tern_status run_shapes(const struct options *o, struct report *report, struct party *party,
                                   uint32_t transport, double wire_gb_s, struct tally *tally)
{
    struct progress progress;
    struct ll_bench *b = (struct ll_bench *)calloc(1, sizeof(*b));
    enum tern_status status = TERN_OK;
    if (!b) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d ranks", party->num_local);
    }
    progress_init(&progress, report->quiet);
    b->party = party;
    b->progress = &progress;
    b->transport = transport;
    for (uint32_t k = 0; status == TERN_OK && k < o->tokens.num; k++) {
        status = ll_shape_open(&b->shape, o, party->num_ranks, o->tokens.values[k]);
        if (status == TERN_OK) {
            status = run_shape(b, report, wire_gb_s, tally);
            ll_shape_close(&b->shape);
        }
    }
    progress_clear(&progress);
    if (status == TERN_OK) {
        status = faults_note(report, o, party, &b->packets);
    }
    free(b);
    return status;
}

/* ---- The subcommand ---- */

static enum tern_status note_settings(struct report *report, const struct options *o,
                                      const struct party *party, uint32_t sms, double wire)
{
    TERN_TRY(routing_note(report, o));
    TERN_TRY(report_note(report, "shape", "hidden %u, top-%u of %u experts, %u processors", o->hidden,
                         o->topk, o->experts, sms));
    TERN_TRY(report_note(
        report, "options", "cast %s, weights %s, by %s, compression %s, meta %u, transfer %s",
        options_word(COMMAND_LL, "--cast", o->ll.cast), options_word(COMMAND_LL, "--weights", o->ll.weights),
        options_word(COMMAND_LL, "--layout", o->ll.layout),
        options_word(COMMAND_LL, "--compression", o->ll.compression), o->meta,
        options_word(COMMAND_LL, "--transfer", o->transfer)));
    TERN_TRY(report_note(report, "issued", "lanes %u, %s, %s%s", o->ll.lanes,
                         o->ll.hook ? "two phases" : "whole operations", o->ll.graph ? "graphs" : "calls",
                         o->ll.statistics ? ", with statistics" : ""));
    if (o->net.domain_size != 0) {
        const char *name = options_word(COMMAND_LL, "--transport", o->net.transport);
        TERN_TRY(report_note(report, "domains", "of %u ranks, between them %s%s", o->net.domain_size,
                             name[0] ? name : "auto", o->ll.rail ? "; railed" : ""));
    }
    if (o->net.queues != 0) {
        TERN_TRY(report_note(report, "queues", "%u to each rank of other domains", o->net.queues));
    }
    if (o->nic.gbps != 0 || o->nic.latency_us != 0 || o->nic.mops != 0) {
        TERN_TRY(
            report_note(report, "model",
                        "NICs of %u Gb/s and %u million messages a second, %u us one way; 0: not modelled",
                        o->nic.gbps, o->nic.mops, o->nic.latency_us));
    }
    if (o->nic.faults != NULL) {
        TERN_TRY(report_note(report, "faults", "%s", o->nic.faults));
    }
    if (o->ll.mask != NO_MASK) {
        TERN_TRY(report_note(report, "mask", "rank %u takes no part", o->ll.mask));
    }
    TERN_TRY(report_note(report, "time",
                         "device events around one operation, slowest rank, %u iterations after %u; pair: "
                         "dispatch, combine with nothing in between",
                         o->iters, o->warmup));
    TERN_TRY(
        report_note(report, "in-a-row", "many of one operation between two events, divided by their number"));
    TERN_TRY(report_note(report, "kB",
                         "of the busiest rank; remote: rows on the wire with headers; network: those of them "
                         "between domains; logical: rows of slabs"));
    TERN_TRY(report_note(report, "floor",
                         "what the remote kB would take at the wire's speed, if nothing else took time; with "
                         "a model of NICs those of the network at its rate, and its latency"));
    TERN_TRY(report_note(report, "wire %", "floor over p50: 100 would be an operation that only moves rows"));
    TERN_TRY(report_note(
        report, "skew",
        "rows of slabs: those of the rank that has most, over the mean; --skew counts rows by rank"));
    if (o->ll.statistics) {
        TERN_TRY(report_note(report, "waited",
                             "time in an operation, on average, until the last word or row of the source "
                             "that was latest had come; on the rank where that was most"));
    }
    return wire_note(report, party, wire);
}

/* Domains that are found count as those that are asked for. */
static enum tern_status find_domains(struct options *o, const struct party *party, struct report *report)
{
    uint32_t ranks;
    TERN_TRY(transport_domains(o, party, &ranks));
    if (ranks < (uint32_t)party->num_ranks) {
        o->net.domain_size = ranks;
    }
    report->left_out |= o->net.domain_size != 0 ? 0 : 1u << COL_NETWORK;
    return TERN_OK;
}

static enum tern_status run_open(struct options *o, struct report *report, struct party *party,
                                 uint32_t transport, struct tally *tally)
{
    double wire = 0;
    uint32_t sms;
    TERN_TRY(find_domains(o, party, report)); /* refused before anything is measured or printed */
    TERN_TRY(party_sms(party, o->sms, UINT32_MAX, &sms));
    TERN_TRY(about_note(report, party));
    TERN_TRY(wire_measure(party, o, &wire));
    TERN_TRY(note_settings(report, o, party, sms, wire));
    report_head(report);
    TERN_TRY(run_shapes(o, report, party, transport, wire, tally));
    return report_result(report, "elements", tally);
}

/* Every shape of the options, opened and closed: what is refused is refused before a rank is open. */
static enum tern_status try_shapes(const struct options *o, const struct party *party)
{
    for (uint32_t k = 0; k < o->tokens.num; k++) {
        struct ll_shape shape;
        TERN_TRY(ll_shape_open(&shape, o, party->num_ranks, o->tokens.values[k]));
        ll_shape_close(&shape);
    }
    return TERN_OK;
}

enum tern_status ll_run_command(const struct options *options, struct report *report, struct tally *tally)
{
    struct options o = *options;
    struct party party;
    struct carriage carriage;
    report->kind = "ll";
    report->columns = columns;
    report->num_columns = NUM_COLS;
    report->left_out = options->ll.statistics ? 0 : 1u << COL_WAITED;
    TERN_TRY(party_init(&party, &o));
    TERN_TRY(report_begin(report, party.first != 0, o.json));
    TERN_TRY(settle(&o, &party));
    TERN_TRY(try_shapes(&o, &party));
    TERN_TRY(transport_choose(&o, &party, &carriage));
    enum tern_status status = party_open(
        &party, wire_heap_bytes(party.num_ranks, wire_default_bytes(party.machine, party.num_ranks)));
    if (status == TERN_OK) {
        status = run_open(&o, report, &party, carriage.transport, tally);
        party_close(&party);
    }
    return transport_drop(&carriage, status);
}
