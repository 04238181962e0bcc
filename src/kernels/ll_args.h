/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts and kernels share about low-latency operations (docs/decisions/007-low-latency.md). R ranks, E
 * experts, L = E / R, T tokens a rank at most, K ids a token.
 *
 * A lane is one place for a batch: its words and buffers in every rank's window, in two copies of which an
 * operation takes the one of its epoch's parity, and this rank's own memory of what it received. Two copies
 * are enough: a rank sends in epoch e + 1 only after it saw every rank enter e, which each did after it had
 * finished e - 1. Railed, a rank also hands on what others have sent; for whom it is waits for that in the
 * same epoch, so that nobody has finished it before.
 *
 *   entries[2][R][2 + L/2] tagged words from rank s: signature; dispatch also rows, choices an expert, and
 *                          if there are far ranks one more, for them, and railed two
 *   arrivals[2][R * T]     the epoch, halves exchanged. Dispatch, [s][j]: row j of rank s is in the buffer,
 *                          with some that follow if the rank is far (ll_far_args.h)
 *           [2][T * K]     combine, [t][k]: so is the row that stands for choice k of token t; behind them
 *                          those of far ranks' rows (ll_far_args.h)
 *   buffers[2]             the rows themselves, likewise indexed
 *   words[2]               of few tokens, W = LL_WORD_TOKENS at most (ll_in_words.h): ids of each rank s; and
 *                          behind them rows of a dispatch [s][t], t below W
 *   blanks[2]              of some more (ll_blanks.h): rows of a dispatch [s][j]; of a combine [t][k], or
 *                          sums [t][r] if there are fewer ranks than choices
 *   ahead[2][R][T * K]     weights of rank s's choices, ahead of a combine (ll_weights_ahead.c) */
#ifndef TERN_LL_ARGS_H
#define TERN_LL_ARGS_H

#include "kernels/ep_args.h"

/* An entry word from LL_ENTRY_CHOICES on has the choices of two experts, 16 bits each. */
enum { LL_ENTRY_SIGNATURE, LL_ENTRY_ROWS, LL_ENTRY_CHOICES };
#define LL_ENTRY_WORDS(experts) (LL_ENTRY_CHOICES + ((experts) + 1u) / 2)
/* Of operations whose rows go in words, at most (docs/performance.md): tokens a rank, and choices of all
 * ranks that a warp looks through. Ids in a word. */
enum { LL_WORD_TOKENS = 16, LL_WORD_CHOICES = 256, LL_WORD_IDS = 4 };
#define LL_ID_WORDS(ids)      (((ids) + LL_WORD_IDS - 1u) / LL_WORD_IDS)
#define LL_ROUNDED(bytes, to) (((bytes) + (to)-1u) / (to) * (to))
/* Rows over blanks (decision page 028): bytes of all places, of one copy of a lane, at most, and of those
 * of a combine; where places begin. */
enum { LL_MOST_BLANK = 64 << 20, LL_MOST_HOME = 16 << 20, LL_BLANK_ALIGN = 128, LL_SECTOR = 32 };
/* A dispatch's row there: notes, which are a head and scales, then pieces of the payload, each behind a head
 * of its own. A head's words: K choices, the key; of notes also the token and K weights. Whole sectors. */
enum { LL_PIECE = 4096 };
#define LL_PIECES(payload_bytes) (((payload_bytes) + LL_PIECE - 1u) / LL_PIECE)
#define LL_HEAD_BYTES(topk)      LL_ROUNDED(4u * ((topk) + 1u), LL_SECTOR)
#define LL_NOTES_BYTES(topk)     LL_ROUNDED(4u * (2u * (topk) + 2u), LL_SECTOR)
#define LL_SCALES_BYTES(bytes)   LL_ROUNDED(bytes, LL_SECTOR)
#define LL_BLANK_ROW_BYTES(topk, payload_bytes, scale_bytes)                                                 \
    LL_ROUNDED(LL_NOTES_BYTES(topk) + LL_SCALES_BYTES(scale_bytes) + (payload_bytes) +                       \
                   LL_PIECES(payload_bytes) * LL_HEAD_BYTES(topk),                                           \
               LL_SECTOR)
