/* SPDX-License-Identifier: Apache-2.0
 *
 * A provider's NIC that speaks packets (softnic_rc.h): what it adds to the queue pairs that softnic_memory.c
 * makes. Two blocks of memory:
 *
 *     the cards', of the device   [num_nics] card, memory, ports [num_peers]; queue pairs and their entries
 *                                 [num_places]; and with config.dump what each card has posted to memory
 *                                 and has not landed
 *     the wire's, in a window     [num_nics][num_ranks] two links, by which that rank's NIC sends to this
 *                                 one: requests, and answers to what this one asked
 *
 * Who receives has the link, and begins it before anybody knows where it is; who sends maps it. A link is
 * at another address there, so nothing in it is an address. Pointers are in the card, which is this rank's
 * alone. Time is the clock's. */
#define TERN_HOST_THREAD
#include "net/softnic_packets.h"

#include "net/softnic_rc.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { WIRE_PACKETS = 32, CARD_ENTRIES = 32, CARD_POSTS = 16 };
enum { WIRE_MTU = 1024, WIRE_WINDOW = 16, WIRE_TIMEOUT_NS = 4000000 };
enum { ERR_MTU = 256, ERR_TIMEOUT_NS = 2000000, ERR_DELAY_NS = 200000, ERR_PACKETS = 40 };

/* Where things are in the cards' memory. */
struct places {
    uint64_t cards, memories, ports, qps, entries, posts, end;
};

/* With several NICs a rank's writes arrive late, as they may across PCIe, where nothing orders what one NIC
 * writes against another's. */
static int posts_writes(const struct softnic_provider *p) { return p->config.num_nics > 1; }

/* Of one NIC: those of writes, then those of results. */
static uint64_t num_posts(const struct softnic_provider *p)
{
    return (uint64_t)CARD_POSTS * ((posts_writes(p) != 0) + (p->config.dump != 0));
}

static struct places places_of(const struct softnic_provider *p)
{
    const struct softnic_wire *w = &p->config.wire;
    uint64_t num = p->num_places, nics = p->config.num_nics, end = 0;
    struct places at;
    at.cards = terni_softnic_reserve(&end, nics, sizeof(struct softnic_card));
    at.memories = terni_softnic_reserve(&end, nics, sizeof(struct rc_memory));
    at.ports = terni_softnic_reserve(&end, nics * p->num_peers, sizeof(struct softnic_port));
    at.qps = terni_softnic_reserve(&end, num, sizeof(struct softnic_rc_qp));
    at.entries = terni_softnic_reserve(&end, num * CARD_ENTRIES, sizeof(struct rc_entry));
    at.posts = terni_softnic_reserve(&end, nics * num_posts(p), rc_post_bytes(w->config.mtu));
    at.end = end;
    return at;
}

/* ---- The wire ---- */

void terni_softnic_wire_init(struct softnic_wire *w)
{
    memset(w, 0, sizeof *w);
    w->config.mtu = WIRE_MTU;
    w->config.window = WIRE_WINDOW;
    w->config.max_reads = RC_MAX_READS;
    w->config.rnr_retry = RC_RNR_FOREVER;
    w->config.timeout = WIRE_TIMEOUT_NS;
    w->config.backoff = 1;
    w->config.rnr_delay = WIRE_TIMEOUT_NS;
}

/* Numbers of packets soon wrap. */
void terni_softnic_wire_err(struct softnic_wire *w, int is_adaptive)
{
    terni_softnic_wire_init(w);
    w->config.mtu = ERR_MTU;
    w->config.timeout = ERR_TIMEOUT_NS;
    w->config.first_psn = RC_PSN_MASK - ERR_PACKETS;
    w->config.adaptive = is_adaptive != 0;
    w->requests.drop = RC_CERTAIN / 200;
    w->requests.duplicate = RC_CERTAIN / 50;
    w->requests.delay = RC_CERTAIN / 20;
    w->requests.max_delay = ERR_DELAY_NS;
    w->requests.reorder = RC_CERTAIN / 4;
    w->requests.overtake = is_adaptive != 0;
    w->answers = w->requests;
}

