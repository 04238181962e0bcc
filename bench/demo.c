/* SPDX-License-Identifier: Apache-2.0
 *
 * The main job: eight ranks dispatch the tokens of a real router (data/) to their experts and combine the
 * results; every element is compared with the reference. Two layers, both output layouts,
 * and the cast to FP8 on the way. With GPUs the shape is a large model's; without, it is small enough for
 * seconds. */
#include "demo.h"
#include "about.h"
#include "bench_ep.h"
#include "wire.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const struct part {
    uint32_t layer, layout, dtype;
} parts[] = {
    {0, TERN_LAYOUT_RANK, DTYPE_BF16},   {1, TERN_LAYOUT_RANK, DTYPE_BF16},
    {0, TERN_LAYOUT_EXPERT, DTYPE_BF16}, {1, TERN_LAYOUT_EXPERT, DTYPE_BF16},
    {1, TERN_LAYOUT_RANK, DTYPE_CAST},   {1, TERN_LAYOUT_EXPERT, DTYPE_CAST},
};
enum { NUM_PARTS = sizeof(parts) / sizeof(parts[0]) };

struct demo {
    struct party party;
    struct options options[NUM_PARTS];
    char ids[PATH_BYTES], weights[PATH_BYTES];
};

/* Whether the routing files are there; their paths. */
static int look_in(struct demo *d, const char *folder)
{
    snprintf(d->ids, PATH_BYTES, "%s/routing_topk_idx.npy", folder);
    snprintf(d->weights, PATH_BYTES, "%s/routing_topk_weights.npy", folder);
    return access(d->ids, R_OK) == 0 && access(d->weights, R_OK) == 0;
}

/* The folder that was asked for; else "data" here, as in a source tree; else where `make install` put it,
 * which is found from the program, so that an installed tree can be moved. */
static enum tern_status find_data(struct demo *d, const char *asked)
{
    char path[PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);
    if (look_in(d, asked != NULL ? asked : "data")) {
        return TERN_OK;
    }
    if (asked == NULL && length > 0) {
        path[length] = 0;
        snprintf(strrchr(path, '/'), 64, "/../share/tern/data");
        if (look_in(d, path)) {
            return TERN_OK;
        }
        look_in(d, "data"); /* the name that is told */
    }
    return TERN_FAIL(TERN_SYSTEM_ERROR,
                     "cannot read %s and the file of weights beside it; --data DIR names their folder",
                     d->ids);
}

static enum tern_status settle_parts(struct demo *d, const struct options *options)
{
    int cpu = d->party.machine == TERN_MACHINE_CPU, i;
    TERN_TRY(find_data(d, options->data));
    for (i = 0; i < (int)NUM_PARTS; i++) {
        struct options *o = &d->options[i];
        *o = *options;
        o->routing = d->ids;
        o->weights = d->weights;
        o->layer = parts[i].layer;
        o->layout = parts[i].layout;
        o->dtype = parts[i].dtype;
        o->tokens.num = 1;
        o->tokens.values[0] = cpu ? 128 : 4096;
        o->hidden = cpu ? 1024 : 7168;
        o->iters = o->iters != 0 ? o->iters : cpu ? 2 : 20;
        o->align = o->layout == TERN_LAYOUT_RANK ? 1 : cpu ? 8 : 128;
        o->meta = 1;
        o->check = 1;
        o->net.transport = NOT_CHOSEN;
        TERN_TRY(ep_settle(o, &d->party));
    }
    return TERN_OK;
}

static enum tern_status run_parts(struct demo *d, struct report *report, struct tally *tally)
{
    double wire = 0;
    uint32_t sms;
    int i;
    TERN_TRY(ep_sms(&d->options[0], &d->party, &sms)); /* refused before anything is measured or printed */
    TERN_TRY(about_note(report, &d->party));
    TERN_TRY(report_note(report, "routing", "layers 0 and 1, %s", d->ids));
    TERN_TRY(wire_measure(&d->party, &d->options[0], &wire));
    TERN_TRY(wire_note(report, &d->party, wire));
    TERN_TRY(report_note(report, "#wrong", "elements that differ from the reference, bit for bit"));
    report_head(report);
    for (i = 0; i < (int)NUM_PARTS; i++) {
        TERN_TRY(ep_rows(&d->options[i], report, &d->party, wire, tally));
    }
    return report_result(report, "elements", tally);
}

enum tern_status demo_run(const struct options *options, struct report *report, struct tally *tally)
{
    struct demo d;
    uint64_t most, bytes = 0;
    enum tern_status status;
    int i;
    memset(&d, 0, sizeof(d));
    report->kind = "demo";
    ep_columns(report);
    TERN_TRY(party_init(&d.party, options));
    TERN_TRY(report_begin(report, d.party.first != 0, options->json));
    TERN_TRY(settle_parts(&d, options));
    most = wire_heap_bytes(d.party.num_ranks, wire_default_bytes(d.party.machine, d.party.num_ranks));
    for (i = 0; i < (int)NUM_PARTS; i++) {
        TERN_TRY(ep_heap_bytes(&d.options[i], &d.party, &bytes));
        most = bytes > most ? bytes : most;
    }
    TERN_TRY(party_open(&d.party, most));
    status = run_parts(&d, report, tally);
    party_close(&d.party);
    return status;
}
