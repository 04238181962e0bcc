/* SPDX-License-Identifier: Apache-2.0
 *
 * The job of shrink_job.h. */
#include "shrink_job.h"

#include "ep/ep.h"
#include "pgas/pgas_nics.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 96, TOPK = 4, ROW_BYTES = 1024, SHARE = 4, ROUNDS_BEFORE = 3, MOST_ROUNDS = 1000 };
static const double slack = 8.0; /* seconds past the deadline, for a machine with other things to do */

static int take(struct job *j)
{
    static int64_t chosen[TOKENS][TOPK];
    int rank = tern_comm_rank(j->comm), experts = SHARE * j->plan->num_ranks;
    uint64_t slab_rows = (uint64_t)j->plan->num_ranks * TOKENS;
    int in_window = !j->plan->low_latency;

    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < TOPK; k++) { /* at four ranks far apart */
            chosen[t][k] = (rank + t + k * experts / TOPK) % experts;
        }
    }
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, sizeof chosen, &j->topk_idx));
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &j->tokens));
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, TOKENS * ROW_BYTES, &j->sums));
    OK(tern_alloc(j->comm, in_window ? TERN_MEMORY_WINDOW : TERN_MEMORY_DEVICE,
                  (in_window ? j->max_rows : SHARE * slab_rows) * ROW_BYTES, &j->rows));
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, TOKENS * TOPK * sizeof(float), (void **)&j->weights));
    OK(tern_alloc(j->comm, TERN_MEMORY_DEVICE, SHARE * sizeof(int32_t), (void **)&j->counts));
    OK(tern_copy(j->comm, j->topk_idx, chosen, sizeof chosen, j->stream));
    OK(tern_fill(j->comm, j->tokens, 0x3f, TOKENS * ROW_BYTES, j->stream));
    OK(tern_fill(j->comm, j->weights, 0x3f, TOKENS * TOPK * sizeof(float), j->stream));
    OK(tern_stream_synchronize(j->comm, j->stream));
    return 0;
}

static struct tern_route_args ids_of(const struct job *j)
{
    struct tern_route_args ids = TERN_ROUTE_ARGS_INIT;

    ids.topk_idx = j->topk_idx;
    ids.num_tokens = TOKENS;
    ids.topk = TOPK;
    return ids;
}

int job_open(struct job *j, const struct job_plan *plan, const struct tern_id *id, int rank)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config ep = TERN_EP_CONFIG_INIT;
    struct tern_route_args ids;

    memset(j, 0, sizeof *j);
    j->plan = plan;
    ep.num_experts = SHARE * (uint32_t)plan->num_ranks;
    ep.max_topk = TOPK;
    ep.num_sms = plan->num_sms;
    ep.domain_ranks = plan->domain_ranks;
    ep.transport = plan->transport;
    if (plan->low_latency) {
        ep.ll_tokens = TOKENS;
        ep.ll_hidden = ROW_BYTES / 2;
    } else {
        ep.max_tokens = TOKENS;
        ep.max_row_bytes = ROW_BYTES;
        OK(tern_ep_max_rows(&ep, plan->num_ranks, TERN_LAYOUT_RANK, 1, &j->max_rows));
    }
    config.machine = TERN_MACHINE_CPU;
    config.timeout_ms = plan->deadline_ms;
    config.heap_bytes = j->max_rows * ROW_BYTES + 65536;
    OK(tern_comm_open(id, rank, plan->num_ranks, &config, &j->comm));
    OK(tern_stream_open(j->comm, &j->stream));
    PASS(take(j));
    OK(tern_ep_open(j->comm, &ep, &j->ep));
    if (!plan->low_latency) {
        ids = ids_of(j);
        OK(tern_route_open(j->ep, &ids, j->stream, &j->route));
    }
    return 0;
}

static enum tern_status issue_low_latency(struct job *j)
{
    enum tern_status status;
    struct tern_ll_dispatch_args dispatch = TERN_LL_DISPATCH_ARGS_INIT;
    struct tern_ll_combine_args combine = TERN_LL_COMBINE_ARGS_INIT;