static uint64_t packets_bytes(const struct softnic_wire *w)
{
    return WIRE_PACKETS * (uint64_t)rc_packet_bytes(w->config.mtu);
}

static uint64_t link_bytes(const struct softnic_wire *w)
{
    uint64_t end = 0;
    (void)terni_softnic_reserve(&end, 1, sizeof(struct rc_link));
    (void)terni_softnic_reserve(&end, 1, packets_bytes(w));
    return end;
}

uint64_t terni_softnic_wire_bytes(const struct softnic_wire *w, int num_ranks, uint32_t num_nics)
{
    return w->config.mtu != 0 ? 2 * (uint64_t)num_ranks * num_nics * link_bytes(w) : 0;
}

/* Of the wire at `memory`: what comes to that rank's NIC from the same of rank `from`. */
static struct rc_link *link_at(const struct softnic_provider *p, char *memory, uint32_t nic, int from,
                               int is_answer)
{
    uint64_t number = 2 * ((uint64_t)nic * (uint64_t)p->config.num_ranks + (uint64_t)from);
    return (struct rc_link *)(void *)(memory + (number + (uint64_t)is_answer) * link_bytes(&p->config.wire));
}

static void begin_link(const struct softnic_provider *p, char *image, uint32_t nic, int from, int is_answer)
{
    const struct softnic_wire *w = &p->config.wire;
    struct rc_link *link = link_at(p, image, nic, from, is_answer);
    struct rc_faults faults = is_answer ? w->answers : w->requests;
    uint64_t num = (uint64_t)p->config.num_ranks, to = (uint64_t)p->config.rank;
    uint64_t number = ((nic * num + (uint64_t)from) * num + to) * 2 + (uint64_t)is_answer;
    faults.seed = (p->config.seed + number) * 0x9e3779b97f4a7c15ull >> 2;
    rc_link_init(link, (char *)link + link_bytes(w) - packets_bytes(w), WIRE_PACKETS, w->config.mtu, &faults);
}

static enum tern_status begin_wire(struct softnic_provider *p)
{
    uint64_t bytes = terni_softnic_wire_bytes(&p->config.wire, p->config.num_ranks, p->config.num_nics);
    char *image = (char *)calloc(1, bytes);
    enum tern_status status;
    if (image == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the packets of %d ranks",
                         p->config.num_ranks);
    }
    for (uint32_t nic = 0; nic < p->config.num_nics; nic++) {
        for (int r = 0; r < p->config.num_ranks; r++) {
            begin_link(p, image, nic, r, 0);
            begin_link(p, image, nic, r, 1);
        }
    }
    status = terni_softnic_copy(p, p->config.wire_memory, image, bytes);
    free(image);
    return status;
}

/* ---- Opening ---- */

static enum tern_status check(const struct softnic_provider *p)
{
    struct rc_config c = p->config.wire.config;
    c.qpn = c.peer_qpn = 1;
    TERN_TRY(terni_rc_check_config(&c));
    if (p->is_modelled) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "a software NIC of packets of %u bytes, and rates: only the other one has a modelled "
            "wire",
            c.mtu);
    }
    if (p->config.dump && p->machine->info.kind != TERN_MACHINE_CPU) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "late results of packets of %u bytes: the host lands them, and does not reach device "
            "%d's memory",
            c.mtu, p->machine->info.device);
    }
    if (p->config.wire_memory == NULL) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "no memory for packets of %u bytes", c.mtu);
    }
    return TERN_OK;
}

enum tern_status terni_softnic_packets_open(struct softnic_provider *p)
{
    void *memory = NULL;
    if (!terni_softnic_has_packets(p)) {
        return TERN_OK;
    }
    TERN_TRY(check(p));
    TERN_TRY(p->machine->ops->alloc(p->machine, places_of(p).end, &memory));
    p->cards = (char *)memory;
    return begin_wire(p);
}

void terni_softnic_packets_close(struct softnic_provider *p)
{
    if (p->cards != NULL) {
        p->machine->ops->free(p->machine, p->cards);
    }
}

/* ---- Connecting ---- */

