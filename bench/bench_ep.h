/* SPDX-License-Identifier: Apache-2.0
 *
 * One measured shape: what every local rank holds for it, how its operations are issued, timed (ep_time.c)
 * and checked (ep_check.c). bench_ep.c puts them together for `tern-bench ep` and `tern-bench demo`. */
#ifndef TERN_BENCH_EP_H
#define TERN_BENCH_EP_H

#include "net/softnic_provider.h"
#include "pieces.h"
#include "report.h"
#include "rounds.h"
#include "routing.h"

/* Device memory of one rank. Those in the window are written or read by peers (unless --out tensor). */
enum buffer {
    BUF_TOKENS,      /* in of dispatch: [tokens] */
    BUF_SCALES,      /* in of dispatch, fp8: [tokens] */
    BUF_IDS,         /* [tokens, topk] int64 */
    BUF_WEIGHTS,     /* [tokens, topk] */
    BUF_ROWS,        /* out of dispatch, window: [rows] */
    BUF_ROW_SCALES,  /* out of dispatch, fp8 and cast, window */
    BUF_ROW_IDS,     /* out of dispatch, rank layout, window */
    BUF_ROW_WEIGHTS, /* out of dispatch, in of combine, window */
    BUF_SOURCES,     /* out of dispatch, window */
    BUF_EXPERTS,     /* in of combine, window: what experts made of the rows, BF16 */
    BUF_SUMS,        /* out of combine: [tokens] BF16 */
    BUF_SUM_WEIGHTS, /* out of combine: [tokens, topk] */
    NUM_BUFFERS
};

enum operation { OP_ROUTE, OP_DISPATCH, OP_COMBINE, NUM_OPERATIONS };

struct shape {
    const struct options *options;
    struct routing routing;
    uint32_t hidden;
    uint32_t row_bytes;    /* of one dispatched row without its scales */
    uint32_t scale_bytes;  /* 0 for bf16 */
    uint32_t sms;          /* that an operation takes */
    uint32_t domain_ranks; /* ranks of a domain; all, if there is one */
    uint32_t transport;    /* enum tern_transport, of several domains */
};

struct seat {
    struct tern_comm *comm;
    struct tern_stream *stream;
    struct tern_ep *ep;
    struct tern_route *route;
    int rank;
    uint64_t num_rows; /* that dispatch writes */
    void *buffers[NUM_BUFFERS];
    struct tern_rows in[2], out[2];
    struct tern_route_args route_args;
    struct tern_dispatch_args dispatch;
    struct tern_combine_args combine;
};

struct bench {
    struct party *party;
    struct progress *progress;
    struct shape shape;
    struct softnic_traffic packets;    /* of NICs that speak some */
    struct seat seats[TERN_MAX_RANKS]; /* [num_local] */
};

/* Figures of one operation; index NUM_OPERATIONS is the chain of all three. In microseconds. */
struct timing {
    struct stats alone[NUM_OPERATIONS + 1]; /* of the slowest rank, each round */
    double in_a_row[NUM_OPERATIONS];        /* many of the same operation, per operation */
};

/* ---- ep_shape.c ---- */

/* The host's part: routing and sizes. */
enum tern_status shape_open(struct shape *shape, const struct options *options, int num_ranks,
                            uint32_t tokens);
void shape_close(struct shape *shape);
/* Window memory the shape takes on the rank that needs most. */
uint64_t shape_heap_bytes(const struct shape *shape);
/* Rows of a buffer on a rank, and bytes of one; 0 if the options do not want it. */
uint64_t shape_rows(const struct shape *shape, int rank, enum buffer buffer);
uint32_t shape_row_bytes(const struct shape *shape, enum buffer buffer);
/* One row of BUF_TOKENS, BUF_SCALES or BUF_EXPERTS of a rank, by formula. */
void shape_fill_row(const struct shape *shape, int rank, enum buffer buffer, uint64_t row, void *at);
/* COLLECTIVE. Opens EP objects, routes and memory on every local rank and fills the inputs. `b->shape`, party
 * and progress are set. The rows of the route must be as many as the reference says. */
enum tern_status bench_open(struct bench *b);
void bench_close(struct bench *b);
/* Local, asynchronous. */
enum tern_status bench_issue(struct seat *seat, enum operation operation);
/* COLLECTIVE. Until all that was issued has run; a fault of any local rank is returned. */
enum tern_status bench_synchronize(struct bench *b);
uint32_t cast_of(const struct options *options); /* enum tern_cast */

/* ---- ep_time.c, ep_check.c ---- */

/* COLLECTIVE. */
enum tern_status bench_time(struct bench *b, struct timing *timing);
/* COLLECTIVE. Runs dispatch and combine once into poisoned outputs and compares every element, over all
 * ranks, with the reference; route compares those of the counts. */
enum tern_status bench_check(struct bench *b, struct tally tallies[NUM_OPERATIONS]);

/* ---- bench_ep.c ---- */

enum tern_status ep_run(const struct options *options, struct report *report, struct tally *tally);
/* The parts of ep_run, for a run of several option sets on one machine (demo.c). */
void ep_columns(struct report *report);
/* Fills in what the options leave to the machine. */
enum tern_status ep_settle(struct options *options, const struct party *party);
/* Processors that an operation takes. */
enum tern_status ep_sms(const struct options *options, const struct party *party, uint32_t *sms);
/* Window memory for every shape of the options. */
enum tern_status ep_heap_bytes(const struct options *options, const struct party *party, uint64_t *bytes);
/* COLLECTIVE. Times and checks every shape of the options, adds its rows to the report and what was compared
 * to the tally. wire_gb_s 0: not measured. */
enum tern_status ep_rows(const struct options *options, struct report *report, struct party *party,
                         double wire_gb_s, struct tally *tally);

#endif
