/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts and kernels share: the words in a rank's control window, the frame every operation runs in, and
 * one argument structure a kernel. docs/protocol.md tells the story; this is its vocabulary.
 *
 * Control window of one rank, as its peers see it (offsets from ep/layout.c):
 *
 *   done[R][B]      u64  written by block b of rank s: the epoch it has finished   one writer a word
 *   abort           u64  written by any rank: some rank gave up, see ABORT_*
 *   waits           u64  behind it; by the rank itself: whom it waits for in another domain
 *   said            u64  behind that; likewise: when it last said so, by its clock
 *   message[2][R]   tagged words from rank s: it is in, and where its outputs are; by parity of the epoch
 *   counts[2][R]    tagged words from rank s: its count row (route only); likewise
 *   pieces[R][P]    u64  written by rank s's copy engine: the run whose piece p of its rows is in staging
 *   pushed[R][U]    u64  written by rank s: the epoch whose unit u of its rows is in staging
 *   drained[R][K][B] u64 written by block b of rank s: the epoch whose phase k it has sent to staging
 *   ends[R][K]      tagged words from rank s: how many rows it sends in phases 0 .. k
 *
 * A tagged word has the low half of the epoch in its high half, so that it says itself when it has arrived.
 *
 * Two copies are enough: a rank enters epoch e + 2 only after it saw every rank enter e + 1, which each did
 * after it had finished e. */
#ifndef TERN_EP_ARGS_H
#define TERN_EP_ARGS_H

#include <stddef.h>
#include <stdint.h>

enum {
    EP_MAX_RANKS = 128,
    EP_MAX_PAYLOADS = 8,
    EP_MAX_IN = EP_MAX_PAYLOADS,
    EP_MAX_BLOCKS = 256, /* of one launch */
    EP_MAX_PIECES = 16,  /* that the copy engine cuts one rank's rows into */
    PUSH_ROWS = 4,       /* of a unit that combine pushes */
    PUSH_MAX_RANKS = 32, /* of an object that does */
    PUSH_NOTES = 32,     /* steps that a pusher knows of; a power of two, with the next */
    PUSH_WORDS = 8,      /* that it has left in its box */
    DRAIN_PHASES = 16,   /* that a rank's tokens are cut into, at most, where dispatch drains */
    /* Columns of a dispatch's message. */
    EP_COL_IDS = 0,
    EP_COL_WEIGHTS,
    EP_COL_SOURCE,
    EP_COL_PAYLOADS, /* and the scales of a cast */
    EP_MAX_COLUMNS = EP_COL_PAYLOADS + EP_MAX_PAYLOADS + 1
};

/* Where a column of a rank's output lies: an offset in one of its two heaps, or nowhere. */
#define PLACE_NONE      UINT64_MAX
#define PLACE_USER_HEAP (1ull << 63)

struct ep_place {
    uint64_t offset;
    int64_t stride; /* bytes between rows */
};

/* What a rank tells every peer when it enters an operation: 64-bit values, each sent as two tagged words. */
struct ep_message {
    uint64_t signature;  /* of operation and sizes; equal on all ranks */
    uint64_t num_rows;   /* capacity: rows at or past it do not exist */
    uint64_t num_blocks; /* of this rank's launch: so many will say that they are done */
    struct ep_place columns[EP_MAX_COLUMNS];
};
enum {
    MESSAGE_SIGNATURE,
    MESSAGE_NUM_ROWS,
    MESSAGE_NUM_BLOCKS,
    MESSAGE_COLUMNS, /* offset and stride of each */
    MESSAGE_WORDS = 2 * (MESSAGE_COLUMNS + 2 * EP_MAX_COLUMNS)
};

#define ABORT_WORD(culprit, reporter, status, awaited)                                                       \
    ((uint64_t)(awaited) << 40 | (uint64_t)(-(status)) << 32 | (uint64_t)((reporter) + 1) << 16 |            \
     (uint64_t)((culprit) + 1))
