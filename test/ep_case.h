/* SPDX-License-Identifier: Apache-2.0
 *
 * A random case: everything about one route, one dispatch and one combine, drawn from one seed, which also
 * seeds the scheduler of the cpu machine. The same seed and limits give the same case in every process, so
 * ranks that run apart draw the same world. */
#ifndef TERN_TEST_EP_CASE_H
#define TERN_TEST_EP_CASE_H

#include "batch.h"

/* How much room outputs have. */
enum room { ROOM_EXACT, ROOM_STATIC, ROOM_SHORT };
/* What travels. */
enum cargo { CARGO_BF16, CARGO_FP8_SCALES, CARGO_FP8_PACKED, CARGO_MANY, CARGO_CAST, NUM_CARGOES };

struct ep_limits {
    int num_ranks; /* 0: drawn, up to max_ranks */
    int max_ranks;
    uint32_t max_tokens;
    uint32_t max_hidden; /* channels */
    uint64_t max_bytes;  /* of all outputs of all ranks */
};

struct ep_case {
    uint64_t seed;
    int num_ranks;
    struct batch_shape shape;
    struct tern_ep_config config;
    enum room room;
    enum cargo cargo;
    uint32_t cast, num_in;
    uint32_t row_bytes[TERN_MAX_PAYLOADS]; /* of in[i] */
    uint32_t combine_bytes;                /* of a combined row */
    int windows_only;   /* every tensor that peers touch is in a window, and staging is off */
    int windows_grow;   /* never drawn: windows lie in memory that the heap grew by */
    int copy_engine;    /* brings combine's rows */
    int pushes;         /* their ranks do */
    int drains;         /* dispatches bring rows out of staging meanwhile */
    int domain_ranks;   /* of each domain, a divisor of num_ranks; 0, unless ep_case_cut draws: one domain */
    int forces_domains; /* as in world.h */
    int num_biases;
    int weights;       /* travel both ways */
    int deterministic; /* the scheduler follows the seed alone */
};

/* Full size, or what TERN_TEST_SCALE leaves. */
struct ep_limits ep_case_limits(const struct test *t);
void ep_case_draw(struct ep_case *c, uint64_t seed, const struct ep_limits *limits);
/* Cuts the ranks into domains of so many, whose network is drawn. */
void ep_case_cut(struct ep_case *c, int domain_ranks, uint32_t transport);
/* One line, for a failure. */
void ep_case_text(const struct ep_case *c, char *text, size_t text_bytes);
/* Opens rank `self` (-1: all), runs the case against the reference, closes. Prints the case if it fails. `id`
 * is NULL for all ranks in this process. */
int ep_case_run(const struct ep_case *c, int self, const struct tern_id *id);
/* The same for one rank on a communicator that is open, with windows that suffice; closes it, too. */
int ep_case_run_on(const struct ep_case *c, struct tern_comm *comm);

#endif
