/* SPDX-License-Identifier: Apache-2.0
 *
 * The binary interface of release 0.1, frozen: sizes and offsets of every public structure on 64-bit Linux,
 * values of every public constant. A program compiled against an old header must work with a new library, so
 * entries here never change; a structure that grows gets entries for its new fields and a new size. That no
 * padding is unnamed makes a field which was forgotten here fail, too. */
#include "support.h"

#include <string.h>

struct entry {
    const char *structure, *field; /* no field: the whole */
    size_t offset, bytes, frozen_offset, frozen_bytes;
};

#define WHOLE(s, frozen_size)                                                                                \
    {                                                                                                        \
#s, NULL, 0, sizeof(struct s), 0, (frozen_size)                                                      \
    }
#define FIELD(s, f, frozen_offset, frozen_size)                                                              \
    {                                                                                                        \
#s, #f, offsetof(struct s, f), sizeof(((struct s *)0)->f), (frozen_offset), (frozen_size)            \
    }

static const struct entry entries[] = {
    WHOLE(tern_id, 128),
    FIELD(tern_id, bytes, 0, 128),
    WHOLE(tern_comm_config, 48),
    FIELD(tern_comm_config, size, 0, 8),
    FIELD(tern_comm_config, machine, 8, 4),
    FIELD(tern_comm_config, device, 12, 4),
    FIELD(tern_comm_config, heap_bytes, 16, 8),
    FIELD(tern_comm_config, timeout_ms, 24, 4),
    FIELD(tern_comm_config, reserved, 28, 4),
    FIELD(tern_comm_config, cpu_seed, 32, 8),
    FIELD(tern_comm_config, heap_max_bytes, 40, 8),
    WHOLE(tern_shrink_args, 32),
    FIELD(tern_shrink_args, size, 0, 8),
    FIELD(tern_shrink_args, config, 8, 8),
    FIELD(tern_shrink_args, timeout_ms, 16, 4),
    FIELD(tern_shrink_args, min_ranks, 20, 4),
    FIELD(tern_shrink_args, whole_domains, 24, 4),
    FIELD(tern_shrink_args, reserved, 28, 4),
    WHOLE(tern_ep_config, 104),
    FIELD(tern_ep_config, size, 0, 8),
    FIELD(tern_ep_config, num_experts, 8, 4),
    FIELD(tern_ep_config, max_topk, 12, 4),
    FIELD(tern_ep_config, max_tokens, 16, 4),
    FIELD(tern_ep_config, max_row_bytes, 20, 4),
    FIELD(tern_ep_config, max_routes, 24, 4),
    FIELD(tern_ep_config, num_sms, 28, 4),
    FIELD(tern_ep_config, timeout_ms, 32, 4),
    FIELD(tern_ep_config, transfer, 36, 4),
    FIELD(tern_ep_config, staging_bytes, 40, 8),
    FIELD(tern_ep_config, copy_engine, 48, 4),
    FIELD(tern_ep_config, ll_tokens, 52, 4),
    FIELD(tern_ep_config, ll_hidden, 56, 4),
    FIELD(tern_ep_config, ll_lanes, 60, 4),
    FIELD(tern_ep_config, ll_mask, 64, 4),
    FIELD(tern_ep_config, domain_ranks, 68, 4),
    FIELD(tern_ep_config, transport, 72, 4),
    FIELD(tern_ep_config, net_queues, 76, 4),
    FIELD(tern_ep_config, net_ring_bytes, 80, 8),
    FIELD(tern_ep_config, ll_rail, 88, 4),
    FIELD(tern_ep_config, combine_push, 92, 4),
    FIELD(tern_ep_config, dispatch_drain, 96, 4),
    FIELD(tern_ep_config, reserved, 100, 4),
    WHOLE(tern_ep_sizes, 56),
    FIELD(tern_ep_sizes, size, 0, 8),
    FIELD(tern_ep_sizes, window_bytes, 8, 8),
    FIELD(tern_ep_sizes, device_bytes, 16, 8),
    FIELD(tern_ep_sizes, host_bytes, 24, 8),
    FIELD(tern_ep_sizes, staging_bytes, 32, 8),
    FIELD(tern_ep_sizes, max_rows, 40, 8),
    FIELD(tern_ep_sizes, net_bytes, 48, 8),
    WHOLE(tern_fault, 96),
    FIELD(tern_fault, size, 0, 8),
    FIELD(tern_fault, status, 8, 4),
    FIELD(tern_fault, operation, 12, 4),
    FIELD(tern_fault, awaited, 16, 4),
    FIELD(tern_fault, rank, 20, 4),
    FIELD(tern_fault, peer, 24, 4),
    FIELD(tern_fault, reporter, 28, 4),
    FIELD(tern_fault, block, 32, 4),
    FIELD(tern_fault, warp, 36, 4),
    FIELD(tern_fault, epoch, 40, 8),
    FIELD(tern_fault, expected, 48, 8),
    FIELD(tern_fault, seen, 56, 8),
    FIELD(tern_fault, elapsed_ns, 64, 8),
    FIELD(tern_fault, late, 72, 16),
    FIELD(tern_fault, topk, 88, 4),
    FIELD(tern_fault, num_experts, 92, 4),
    WHOLE(tern_route_args, 56),
    FIELD(tern_route_args, size, 0, 8),
    FIELD(tern_route_args, topk_idx, 8, 8),
    FIELD(tern_route_args, idx_bytes, 16, 4),
    FIELD(tern_route_args, num_tokens, 20, 4),
    FIELD(tern_route_args, topk, 24, 4),
    FIELD(tern_route_args, layout, 28, 4),
    FIELD(tern_route_args, expert_alignment, 32, 4),
    FIELD(tern_route_args, reserved, 36, 4),
    FIELD(tern_route_args, after, 40, 8),
    FIELD(tern_route_args, record, 48, 8),
    WHOLE(tern_route_counts, 48),
    FIELD(tern_route_counts, size, 0, 8),
    FIELD(tern_route_counts, num_rows, 8, 8),
    FIELD(tern_route_counts, num_tokens, 16, 8),
    FIELD(tern_route_counts, rank_counts, 24, 8),
    FIELD(tern_route_counts, expert_counts, 32, 8),
    FIELD(tern_route_counts, expert_offsets, 40, 8),
    WHOLE(tern_route_view, 64),
    FIELD(tern_route_view, size, 0, 8),
    FIELD(tern_route_view, num_rows, 8, 8),
    FIELD(tern_route_view, rank_offsets, 16, 8),
    FIELD(tern_route_view, expert_counts, 24, 8),
    FIELD(tern_route_view, expert_offsets, 32, 8),
    FIELD(tern_route_view, token_rows, 40, 8),
    FIELD(tern_route_view, bases, 48, 8),
    FIELD(tern_route_view, overflow, 56, 8),
    WHOLE(tern_rows, 32),
    FIELD(tern_rows, data, 0, 8),
    FIELD(tern_rows, row_bytes, 8, 4),
    FIELD(tern_rows, elem_bytes, 12, 4),
    FIELD(tern_rows, row_stride, 16, 8),
    FIELD(tern_rows, elem_stride, 24, 8),
    WHOLE(tern_dispatch_args, 96),
    FIELD(tern_dispatch_args, size, 0, 8),
    FIELD(tern_dispatch_args, in, 8, 8),
    FIELD(tern_dispatch_args, out, 16, 8),
    FIELD(tern_dispatch_args, num_in, 24, 4),
    FIELD(tern_dispatch_args, cast, 28, 4),
    FIELD(tern_dispatch_args, out_rows, 32, 8),
    FIELD(tern_dispatch_args, topk_weights, 40, 8),
    FIELD(tern_dispatch_args, out_topk_idx, 48, 8),
    FIELD(tern_dispatch_args, out_topk_weights, 56, 8),
    FIELD(tern_dispatch_args, out_source, 64, 8),
    FIELD(tern_dispatch_args, zero_padding, 72, 4),
    FIELD(tern_dispatch_args, num_sms, 76, 4),
    FIELD(tern_dispatch_args, after, 80, 8),
    FIELD(tern_dispatch_args, record, 88, 8),
    WHOLE(tern_combine_args, 136),
    FIELD(tern_combine_args, size, 0, 8),
    FIELD(tern_combine_args, in, 8, 32),
    FIELD(tern_combine_args, in_rows, 40, 8),
    FIELD(tern_combine_args, in_weights, 48, 8),
    FIELD(tern_combine_args, out, 56, 32),
    FIELD(tern_combine_args, out_weights, 88, 8),
    FIELD(tern_combine_args, bias, 96, 16),
    FIELD(tern_combine_args, num_sms, 112, 4),
    FIELD(tern_combine_args, copy_engine, 116, 4),
    FIELD(tern_combine_args, after, 120, 8),
    FIELD(tern_combine_args, record, 128, 8),
    WHOLE(tern_ll_dispatch_args, 176),
    FIELD(tern_ll_dispatch_args, size, 0, 8),
    FIELD(tern_ll_dispatch_args, lane, 8, 4),
    FIELD(tern_ll_dispatch_args, phase, 12, 4),
    FIELD(tern_ll_dispatch_args, in, 16, 8),
    FIELD(tern_ll_dispatch_args, in_stride, 24, 8),
    FIELD(tern_ll_dispatch_args, topk_idx, 32, 8),
    FIELD(tern_ll_dispatch_args, topk_weights, 40, 8),
    FIELD(tern_ll_dispatch_args, idx_bytes, 48, 4),
    FIELD(tern_ll_dispatch_args, num_tokens, 52, 4),
    FIELD(tern_ll_dispatch_args, topk, 56, 4),
    FIELD(tern_ll_dispatch_args, max_tokens, 60, 4),
    FIELD(tern_ll_dispatch_args, hidden, 64, 4),
    FIELD(tern_ll_dispatch_args, cast, 68, 4),
    FIELD(tern_ll_dispatch_args, weights, 72, 4),
    FIELD(tern_ll_dispatch_args, num_sms, 76, 4),
    FIELD(tern_ll_dispatch_args, out, 80, 8),
    FIELD(tern_ll_dispatch_args, out_scales, 88, 8),
    FIELD(tern_ll_dispatch_args, out_counts, 96, 8),
    FIELD(tern_ll_dispatch_args, out_ranges, 104, 8),
    FIELD(tern_ll_dispatch_args, out_source, 112, 8),
    FIELD(tern_ll_dispatch_args, after, 120, 8),
    FIELD(tern_ll_dispatch_args, record, 128, 8),
    FIELD(tern_ll_dispatch_args, layout, 136, 4),
    FIELD(tern_ll_dispatch_args, reserved, 140, 4),
    FIELD(tern_ll_dispatch_args, out_topk_idx, 144, 8),
    FIELD(tern_ll_dispatch_args, out_topk_weights, 152, 8),
    FIELD(tern_ll_dispatch_args, sum_counts, 160, 8),
    FIELD(tern_ll_dispatch_args, wait_ns, 168, 8),
    WHOLE(tern_ll_combine_args, 80),
    FIELD(tern_ll_combine_args, size, 0, 8),
    FIELD(tern_ll_combine_args, lane, 8, 4),
    FIELD(tern_ll_combine_args, phase, 12, 4),
    FIELD(tern_ll_combine_args, in, 16, 8),
    FIELD(tern_ll_combine_args, topk_weights, 24, 8),
    FIELD(tern_ll_combine_args, out, 32, 8),
    FIELD(tern_ll_combine_args, out_stride, 40, 8),
    FIELD(tern_ll_combine_args, num_sms, 48, 4),
    FIELD(tern_ll_combine_args, compression, 52, 4),
    FIELD(tern_ll_combine_args, after, 56, 8),
    FIELD(tern_ll_combine_args, record, 64, 8),
    FIELD(tern_ll_combine_args, wait_ns, 72, 8),
    WHOLE(tern_net_config, 32),
    FIELD(tern_net_config, size, 0, 8),
    FIELD(tern_net_config, num_queues, 8, 4),
    FIELD(tern_net_config, num_teams, 12, 4),
    FIELD(tern_net_config, timeout_ms, 16, 4),
    FIELD(tern_net_config, transport, 20, 4),
    FIELD(tern_net_config, num_nics, 24, 4),
    FIELD(tern_net_config, reserved, 28, 4),
    WHOLE(tern_net_window, 24),
    FIELD(tern_net_window, own, 0, 8),
    FIELD(tern_net_window, bytes, 8, 8),
    FIELD(tern_net_window, bases, 16, 8),
    WHOLE(tern_net_record, 88),
    FIELD(tern_net_record, written, 0, 8),
    FIELD(tern_net_record, fault, 8, 4),
    FIELD(tern_net_record, status, 12, 4),
    FIELD(tern_net_record, peer, 16, 4),
    FIELD(tern_net_record, width, 20, 4),
    FIELD(tern_net_record, compare, 24, 4),
    FIELD(tern_net_record, num_ranks, 28, 4),
    FIELD(tern_net_record, block, 32, 4),
    FIELD(tern_net_record, warp, 36, 4),
    FIELD(tern_net_record, word, 40, 8),
    FIELD(tern_net_record, expected, 48, 8),
    FIELD(tern_net_record, seen, 56, 8),
    FIELD(tern_net_record, elapsed_ns, 64, 8),
    FIELD(tern_net_record, late, 72, 16),
    WHOLE(tern_net, 184),
    FIELD(tern_net, size, 0, 8),
    FIELD(tern_net, rank, 8, 4),
    FIELD(tern_net, num_ranks, 12, 4),
    FIELD(tern_net, num_queues, 16, 4),
    FIELD(tern_net, num_windows, 20, 4),
    FIELD(tern_net, timeout_ns, 24, 8),
    FIELD(tern_net, heap, 32, 24),
    FIELD(tern_net, windows, 56, 8),
    FIELD(tern_net, routes, 64, 8),
    FIELD(tern_net, abort_word, 72, 8),
    FIELD(tern_net, record, 80, 8),
    FIELD(tern_net, claim, 88, 8),
    FIELD(tern_net, rings, 96, 8),
    FIELD(tern_net, queues, 104, 8),
    FIELD(tern_net, near_bases, 112, 64),
    FIELD(tern_net, first_near, 176, 4),
    FIELD(tern_net, reserved, 180, 4),
    WHOLE(tern_net_team, 40),
    FIELD(tern_net_team, size, 0, 8),
    FIELD(tern_net_team, rank, 8, 4),
    FIELD(tern_net_team, num_ranks, 12, 4),
    FIELD(tern_net_team, members, 16, 8),
    FIELD(tern_net_team, words, 24, 8),
    FIELD(tern_net_team, round, 32, 8),
    WHOLE(tern_kernel, 24),
    FIELD(tern_kernel, name, 0, 8),
    FIELD(tern_kernel, cpu, 8, 8),
    FIELD(tern_kernel, cuda, 16, 8),
    WHOLE(tern_launch_args, 32),
    FIELD(tern_launch_args, size, 0, 8),
    FIELD(tern_launch_args, num_blocks, 8, 4),
    FIELD(tern_launch_args, num_threads, 12, 4),
    FIELD(tern_launch_args, args, 16, 8),
    FIELD(tern_launch_args, args_bytes, 24, 4),
    FIELD(tern_launch_args, shared_bytes, 28, 4),
};
enum { NUM_ENTRIES = sizeof(entries) / sizeof(entries[0]) };

