/* SPDX-License-Identifier: Apache-2.0
 *
 * One measured shape of low latency: what it is (ll_shape.c), what every local rank holds for it (ll_open.c),
 * how its operations are issued (ll_issue.c), timed (ll_time.c, ll_waits.c) and checked (ll_check.c), and
 * what they move (ll_traffic.c). bench_ll.c puts them together for `tern-bench ll`. */
#ifndef TERN_BENCH_LL_H
#define TERN_BENCH_LL_H

#include "net/softnic_provider.h"
#include "pieces.h"
#include "report.h"
#include "rounds.h"
#include "routing.h"

/* Device memory of one batch of one rank. There is a slab an expert, or by rank one in all; a slab's rows are
 * what all ranks can send. */
enum ll_tensor {
    LT_TOKENS,      /* in of dispatch: [tokens] BF16 */
    LT_IDS,         /* [tokens, topk] int64 */
    LT_WEIGHTS,     /* [tokens, topk] */
    LT_SLAB,        /* out of dispatch: [num_slabs, slab_rows] */
    LT_SCALES,      /* likewise, with a cast: words [num_slabs, scale_words, slab_rows] */
    LT_COUNTS,      /* likewise: of each run of rows */
    LT_RANGES,      /* likewise, by expert: [experts here, ranks] */
    LT_SOURCES,     /* likewise: [num_slabs, slab_rows] */
    LT_ROW_IDS,     /* likewise, by rank: [slab_rows, topk] int32 */
    LT_ROW_WEIGHTS, /* likewise, by rank: [slab_rows, topk] */
    LT_SUM_COUNTS,  /* out of dispatch, with --statistics: [experts here] int64 */
    LT_WAITS,       /* out of dispatch, then combine, with --statistics: [2, ranks] uint64 */
    LT_MADE,        /* in of combine: what experts made of the slabs, BF16 */
    LT_SUMS,        /* out of combine: [tokens] BF16 */
    NUM_LL_TENSORS
};

/* What is issued and timed as one: an operation of every lane, whole; the two in a row; or one phase. */
enum ll_unit {
    UNIT_DISPATCH,
    UNIT_COMBINE,
    UNIT_PAIR,
    UNIT_DISPATCH_SEND,
    UNIT_DISPATCH_RECEIVE,
    UNIT_COMBINE_SEND,
    UNIT_COMBINE_RECEIVE,
    NUM_UNITS
};
/* The same unit so many times in one graph, as a step of its own: UNIT_MANY + unit. */
enum { UNIT_MANY = NUM_UNITS, NUM_LL_STEPS = UNIT_MANY + UNIT_PAIR + 1 };

enum ll_operation { LL_OP_DISPATCH, LL_OP_COMBINE, NUM_LL_OPERATIONS };

struct ll_shape {
    const struct options *options;
    struct routing routing;
    struct ref_ll ref;
    unsigned char masked[TERN_MAX_RANKS]; /* for ref */
    uint32_t *pairs;                      /* [num_ranks, num_ranks] tokens of a source that go to a rank */
    uint32_t *messages;                   /* --rail: likewise [num_ranks, domains] */
    uint32_t hidden;
    uint32_t experts_here; /* of one rank */
    uint32_t row_bytes;    /* of a row of a slab */
    uint32_t scale_words;  /* of its scales */
    uint32_t max_tokens;   /* at least 1 */
    uint32_t num_slabs;
    uint64_t slab_rows;
    uint32_t sms; /* that an operation takes */
};

/* Rows in use of one expert, or by rank of one source: `num` from `first` on, of as many as there is room
 * for. */
struct ll_run {
    uint64_t first, num, room;
};

struct ll_lane_seat {
    void *tensors[NUM_LL_TENSORS];
    struct tern_ll_dispatch_args dispatch;
    struct tern_ll_combine_args combine;
};

struct ll_seat {
    struct tern_comm *comm;
    struct tern_stream *stream;
    struct tern_ep *ep;
    int rank;
    struct ll_lane_seat *lanes;              /* [options->ll.lanes] */
    struct tern_graph *graphs[NUM_LL_STEPS]; /* --graph */
};