#define ABORT_CULPRIT(word)  ((int)((word)&0xffffu) - 1)
#define ABORT_REPORTER(word) ((int)((word) >> 16 & 0xffffu) - 1)
#define ABORT_STATUS(word)   (-(int)((word) >> 32 & 0xffu))
#define ABORT_AWAITED(word)  ((int)((word) >> 40 & 0xffu))

/* An ep_place of one rank, as this rank addresses it; base NULL: not wanted there. */
struct place {
    char *base;
    int64_t stride;
};

/* The columns of a combine's message. */
enum { COMBINE_ROWS = 0, COMBINE_WEIGHTS = 1, COMBINE_COLUMNS = 2 };
/* Bytes of a row that a warp sums at once: 64 a lane; and where it has more to keep in registers: rows by
 * copy engine, and across domains warps by themselves. */
enum { COMBINE_CHUNK = 2048, COMBINE_MIX_CHUNK = 1024 };

/* This rank's own device memory; only its kernels touch it, one operation at a time. */
struct ep_state {
    uint64_t epoch;       /* operations finished */
    uint32_t fault_claim; /* nonzero once a thread has taken the right to write the record */
    uint32_t bad_ids;     /* met by the running route; the first one is recorded */
    uint64_t taken;       /* by warps of the running operation: tokens beside their first (take.h), or units
                                * of rows (combine_push.h) */
    struct stamp_ring *stamps;     /* for kernels with time stamps; or NULL */
    uint64_t slices[EP_MAX_RANKS]; /* that were taken of each source's rows (dispatch_drain.h) */
    uint64_t begun;                /* blocks of the running dispatch that send, likewise */
};

/* Host-visible memory, written by the thread that won the claim. One record is for the fault that ended the
 * object's operations, one for ids out of range, which end nothing: such an id counts as -1. */
struct ep_record {
    uint64_t written; /* with release, after the rest: 1, or the route's epoch */
    int32_t status, operation, awaited, rank, peer, reporter, block, warp;
    uint64_t epoch, expected, seen, elapsed_ns;
    uint64_t late[2];
};

struct op_frame {
    int32_t rank, num_ranks;
    char *own;               /* this rank's EP heap */
    char *const *ep_bases;   /* [num_ranks] each rank's EP heap as this rank addresses it */
    char *const *user_bases; /* [num_ranks] each rank's user heap */
    uint64_t done_offset, abort_offset, message_offset, counts_offset, pieces_offset; /* in an EP heap */
    struct ep_state *state;
    struct ep_record *record;
    uint64_t
        *latest;     /* [EP_MAX_BLOCKS] in host-visible memory: ticket of the latest operation that block b of
                       * has left */
    uint64_t ticket; /* of this one; 0: in a graph, nobody waits for it */
    uint64_t timeout_ns;
    int32_t operation;  /* enum tern_operation */
    int32_t first_rank; /* of the domain: ranks are numbered from it in a frame */
    struct ep_message message;
};

/* Ranks that a token's ids name. */
struct ep_rank_set {
    uint64_t low, high; /* ranks 0..63 and 64..127 */
};

/* Bytes of shared memory beside a warp's counters in the route kernel, and the most blocks that count. */
enum { ROUTE_BUFFER_BYTES = 32 * 9 * 4, ROUTE_MAX_WORKERS = 16 };

/* A route's device memory, pointers into one slot (ep/layout.c). R ranks, E experts, L = E / R, K ids. */
struct route_memory {
    int32_t *token_rows;           /* [tokens][R] or [tokens][K]: slot before base, or -1 */
    int32_t *ids;                  /* [tokens][K], -1 for every invalid id */
    struct ep_rank_set *rank_sets; /* [tokens] */
    int32_t *bases;                /* [R] or [E] */
    int32_t *rank_offsets;         /* [R + 1] */
    int32_t *expert_counts;        /* [L] */
    int32_t *expert_offsets;       /* [L + 1] */
    int32_t *num_rows;             /* [1] */
    uint64_t *overflow;            /* [1] */
};