struct constant {
    const char *name;
    long long value, frozen;
};

#define VALUE(name, frozen)                                                                                  \
    {                                                                                                        \
#name, (long long)(name), (frozen)                                                                   \
    }

static const struct constant constants[] = {
    VALUE(TERN_OK, 0),
    VALUE(TERN_INVALID_ARGUMENT, -1),
    VALUE(TERN_UNSUPPORTED, -2),
    VALUE(TERN_OUT_OF_MEMORY, -3),
    VALUE(TERN_NO_SPACE, -4),
    VALUE(TERN_BAD_STATE, -5),
    VALUE(TERN_SYSTEM_ERROR, -6),
    VALUE(TERN_MISMATCH, -10),
    VALUE(TERN_TIMEOUT, -11),
    VALUE(TERN_DISCONNECTED, -12),
    VALUE(TERN_DEVICE_ERROR, -20),
    VALUE(TERN_INTERNAL_ERROR, -21),
    VALUE(TERN_RECOVER_NOTHING, 0),
    VALUE(TERN_RECOVER_CALL, 1),
    VALUE(TERN_RECOVER_GROUP, 2),
    VALUE(TERN_RECOVER_PROCESS, 3),
    VALUE(TERN_LOG_ERROR, 0),
    VALUE(TERN_LOG_WARN, 1),
    VALUE(TERN_LOG_INFO, 2),
    VALUE(TERN_LOG_TRACE, 3),
    VALUE(TERN_MACHINE_AUTO, 0),
    VALUE(TERN_MACHINE_CPU, 1),
    VALUE(TERN_MACHINE_CUDA, 2),
    VALUE(TERN_MEMORY_WINDOW, 0),
    VALUE(TERN_MEMORY_DEVICE, 1),
    VALUE(TERN_MEMORY_HOST, 2),
    VALUE(TERN_TEAM_WORLD, 0),
    VALUE(TERN_TEAM_DOMAIN, 1),
    VALUE(TERN_TEAM_NODE, 2),
    VALUE(TERN_TEAM_RAIL, 3),
    VALUE(TERN_MAX_RANKS, 128),
    VALUE(TERN_MAX_TOPK, 64),
    VALUE(TERN_MAX_PAYLOADS, 8),
    VALUE(TERN_FP8_BLOCK, 128),
    VALUE(TERN_TRANSFER_AUTO, 0),
    VALUE(TERN_TRANSFER_BULK, 1),
    VALUE(TERN_TRANSFER_PLAIN, 2),
    VALUE(TERN_OP_NONE, 0),
    VALUE(TERN_OP_ROUTE, 1),
    VALUE(TERN_OP_DISPATCH, 2),
    VALUE(TERN_OP_COMBINE, 3),
    VALUE(TERN_OP_LL_DISPATCH, 4),
    VALUE(TERN_OP_LL_COMBINE, 5),
    VALUE(TERN_LL_BOTH, 0),
    VALUE(TERN_LL_SEND, 1),
    VALUE(TERN_LL_RECEIVE, 2),
    VALUE(TERN_LL_WEIGHTS_AT_COMBINE, 0),
    VALUE(TERN_LL_WEIGHTS_AT_DISPATCH, 1),
    VALUE(TERN_LL_WEIGHTS_AHEAD, 2),
    VALUE(TERN_AWAIT_NOTHING, 0),
    VALUE(TERN_AWAIT_READY, 1),
    VALUE(TERN_AWAIT_DONE, 2),
    VALUE(TERN_AWAIT_MATCH, 3),
    VALUE(TERN_AWAIT_EXPERT_ID, 4),
    VALUE(TERN_AWAIT_WEIGHTS, 5),
    VALUE(TERN_AWAIT_ROWS, 6),
    VALUE(TERN_AWAIT_COUNTS, 7),
    VALUE(TERN_AWAIT_BLOCK, 8),
    VALUE(TERN_AWAIT_CREDIT, 9),
    VALUE(TERN_AWAIT_CHUNK, 10),
    VALUE(TERN_AWAIT_TRANSPORT, 11),
    VALUE(TERN_LAYOUT_RANK, 0),
    VALUE(TERN_LAYOUT_EXPERT, 1),
    VALUE(TERN_CAST_NONE, 0),
    VALUE(TERN_CAST_FP8, 1),
    VALUE(TERN_CAST_FP8_POW2, 2),
    VALUE(TERN_CAST_FP8_UE8M0, 3),
    VALUE(TERN_TRANSPORT_AUTO, 0),
    VALUE(TERN_TRANSPORT_P2P, 1),
    VALUE(TERN_AMO_ADD, 0),
    VALUE(TERN_AMO_AND, 1),
    VALUE(TERN_AMO_OR, 2),
    VALUE(TERN_AMO_XOR, 3),
    VALUE(TERN_AMO_SWAP, 4),
    VALUE(TERN_AMO_CAS, 5),
    VALUE(TERN_AMO_SET, 6),
    VALUE(TERN_AMO_FETCH, 7),
    VALUE(TERN_SIGNAL_ADD, 0),
    VALUE(TERN_SIGNAL_SET, 1),
    VALUE(TERN_COMPARE_EQ, 0),
    VALUE(TERN_COMPARE_NE, 1),
    VALUE(TERN_COMPARE_GE, 2),
    VALUE(TERN_COMPARE_GT, 3),
    VALUE(TERN_COMPARE_LE, 4),
    VALUE(TERN_COMPARE_LT, 5),
    VALUE(TERN_NET_MAX_QUEUES, 64),
    VALUE(TERN_NET_MAX_TEAMS, 64),
};
enum { NUM_CONSTANTS = sizeof(constants) / sizeof(constants[0]) };