/* Of a NIC: the ports are of the wanted ranks, in their order. */
static void lay_ports(struct softnic_provider *p, const struct places *at, char *image, uint32_t nic,
                      void *const *wires)
{
    struct softnic_port *ports = (struct softnic_port *)(void *)(image + at->ports) + nic * p->num_peers;
    char *own = (char *)p->config.wire_memory;
    for (int r = 0; r < p->config.num_ranks; r++) {
        if (p->peers[r].is_wanted) {
            struct softnic_port *port = ports++;
            port->requests_out = link_at(p, (char *)wires[r], nic, p->config.rank, 0);
            port->answers_out = link_at(p, (char *)wires[r], nic, p->config.rank, 1);
            port->requests_in = link_at(p, own, nic, r, 0);
            port->answers_in = link_at(p, own, nic, r, 1);
        }
    }
}

static void lay_qp(struct softnic_provider *p, const struct places *at, char *image, uint32_t place,
                   uint32_t port, uint32_t peer_qpn)
{
    struct softnic_rc_qp *qp = (struct softnic_rc_qp *)(void *)(image + at->qps) + place;
    struct softnic_qp *front = (struct softnic_qp *)(void *)(p->device + p->at.qps) + place;
    struct rc_entry *entries =
        (struct rc_entry *)(void *)(p->cards + at->entries) + (uint64_t)place * CARD_ENTRIES;
    struct rc_config c = p->config.wire.config;
    struct softnic_qp fresh; /* as `front` is, which the host may not reach */
    memset(&fresh, 0, sizeof fresh);
    c.qpn = 1 + place;
    c.peer_qpn = peer_qpn;
    c.pd = SOFTNIC_PD;
    softnic_rc_qp_init(qp, &fresh, port, &c, entries, CARD_ENTRIES, NULL, 0);
    qp->front = front;
}

static void lay_memory(const struct softnic_provider *p, const struct places *at, uint32_t nic,
                       struct rc_memory *m)
{
    uint64_t post = rc_post_bytes(p->config.wire.config.mtu);
    m->keys = terni_softnic_keys(p, -1);
    char *slots = p->cards + at->posts + nic * num_posts(p) * post;
    m->modes = (posts_writes(p) ? RC_RELAXED : 0u) | (p->config.dump ? RC_CST : 0u);
    m->random = ((p->config.seed + nic) << 1) | 1;
    m->writes.slots = slots;
    m->writes.capacity = posts_writes(p) ? CARD_POSTS : 0u;
    m->writes.slot_bytes = (uint32_t)post;
    m->results.slots = slots + m->writes.capacity * post;
    m->results.capacity = p->config.dump ? CARD_POSTS : 0u;
    m->results.slot_bytes = (uint32_t)post;
}

/* Its queue pairs are those with its places. */
static void lay_card(const struct softnic_provider *p, const struct places *at, uint32_t nic,
                     struct softnic_card *card)
{
    const struct softnic_config *c = &p->config;
    card->qps =
        (struct softnic_rc_qp *)(void *)(p->cards + at->qps) + terni_softnic_nic_first(c, nic, p->num_peers);
    card->ports = (struct softnic_port *)(void *)(p->cards + at->ports) + nic * p->num_peers;
    card->num_qps = p->num_peers * terni_softnic_nic_queues(c, nic);
    card->num_ports = p->num_peers;
    card->memory = (struct rc_memory *)(void *)(p->cards + at->memories) + nic;
    card->random = ((c->seed + nic) * 0x9e3779b97f4a7c15ull) | 1;
    card->hold_one_in = c->hold_one_in;
}

static void lay_nic(struct softnic_provider *p, const struct places *at, char *image, uint32_t nic,
                    void *const *wires)
{
    lay_card(p, at, nic, (struct softnic_card *)(void *)(image + at->cards) + nic);
    lay_memory(p, at, nic, (struct rc_memory *)(void *)(image + at->memories) + nic);
    lay_ports(p, at, image, nic, wires);
}

static enum tern_status check_wires(const struct softnic_provider *p, void *const *wires)
{
    for (int r = 0; r < p->config.num_ranks; r++) {
        if (p->peers[r].is_wanted && (wires == NULL || wires[r] == NULL)) {
            return TERN_FAIL(TERN_UNSUPPORTED,
                             "rank %d's NIC sends no packets to that of rank %d, which is in another domain",
                             p->config.rank, r);
        }
    }
    return TERN_OK;
}

