/* SPDX-License-Identifier: Apache-2.0
 *
 * Our formats against those of rdma-core: every number that infiniband/mlx5dv.h gives a name, entries that
 * are put together with its setters and structures, completions that are read with its accessors. Only inline
 * code of that header is used, so nothing is linked. Where the header is missing, each case is skipped by
 * name. */
#include "net/key_table.h"
#include "wqe_rig.h"

#include <string.h>

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>

static int numbers_are_theirs(struct test *t)
{
    static const struct {
        const char *name;
        long long ours, theirs;
    } numbers[] = {
#define SAME(ours, theirs) {#theirs, (long long)(ours), (long long)(theirs)}
        SAME(WQE_NOP, MLX5_OPCODE_NOP),
        SAME(WQE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE),
        SAME(WQE_RDMA_WRITE_IMM, MLX5_OPCODE_RDMA_WRITE_IMM),
        SAME(WQE_RDMA_READ, MLX5_OPCODE_RDMA_READ),
        SAME(WQE_ATOMIC_CS, MLX5_OPCODE_ATOMIC_CS),
        SAME(WQE_ATOMIC_FA, MLX5_OPCODE_ATOMIC_FA),
        SAME(WQE_MASKED_CS, MLX5_OPCODE_ATOMIC_MASKED_CS),
        SAME(WQE_MASKED_FA, MLX5_OPCODE_ATOMIC_MASKED_FA),
        SAME(WQE_BLOCK_BYTES, MLX5_SEND_WQE_BB),
        SAME(TERN_WQE_INLINE, (uint32_t)MLX5_INLINE_SEG),
        SAME(TERN_WQE_INVALID_KEY, MLX5_INVALID_LKEY),
        SAME(WQE_CE_ALWAYS, MLX5_WQE_CTRL_CQ_UPDATE),
        SAME(WQE_SOLICITED, MLX5_WQE_CTRL_SOLICITED),
        SAME(WQE_FM_SMALL, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE),
        SAME(WQE_FM_FENCE_SMALL, MLX5_WQE_CTRL_FENCE),
        SAME(DOORBELL_RECORD_RECEIVE, MLX5_RCV_DBR),
        SAME(DOORBELL_RECORD_SEND, MLX5_SND_DBR),
        SAME(CQE_REQUESTER, MLX5_CQE_REQ),
        SAME(CQE_RESPONDER_WRITE_IMM, MLX5_CQE_RESP_WR_IMM),
        SAME(CQE_RESPONDER_SEND, MLX5_CQE_RESP_SEND),
        SAME(CQE_RESPONDER_SEND_IMM, MLX5_CQE_RESP_SEND_IMM),
        SAME(CQE_RESPONDER_SEND_INVALIDATE, MLX5_CQE_RESP_SEND_INV),
        SAME(CQE_REQUESTER_ERROR, MLX5_CQE_REQ_ERR),
        SAME(CQE_RESPONDER_ERROR, MLX5_CQE_RESP_ERR),
        SAME(CQE_INVALID, MLX5_CQE_INVALID),
        SAME(CQE_BYTES, sizeof(struct mlx5_cqe64)),
        SAME(4 * CQE_WORD_REMOTE_QPN, offsetof(struct mlx5_cqe64, flags_rqpn)),
        SAME(4 * CQE_WORD_USER_INDEX, offsetof(struct mlx5_cqe64, srqn_uidx)),
        SAME(4 * CQE_WORD_IMM, offsetof(struct mlx5_cqe64, imm_inval_pkey)),
        SAME(4 * CQE_WORD_BYTES, offsetof(struct mlx5_cqe64, byte_cnt)),
        SAME(4 * CQE_WORD_QPN, offsetof(struct mlx5_cqe64, sop_drop_qpn)),
        SAME(4 * CQE_WORD_TAIL, offsetof(struct mlx5_cqe64, wqe_counter)),
        SAME(SYNDROME_LOCAL_LENGTH, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR),
        SAME(SYNDROME_LOCAL_QP_OPERATION, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR),
        SAME(SYNDROME_LOCAL_PROTECTION, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR),
        SAME(SYNDROME_FLUSHED, MLX5_CQE_SYNDROME_WR_FLUSH_ERR),
        SAME(SYNDROME_MW_BIND, MLX5_CQE_SYNDROME_MW_BIND_ERR),
        SAME(SYNDROME_BAD_RESPONSE, MLX5_CQE_SYNDROME_BAD_RESP_ERR),
        SAME(SYNDROME_LOCAL_ACCESS, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR),
        SAME(SYNDROME_REMOTE_INVALID_REQUEST, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR),
        SAME(SYNDROME_REMOTE_ACCESS, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR),
        SAME(SYNDROME_REMOTE_OPERATION, MLX5_CQE_SYNDROME_REMOTE_OP_ERR),
        SAME(SYNDROME_TRANSPORT_RETRY, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR),
        SAME(SYNDROME_RNR_RETRY, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR),
        SAME(SYNDROME_REMOTE_ABORTED, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR),
        SAME(KEY_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        SAME(KEY_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        SAME(KEY_REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        SAME(KEY_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
        SAME(KEY_RELAXED_ORDERING, IBV_ACCESS_RELAXED_ORDERING),
#undef SAME
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        CHECK(numbers[i].ours == numbers[i].theirs, "%s is 0x%llx, ours 0x%llx", numbers[i].name,
              (unsigned long long)numbers[i].theirs, (unsigned long long)numbers[i].ours);
    }
    test_detail(t, "%zu numbers", sizeof(numbers) / sizeof(numbers[0]));
    return TEST_PASSED;
}

/* ---- Entries ---- */

/* Operands of masked atomics have no structure in the header: big-endian words, one after the other. */
static size_t their_operands(const struct wqe_amo *a, unsigned char *at)
{
    uint64_t values[4] = {a->swap_add, a->opcode == MLX5_OPCODE_ATOMIC_MASKED_FA ? a->mask : a->compare,
                          a->mask, a->compare_mask};
    int count = a->opcode == MLX5_OPCODE_ATOMIC_MASKED_CS ? 4 : 2;
    if (a->opcode == MLX5_OPCODE_ATOMIC_FA || a->opcode == MLX5_OPCODE_ATOMIC_CS) {
        struct mlx5_wqe_atomic_seg segment = {htobe64(a->swap_add), htobe64(a->compare)};
        memcpy(at, &segment, sizeof(segment));
        return sizeof(segment);
    }
    for (int i = 0; i < count; i++) {
        __be64 eight = htobe64(values[i]);
        __be32 four = htobe32((uint32_t)values[i]);
        memcpy(at + (size_t)i * a->bytes, a->bytes == 4 ? (void *)&four : (void *)&eight, a->bytes);
    }
    return a->bytes == 8 && count == 4 ? 32 : 16;
}

static size_t their_entry(const struct wqe_rig *rig, unsigned char *entry)
{
    const struct wqe_op *op = &rig->op;
    size_t at = sizeof(struct mlx5_wqe_ctrl_seg);
    uint8_t opmod = op->opcode != MLX5_OPCODE_ATOMIC_MASKED_FA && op->opcode != MLX5_OPCODE_ATOMIC_MASKED_CS
                        ? 0
                    : op->amo.bytes == 4 ? 8
                                         : 9;
    struct mlx5_wqe_ctrl_seg control;
    struct mlx5_wqe_data_seg data;
    memset(entry, 0, op->segments * 16);
    memset(&control, 0, sizeof(control));
    mlx5dv_set_ctrl_seg(&control, (uint16_t)rig->idx, (uint8_t)op->opcode, opmod, rig->qpn,
                        (uint8_t)(op->fence | op->complete | (op->solicited ? MLX5_WQE_CTRL_SOLICITED : 0)),
                        (uint8_t)op->segments, 0, htobe32(op->imm));
    memcpy(entry, &control, sizeof(control));
    if (op->opcode != MLX5_OPCODE_NOP && op->opcode != WQE_DUMP) {
        struct mlx5_wqe_raddr_seg remote = {htobe64(op->remote), htobe32(op->rkey), 0};
        memcpy(entry + at, &remote, sizeof(remote));
        at += sizeof(remote);
    }
    if (op->is_inline) {
        struct mlx5_wqe_inl_data_seg head = {htobe32((uint32_t)MLX5_INLINE_SEG | op->bytes)};
        memcpy(entry + at, &head, sizeof(head));
        memcpy(entry + at + sizeof(head), rig->payload, op->bytes);
        return op->segments * 16;
    }
    if (op->amo.bytes != 0) {
        at += their_operands(&op->amo, entry + at);
    }
    if (op->bytes != 0) {
        mlx5dv_set_data_seg(&data, op->bytes, op->lkey, op->local);
        memcpy(entry + at, &data, sizeof(data));
    }
    return op->segments * 16;
}

static int entries_are_theirs(struct test *t)
{
    int rounds = test_scaled(t, 1000);
    struct rng r = {0xdf};
    for (int i = 0; i < rounds * FORM_COUNT; i++) {
        unsigned char entry[WQE_MAX_ENTRY_BYTES];
        struct wqe_rig rig;
        size_t bytes, wrong = 0;
        wqe_rig_open(&rig, i % FORM_COUNT, &r);
        wqe_rig_post(&rig);
        bytes = their_entry(&rig, entry);
        while (wrong < bytes && *wqe_rig_byte(&rig, wrong) == entry[wrong]) {
            wrong++;
        }
        wqe_rig_close(&rig);
        CHECK(wrong == bytes, "%s: byte %zu is not theirs, %02x", wqe_form_name(i % FORM_COUNT), wrong,
              entry[wrong]);
    }
    test_detail(t, "%d forms, %d times", FORM_COUNT, rounds);
    return TEST_PASSED;
}

/* ---- Completions and doorbells ---- */

static int completions_are_theirs(struct test *t)
{
    int rounds = test_scaled(t, 5000);
    struct rng r = {0xc09};
    for (int i = 0; i < rounds; i++) {
        struct cqe_args a = {rng_below(&r, 16),       rng_below(&r, 2),        rng_below(&r, 1u << 20),
                             rng_below(&r, 256),      rng_below(&r, 1u << 24), rng_below(&r, 1u << 24),
                             rng_below(&r, 1u << 24), (uint32_t)rng_next(&r),  (uint32_t)rng_next(&r),
                             rng_below(&r, 256),      rng_below(&r, 256)};
        uint32_t words[CQE_WORDS];
        struct mlx5_cqe64 good;
        struct mlx5_err_cqe bad;
        cqe_fill(words, &a);
        words[CQE_WORD_TAIL] = cqe_tail(&a);
        memcpy(&good, words, sizeof(good));
        memcpy(&bad, words, sizeof(bad));
        CHECK(mlx5dv_get_cqe_opcode(&good) == a.opcode && mlx5dv_get_cqe_owner(&good) == a.owner &&
                  mlx5dv_get_cqe_se(&good) == 0 && mlx5dv_get_cqe_format(&good) == 0 &&
                  be16toh(good.wqe_counter) == (uint16_t)a.idx &&
                  be32toh(good.sop_drop_qpn) == (a.wqe_opcode << 24 | a.qpn) &&
                  be32toh(good.imm_inval_pkey) == a.imm && be32toh(good.byte_cnt) == a.bytes &&
                  be32toh(good.srqn_uidx) == a.user_index && be32toh(good.flags_rqpn) == a.remote_qpn,
              "round %d: a completion reads differently", i);
        CHECK(bad.syndrome == a.syndrome && bad.vendor_err_synd == a.vendor_syndrome &&
                  be16toh(bad.wqe_counter) == (uint16_t)a.idx && bad.op_own >> 4 == a.opcode &&
                  be32toh(bad.s_wqe_opcode_qpn) == (a.wqe_opcode << 24 | a.qpn),
              "round %d: an error reads differently", i);
    }
    test_detail(t, "%d entries", rounds);
    return TEST_PASSED;
}

/* A driver rings with the first eight bytes of a control segment. */
static int doorbells_are_theirs(struct test *t)
{
    struct mlx5_wqe_ctrl_seg control;
    uint64_t value;
    (void)t;
    memset(&control, 0, sizeof(control));
    mlx5dv_set_ctrl_seg(&control, 0xfffe, 0, 0, 0x123456, 0, 0, 0, 0);
    memcpy(&value, &control, sizeof(value));
    CHECK(value == doorbell_value(0x123456, 0xfffe), "0x%016llx", (unsigned long long)value);
    mlx5dv_set_ctrl_seg(&control, 0xfffe, 0xff, 0xff, 0x123456, 0xff, 63, 0xff, ~0u);
    memcpy(&value, &control, sizeof(value));
    CHECK(doorbell_idx(value) == 0xfffe && doorbell_qpn(value) == 0x123456, "0x%016llx",
          (unsigned long long)value);
    return TEST_PASSED;
}

#else

static int missing(struct test *t)
{
    return test_skip(t, "there is no infiniband/mlx5dv.h (libibverbs-dev)");
}
#define numbers_are_theirs     missing
#define entries_are_theirs     missing
#define completions_are_theirs missing
#define doorbells_are_theirs   missing

#endif

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "numbers are those of mlx5dv.h", numbers_are_theirs);
    test_run(&t, "entries are those of its setters", entries_are_theirs);
    test_run(&t, "completions are read alike by its accessors", completions_are_theirs);
    test_run(&t, "doorbells are the head of its control segment", doorbells_are_theirs);
    return test_end(&t);
}
