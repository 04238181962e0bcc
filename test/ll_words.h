/* SPDX-License-Identifier: Apache-2.0
 *
 * A look behind the interface, for tests that lose signals on purpose. Apart, since names of tests and of
 * kernels differ in meaning. */
#ifndef TERN_TEST_LL_WORDS_H
#define TERN_TEST_LL_WORDS_H

#include "tern/tern.h"

/* Arrival words of a lane for its operation number `epoch`, in this rank's window: host memory on the cpu
 * machine only. Its layout is in kernels/ll_args.h. */
uint64_t *ll_words_arrivals(const struct tern_ep *ep, uint32_t lane, uint64_t epoch);
/* Likewise the entry words of rank `from`. */
uint64_t *ll_words_entry(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int from);
/* In this rank's window, the word of row `slot` of a combine that a far rank sends home, whose object is
 * `from`; the lane's latest dispatch has been received there. Rows of a chunk have one word. */
uint64_t *ll_words_home(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, const struct tern_ep *from,
                        uint32_t slot);
/* Where rank `from` puts row `slot` of a dispatch in the window of rank `to`, as this rank reaches it. If
 * `from` is far from `to`, of rows of the object's largest size alone. */
char *ll_words_place(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int to, int from,
                     uint32_t slot);
/* Railed, of rows of the object's largest size: where the rank of domain `domain` that is on the rail of rank
 * `to` puts message `number` there, as this rank reaches it; and in this rank's own window its word. */
char *ll_words_message(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int to, int domain,
                       uint32_t number);
uint64_t *ll_words_message_word(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, int domain,
                                uint32_t number);
/* Likewise the word by which this rank is told to leave out rank r, of an object with masks. */
uint64_t *ll_words_heard(const struct tern_ep *ep, int r);
/* What the lane's latest dispatch noted of its own tokens, [tokens][topk] ids, -1 for none that was sent: in
 * this rank's device memory. */
const int32_t *ll_words_ids(const struct tern_ep *ep, uint32_t lane);
/* Rows of a dispatch for a far rank that have one arrival word, that of the first. */
int ll_words_chunk(void);
/* Of an object whose far ranks are reached by software NICs: blocks of work entries posted to each rank so
 * far, [TERN_MAX_RANKS]. */
int ll_words_posted(const struct tern_ep *ep, uint64_t *posted);
/* As if an operation of another shape had left there what is no row of this one's: fills what a lane
 * remembers of rows received with the bytes of 0.5f. */
void ll_words_spoil(const struct tern_ep *ep, uint32_t lane);

/* Makes all places blank of a lane's operation number `epoch` in this rank's window, likewise, of rows that
 * go over blanks. Returns how many words were not. */
uint64_t ll_words_lose_blanks(const struct tern_ep *ep, uint32_t lane, uint64_t epoch);
/* The same of the number-th word alone that is not blank; fails if there are fewer. */
int ll_words_lose_one(const struct tern_ep *ep, uint32_t lane, uint64_t epoch, uint64_t number);
/* Of rows over blanks, and of weights that go ahead: words of a lane's places in this rank's window, on any
 * machine, that are not blank while no rank is in an operation. */
int ll_words_left(const struct tern_ep *ep, uint32_t lane, uint64_t *left);
/* As if a pair of ranks had no native atomics: rows of few tokens go as those of many. On all ranks. */
void ll_words_forbid(struct tern_ep *ep);

#endif