enum tern_status terni_softnic_packets_connect(struct softnic_provider *p, const struct softnic_seat *seats,
                                               void *const *wires)
{
    const struct places at = places_of(p);
    enum tern_status status;
    char *image;
    TERN_TRY(check_wires(p, wires));
    image = (char *)calloc(1, at.end);
    if (image == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u queue pairs", p->num_places);
    }
    for (uint32_t nic = 0; nic < p->config.num_nics; nic++) {
        lay_nic(p, &at, image, nic, wires);
    }
    for (int r = 0; r < p->config.num_ranks; r++) {
        for (uint32_t i = 0; p->peers[r].is_wanted && i < p->config.num_queues; i++) {
            lay_qp(p, &at, image, terni_softnic_place(p, r, i), p->peers[r].order,
                   1 + terni_softnic_place_at(&p->config, seats[r], i));
        }
    }
    status = terni_softnic_copy(p, p->cards, image, at.end);
    free(image);
    return status;
}

/* ---- While it does not run ---- */

struct softnic_card *terni_softnic_packets_cards(const struct softnic_provider *p)
{
    return (struct softnic_card *)(void *)(p->cards + places_of(p).cards);
}

void terni_softnic_packets_land(struct softnic_provider *p)
{
    int may_be = terni_softnic_has_packets(p) && p->config.dump && p->is_connected;
    for (uint32_t nic = 0; may_be && nic < p->config.num_nics; nic++) {
        rc_memory_land((struct rc_memory *)(void *)(p->cards + places_of(p).memories) + nic);
    }
}

static enum tern_status count_link(const struct softnic_provider *p, const struct rc_link *sends,
                                   const struct rc_link *takes, struct softnic_traffic *t)
{
    struct rc_link copy; /* of the rest of a link some is the peer's, which may run */
    const uint64_t bytes = offsetof(struct rc_link, first) - offsetof(struct rc_link, num_sent);
    TERN_TRY(terni_softnic_copy(p, &copy.num_sent, &sends->num_sent, bytes));
    t->sent += copy.num_sent;
    t->lost += copy.num_dropped;
    t->doubled += copy.num_duplicated;
    t->delayed += copy.num_delayed;
    TERN_TRY(terni_softnic_copy(p, &copy.num_reordered, &takes->num_reordered, sizeof copy.num_reordered));
    t->reordered += copy.num_reordered;
    return TERN_OK;
}

/* Reads what this NIC has written: of each link one end's. */
enum tern_status terni_softnic_packets_count(const struct softnic_provider *p, struct softnic_traffic *t)
{
    const struct places at = places_of(p);
    for (uint32_t i = 0; i < p->config.num_nics * p->num_peers; i++) {
        struct softnic_port port;
        TERN_TRY(terni_softnic_copy(p, &port, p->cards + at.ports + i * sizeof port, sizeof port));
        TERN_TRY(count_link(p, port.requests_out, port.requests_in, t));
        TERN_TRY(count_link(p, port.answers_out, port.answers_in, t));
    }
    for (uint32_t i = 0; i < p->num_places; i++) {
        struct softnic_rc_qp qp;
        TERN_TRY(terni_softnic_copy(p, &qp, p->cards + at.qps + i * sizeof qp, sizeof qp));
        t->resent += qp.requester.num_resent;
    }
    return TERN_OK;
}

enum tern_status terni_softnic_packets_break(struct softnic_provider *p)
{
    const struct places at = places_of(p);
    struct softnic_rc_qp *qps = (struct softnic_rc_qp *)calloc((size_t)p->num_places + 1, sizeof *qps);
    uint64_t bytes = (uint64_t)p->num_places * sizeof *qps;
    enum tern_status status;
    if (qps == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u queue pairs", p->num_places);
    }
    status = terni_softnic_copy(p, qps, p->cards + at.qps, bytes);
    for (uint32_t i = 0; i < p->num_places; i++) {
        qps[i].is_broken = 1;
    }
    status = status == TERN_OK ? terni_softnic_copy(p, p->cards + at.qps, qps, bytes) : status;
    free(qps);
    return status;
}