static int structures(struct test *t)
{
    int wrong = 0;

    if (sizeof(void *) != 8 || sizeof(size_t) != 8) {
        return test_skip(t, "pointers have %zu bytes here; the frozen layout is that of LP64",
                         sizeof(void *));
    }
    for (int i = 0; i < NUM_ENTRIES; i++) {
        const struct entry *e = &entries[i];

        if (e->offset != e->frozen_offset || e->bytes != e->frozen_bytes) {
            test_note(__FILE__, __LINE__, "struct %s %s: offset %zu and %zu bytes; frozen: %zu and %zu",
                      e->structure, e->field ? e->field : "", e->offset, e->bytes, e->frozen_offset,
                      e->frozen_bytes);
            wrong++;
        }
    }
    test_detail(t, "%d entries", (int)NUM_ENTRIES);
    return wrong ? TEST_FAILED : TEST_PASSED;
}

/* Fields follow one another and end with the structure. */
static int padding(struct test *t)
{
    size_t end = 0;

    (void)t;
    for (int i = 0; i < NUM_ENTRIES; i++) {
        const struct entry *e = &entries[i];
        int last = i + 1 == NUM_ENTRIES || !entries[i + 1].field;

        if (!e->field) {
            end = 0;
            continue;
        }
        CHECK(e->offset == end, "struct %s: %s begins at %zu, the field before it ends at %zu", e->structure,
              e->field, e->offset, end);
        end = e->offset + e->bytes;
        if (last) {
            size_t whole = 0;

            for (int k = 0; k < NUM_ENTRIES; k++) {
                whole = !entries[k].field && !strcmp(entries[k].structure, e->structure) ? entries[k].bytes
                                                                                         : whole;
            }
            CHECK(end == whole, "struct %s has %zu bytes, its last field %s ends at %zu", e->structure, whole,
                  e->field, end);
        }
    }
    return TEST_PASSED;
}

