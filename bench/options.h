/* SPDX-License-Identifier: Apache-2.0
 *
 * What tern-bench is asked to do. One table (options.c) gives every option its name, range, default, help and
 * the subcommands that take it; a zero or NULL here means "not given". */
#ifndef TERN_BENCH_OPTIONS_H
#define TERN_BENCH_OPTIONS_H

#include "core/core.h"

enum command {
    COMMAND_EP = 1,
    COMMAND_WIRE = 2,
    COMMAND_DEMO = 4,
    COMMAND_LL = 8,
    COMMAND_PUT = 16,
    COMMAND_GET = 32,
    COMMAND_ATOMIC = 64,
    COMMAND_SIGNAL = 128,
    COMMAND_PINGPONG = 256,
    COMMAND_BARRIER = 512,
    COMMAND_NIC = 1024,
    COMMAND_NET =
        COMMAND_PUT | COMMAND_GET | COMMAND_ATOMIC | COMMAND_SIGNAL | COMMAND_PINGPONG | COMMAND_BARRIER,
    COMMAND_ALL = COMMAND_EP | COMMAND_WIRE | COMMAND_DEMO | COMMAND_LL | COMMAND_NET | COMMAND_NIC
};
enum dtype { DTYPE_BF16, DTYPE_FP8, DTYPE_CAST };
enum corrupt { CORRUPT_NONE, CORRUPT_DISPATCH, CORRUPT_COMBINE, CORRUPT_WIRE };
enum { MAX_SWEEP = 24, MAX_EXPERTS = 1 << 14, WIRE_MAX_SAMPLES = 1000, NO_MASK = 1 << 16 };
enum { NOT_CHOSEN = 1 << 16 }; /* of a choice whose default is another option's */

struct sweep {
    uint32_t num;
    uint32_t values[MAX_SWEEP];
};

/* As --transport names them. */
enum transport {
    CARRIED_BY_P2P,
    CARRIED_BY_SOFTNIC,
    CARRIED_BY_MOCK_MLX5,
    CARRIED_BY_PROXY_TCP,
    CARRIED_BY_PROXY_LIBFABRIC
};

enum bench_combine { COMBINE_AUTO, COMBINE_PULL, COMBINE_ENGINE, COMBINE_PUSH };

struct options {
    enum command command;
    uint32_t machine; /* enum tern_machine */
    uint32_t ranks;
    struct sweep tokens;
    uint32_t hidden;
    uint32_t topk;
    uint32_t experts;
    uint32_t sms;
    uint32_t dtype;  /* enum dtype */
    uint32_t layout; /* enum tern_layout */
    uint32_t align;
    const char *routing; /* NULL: uniform */
    const char *weights;
    uint32_t layer;
    uint32_t skew; /* rows of rank 0 in rank layout, in per cent of the mean */
    uint32_t seed;
    uint32_t iters;
    uint32_t warmup;
    uint32_t tensor; /* outputs outside the window */
    uint32_t meta;
    uint32_t transfer; /* enum tern_transfer */
    uint32_t combine;  /* enum bench_combine */
    uint32_t drain;    /* 1: dispatch brings rows out of staging meanwhile */
    uint32_t check;
    uint32_t corrupt; /* enum corrupt */
    const char *json;
    const char *data; /* folder of the demo's routing */
    struct {
        uint32_t cast;        /* enum tern_cast */
        uint32_t weights;     /* enum tern_ll_weights, or NOT_CHOSEN */
        uint32_t layout;      /* enum tern_ll_layout */
        uint32_t compression; /* enum tern_ll_compression */
        uint32_t lanes;
        uint32_t hook, graph, statistics, rail;
        uint32_t mask; /* a rank, or NO_MASK */
    } ll;
    struct {
        struct sweep bytes;
        uint32_t transport;   /* enum transport, or NOT_CHOSEN */
        uint32_t domain_size; /* 0: as found */
        uint32_t scope;       /* of net/group.h */
        uint32_t warps, queues, bulk;
        uint32_t row_ms; /* that the samples of a row may take together */
    } net;
    struct {
        uint32_t gbps, latency_us, mops, sms;
        const char *faults; /* NULL: NICs copy, and nothing errs */
    } nic;
};

/* Reads the words after the subcommand. TERN_INVALID_ARGUMENT names the option and the value. */
enum tern_status options_parse(enum command command, int num_words, char **words, struct options *options);
/* Prints usage and every option of the subcommand, or of all. */
void options_help(enum command command);
/* Words that the option at this word takes, itself included; 2 for one that there is not. */
int options_num_words(enum command command, const char *word);
/* The word for a value of a choice option, as the header and the JSON give it; good for seven more calls. */
const char *options_word(enum command command, const char *option, uint32_t value);

#endif