struct ll_bench {
    struct party *party;
    struct progress *progress;
    struct ll_shape shape;
    uint32_t transport;                   /* enum tern_transport: to other domains */
    struct softnic_traffic packets;       /* of NICs that speak some */
    struct ll_seat seats[TERN_MAX_RANKS]; /* [num_local] */
};

/* Microseconds of one batch. */
struct ll_timing {
    struct stats alone[NUM_UNITS];    /* of the slowest rank, each round; phases with --hook only */
    double in_a_row[NUM_UNITS];       /* NaN for phases */
    double waited[NUM_LL_OPERATIONS]; /* --statistics: a mean operation, for the source waited for longest */
};

/* Bytes of the busiest rank, which sends or receives most. */
struct ll_traffic {
    double remote;  /* on the wire */
    double network; /* of that, between domains */
    double logical; /* that the model gives or gets: all rows of slabs, its own rank's included */
};

/* ---- ll_shape.c ---- */

/* The host's part: routing, the reference's rows, and sizes. */
enum tern_status ll_shape_open(struct ll_shape *s, const struct options *options, int num_ranks,
                               uint32_t tokens);
void ll_shape_close(struct ll_shape *s);
/* Rows of slabs in use come in runs, one an expert, or by rank one a source. */
uint32_t ll_num_runs(const struct ll_shape *s);
struct ll_run ll_run(const struct ll_shape *s, int rank, uint32_t number);
/* Tokens of `source` that name an expert of `rank`; none from or to a masked rank. */
uint32_t ll_pairs(const struct ll_shape *s, int source, int rank);
/* --rail: likewise, that name one of a domain's ranks. */
uint32_t ll_messages(const struct ll_shape *s, int source, int domain);
uint32_t ll_row_bytes(const struct ll_shape *s, enum ll_tensor tensor);
/* Bytes of a tensor; 0 if the options do not want it. */
uint64_t ll_tensor_bytes(const struct ll_shape *s, enum ll_tensor tensor);
/* The arguments that do not point anywhere. */
struct tern_ll_dispatch_args ll_dispatch_shape(const struct ll_shape *s);
/* For such objects. */
struct tern_ep_config ll_config(const struct options *options, uint32_t tokens);

/* ---- ll_open.c ---- */

/* One row of LT_TOKENS or LT_MADE, by formula. */
void ll_fill_row(const struct ll_shape *s, uint32_t lane, int rank, enum ll_tensor tensor, uint64_t row,
                 void *at);
/* COLLECTIVE. Opens EP objects and memory on every local rank and fills the inputs. Shape, party and progress
 * are set. */
enum tern_status ll_open(struct ll_bench *b);
void ll_close(struct ll_bench *b);

/* ---- ll_issue.c ---- */

/* Local, asynchronous: a unit, or with --graph a replay of it. */
enum tern_status ll_issue(struct ll_bench *b, int i, int step);
/* With --graph: captures every step. */
enum tern_status ll_capture(struct ll_bench *b);
/* COLLECTIVE. Until all that was issued has run; a fault of any local rank is returned. */
enum tern_status ll_synchronize(struct ll_bench *b);

/* ---- ll_time.c, ll_waits.c, ll_check.c, ll_traffic.c ---- */

/* COLLECTIVE. */
enum tern_status ll_time(struct ll_bench *b, struct ll_timing *timing);
/* COLLECTIVE. Runs dispatch and combine once into poisoned outputs, as they were timed, and compares every
 * element, over all ranks and lanes, with the reference. */
enum tern_status ll_check(struct ll_bench *b, struct tally tallies[NUM_LL_OPERATIONS]);
/* COLLECTIVE. With --statistics, microseconds. */
enum tern_status ll_time_waits(struct ll_bench *b, double waited[NUM_LL_OPERATIONS]);
struct ll_traffic ll_traffic(const struct ll_shape *s, enum ll_operation operation);
/* Rows of slabs of the rank that has most, over the mean; NaN if there are none. */
double ll_skew(const struct ll_shape *s);

/* ---- bench_ll.c ---- */

enum tern_status ll_run_command(const struct options *options, struct report *report, struct tally *tally);

#endif
