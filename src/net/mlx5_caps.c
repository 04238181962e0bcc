/* SPDX-License-Identifier: Apache-2.0
 *
 * What a NIC must be able to do. Everything that it lacks is in one sentence: whoever reads it has to find
 * another NIC or another setting of its firmware, and should have to look once. */
#include "net/mlx5_nic.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { ATOMICS = DEVX_ATOMIC_CS | DEVX_ATOMIC_FA | DEVX_ATOMIC_MASKED_CS | DEVX_ATOMIC_MASKED_FA };
enum { ATOMIC_SIZES = 4 | 8, MOST_LOG_READS = 7 };

enum tern_status terni_mlx5_refused(const struct mlx5_nic *nic, const uint32_t *in, const uint32_t *out)
{
    return TERN_FAIL(TERN_DEVICE_ERROR, "%s refuses %s: %s (status 0x%02x, syndrome 0x%08x)", nic->name,
                     terni_devx_opcode_name((uint32_t)devx_get(in, 0, DEVX_IN_OPCODE)), strerror(errno),
                     (unsigned)devx_get(out, 0, DEVX_OUT_STATUS),
                     (unsigned)devx_get(out, 0, DEVX_OUT_SYNDROME));
}

static enum tern_status query(struct mlx5_nic *nic, enum devx_caps which, uint32_t out[DEVX_CAPS_WORDS])
{
    uint32_t in[DEVX_HEAD_WORDS];
    terni_devx_query_caps(in, which);
    memset(out, 0, DEVX_CAPS_WORDS * sizeof *out);
    if (nic->v->general_cmd(nic->context, in, sizeof in, out, DEVX_CAPS_WORDS * sizeof *out) != 0) {
        return terni_mlx5_refused(nic, in, out);
    }
    return TERN_OK;
}

static uint32_t cap(const uint32_t *out, enum devx_field field)
{
    return (uint32_t)devx_get(out, DEVX_CAPS_AT, field);
}

struct complaint {
    char text[224];
    size_t used;
};

static void complain(struct complaint *c, int is_lacking, const char *what)
{
    if (is_lacking && c->used < sizeof c->text) {
        int n = snprintf(c->text + c->used, sizeof c->text - c->used, "%s%s", c->used > 0 ? ", " : "", what);
        c->used += n > 0 ? (size_t)n : 0;
    }
}

/* A device that has only the real time clock refuses queue pairs of the free running one, and firmware from
 * before there was a choice has no such field: so the default, where the device tells of clocks at all. */
static void choose_timestamps(struct mlx5_nic *nic, uint32_t clocks, int has_roce)
{
    uint32_t out[DEVX_CAPS_WORDS];
    if (has_roce) {
        if (query(nic, DEVX_QUERY_ROCE, out) == TERN_OK) {
            clocks = cap(out, DEVX_ROCE_TIMESTAMPS);
        } else {
            TERN_LOG(TERN_LOG_INFO, "queue pairs have the timestamps of send queues: %s", tern_last_error());
        }
    }
    nic->timestamps = clocks != 0 ? DEVX_TIMESTAMPS_DEFAULT : DEVX_TIMESTAMPS_FREE;
}

static enum tern_status check_device(struct mlx5_nic *nic, struct complaint *c, int *has_more)
{
    uint32_t out[DEVX_CAPS_WORDS];
    TERN_TRY(query(nic, DEVX_QUERY_DEVICE, out));
    complain(c, cap(out, DEVX_CAPS_CQE_VERSION) != 1, "completions of version 1");
    complain(c, !cap(out, DEVX_CAPS_RC), "reliable connections");
    complain(c, !cap(out, DEVX_CAPS_CQ_OVERRUN_IGNORED), "completion queues that may overrun");
    complain(c, !cap(out, DEVX_CAPS_ATOMIC), "atomics");
    nic->log_max_message = cap(out, DEVX_CAPS_LOG_MAX_MESSAGE);
    *has_more = cap(out, DEVX_CAPS_HAS_MORE) != 0;
    choose_timestamps(nic, cap(out, DEVX_CAPS_TIMESTAMPS), cap(out, DEVX_CAPS_ROCE) != 0);
    return TERN_OK;
}

/* What saves time, and nobody has to have: a NIC that does not say is one that cannot. */
static void look_for_more(struct mlx5_nic *nic)
{
    uint32_t out[DEVX_CAPS_WORDS];
    if (query(nic, DEVX_QUERY_MORE, out) != TERN_OK) {
        TERN_LOG(TERN_LOG_INFO, "queue pairs have doorbell records: %s", tern_last_error());
        return;
    }
    nic->no_records = cap(out, DEVX_MORE_NO_SEND_RECORD) != 0;
}

static enum tern_status check_atomics(struct mlx5_nic *nic, struct complaint *c)
{
    uint32_t out[DEVX_CAPS_WORDS];
    TERN_TRY(query(nic, DEVX_QUERY_ATOMIC, out));
    complain(c, (cap(out, DEVX_ATOMIC_OPERATIONS) & ATOMICS) != ATOMICS, "masked compare-swap and fetch-add");
    complain(c, (cap(out, DEVX_ATOMIC_SIZES) & ATOMIC_SIZES) != ATOMIC_SIZES, "atomics of 4 and 8 bytes");
    complain(c, cap(out, DEVX_ATOMIC_HOST_ENDIAN_8) != 1, "atomics of 8 bytes in the host's byte order");
    return TERN_OK;
}

static uint32_t log2_of(int n)
{
    uint32_t log = 0;
    while (n > 1 && log < 31) {
        n >>= 1;
        log++;
    }
    return log;
}

static enum tern_status check_limits(struct mlx5_nic *nic, struct complaint *c)
{
    struct ibv_device_attr a;
    int error;
    memset(&a, 0, sizeof a);
    error = nic->v->query_device(nic->context, &a);
    if (error != 0) {
        return TERN_FAIL(TERN_DEVICE_ERROR, "%s does not tell its limits: %s", nic->name, strerror(error));
    }
    complain(c, a.max_qp_rd_atom < 1 || a.max_qp_init_rd_atom < 1, "outstanding READs");
    nic->atomic_cap = a.atomic_cap;
    nic->log_reads_in = log2_of(a.max_qp_rd_atom);
    nic->log_reads_out = log2_of(a.max_qp_init_rd_atom);
    nic->log_reads_in = nic->log_reads_in < MOST_LOG_READS ? nic->log_reads_in : MOST_LOG_READS;
    nic->log_reads_out = nic->log_reads_out < MOST_LOG_READS ? nic->log_reads_out : MOST_LOG_READS;
    nic->log_max_blocks = log2_of(a.max_qp_wr < a.max_cqe ? a.max_qp_wr : a.max_cqe);
    return TERN_OK;
}

enum tern_status terni_mlx5_caps_check(struct mlx5_nic *nic)
{
    struct complaint lacking = {"", 0};
    int has_more;
    TERN_TRY(check_device(nic, &lacking, &has_more));
    TERN_TRY(check_atomics(nic, &lacking));
    TERN_TRY(check_limits(nic, &lacking));
    if (lacking.used > 0) {
        return TERN_FAIL(TERN_UNSUPPORTED, "%s cannot be used, it lacks: %s", nic->name, lacking.text);
    }
    if (has_more) {
        look_for_more(nic);
    }
    return TERN_OK;
}