/* The host's copy, in host-visible memory. A run in a graph writes the epoch and bad_id alone. */
struct route_host {
    uint64_t *ticket;         /* the launch that wrote the counts, with release */
    uint64_t *epoch;          /* of the latest run */
    struct ep_record *bad_id; /* first id out of range of the latest run that met one; written = its epoch */
    int32_t *num_rows;        /* [2]: rows, (token, rank) pairs */
    int32_t *rank_counts;
    int32_t *expert_counts;
    int32_t *expert_offsets;
};

struct route_args {
    struct op_frame f;
    struct route_memory route;
    struct route_host host;
    uint64_t *cells;    /* [ROUTE_MAX_WORKERS][R + E] tagged words: what each worker of the launch counted */
    uint64_t *finished; /* [ROUTE_MAX_WORKERS] the epoch that each worker has finished */
    uint64_t ticket;    /* 0: in a graph, the host neither waits nor gets counts */
    const void *topk_idx;
    uint32_t idx_bytes, num_tokens, topk, num_experts;
    uint32_t layout, alignment;
    int32_t num_all; /* across domains: ranks; the frame has one domain's */
    uint32_t num_domains;
};

struct column_in {
    const char *data;
    int64_t row_stride, elem_stride;
    uint32_t row_bytes, elem_bytes;
    uint32_t stage_offset; /* in a stage */
    uint32_t whole;        /* rows are contiguous, 16-byte aligned and sized: copied in one piece */
};

/* How a staged column leaves. */
struct column_out {
    uint32_t column; /* in ep_message */
    uint32_t row_bytes;
    uint32_t stage_offset;
    uint32_t whole; /* a multiple of 16 bytes */
};

/* A lane of a warp of dispatch knows the token in a stage (dispatch_body.h). */
enum { DISPATCH_MAX_STAGES = 32 };

struct dispatch_args {
    struct op_frame f;
    struct route_memory route;
    const float *weights;
    uint32_t num_tokens, topk, num_experts, layout;
    uint32_t idx_bytes, cast, zero_padding, num_in, num_out;
    uint32_t thin;        /* bit c: couriers send column c, several rows at once; none with a cast */
    uint32_t fill_ids;    /* this rank wants -1 in the ids of rows that nobody sends */
    uint32_t scale_bytes; /* of a row, with a cast */
    uint32_t stage_bytes, num_stages, table_bytes; /* shared memory: table, stages a warp, barriers */
    uint32_t num_senders; /* warps of a block that send payloads; behind them couriers, and a teller */
    uint32_t column_bytes[EP_MAX_COLUMNS]; /* of a row, for padding; 0: not an output */
    struct place own[EP_MAX_COLUMNS];      /* of this rank's rows, where that is not what peers are told */
    struct column_in in[EP_MAX_IN];
    struct column_out out[EP_MAX_PAYLOADS + 1];
};

/* Bytes that a warp copies at once. */
enum { COPY_PIECE = 4096, COPY_STAGES = 4 };

/* Rows between a caller's tensors and staging. */
struct copy_column {
    const char *src;
    char *dst;
    int64_t src_stride, dst_stride;
    uint32_t row_bytes;
    uint32_t all; /* every row up to capacity, also those that nobody sent */
};
struct copy_args {
    const int32_t *num_rows;
    const int32_t *expert_counts, *expert_offsets;
    uint64_t capacity;
    uint32_t
        num_groups;   /* experts whose rows are together, each group with padding behind it; 0: one, none */
    uint32_t padding; /* copy the padding too */
    const int32_t *own_rows; /* [2] from the first to the second row, none is copied; or NULL */
    uint32_t num_columns;
    uint32_t stage_bytes,
        warp_bytes;   /* by bulk copies: of a piece, and of a warp's ring; with the next two */
    uint64_t *latest; /* as in a frame */
    uint64_t ticket;  /* that each block leaves there; 0: none */
    struct copy_column columns[EP_MAX_COLUMNS];
};