    dispatch.in = j->tokens;
    dispatch.topk_idx = j->topk_idx;
    dispatch.num_tokens = TOKENS;
    dispatch.topk = TOPK;
    dispatch.hidden = ROW_BYTES / 2;
    dispatch.out = j->rows;
    dispatch.out_counts = j->counts;
    status = tern_ll_dispatch(j->ep, &dispatch, j->stream);
    combine.in = j->rows;
    combine.topk_weights = j->weights;
    combine.out = j->sums;
    return status != TERN_OK ? status : tern_ll_combine(j->ep, &combine, j->stream);
}

/* A call may know already that an operation before it has failed. */
static enum tern_status issue(struct job *j)
{
    enum tern_status status;
    struct tern_route_args ids = ids_of(j);
    struct tern_dispatch_args dispatch = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args combine = TERN_COMBINE_ARGS_INIT;
    struct tern_rows tokens = {0}, rows;

    if (j->plan->low_latency) {
        return issue_low_latency(j);
    }
    tokens.row_bytes = ROW_BYTES;
    rows = tokens;
    tokens.data = j->tokens;
    rows.data = j->rows;
    dispatch.in = &tokens;
    dispatch.num_in = 1;
    dispatch.out = &rows;
    dispatch.out_rows = j->max_rows;
    combine.in = rows;
    combine.in_rows = j->max_rows;
    combine.out = tokens;
    combine.out.data = j->sums;
    status = tern_route_update(j->route, &ids, j->stream);
    status = status != TERN_OK ? status : tern_dispatch(j->route, &dispatch, j->stream);
    return status != TERN_OK ? status : tern_combine(j->route, &combine, j->stream);
}

int job_run(struct job *j, int *blamed)
{
    int rank = tern_comm_rank(j->comm), round = 0;
    enum tern_status status = TERN_OK;
    struct tern_fault f = TERN_FAULT_INIT;
    double begin = 0, took = 0, most = j->plan->deadline_ms * 1.25e-3 + slack;

    for (; status == TERN_OK && round < MOST_ROUNDS; round++) {
        int is_last = rank == j->plan->victim && round == ROUNDS_BEFORE;
        begin = test_seconds();
        if (is_last && j->plan->fate == 0) {
            raise(SIGKILL);
        }
        status = issue(j);
        if (is_last) {
            usleep((unsigned)(took * 1e6 * j->plan->fate / 8));
            raise(SIGKILL);
        }
        status = status != TERN_OK ? status : tern_ep_synchronize(j->ep);
        took = test_seconds() - begin;
    }
    /* What the victim sent last may still have been on its way. */
    CHECK(round >= ROUNDS_BEFORE, "rank %d failed in round %d: %s", rank, round, tern_last_error());
    CHECK(status == TERN_TIMEOUT || status == TERN_DISCONNECTED, "rank %d: %s: %s", rank,
          tern_status_string(status), tern_last_error());
    CHECK(test_seconds() - begin < most, "rank %d: it took %.1f s", rank, test_seconds() - begin);
    OK(tern_fault_get(j->ep, &f));
    /* Who waits for one that waits for the victim may lose patience first; then that one hears of itself. */
    CHECK(f.rank == rank && f.peer >= 0 && f.peer != f.reporter,
          "rank %d: a record of rank %d about rank %d by rank %d", rank, f.rank, f.peer, f.reporter);
    *blamed = f.peer;
    return 0;
}

int job_packets(const struct job *j, uint64_t *packets)
{
    struct softnic_traffic traffic;

    OK(terni_pgas_nics_traffic(j->ep->network, &traffic));
    *packets = traffic.sent;
    return 0;
}

void job_close(struct job *j)
{
    if (j->route) {
        tern_route_close(j->route);
    }
    tern_ep_close(j->ep);
    tern_stream_close(j->comm, j->stream);
}
