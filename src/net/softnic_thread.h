/* SPDX-License-Identifier: Apache-2.0
 *
 * A software NIC in a thread of the host: one engine for all its queue pairs, beside the executor whose
 * kernels drive them. It sleeps for a while when nothing has come for long, and not while something is on
 * its modelled wire. */
#ifndef TERN_SOFTNIC_THREAD_H
#define TERN_SOFTNIC_THREAD_H

#include "tern/tern.h"

struct softnic_args;
struct softnic_card;
struct softnic_thread;

/* The arguments are copied; what they point to is the thread's until it is joined. */
enum tern_status terni_softnic_thread_open(const struct softnic_args *args, struct softnic_thread **thread);
/* The same for a NIC that speaks packets. */
enum tern_status terni_softnic_card_thread_open(struct softnic_card *card, const uint64_t *stop,
                                                struct softnic_thread **thread);
/* After the stop word has been raised. NULL: nothing to do. */
void terni_softnic_thread_join(struct softnic_thread *thread);

#endif
