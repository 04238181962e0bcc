/* SPDX-License-Identifier: Apache-2.0
 *
 * Software NICs and the links between them; see softnic_net.h. */
#include "softnic_net.h"

#include <stdlib.h>
#include <string.h>

struct softnic_net_shape softnic_net_kind(uint64_t seed)
{
    struct softnic_net_shape s = {0};
    s.config.mtu = 256;
    s.config.window = 16;
    s.config.max_reads = 4;
    s.config.retry_count = 100000;
    s.config.rnr_retry = RC_RNR_FOREVER;
    s.config.timeout = 2000;
    s.config.rnr_delay = 50;
    s.seed = seed;
    return s;
}

static void *take(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) {
        abort();
    }
    memset(memory, 0, bytes);
    return memory;
}

static void open_memory(struct softnic_net *net, uint32_t i, const struct key_table *keys)
{
    const size_t post = rc_post_bytes(net->shape.config.mtu);
    struct rc_memory *m = &net->memories[i];
    m->keys = keys;
    m->modes = net->shape.modes[i];
    m->random = net->shape.seed * 2 * NET_CARDS + 2 * i + 1;
    m->writes.slots = net->posts + 2 * i * NET_POSTS * post;
    m->results.slots = net->posts + (2 * i + 1) * NET_POSTS * post;
    m->writes.capacity = m->results.capacity = NET_POSTS;
    m->writes.slot_bytes = m->results.slot_bytes = (uint32_t)post;
}

static void open_links(struct softnic_net *net, uint32_t a, uint32_t b)
{
    const uint32_t mtu = net->shape.config.mtu;
    const size_t bytes = NET_PACKETS * rc_packet_bytes(mtu);
    struct rc_faults requests = net->shape.requests, answers = net->shape.answers;
    char *packets = net->packets + 2 * (a * NET_CARDS + b) * bytes;
    requests.seed = net->shape.seed * 64 + 2 * (a * NET_CARDS + b);
    answers.seed = requests.seed + 1;
    rc_link_init(&net->requests[a][b], packets, NET_PACKETS, mtu, &requests);
    rc_link_init(&net->answers[a][b], packets + bytes, NET_PACKETS, mtu, &answers);
    net->ports[a][b].requests_out = net->ports[b][a].requests_in = &net->requests[a][b];
    net->ports[a][b].answers_in = net->ports[b][a].answers_out = &net->answers[a][b];
}

struct softnic_net *softnic_net_open(const struct softnic_net_shape *shape, uint32_t num_cards,
                                     const struct key_table *const *keys)
{
    struct softnic_net *net = (struct softnic_net *)take(sizeof(*net));
    net->shape = *shape;
    net->num_cards = num_cards;
    net->packets = (char *)take(2 * NET_CARDS * NET_CARDS * NET_PACKETS * rc_packet_bytes(shape->config.mtu));
    net->posts = (char *)take(2 * NET_CARDS * NET_POSTS * rc_post_bytes(shape->config.mtu));
    for (uint32_t i = 0; i < num_cards; i++) {
        struct softnic_card *card = &net->cards[i];
        open_memory(net, i, keys[i]);
        for (uint32_t k = 0; k < num_cards; k++) {
            open_links(net, i, k);
        }
        card->qps = net->qps[i];
        card->ports = net->ports[i];
        card->num_ports = num_cards;
        card->memory = &net->memories[i];
        card->random = shape->seed * 0x9e3779b97f4a7c15ull + 2 * i + 1;
        card->hold_one_in = shape->hold_one_in;
    }
    return net;
}

void softnic_net_close(struct softnic_net *net)
{
    if (net != NULL) {
        free(net->packets);
        free(net->posts);
        free(net);
    }
}

struct softnic_rc_qp *softnic_net_add(struct softnic_net *net, uint32_t card, uint32_t peer,
                                      struct softnic_qp *front, uint32_t peer_qpn, uint32_t psn)
{
    uint32_t i = net->cards[card].num_qps++;
    struct softnic_rc_qp *qp = &net->qps[card][i];
    struct softnic_net_qp *room = &net->room[card][i];
    struct rc_config c = net->shape.config;
    c.qpn = front->qpn;
    c.peer_qpn = peer_qpn;
    c.pd = front->pd;
    c.first_psn = psn & RC_PSN_MASK;
    if (i >= NET_CARD_QPS || terni_rc_check_config(&c) != TERN_OK) {
        abort();
    }
    softnic_rc_qp_init(qp, front, peer, &c, room->entries, NET_ENTRIES, room->receives, NET_RECEIVES);
    memset(room->receive_cqes, 0xff, sizeof(room->receive_cqes));
    qp->receive_cqes = room->receive_cqes;
    qp->num_receive_cqes = NET_RECEIVES;
    return qp;
}

struct softnic_rc_args softnic_net_args(struct softnic_net *net, const uint64_t *stop)
{
    struct softnic_rc_args args = {net->cards, net->num_cards, 0, net->shape.by_clock ? NULL : &net->looks,
                                   stop};
    return args;
}

void softnic_net_land(struct softnic_net *net)
{
    for (uint32_t c = 0; c < net->num_cards; c++) {
        rc_memory_land(&net->memories[c]);
    }
}

int softnic_net_is_idle(const struct softnic_net *net)
{
    for (uint32_t i = 0; i < net->num_cards; i++) {
        for (uint32_t k = 0; k < net->cards[i].num_qps; k++) {
            const struct softnic_rc_qp *qp = &net->qps[i][k];
            if (qp->requester.retired != qp->requester.posted || qp->over != qp->front->fetched ||
                qp->front->is_held) {
                return 0;
            }
        }
    }
    return 1;
}
