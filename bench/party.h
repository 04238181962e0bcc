/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of a run as one thing. Either this process drives all of them, one host thread issuing for each
 * in turn, or (under tern-run) it is one of them and its peers run the same program. The rest of tern-bench
 * loops over the local ranks and never asks which it is. */
#ifndef TERN_BENCH_PARTY_H
#define TERN_BENCH_PARTY_H

#include "comm/comm.h"
#include "options.h"
#include "report.h"

struct party {
    int num_ranks;
    int num_local; /* ranks of this process, first .. first + num_local - 1 */
    int first;
    int in_process; /* all ranks are local */
    enum tern_machine machine;
    struct tern_id id;
    struct tern_comm *comms[TERN_MAX_RANKS];     /* [num_local] */
    struct tern_stream *streams[TERN_MAX_RANKS]; /* [num_local] */
};

/* Decides ranks and machine; opens nothing. */
enum tern_status party_init(struct party *p, const struct options *options);
/* COLLECTIVE. Communicators with so much window memory a rank, and a stream each. */
enum tern_status party_open(struct party *p, uint64_t heap_bytes);
void party_close(struct party *p);

/* COLLECTIVE. all[r] becomes rank r's `bytes` bytes; `local` holds those of the local ranks in order. */
enum tern_status party_gather(struct party *p, const void *local, void *all, size_t bytes);
/* COLLECTIVE. sums[k] becomes the sum over all ranks of tally k; local[i * num + k] is that of local rank
 * i. */
enum tern_status party_tally(struct party *p, const struct tally *local, int num, struct tally *sums);
/* COLLECTIVE. An EP object on every local rank. */
enum tern_status party_open_eps(struct party *p, const struct tern_ep_config *config, struct tern_ep **eps);
/* Processors that an operation takes: `asked`, refused above what a rank of the open party may use; if that
 * is 0, `or_else` or what a rank may use. */
enum tern_status party_sms(const struct party *p, uint32_t asked, uint32_t or_else, uint32_t *sms);
/* Of an open party: the ranks of rank 0's domain. EP objects want all domains as large. */
int party_domain_ranks(const struct party *p);
/* Of an open party. TERN_UNSUPPORTED: not all ranks address each other, as `command` wants. */
enum tern_status party_one_domain(const struct party *p, const char *command);
/* COLLECTIVE. Until every process is here. */
enum tern_status party_barrier(struct party *p);
/* Until all that was issued on the local ranks' streams has run. */
enum tern_status party_synchronize(struct party *p);
/* Runs work(user, i) for 0 <= i < num, at most TERN_MAX_RANKS, each in a thread of its own; the first failure
 * is returned. For local ranks: num = num_local. */
enum tern_status party_each(int num, enum tern_status (*work)(void *user, int i), void *user);

#endif
