/* SPDX-License-Identifier: Apache-2.0
 *
 * A software NIC that speaks packets: its queue pairs are connected to those of other such NICs, by links
 * that lose, double, delay and reorder (rc_link.h). In front and behind it is the NIC of softnic.h; what lies
 * between is the engine of rc_*.h in place of softnic_move.h.
 *
 *     doorbell, record --> softnic_front.h --> requester --> requests_out        one card ...
 *     completion queue <-- softnic_complete.h     ^--------- answers_in
 *
 *                              memory <------- responder <-- requests_in         ... and another
 *     receive completions <-----------------------'--------> answers_out
 *
 * A card is served by one thread, which draws what it looks at next: between queue pairs nothing is in order,
 * and a card may be slow. Like the other NIC it knows nothing that is not in these structures. While it is
 * stopped the host may change keys, after rc_memory_land where a mode of its memory is on. */
#ifndef TERN_SOFTNIC_RC_H
#define TERN_SOFTNIC_RC_H

#include "net/rc_answer.h"
#include "net/rc_responder.h"
#include "net/softnic_complete.h"

struct softnic_rc_qp {
    /* What software sees of it. pd is the requester's too; keys, remote_pd, remote_keys and late are not
     * used. */
    struct softnic_qp *front;
    struct rc_requester requester;
    struct rc_responder responder;
    uint32_t port; /* of its card */
    /* A ring of completions for immediates that have arrived, at least as many as the responder has receive
     * entries; they are given by the first word of front->record. 0: there are none. */
    uint32_t num_receive_cqes;
    uint32_t *receive_cqes;
    /* Somebody else's: not 0 puts the queue pair into error, as its NIC or its driver may at any time. */
    uint64_t is_broken;
    /* The card's own. */
    uint64_t over;             /* index of the oldest entry that has not completed */
    uint64_t given, delivered; /* receive entries, counted, and completions of them */
};

/* To one other card, or to itself. */
struct softnic_port {
    struct rc_link *requests_out, *answers_in;
    struct rc_link *requests_in, *answers_out;
};

struct softnic_card {
    struct softnic_rc_qp *qps;
    struct softnic_port *ports;
    uint32_t num_qps, num_ports; /* without queue pairs it is not served; else it has a port */
    struct rc_memory *memory;
    uint64_t random;      /* not 0 */
    uint32_t hold_one_in; /* as in struct softnic_args */
    uint32_t num_lost;    /* packets for queue pairs that there are not */
};

struct softnic_rc_args {
    struct softnic_card *cards; /* one a warp */
    uint32_t num_cards;
    uint32_t reserved;
    /* What the engine calls time: a word that every look of every card raises, which makes it the same in
     * every run of a seed; or NULL, for nanoseconds of the device's clock. */
    uint64_t *looks;
    const uint64_t *stop; /* not 0: the cards end, between two looks */
};

/* Connects `front`, whose counters have been set. Both rings are the caller's, powers of two long; config has
 * passed terni_rc_check_config. No receive entries: WRITE_IMM finds none. */
TERN_DEVICE void softnic_rc_qp_init(struct softnic_rc_qp *qp, struct softnic_qp *front, uint32_t port,
                                    const struct rc_config *config, struct rc_entry *entries,
                                    uint32_t num_entries, struct rc_receive *receives, uint32_t num_receives)
{
    const struct softnic_rc_qp nothing = {0};
    *qp = nothing;
    qp->front = front;
    qp->port = port;
    qp->over = front->fetched;
    rc_requester_init(&qp->requester, config, entries, num_entries);
    rc_responder_init(&qp->responder, config, receives, num_receives);
}

/* Below n. */
TERN_DEVICE uint32_t softnic_card_draw(struct softnic_card *card, uint32_t n)
{
    return (uint32_t)((rc_draw(&card->random) & 0xffffffffu) * n >> 32);
}

/* ---- Packets that have arrived ---- */

TERN_DEVICE struct softnic_rc_qp *softnic_card_find(const struct softnic_card *card, uint32_t qpn)
{
    for (uint32_t i = 0; i < card->num_qps; i++) {
        if (card->qps[i].front->qpn == qpn) {
            return &card->qps[i];
        }
    }
    return NULL;
}

/* Returns whether a packet was used up, as the following do. */
TERN_DEVICE int softnic_card_answered(struct softnic_card *card, const struct softnic_port *port,
                                      uint64_t now)
{
    struct rc_packet *packet = rc_link_peek(port->answers_in, now);
    struct softnic_rc_qp *qp;
    if (packet == NULL) {
        return 0;
    }
    qp = softnic_card_find(card, packet->to_qpn);
    if (qp != NULL) {
        rc_requester_take(&qp->requester, card->memory, packet, now);
    } else {
        card->num_lost++;
    }
    rc_link_release(port->answers_in);
    return 1;
}

