/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the tokens of a run go: the ids and weights of every rank, drawn or read from a file, and what they
 * mean by the reference. Every process holds all of it, so that checks and byte counts need no exchange. */
#ifndef TERN_BENCH_ROUTING_H
#define TERN_BENCH_ROUTING_H

#include "npy.h"
#include "options.h"
#include "ref/ref.h"
#include "report.h"

struct routing {
    int num_ranks;
    uint32_t tokens; /* a rank */
    uint32_t topk, experts;
    int64_t *ids;             /* [num_ranks, tokens, topk] */
    float *weights;           /* likewise */
    uint32_t *num_tokens;     /* for world */
    const int64_t **topk_idx; /* for world */
    struct ref_world world;
    struct ref_route *routes; /* [num_ranks] */
};

/* Fills in what a routing file fixes (topk) or knows the least of (experts) and refuses options that do not
 * fit it; without a file, the defaults. Before routing_open. */
enum tern_status routing_settle(struct options *options, int num_ranks);
enum tern_status routing_open(const struct options *options, int num_ranks, uint32_t tokens,
                              struct routing *routing);
void routing_close(struct routing *routing);

/* How the ids were drawn, or the last part of the file's path without its extension, and the layer. */
void routing_name(const struct options *options, char *text, size_t text_bytes);
/* The note "routing", of settled options. */
enum tern_status routing_note(struct report *report, const struct options *options);

/* Rows that rank r receives, padding apart, and how many of them come from r itself. */
uint64_t routing_rows(const struct routing *routing, int rank);
uint64_t routing_own_rows(const struct routing *routing, int rank);
/* Rows that dispatch sends to other domains, one a (token, domain), by rank; combine sends as many home.
 * Those that a rank receives from its peers there count apart. */
struct routing_crossing {
    uint64_t all;  /* of all ranks */
    uint64_t most; /* that one rank sends or receives, whichever is more */
};
struct routing_crossing routing_cross(const struct routing *routing, uint32_t domain_ranks);

#endif