enum { LL_MAX_TOPK = 32 }; /* a lane of a warp looks after each choice */
enum { LL_SENDS = 1, LL_RECEIVES = 2 };
enum { LL_STAGES = 3 };
/* Words of a block that makes rows, in shared memory: the next unit of work, then of each stage. */
enum { LL_MAKE_NEXT, LL_MAKE_STAGES };
enum { LL_MAKE_MADE, LL_MAKE_FREED, LL_MAKE_WORDS };
/* What a dispatch has received: rows, pushes, and rows that a combine sends to far ranks. */
enum { LL_TOTAL_ROWS, LL_TOTAL_PUSHES, LL_TOTAL_AWAY, LL_TOTALS };
enum { LL_MASK_CLEAR, LL_MASK_SET, LL_MASK_GET }; /* what the ll_mask kernel does */

/* Header of a row on its way, in 32-bit words: token, then K expert ids, K slots and K weights; railed, the
 * number of the message that brought it. */
enum { LL_HEADER_TOKEN, LL_HEADER_IDS };
#define LL_HEADER_MESSAGE(topk) (LL_HEADER_IDS + 3u * (topk))

/* Beside the totals, device memory of one rank's lane: only its kernels touch it, in stream order. */
struct ll_state {
    uint64_t epoch;   /* operations begun to be received */
    uint64_t doubt;   /* the operation in which a sender was given up, see ll_mask.h */
    uint32_t entered; /* blocks of the running operation that have read the epoch */
    uint32_t bad_ids;
    uint32_t dispatched; /* traces of the latest dispatch received; 0: none since the object was reset */
    uint32_t reserved;
};

/* A row of the caller's that goes home as it is: one of the slab, or by rank a received token's. */
struct ll_push {
    int32_t row; /* of the caller's tensor */
    int32_t rank;
    int32_t place; /* there: token * K + k, unless the rank is far */
    int32_t reserved;
};

/* A received row in 32-bit words: rank, token (railed, its place there), K rows of the slab (-1: not here), K
 * weights. */
enum { LL_PLAN_RANK, LL_PLAN_TOKEN, LL_PLAN_ROWS };

/* What this rank knows of another, in device memory. */
struct ll_peer {
    uint32_t known; /* nonzero: masked since before the running operation began; all its blocks see it */
    uint32_t told;  /* nonzero: the host has been told so */
    uint32_t knows; /* nonzero: it has been told itself that it is masked, or cannot be (ll_mask.h) */
    uint32_t reserved;
};

/* Masks of lost ranks, one set an object; ll_mask.h says how they are used. */
struct ll_masks {
    uint64_t heard;         /* offset of [R] words in an EP heap; any rank: r is to be left out, an ABORT_WORD
                               says who says so. 0: the object has no masks */
    uint64_t alive;         /* [R] likewise; rank s: it waits for somebody, at this time of its clock */
    struct ll_peer *peers;  /* [R] */
    uint64_t *verdicts;     /* of the lane: [R] of sources, then one a word of arrivals */
    struct ep_record *news; /* [R] host-visible: why r was masked */
    uint64_t *view;         /* [R] host-visible: nonzero, r is masked */
};

