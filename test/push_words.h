/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests see of an object's pushed rows (kernels/combine_push.h), and how they are kept from coming. */
#ifndef TERN_TEST_PUSH_WORDS_H
#define TERN_TEST_PUSH_WORDS_H

#include "tern/tern.h"

#include <stdint.h>

/* On the cpu machine: the latest operation in which a peer's rows came to this object's staging; 0: none. */
uint64_t push_latest(const struct tern_ep *ep);
/* 1: this object pulls, as if it had been opened so; 0: it pushes. */
void push_forbid(struct tern_ep *ep, int forbid);
/* 1: its rows are told of by other words than peers look at; 0: by the right ones. */
void push_mislead(struct tern_ep *ep, int mislead);

#endif