/* What a stage of a ring holds (bulk_ring.h). */
struct ring_note {
    char *to;
    uint32_t bytes, reserved;
};
/* What a stage takes beside its bytes: a barrier and a note. */
enum { RING_BESIDE = sizeof(uint64_t) + sizeof(struct ring_note) };

/* Dispatch whose rows leave staging while others arrive (dispatch_drain.h). */
struct dispatch_drain_args {
    struct dispatch_args d;
    struct copy_args copies;            /* from staging: columns and capacity */
    uint64_t words_offset, ends_offset; /* of drained and ends, in every window */
    uint32_t num_blocks;                /* that send: the first of the launch; the others drain */
    uint32_t phase_tokens, num_phases;  /* of this rank's */
    uint32_t counters_offset;           /* of phases, in the shared memory of a block that sends */
    uint32_t num_drainers, warp_bytes;  /* warps of a block that drains; shared memory of each */
    uint32_t num_stages, ring_bytes;    /* of its ring: stages, and bytes of one */
    uint32_t helpers, help_bytes;       /* warps of a block that has sent all; shared memory of each */
    uint32_t help_stages;               /* of the ring there */
    uint32_t num_slices;                /* of a phase: each is a warp's at once */
};

/* Announces this rank and awaits the others, for what the host puts between that and the rest. */
struct enter_args {
    struct op_frame f;
    int32_t num_values; /* of the message */
};

/* Rows that copy engines bring. */
struct engine_args {
    uint64_t run;       /* of this object's combines by copy engine, from 1; 0: rows are pulled */
    const char *own;    /* this rank's own rows, dense */
    const char *staged; /* [R] areas, one a source, rows by slot */
    uint64_t area_bytes;
    uint32_t piece_rows; /* slots of a piece */
};

struct combine_args {
    struct op_frame f;
    struct route_memory route;
    struct engine_args engine;
    char *out;
    int64_t out_stride;
    float *out_weights;
    const char *bias[2];
    struct place own[COMBINE_COLUMNS]; /* of this rank's rows, where that is not what peers are told */
    uint32_t num_tokens, topk, num_experts, layout;
    uint32_t row_bytes, chunk_bytes, batch_rows, num_stages, table_bytes;
    uint32_t parts, part_chunks; /* a token is pulled in so many parts of so many chunks */
    uint32_t num_pullers;        /* warps of a block that pull rows; one more pulls weights, if wanted */
};

/* Combine whose rows their ranks push (combine_push.h). */
struct combine_push_args {
    struct combine_args c; /* num_pullers: warps that add, of a block that does not push */
    const char *rows;      /* this rank's */
    int64_t stride;
    const char *staged;     /* [R] areas, one a source, rows by slot */
    uint64_t staged_offset; /* of the areas, in every window */
    uint64_t area_bytes;    /* of one */
    uint64_t words_offset;  /* of pushed */
    uint32_t rank_words;    /* in it, of one source */
    uint32_t push_blocks;   /* of the launch that push */
    uint32_t num_pushers;   /* warps of these that do; the next one tells peers, others pull weights */
    uint32_t num_stages, stage_bytes;  /* of a pusher */
    uint32_t warp_bytes, boxes_offset; /* of shared memory */
    uint32_t reserved;
};

/* In the shared memory of a block that pushes. */
struct push_note { /* a copy from a stage, and the word behind it, if it is its unit's last */
    char *to;
    uint64_t *word;
    uint32_t bytes, reserved;
};
struct push_box { /* units of one pusher that are where they belong, for the teller */
    uint64_t *words[PUSH_WORDS];
    uint32_t left, told;
};

#endif
