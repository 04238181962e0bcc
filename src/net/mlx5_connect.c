/* SPDX-License-Identifier: Apache-2.0
 *
 * How queue pairs find each other. A rank's card has the addresses of its NICs and the number of every queue
 * pair it made, by peer and index; with all cards each rank brings its own queue pairs through INIT and
 * "ready to receive" to "ready to send", without another message.
 *
 * On RoCE a queue pair needs the Ethernet address of the peer or of the next router. The kernel knows it: an
 * address handle is made for the peer's GID, read, and given back. Packets of each queue pair come from a UDP
 * port of their own, because routers choose among equal paths by it. */
#include "net/mlx5_nic.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CARD_MAGIC = 0x746d6c35, CARD_VERSION = 1 };

struct card_nic {
    unsigned char gid[16];
    uint32_t lid, mtu, is_roce;
    uint32_t log_reads_in, log_reads_out;
    uint32_t reserved;
};
/* The numbers of queue pairs follow: [num_ranks][num_queues], 0 where there is none. */
struct card {
    uint32_t magic, version;
    uint32_t num_nics, num_queues;
    struct card_nic nics[MLX5_MAX_NICS];
};

uint32_t terni_mlx5_card_bytes(const struct mlx5_provider *p)
{
    return (uint32_t)(sizeof(struct card) +
                      (size_t)p->config.num_ranks * p->config.num_queues * sizeof(uint32_t));
}

void terni_mlx5_card(const struct mlx5_provider *p, void *bytes)
{
    struct card *card = (struct card *)bytes;
    uint32_t *qpns = (uint32_t *)(card + 1);
    memset(bytes, 0, terni_mlx5_card_bytes(p));
    card->magic = CARD_MAGIC;
    card->version = CARD_VERSION;
    card->num_nics = (uint32_t)p->num_nics;
    card->num_queues = p->config.num_queues;
    for (int i = 0; i < p->num_nics; i++) {
        const struct mlx5_nic *nic = &p->nics[i];
        memcpy(card->nics[i].gid, nic->port.gid, sizeof card->nics[i].gid);
        card->nics[i].lid = nic->port.lid;
        card->nics[i].mtu = nic->port.mtu;
        card->nics[i].is_roce = (uint32_t)nic->port.is_roce;
        card->nics[i].log_reads_in = nic->log_reads_in;
        card->nics[i].log_reads_out = nic->log_reads_out;
    }
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        for (uint32_t q = 0; p->peers[peer].is_wanted && q < p->config.num_queues; q++) {
            qpns[(uint32_t)peer * p->config.num_queues + q] = terni_mlx5_qp_of(p, peer, q)->qpn;
        }
    }
}

static const struct card *card_of(const struct mlx5_provider *p, const void *cards, int rank)
{
    return (const struct card *)((const char *)cards + (size_t)rank * terni_mlx5_card_bytes(p));
}

static uint32_t qpn_of(const struct card *card, int peer, uint32_t queue)
{
    return ((const uint32_t *)(card + 1))[(uint32_t)peer * card->num_queues + queue];
}

static enum tern_status check_card(const struct mlx5_provider *p, const struct card *card, int peer)
{
    if (card->magic != CARD_MAGIC || card->version != CARD_VERSION || card->num_nics == 0 ||
        card->num_nics > MLX5_MAX_NICS) {
        return TERN_FAIL(TERN_MISMATCH,
                         "rank %d sent no card of NICs that this one reads (0x%08x, version %u)", peer,
                         card->magic, card->version);
    }
    if (card->num_queues != p->config.num_queues) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d has %u queues for each peer, rank %d has %u", peer,
                         card->num_queues, p->config.rank, p->config.num_queues);
    }
    return TERN_OK;
}

/* ---- The path ---- */

