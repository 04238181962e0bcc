/* SPDX-License-Identifier: Apache-2.0
 *
 * Mailboxes of commands; devx_command.h says what each is for. Values that are the same for every queue of
 * Tern are set here, from the names in that header. */
#include "net/devx_command.h"

#include <string.h>

static void begin(uint32_t *in, size_t words, enum devx_opcode opcode, uint32_t modifier)
{
    memset(in, 0, words * sizeof *in);
    devx_set(in, 0, DEVX_IN_OPCODE, opcode);
    devx_set(in, 0, DEVX_IN_MODIFIER, modifier);
}

static void begin_qp(uint32_t *in, size_t words, enum devx_opcode opcode, uint32_t qpn)
{
    begin(in, words, opcode, 0);
    devx_set(in, 0, DEVX_IN_QPN, qpn);
}

void terni_devx_query_caps(uint32_t in[DEVX_HEAD_WORDS], enum devx_caps which)
{
    begin(in, DEVX_HEAD_WORDS, DEVX_QUERY_HCA_CAP, which);
}

/* Page sizes stay 0: of memory in a umem the firmware knows the pages. */
void terni_devx_create_cq(uint32_t in[DEVX_CREATE_CQ_WORDS], const struct devx_cq *cq)
{
    begin(in, DEVX_CREATE_CQ_WORDS, DEVX_CREATE_CQ, 0);
    devx_set(in, 0, DEVX_CREATE_CQ_UMEM_OFFSET, cq->ring.offset);
    devx_set(in, 0, DEVX_CREATE_CQ_UMEM_ID, cq->ring.umem_id);
    devx_set(in, 0, DEVX_CREATE_CQ_UMEM_VALID, 1);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_COLLAPSED, cq->collapsed != 0);
    /* A collapsed queue has one entry that is used, and its record never moves: it is always overrun. A ring
     * has room for everything that the send ring can hold, and the poller raises no record either. */
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_OVERRUN_IGNORED, 1);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_LOG_SIZE, cq->log_entries);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_UAR_PAGE, cq->uar_page);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_EQN, cq->eqn);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_DBR_UMEM_VALID, 1);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_DBR_UMEM_ID, cq->record.umem_id);
    devx_set(in, DEVX_CQC_AT, DEVX_CQC_DBR_ADDRESS, cq->record.offset);
}

void terni_devx_create_qp(uint32_t in[DEVX_QP_WORDS], const struct devx_qp *qp)
{
    begin(in, DEVX_QP_WORDS, DEVX_CREATE_QP, 0);
    devx_set(in, 0, DEVX_CREATE_QP_UMEM_OFFSET, qp->ring.offset);
    devx_set(in, 0, DEVX_CREATE_QP_UMEM_ID, qp->ring.umem_id);
    devx_set(in, 0, DEVX_CREATE_QP_UMEM_VALID, 1);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_SERVICE, DEVX_SERVICE_RC);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_MIGRATION, DEVX_MIGRATED);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_PD, qp->pd);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_CQN_SEND, qp->cqn);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_UAR_PAGE, qp->uar_page);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_SEND_RECORD_MODE, qp->has_no_record ? DEVX_NO_SEND_RECORD : 0);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_USER_INDEX, qp->user_index);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_LOG_SQ_SIZE, qp->log_blocks);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_TIMESTAMPS, qp->timestamps);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_RQ_TYPE, DEVX_RQ_NONE); /* nobody sends: all traffic is one-sided */
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_DBR_UMEM_VALID, 1);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_DBR_UMEM_ID, qp->record.umem_id);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_DBR_ADDRESS, qp->record.offset);
}

void terni_devx_rst2init(uint32_t in[DEVX_QP_WORDS], const struct devx_link *link)
{
    const uint32_t path = DEVX_QPC_AT + DEVX_PATH_AT;

    begin_qp(in, DEVX_QP_WORDS, DEVX_RST2INIT, link->qpn);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_MIGRATION, DEVX_MIGRATED);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_REMOTE_READ, 1);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_REMOTE_WRITE, 1);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_REMOTE_ATOMIC, 1);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_ATOMIC_MODE, DEVX_ATOMIC_MODE_64);
    devx_set(in, path, DEVX_PATH_PKEY_INDEX, link->path.pkey_index);
    devx_set(in, path, DEVX_PATH_PORT, link->path.port);
}