static int values(struct test *t)
{
    int wrong = 0;

    for (int i = 0; i < NUM_CONSTANTS; i++) {
        const struct constant *c = &constants[i];

        if (c->value != c->frozen) {
            test_note(__FILE__, __LINE__, "%s is %lld; frozen: %lld", c->name, c->value, c->frozen);
            wrong++;
        }
    }
    test_detail(t, "%d constants", (int)NUM_CONSTANTS);
    return wrong ? TEST_FAILED : TEST_PASSED;
}

/* The library that is linked is the one of this header. */
static int version(struct test *t)
{
    uint32_t expected = TERN_VERSION_MAJOR << 16 | TERN_VERSION_MINOR << 8 | TERN_VERSION_PATCH;

    (void)t;
    CHECK(tern_version() == expected, "the library says %#x, the header %#x", (unsigned)tern_version(),
          (unsigned)expected);
    return TEST_PASSED;
}

/* Every status has a text and a class of its own; unknown ones have some. */
static int statuses(struct test *t)
{
    static const struct {
        enum tern_status status;
        enum tern_recovery recovery;
        const char *text;
    } all[] = {
#define ROW(name, value, recovery, text) {name, recovery, text},
        TERN_STATUS_LIST(ROW)
#undef ROW
    };

    (void)t;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        CHECK(!strcmp(tern_status_string(all[i].status), all[i].text), "status %d: \"%s\"",
              (int)all[i].status, tern_status_string(all[i].status));
        CHECK(tern_status_recovery(all[i].status) == all[i].recovery, "status %d: recovery %d",
              (int)all[i].status, (int)tern_status_recovery(all[i].status));
    }
    CHECK(tern_status_string((enum tern_status) - 777) && *tern_status_string((enum tern_status) - 777),
          "no text for -777");
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "structures have their frozen sizes and offsets", structures);
    test_run(&t, "structures have no unnamed padding", padding);
    test_run(&t, "constants have their frozen values", values);
    test_run(&t, "library and header are of one version", version);
    test_run(&t, "statuses have texts and classes", statuses);
    return test_end(&t);
}
