/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests see of an object's pushed rows (kernels/combine_push.h) and of phases that are over
 * (kernels/dispatch_drain.h), and how they are kept from coming. */
#ifndef TERN_TEST_PUSH_WORDS_H
#define TERN_TEST_PUSH_WORDS_H

#include "tern/tern.h"

#include <stdint.h>

/* On the cpu machine: the latest operation in which a peer's rows came to this object's staging; 0: none. */
uint64_t push_latest(const struct tern_ep *ep);
/* From now on so many times as many ranks share the device, as far as this rank knows; 1: as before. */
void push_crowd(struct tern_comm *comm, int times);
/* 1: this object pulls, as if it had been opened so; 0: it pushes. */
void push_forbid(struct tern_ep *ep, int forbid);
/* 1: its rows are told of by other words than peers look at; 0: by the right ones. */
void push_mislead(struct tern_ep *ep, int mislead);

/* On the cpu machine: the latest operation in which a peer told this object of its phases; 0: none. */
uint64_t drain_latest(const struct tern_ep *ep);
/* This object writes other words than peers look at: how many rows its phases have, that they are over, that
 * its blocks are done, for which it waits longer than others itself; or the right ones. */
enum drain_lie { DRAIN_HIDES_ENDS, DRAIN_HIDES_WORDS, DRAIN_HIDES_DONE, DRAIN_HIDES_NOTHING };
void drain_mislead(struct tern_ep *ep, enum drain_lie lie);
/* On the cpu machine: no more blocks of a kernel at once than these, in the order of their numbers; 0: as
 * many as the processors hold. */
void drain_let_reside(int num_blocks);

#endif