static uint64_t big_endian(const unsigned char *bytes, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static void set_gid(uint32_t *in, uint32_t path, const struct devx_path *p)
{
    devx_set(in, path, DEVX_PATH_SOURCE_INDEX, p->source_index);
    devx_set(in, path, DEVX_PATH_HOP_LIMIT, p->hop_limit);
    devx_set(in, path, DEVX_PATH_RGID_FIRST, big_endian(p->rgid, 8));
    devx_set(in, path, DEVX_PATH_RGID_SECOND, big_endian(p->rgid + 8, 8));
}

static void set_path(uint32_t *in, uint32_t path, const struct devx_path *p)
{
    devx_set(in, path, DEVX_PATH_PKEY_INDEX, p->pkey_index);
    devx_set(in, path, DEVX_PATH_PORT, p->port);
    if (p->is_roce) { /* traffic class and service level become their counterparts in IP and Ethernet */
        set_gid(in, path, p);
        devx_set(in, path, DEVX_PATH_DSCP, p->traffic_class >> 2);
        devx_set(in, path, DEVX_PATH_ETH_PRIO, p->sl & 7u);
        devx_set(in, path, DEVX_PATH_UDP_SPORT, p->udp_sport);
        devx_set(in, path, DEVX_PATH_RMAC_FIRST, big_endian(p->rmac, 2));
        devx_set(in, path, DEVX_PATH_RMAC_SECOND, big_endian(p->rmac + 2, 4));
        return;
    }
    devx_set(in, path, DEVX_PATH_RLID, p->rlid);
    devx_set(in, path, DEVX_PATH_SL, p->sl);
    devx_set(in, path, DEVX_PATH_TCLASS, p->traffic_class);
    if (p->has_grh) {
        devx_set(in, path, DEVX_PATH_GRH, 1);
        devx_set(in, path, DEVX_PATH_FLOW_LABEL, p->flow_label);
        set_gid(in, path, p);
    }
}

void terni_devx_init2rtr(uint32_t in[DEVX_QP_WORDS], const struct devx_link *link)
{
    begin_qp(in, DEVX_QP_WORDS, DEVX_INIT2RTR, link->qpn);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_MTU, link->mtu);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_LOG_MESSAGE_MAX, DEVX_LOG_MESSAGE_MAX);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_REMOTE_QPN, link->remote_qpn);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_MIN_RNR_NAK, DEVX_MIN_RNR_NAK);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_LOG_RRA_MAX, link->log_reads_in);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_NEXT_RECEIVE_PSN, 0);
    set_path(in, DEVX_QPC_AT + DEVX_PATH_AT, &link->path);
}

void terni_devx_rtr2rts(uint32_t in[DEVX_QP_WORDS], const struct devx_link *link)
{
    begin_qp(in, DEVX_QP_WORDS, DEVX_RTR2RTS, link->qpn);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_LOG_ACK_REQ_FREQ, 0); /* every packet */
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_LOG_SRA_MAX, link->log_reads_out);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_NEXT_SEND_PSN, 0);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_RETRY_COUNT, DEVX_RETRY_COUNT);
    devx_set(in, DEVX_QPC_AT, DEVX_QPC_RNR_RETRY, DEVX_RNR_RETRY);
    devx_set(in, DEVX_QPC_AT + DEVX_PATH_AT, DEVX_PATH_ACK_TIMEOUT, link->ack_timeout);
}

void terni_devx_query_qp(uint32_t in[DEVX_HEAD_WORDS], uint32_t qpn)
{
    begin_qp(in, DEVX_HEAD_WORDS, DEVX_QUERY_QP, qpn);
}

void terni_devx_read_qp(const uint32_t out[DEVX_QP_WORDS], struct devx_qp_state *state)
{
    state->state = (uint32_t)devx_get(out, DEVX_QPC_AT, DEVX_QPC_STATE);
    state->hw_counter = (uint32_t)devx_get(out, DEVX_QPC_AT, DEVX_QPC_HW_SQ_COUNTER);
    state->sw_counter = (uint32_t)devx_get(out, DEVX_QPC_AT, DEVX_QPC_SW_SQ_COUNTER);
}

const char *terni_devx_opcode_name(uint32_t opcode)
{
    switch (opcode) {
    case DEVX_QUERY_HCA_CAP:
        return "QUERY_HCA_CAP";
    case DEVX_CREATE_CQ:
        return "CREATE_CQ";
    case DEVX_CREATE_QP:
        return "CREATE_QP";
    case DEVX_RST2INIT:
        return "RST2INIT_QP";
    case DEVX_INIT2RTR:
        return "INIT2RTR_QP";
    case DEVX_RTR2RTS:
        return "RTR2RTS_QP";
    case DEVX_QUERY_QP:
        return "QUERY_QP";
    default:
        return "a command that Tern does not send";
    }
}
