/* SPDX-License-Identifier: Apache-2.0
 *
 * What a provider's other files know of its NIC that speaks packets (softnic_packets.c): nothing of it is
 * there where softnic_wire.config.mtu is 0. */
#ifndef TERN_SOFTNIC_PACKETS_H
#define TERN_SOFTNIC_PACKETS_H

#include "net/softnic_parts.h"

struct softnic_card;

static inline int terni_softnic_has_packets(const struct softnic_provider *p)
{
    return p->config.wire.config.mtu != 0;
}

/* After the queue pairs have their memory. */
enum tern_status terni_softnic_packets_open(struct softnic_provider *p);
/* seats: [num_ranks] this rank's among the peers of each. wires: [num_ranks] each one's config.wire_memory,
 * as this rank's NICs address it. */
enum tern_status terni_softnic_packets_connect(struct softnic_provider *p, const struct softnic_seat *seats,
                                               void *const *wires);
void terni_softnic_packets_close(struct softnic_provider *p);
/* [num_nics] as the NICs address them. */
struct softnic_card *terni_softnic_packets_cards(const struct softnic_provider *p);
/* While it pauses. What is on its way into memory lands: its keys may go. */
void terni_softnic_packets_land(struct softnic_provider *p);
enum tern_status terni_softnic_packets_count(const struct softnic_provider *p, struct softnic_traffic *t);
/* All queue pairs go to the error state. */
enum tern_status terni_softnic_packets_break(struct softnic_provider *p);

#endif