struct ll_lane {
    uint64_t entries, arrivals, buffers;               /* offsets in an EP heap */
    uint64_t entry_bytes, arrival_bytes, buffer_bytes; /* of one copy */
    uint64_t entry_words;                              /* of one rank */
    uint64_t source_rows;                              /* dispatch: places of a source */
    uint64_t row_stride;                               /* bytes between them */
    uint64_t home_stride; /* combine: bytes between places. These three are the object's most, so that ranks
                             with other shapes do not write into each other's */
    uint64_t words, word_bytes;      /* rows in words: offset in an EP heap; of one copy, 0: there are none */
    uint64_t word_rows;              /* places of a source of theirs */
    uint64_t id_bytes, all_id_bytes; /* there: of a source's ids, and of all, behind which rows begin */
    uint64_t blanks, blank_bytes;    /* rows over blanks: likewise */
    uint64_t ahead, ahead_bytes;     /* weights ahead of a combine: likewise */
    struct ll_state *state;
    struct ep_record *bad_id;
    int32_t *ids;           /* [T][K] of this rank's own tokens, -1 for every invalid id */
    int32_t *totals;        /* [LL_TOTALS] */
    int32_t *plan;          /* [rows received]; not by rank */
    struct ll_push *pushes; /* [rows of the slab], or by rank [rows received]; if ranks are far, both in the
                               order of ll_order.h */
    struct ll_masks masks;
    uint64_t *wait_ns; /* [R] of the caller, or NULL */
    uint64_t *waits;   /* [R] the longest of the operation so far, with its tag */
    uint64_t watch;    /* offset in shared memory: [R] longest waits of the block, [R] who is gone */
};

struct ll_dispatch_args {
    struct op_frame f;
    struct ll_lane lane;
    const char *in;
    int64_t in_stride;
    const void *topk_idx;
    const float *weights; /* NULL: given at combine */
    uint32_t phases, idx_bytes, num_tokens, topk, max_tokens, num_experts, experts_a_rank;
    uint32_t hidden, cast, summed; /* summed: weights at dispatch, or ahead of the combine */
    uint32_t by_rank;              /* one row a (token, rank) */
    uint32_t ahead;                /* for the host: weights come ahead of the combine */
    uint32_t over_blanks; /* for the host: which kernel it is; row_bytes are then LL_BLANK_ROW_BYTES */
    uint32_t header_bytes, payload_bytes, scale_bytes, row_bytes; /* of a row on its way; in its buffer */
    uint32_t traces; /* of this dispatch in the lane: its signature and num_tokens, hashed; not 0 */
    uint32_t place_offset, stage_offset, ids_offset; /* in shared memory */
    char *out;
    uint32_t *out_scales;
    int32_t *out_counts;
    int64_t *out_ranges;
    int32_t *out_source;
    int32_t *out_topk_idx; /* this and the next: by rank only, or NULL */
    float *out_topk_weights;
    int64_t *sum_counts; /* or NULL */
};

struct ll_mask_args {
    struct ll_masks masks;
    char *own;                       /* this rank's EP heap */
    int32_t *out;                    /* [R] for LL_MASK_GET */
    int32_t num_ranks, rank, action; /* rank -1: all */
    uint32_t reserved;
};

struct ll_combine_args {
    struct op_frame f;
    struct ll_lane lane;
    const char *in;
    const float *weights; /* NULL: given at dispatch; ll_weights_ahead sends them */
    char *out;
    int64_t out_stride;
    uint32_t phases, num_tokens, topk, experts_a_rank, row_bytes;
    uint32_t dispatched;   /* traces of the dispatch that this combine was issued for */
    uint32_t summed;       /* one row a rank comes home, with its weights in it */
    uint32_t adds_here;    /* and the sender makes it from its experts' rows; else the caller has */
    uint32_t over_blanks;  /* for the host: which kernel it is */
    uint32_t token_places; /* then, places of a token: K, or R */
    uint32_t compression, sent_bytes, blocks; /* of rows on their way: bytes; of 128 channels, rounded up */
    uint32_t stage_bytes, stages; /* in shared memory: chunks of each warp (ll_pipe.h), or rows (ll_make.h) */
    uint32_t words_offset;        /* there: what looks after them */
};

/* Weights that go ahead of that combine. */
struct ll_ahead_args {
    struct ll_combine_args c;
    struct op_frame
        hasty; /* the same with an eighth of the deadline less, for weights of ranks that are in */
};

#endif
