/* SPDX-License-Identifier: Apache-2.0
 *
 * The main job: eight ranks dispatch the tokens of a real router (data/) to their experts and combine the
 * results; every element is compared with the reference. A balanced and a skewed layer, both output layouts,
 * and the cast to FP8 on the way. With GPUs the shape is a large model's; without, it is small enough for
 * seconds. */
#include "demo.h"
#include "about.h"
#include "bench_ep.h"
#include "wire.h"

#include <stdio.h>
#include <string.h>

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

static enum tern_status settle_parts(struct demo *d, const struct options *options)
{
    const char *folder = options->data != NULL ? options->data : "data";
    int cpu = d->party.machine == TERN_MACHINE_CPU, i;
    snprintf(d->ids, PATH_BYTES, "%s/routing_topk_idx.npy", folder);
    snprintf(d->weights, PATH_BYTES, "%s/routing_topk_weights.npy", folder);
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
        TERN_TRY(ep_settle(o, &d->party));
    }
    return TERN_OK;
}

static enum tern_status run_parts(struct demo *d, struct report *report, uint64_t *num_wrong)
{
    double wire = 0;
    int i;
    TERN_TRY(about_note(report, &d->party));
    TERN_TRY(report_note(report, "routing", "%s, layers 0 (balanced) and 1 (skewed)", d->ids));
    TERN_TRY(wire_measure(&d->party, d->options[0].seed, &wire));
    TERN_TRY(report_note(report, "wire", "%.3f GB/s a rank, best all-to-all of this run", wire));
    TERN_TRY(report_note(report, "#wrong", "elements that differ from the reference, bit for bit"));
    report_head(report);
    for (i = 0; i < (int)NUM_PARTS; i++) {
        TERN_TRY(ep_rows(&d->options[i], report, &d->party, wire, num_wrong));
    }
    TERN_TRY(report_note(report, "result", "%llu wrong", (unsigned long long)*num_wrong));
    return TERN_OK;
}

enum tern_status demo_run(const struct options *options, struct report *report, uint64_t *num_wrong)
{
    struct demo d;
    uint64_t most, bytes = 0;
    enum tern_status status;
    int i;
    memset(&d, 0, sizeof(d));
    report->kind = "demo";
    ep_columns(report);
    TERN_TRY(party_init(&d.party, options));
    report->quiet = d.party.first != 0;
    TERN_TRY(settle_parts(&d, options));
    most = wire_heap_bytes(d.party.num_ranks, wire_default_bytes(d.party.machine, d.party.num_ranks, 1));
    for (i = 0; i < (int)NUM_PARTS; i++) {
        TERN_TRY(ep_heap_bytes(&d.options[i], &d.party, &bytes));
        most = bytes > most ? bytes : most;
    }
    TERN_TRY(party_open(&d.party, most));
    status = run_parts(&d, report, num_wrong);
    party_close(&d.party);
    return status;
}
