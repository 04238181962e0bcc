/* SPDX-License-Identifier: Apache-2.0
 *
 * See ep_drain.h. All ranks of such an object say when phases are over, as no rank knows whose outputs are in
 * windows; blocks that drain there are only where outputs are in none. */
#include "ep/ep_drain.h"
#include "kernels/kernels.h"

/* Tokens of a phase, at least; phases of all peers together: each takes a drainer some microseconds. */
enum { DRAIN_TOKENS = 32, CPU_DRAIN_TOKENS = 3, DRAIN_MOST = 128, DRAIN_MOST_SLICES = 1024 };

enum tern_status terni_drain_check(const struct tern_ep *ep)
{
    struct drain_geometry x;
    if (!ep->shape.dispatch_drain) {
        return TERN_OK;
    }
    TERN_TRY(terni_ep_check_roles(ep, "dispatch_drain", DRAIN_FEWEST_BLOCKS));
    return terni_tuning_drain(&ep->machine->info, 0, terni_longest_stage(&ep->shape),
                              terni_place_table(&ep->shape, EP_MAX_COLUMNS), ep->shape.num_ranks,
                              DRAIN_FEWEST_BLOCKS, &x);
}

int terni_drain_is(const struct tern_route *route)
{
    return route->ep->shape.dispatch_drain && route->layout == TERN_LAYOUT_RANK;
}

/* Tokens of a phase: as many phases as there may be, of tokens enough. */
static uint32_t phase_of(const struct tern_ep *ep, uint32_t num_tokens)
{
    uint32_t least = ep->machine->info.kind == TERN_MACHINE_CPU ? CPU_DRAIN_TOKENS : DRAIN_TOKENS;
    uint32_t peers = ep->shape.num_ranks - 1, most = DRAIN_MOST / (peers ? peers : 1);
    most = most < 2 ? 2 : most < DRAIN_PHASES ? most : DRAIN_PHASES;
    uint32_t share = (num_tokens + most - 1) / most;
    return share > least ? share : least;
}

/* Of a peer's phase, which has a row of each of its tokens at most; the peer may have as many as any. */
static uint32_t slices_of(const struct tern_ep *ep, const struct copy_args *copies, uint32_t slice_bytes)
{
    uint64_t row_bytes = 0, slices;
    for (uint32_t c = 0; c < copies->num_columns; c++) {
        row_bytes += copies->columns[c].row_bytes;
    }
    slices = row_bytes * phase_of(ep, ep->shape.max_tokens) / slice_bytes;
    return slices < 1 ? 1 : slices < DRAIN_MOST_SLICES ? (uint32_t)slices : DRAIN_MOST_SLICES;
}

enum tern_status terni_drain_launch(struct tern_route *route, uint32_t num_sms, const struct staging *staging,
                                    struct dispatch_drain_args *k, struct tern_stream *stream)
{
    struct tern_ep *ep = route->ep;
    uint32_t table = terni_place_table(&ep->shape, EP_COL_PAYLOADS + k->d.num_out);
    int blocks = terni_tuning_blocks(num_sms, ep->shape.num_sms, tern_comm_num_sms(ep->comm));
    struct drain_geometry x;
    blocks = blocks < DRAIN_FEWEST_BLOCKS ? DRAIN_FEWEST_BLOCKS : blocks;
    k->d.stage_bytes = (uint32_t)align_up(k->d.stage_bytes, 128);
    TERN_TRY(terni_tuning_drain(&ep->machine->info, k->d.cast != TERN_CAST_NONE, k->d.stage_bytes, table,
                                ep->shape.num_ranks, staging->copies.num_columns > 0 ? blocks : 0, &x));
    k->phase_tokens = phase_of(ep, k->d.num_tokens);
    k->num_phases = k->d.num_tokens ? (k->d.num_tokens + k->phase_tokens - 1) / k->phase_tokens : 1;
    k->copies = staging->copies;
    k->words_offset = ep->layout.drained;
    k->ends_offset = ep->layout.ends;
    k->num_blocks = (uint32_t)blocks - x.drain_blocks;
    k->counters_offset = x.counters_offset;
    k->num_drainers = x.num_drainers;
    k->warp_bytes = x.warp_bytes;
    k->num_stages = x.num_stages;
    k->ring_bytes = x.ring_bytes;
    k->helpers = k->copies.num_columns > 0 ? x.helpers : 0;
    k->help_bytes = x.help_bytes;
    k->help_stages = x.help_stages;
    k->num_slices = slices_of(ep, &k->copies, x.slice_bytes);
    k->d.num_stages = x.all.num_stages;
    k->d.table_bytes = x.all.table_bytes;
    k->d.num_senders = x.num_senders;
    k->d.f.message.num_blocks = k->num_blocks; /* peers wait for those that send */
    const struct launch l = {
        TERN_KERNEL_dispatch_drain_bulk, blocks, x.all.num_threads, x.all.shared_bytes, k, sizeof(*k)};
    return terni_ep_launch(ep, &l, k->d.f.ticket, stream);
}
