/* SPDX-License-Identifier: Apache-2.0
 *
 * A network for tests: software NICs that speak packets, each connected with each, itself too, by links that
 * err as a test wishes. */
#ifndef TERN_TEST_SOFTNIC_NET_H
#define TERN_TEST_SOFTNIC_NET_H

#include "net/softnic_rc.h"

enum {
    NET_CARDS = 4,
    NET_CARD_QPS = 16,
    NET_PACKETS = 32,
    NET_ENTRIES = 16,
    NET_RECEIVES = 4,
    NET_POSTS = 16
};

/* What a network is to be; softnic_net_kind has one without faults. */
struct softnic_net_shape {
    struct rc_config config;            /* of all queue pairs; numbers, pd and first_psn are set for each */
    struct rc_faults requests, answers; /* of all links; each has a seed of its own */
    uint32_t modes[NET_CARDS];          /* RC_RELAXED, RC_CST */
    uint32_t hold_one_in;
    int by_clock; /* time is the clock's, not counted in looks */
    uint64_t seed;
};

struct softnic_net_qp {
    struct rc_entry entries[NET_ENTRIES];
    struct rc_receive receives[NET_RECEIVES];
    _Alignas(64) uint32_t receive_cqes[NET_RECEIVES * CQE_WORDS];
};

struct softnic_net {
    struct softnic_net_shape shape;
    uint32_t num_cards;
    struct softnic_card cards[NET_CARDS];
    struct rc_memory memories[NET_CARDS];
    struct softnic_port ports[NET_CARDS][NET_CARDS];
    /* From card to card: requests of the first, and their answers, which go back. */
    struct rc_link requests[NET_CARDS][NET_CARDS], answers[NET_CARDS][NET_CARDS];
    struct softnic_rc_qp qps[NET_CARDS][NET_CARD_QPS];
    struct softnic_net_qp room[NET_CARDS][NET_CARD_QPS];
    uint64_t looks;
    char *packets, *posts;
};

/* Without faults: MTU 256, time in looks, no loss that would be final. */
struct softnic_net_shape softnic_net_kind(uint64_t seed);
/* keys: of each card. Never NULL; fails a test by ending it. */
struct softnic_net *softnic_net_open(const struct softnic_net_shape *shape, uint32_t num_cards,
                                     const struct key_table *const *keys);
void softnic_net_close(struct softnic_net *net);
/* Adds `front` to a card, connected to queue pair peer_qpn of card `peer`. PSNs are of `psn` on both ends. */
struct softnic_rc_qp *softnic_net_add(struct softnic_net *net, uint32_t card, uint32_t peer,
                                      struct softnic_qp *front, uint32_t peer_qpn, uint32_t psn);
/* So that a kernel of num_cards warps serves it. */
struct softnic_rc_args softnic_net_args(struct softnic_net *net, const uint64_t *stop);
/* What peers wrote and what is posted to memory yet is there: an acknowledgement says less. Not while the
 * cards run. */
void softnic_net_land(struct softnic_net *net);
/* Everything that was posted has completed, and been told. Not while the cards run. */
int softnic_net_is_idle(const struct softnic_net *net);

#endif