TERN_DEVICE int softnic_card_asked(struct softnic_card *card, const struct softnic_port *port, uint64_t now)
{
    struct rc_packet *packet = rc_link_peek(port->requests_in, now);
    struct softnic_rc_qp *qp;
    if (packet == NULL) {
        return 0;
    }
    qp = softnic_card_find(card, packet->to_qpn);
    if (qp == NULL) {
        card->num_lost++;
    } else if (!rc_responder_take(&qp->responder, card->memory, packet, port->answers_out, now)) {
        return 0;
    }
    rc_link_release(port->requests_in);
    return 1;
}

/* ---- A queue pair ---- */

/* The next entry goes to the requester, if there is one and room for it. What is refused goes too, and
 * completes in its turn. */
TERN_DEVICE int softnic_rc_post(struct softnic_rc_qp *qp)
{
    struct softnic_qp *front = qp->front;
    struct wqe_source from;
    struct wqe_op op;
    struct nic_refusal refusal;
    if (!rc_requester_has_room(&qp->requester) || softnic_look(front) == 0) {
        return 0;
    }
    from = softnic_source(front, front->fetched);
    /* Flushing is the requester's business. */
    softnic_take_entry(front, &op, softnic_read(front, front->ring, front->fetched, &op, &refusal));
    rc_requester_post(&qp->requester, &op, &from, &refusal);
    return 1;
}

/* The oldest operation, if it is over, completes; or else a completion that was held back is written. */
TERN_DEVICE int softnic_rc_complete(struct softnic_card *card, struct softnic_rc_qp *qp)
{
    struct rc_completion done;
    int hold;
    if (!rc_requester_peek(&qp->requester, &done)) {
        softnic_release(qp->front);
        return 0;
    }
    if (softnic_must_release(qp->front)) {
        softnic_release(qp->front);
    }
    hold = card->hold_one_in != 0 && softnic_card_draw(card, card->hold_one_in) == 0;
    if (softnic_hold(qp->front, qp->over, &done.entry->op, &done.entry->refusal, done.syndrome) && !hold) {
        softnic_release(qp->front);
    }
    qp->over += done.entry->op.blocks;
    rc_requester_retire(&qp->requester);
    return 1;
}

/* Receive entries that software has added, and a completion of one that was used. */
TERN_DEVICE int softnic_rc_receive(struct softnic_rc_qp *qp)
{
    struct rc_receive receive;
    struct cqe_args args = {0};
    uint32_t told;
    if (qp->num_receive_cqes == 0) {
        return 0;
    }
    /* Relaxed: a receive entry for an immediate has nothing in it that would be read. */
    told = doorbell_record_idx(ld_relaxed_sys_u32(qp->front->record + DOORBELL_RECORD_RECEIVE));
    while (((told - (uint32_t)qp->given) & 0xffffu) != 0 && rc_responder_give(&qp->responder)) {
        qp->given++;
    }
    if (!rc_responder_fetch(&qp->responder, &receive)) {
        return 0;
    }
    args.opcode = CQE_RESPONDER_WRITE_IMM;
    args.owner = (qp->delivered & qp->num_receive_cqes) != 0;
    args.idx = (uint32_t)qp->delivered;
    args.qpn = qp->front->qpn;
    args.imm = receive.imm;
    args.bytes = receive.bytes;
    softnic_store_cqe(qp->receive_cqes + (qp->delivered & (qp->num_receive_cqes - 1u)) * CQE_WORDS, &args);
    qp->delivered++;
    return 1;
}

TERN_DEVICE int softnic_rc_serve(struct softnic_card *card, struct softnic_rc_qp *qp, uint64_t now)
{
    const struct softnic_port *port = &card->ports[qp->port];
    int busy;
    if (ld_relaxed_sys_u64(&qp->is_broken) != 0) {
        rc_requester_stop(&qp->requester);
        rc_responder_stop(&qp->responder);
    }
    rc_couple(&qp->requester, &qp->responder);
    busy = softnic_rc_post(qp);
    busy |= rc_requester_work(&qp->requester, card->memory, port->requests_out, now);
    busy |= rc_responder_work(&qp->responder, card->memory, port->answers_out, now);
    busy |= softnic_rc_receive(qp);
    busy |= softnic_rc_complete(card, qp);
    return busy;
}

/* One look, at one port and one queue pair. Returns whether there was anything to do. */
TERN_DEVICE int softnic_card_work(struct softnic_card *card, uint64_t now)
{
    const struct softnic_port *port = &card->ports[softnic_card_draw(card, card->num_ports)];
    int busy = softnic_card_answered(card, port, now);
    busy |= softnic_card_asked(card, port, now);
    busy |= softnic_rc_serve(card, &card->qps[softnic_card_draw(card, card->num_qps)], now);
    if (softnic_card_draw(card, 8) == 0) {
        busy |= rc_memory_work(card->memory);
    }
    return busy;
}

#endif