static enum tern_status read_mac(struct mlx5_nic *nic, struct ibv_ah *ah, unsigned char mac[6])
{
    struct mlx5dv_obj object;
    struct mlx5dv_ah out;
    int error;
    memset(&object, 0, sizeof object);
    memset(&out, 0, sizeof out);
    object.ah.in = ah;
    object.ah.out = &out;
    error = nic->v->init_obj(&object, MLX5DV_OBJ_AH);
    if (error != 0) {
        return TERN_FAIL(TERN_DEVICE_ERROR, "%s: an address handle cannot be read: %s", nic->name,
                         strerror(error));
    }
    memcpy(mac, out.av->rmac, 6);
    return TERN_OK;
}

static enum tern_status resolve_mac(struct mlx5_nic *nic, const struct mlx5_config *config,
                                    const struct card_nic *to, int peer, unsigned char mac[6])
{
    struct ibv_ah_attr attr;
    struct ibv_ah *ah;
    enum tern_status status;
    memset(&attr, 0, sizeof attr);
    attr.is_global = 1;
    attr.port_num = (uint8_t)nic->port.number;
    attr.sl = (uint8_t)config->service_level;
    attr.grh.sgid_index = (uint8_t)nic->port.gid_index;
    attr.grh.hop_limit = DEVX_HOP_LIMIT;
    attr.grh.traffic_class = (uint8_t)config->traffic_class;
    memcpy(attr.grh.dgid.raw, to->gid, sizeof to->gid);
    ah = nic->v->create_ah(nic->pd, &attr);
    if (ah == NULL) {
        return TERN_FAIL(
            TERN_DISCONNECTED, "%s, port %d, finds no way to rank %d at %u.%u.%u.%u (the end of its GID): %m",
            nic->name, nic->port.number, peer, to->gid[12], to->gid[13], to->gid[14], to->gid[15]);
    }
    status = read_mac(nic, ah, mac);
    MLX5_WARN(nic, nic->v->destroy_ah(ah), "an address handle");
    return status;
}

/* 49152 to 65535, the range for RoCE v2; the same for both directions of a pair, so that its answers take the
 * way of its requests. */
static uint32_t udp_port(uint32_t a, uint32_t b)
{
    uint32_t low = a < b ? a : b, high = a < b ? b : a;
    uint32_t mixed = (low * 0x9e3779b1u) ^ (high * 0x85ebca6bu);
    return 0xc000u | ((mixed >> 16 ^ mixed) & 0x3fffu);
}

static void fill_path(const struct mlx5_nic *nic, const struct mlx5_config *config, const struct card_nic *to,
                      struct devx_path *path)
{
    path->is_roce = nic->port.is_roce;
    path->port = (uint32_t)nic->port.number;
    path->sl = config->service_level;
    path->traffic_class = config->traffic_class;
    path->source_index = nic->port.gid_index;
    path->hop_limit = DEVX_HOP_LIMIT;
    memcpy(path->rgid, to->gid, sizeof path->rgid);
    path->rlid = to->lid;
    path->has_grh = memcmp(to->gid, nic->port.gid, 8) != 0; /* another subnet prefix */
}

/* ---- States ---- */

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* All tries together last three quarters of a wait's deadline at most, so that the wait ends by the loss of a
 * peer that is silent; if each lasts as long as it must, and not up to four times that, as it may. */
static uint32_t ack_timeout(uint64_t timeout_ns)
{
    uint64_t most_ns = timeout_ns / 4 * 3 / (DEVX_RETRY_COUNT + 1);
    uint32_t t = DEVX_MAX_ACK_TIMEOUT;
    while (t > DEVX_MIN_ACK_TIMEOUT && 4096ull << t > most_ns) {
        t--;
    }
    return t;
}

