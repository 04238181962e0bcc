/* SPDX-License-Identifier: Apache-2.0
 *
 * Rails on the host: how much memory the streams to other domains take, and where each part of it lies
 * (kernels/rail_args.h says what the parts are). Pure functions. */
#ifndef TERN_EP_RAIL_H
#define TERN_EP_RAIL_H

#include "kernels/rail_args.h"

/* Of the network window: rings, and words. Of device memory. Words and device memory begin as zeros. */
uint64_t terni_rail_ring_bytes(uint32_t num_domains, uint32_t num_channels, uint32_t ring_bytes);
uint64_t terni_rail_word_bytes(uint32_t num_domains, uint32_t num_channels);
uint64_t terni_rail_state_bytes(uint32_t num_domains, uint32_t num_channels);
/* Everything behind the sizes of *rail, from the three beginnings, which are aligned to 256 bytes. */
void terni_rail_place(struct rail_args *rail, char *rings, char *words, char *state);
/* Messages of a chunk. share: those of each stream in an operation that is full. */
uint32_t terni_rail_chunk(uint32_t ring_bytes, uint32_t stride, uint32_t share);

#endif
