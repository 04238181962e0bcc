/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts and kernels share when an object spans several domains: who is where, what the network writes,
 * and the tables that a route makes for its messages. A message is a token on its way to another domain,
 * which gets it once; it goes to the rank there with this rank's index, its rail peer, who forwards it.
 *
 * R ranks in D domains of G each; rank r is number g of domain d, r = d * G + g. The frame of an operation is
 * that of a domain: f.rank is g, f.num_ranks is G, and f.first_rank is d * G. E experts, E / D of them a
 * domain's.
 *
 * The object's window is its network's own, so that rail peers reach the words and buffers below, and the
 * abort word, at symmetric addresses: what this rank has for domain e is named by its own [e] here, and what
 * the rail peer in e has for this rank by this rank's own [d].
 *
 *   row_tails[D]       u64  the latest run whose row of counts has come from domain e
 *   block_tails[D]     u64  the latest run whose forward block has
 *   counts[2][R]       tagged words, from domain-mates: counts of every rank; by parity of the epoch
 *   rows_in[2][D], rows_out[2][D]         struct rail_row; by parity of the run
 *   blocks_in[routes][D], blocks_out[2][D]  forward blocks; by the receiver's slot, by parity of the run
 *
 * A run is a route that was run: they are counted alike on all ranks, from 1 after every reset. */
#ifndef TERN_INTER_ARGS_H
#define TERN_INTER_ARGS_H

#include "kernels/ep_args.h"
#include "tern/tern_net.h"

/* What a rank tells its rail peer in domain e, in a run. Behind it are uint32_t counts: [G] pairs by rank of
 * e, [E / D] choices by expert of e. */
struct rail_row {
    uint64_t signature;    /* as in the message of the frame */
    uint32_t slot;         /* of the route at the writer: the peer's forward block goes to blocks_in[slot] */
    uint32_t num_messages; /* on their way to the reader in every operation with this route */
};

/* A forward block: one entry a message, in message order, entry_ints apart, which is a multiple of 16 bytes:
 * struct forward_entry, int32_t experts[topk], struct forward_target targets[]. experts[k]: choice k as an
 * expert of the forwarder's domain, from 0, or -1 if it is of another. */
struct forward_entry {
    int32_t token;       /* at its source */
    int32_t num_targets; /* that are in the domain */
};

/* A row of the token in the forwarder's domain: slot + bases[key]. Rank layout: key is a rank of the domain,
 * and targets are in their order. Expert layout: target k is choice k's, key is its expert of the domain, and
 * slot is -1 if the choice is of another. */
struct forward_target {
    int32_t key, slot;
};

/* A route's device memory beside struct route_memory, whose token_rows and bases are of all R ranks or E
 * experts; bases of other domains' are -1 there. */
struct route_far {
    int32_t *message_of;   /* [tokens][D]: message to domain e, or -1; -1 for the own domain */
    int32_t *token_of;     /* [D][max_tokens]: the token of message i to domain e */
    int32_t *num_out;      /* [D] messages to domain e */
    int32_t *num_in;       /* [D] messages from domain e */
    int32_t *bases;        /* [D][G] or [D][E / D]: bases here of the rail peer in e; of this rank in d */
    uint64_t *run;         /* [1] latest run: the forward blocks of e are here once block_tails[e] >= *run */
    const int32_t *blocks; /* [D] in the window; of block_ints int32_t each */
    uint64_t block_ints;
    uint32_t max_tokens, entry_ints;
};

/* Who is where, for kernels of objects that span domains. */
struct inter_world {
    struct tern_net net;                    /* its record is NULL: the object has one of its own */
    int32_t num_ranks, num_domains, domain; /* R, D, d */
    int32_t domain_ranks;                   /* G */
    uint64_t *row_tails, *block_tails;
};

struct route_inter_args {
    struct route_args r;
    struct inter_world world;
    struct route_far far;
    uint64_t *runs;           /* in device memory: runs that have ended */
    char *rows_in, *rows_out; /* [2][D], row_bytes each */
    char *blocks_in;          /* [routes][D], block_bytes each */
    char *blocks_out;         /* [2][D] */
    uint64_t row_bytes, block_bytes;
    uint32_t slot; /* of the route here */
    uint32_t reserved;
};

#endif