static enum tern_status fill_link(struct mlx5_provider *p, const struct mlx5_qp *qp, const struct card *card,
                                  int peer, uint32_t queue, struct devx_link *link)
{
    struct mlx5_nic *nic = &p->nics[qp->nic];
    const struct card_nic *to = &card->nics[queue % card->num_nics];
    memset(link, 0, sizeof *link);
    link->qpn = qp->qpn;
    link->remote_qpn = qpn_of(card, p->config.rank, queue);
    if (link->remote_qpn == 0 || link->remote_qpn > WQE_MAX_QPN) {
        return TERN_FAIL(TERN_MISMATCH, "rank %d wants queues to rank %d, which wants none to it",
                         p->config.rank, peer);
    }
    if (to->is_roce != (uint32_t)nic->port.is_roce) {
        return TERN_FAIL(TERN_MISMATCH, "%s is on %s, but NIC %u of rank %d is on %s", nic->name,
                         nic->port.is_roce ? "Ethernet" : "InfiniBand", queue % card->num_nics, peer,
                         to->is_roce ? "Ethernet" : "InfiniBand");
    }
    link->mtu = least(nic->port.mtu, to->mtu & 7u);
    link->log_reads_in = least(nic->log_reads_in, to->log_reads_out);
    link->log_reads_out = least(nic->log_reads_out, to->log_reads_in);
    link->ack_timeout = ack_timeout(p->config.timeout_ns);
    fill_path(nic, &p->config, to, &link->path);
    if (nic->port.is_roce) {
        link->path.udp_sport = udp_port(link->qpn, link->remote_qpn);
        return resolve_mac(nic, &p->config, to, peer, link->path.rmac);
    }
    return TERN_OK;
}

static enum tern_status connect_queue(struct mlx5_provider *p, const struct card *card, int peer,
                                      uint32_t queue)
{
    struct mlx5_qp *qp = terni_mlx5_qp_of(p, peer, queue);
    struct mlx5_nic *nic = &p->nics[qp->nic];
    uint32_t in[DEVX_QP_WORDS];
    struct devx_link link;
    TERN_TRY(fill_link(p, qp, card, peer, queue, &link));
    terni_devx_rst2init(in, &link);
    TERN_TRY(terni_mlx5_qp_modify(nic, qp, in, DEVX_QP_WORDS, DEVX_INIT));
    terni_devx_init2rtr(in, &link);
    TERN_TRY(terni_mlx5_qp_modify(nic, qp, in, DEVX_QP_WORDS, DEVX_RTR));
    terni_devx_rtr2rts(in, &link);
    return terni_mlx5_qp_modify(nic, qp, in, DEVX_QP_WORDS, DEVX_RTS);
}

enum tern_status terni_mlx5_connect(struct mlx5_provider *p, const void *cards)
{
    if (p->is_connected) {
        return TERN_FAIL(TERN_BAD_STATE, "the queues of rank %d are connected", p->config.rank);
    }
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        const struct card *card = card_of(p, cards, peer);
        if (!p->peers[peer].is_wanted) {
            continue;
        }
        TERN_TRY(check_card(p, card, peer));
        for (uint32_t q = 0; q < p->config.num_queues; q++) {
            TERN_TRY(connect_queue(p, card, peer, q));
        }
        p->peers[peer].num_nics = (int)card->num_nics;
    }
    p->is_connected = 1;
    TERN_TRY(terni_mlx5_relay_open(p));
    return terni_mlx5_tables_fill(p);
}

/* ---- After a fault ---- */

enum tern_status terni_mlx5_inspect(struct mlx5_provider *p, int peer, uint32_t index,
                                    struct devx_qp_state *state)
{
    uint32_t in[DEVX_HEAD_WORDS], out[DEVX_QP_WORDS] = {0};
    struct mlx5_qp *qp;
    struct mlx5_nic *nic;
    if (terni_mlx5_queue(p, peer, index) == NULL) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "rank %d has no queue %u to rank %d", p->config.rank, index,
                         peer);
    }
    qp = terni_mlx5_qp_of(p, peer, index);
    nic = &p->nics[qp->nic];
    terni_devx_query_qp(in, qp->qpn);
    if (nic->v->obj_query(qp->qp, in, sizeof in, out, sizeof out) != 0) {
        return terni_mlx5_refused(nic, in, out);
    }
    terni_devx_read_qp(out, state);
    return TERN_OK;
}
