/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts and kernels share about low latency across domains (docs/decisions/017-low-latency-far.md). The
 * frame of such an operation is of all R ranks, by the communicator's numbers; those of this rank's domain
 * are near: it addresses their memory, and they have its rows as in one domain. To the others, which are far,
 * rows go by put and signal, from out-boxes in this rank's window into the same places of theirs, where they
 * are received like rows of near ranks. Out-boxes are in the lane, in two copies as its buffers:
 *
 *   entries_out[2][R][3 + L/2]  dispatch: entry words on their way to rank d; railed, 4 + L/2 of them
 *   rows_out[2]                 rows for the first far rank, by their slots, then for the next one, no gaps
 *                               between rows or ranks; of a combine that has more rows than there is room
 *                               for, a slot a warp instead (ll_ship.h)
 *
 * Rows for a far rank leave, and arrive, in chunks of LL_CHUNK consecutive slots, fewer in the last one. At
 * the far rank they lie without gaps either, so that a chunk is one piece of memory on both sides; the
 * arrival word of its first row stands for all of it. A dispatch's rows begin where the source's places do.
 * A combine's come to places behind those of near ranks' rows: home has a place for each row that it awaits,
 * by rank and slot, and tells each far rank in its dispatch where those of that rank begin.
 *
 * Slots of a combine: with weights at combine a far rank has a row a (token, expert), by expert, then in the
 * order of the home's tokens; else one a token, in their order. Both sides know the counts.
 *
 * Device memory of the lane; the last three are a dispatch's notes for the combine that follows:
 *
 *   chunks[]                    the epoch, LL_CHUNK_BITS further up, and rows of a chunk in the out-box,
 *                               or pieces of them; dispatch [R][rank_chunks]
 *   numbers[T][K]               of this rank's tokens: the choice's number among those of its expert, or of
 *                               the token among those of its rank
 *   places[E]                   where the first of them lies at home; or [R]
 *   homes[R]                    of rows received from rank s
 *
 * Railed, a row goes once to each domain, to the rank there that is on the source's rail, which has the
 * source's place in its domain: a message, the row and behind it the row's slots at the ranks of that domain.
 * There it is copied to the same place of each of them that a near source's row would have (ll_spread.h).
 * Messages of a source for a domain have numbers, in the order of its tokens, and take the place of slots in
 * all that is said above: out-boxes and chunks are by domain. So they do in a combine that is summed, of
 * which a domain's rows for a token are added by that rank and go home as one (ll_gather.h): homes and
 * places are by domain too, and numbers are messages'. Its rows come to places behind all that home has. */
#ifndef TERN_LL_FAR_ARGS_H
#define TERN_LL_FAR_ARGS_H

#include "kernels/ll_args.h"
#include "net/queue.h" /* struct queue_near */
#include "tern/tern_net.h"

/* Rows. Each put and each signal costs a NIC the same, whatever it carries; so rows of some KiB had better
 * share them, until a chunk takes about as long as the way. A chunk also waits for its last row, which on a
 * device with a block for each token is cast beside the others. Both ends know it: a power of two. */
enum { LL_CHUNK = 8, LL_CHUNK_BITS = 16 };

/* Queue pairs that a dispatch has at hand, one a warp of a block (ll_carry.h), right before its stages. */
enum { LL_NEAR = 16, LL_NEAR_BYTES = LL_NEAR * sizeof(struct queue_near) };

/* Rows of a combine for far rank s. */
struct ll_far_home {
    uint32_t begin, rows; /* among all that leave, which is also where they lie in the out-box */
    uint32_t there;       /* the first one's place at s, behind near_places */
    uint32_t reserved;
};

/* What a railed object has beside that (docs/decisions/023-railed-low-latency.md). */
struct ll_rail {
    uint32_t num_domains, domain;  /* domain: this rank's */
    uint32_t tail_bytes, reserved; /* behind a message's row: its slots, padded */
    uint64_t messages;             /* in a copy of the buffer, of [domain] its rank on this rail, */
    uint64_t domain_bytes;         /* so many bytes for each */
    uint64_t words;                /* the first of their arrival words, [domain][source_rows] */
    uint64_t parts; /* of a combine, [domain][source_rows][num_near]: place, and word, of the first row that
                       this rank adds for others */
    int32_t *tails; /* likewise, of a dispatch for the combine that follows: slots of each message */
};

struct ll_far {
    struct tern_net net;             /* its record is NULL: the object has one of its own */
    uint64_t entries_out, rows_out;  /* offsets in an EP heap */
    uint64_t entry_bytes, row_bytes; /* of one copy */
    uint64_t *chunks;                /* this and the next four: of the lane */
    uint64_t rank_chunks;
    int32_t *numbers;
    uint32_t *places;
    struct ll_far_home *homes;
    uint64_t near_places;     /* of a combine's rows at home, and their words: [T][K] for near ranks */
    int32_t first, num_near;  /* ranks of this one's domain: first, ..., first + num_near - 1 */
    uint32_t slots, recycles; /* recycles: a combine may have more rows to send than there are slots */
    struct ll_rail rail;      /* zeros unless the object is railed */
};

struct ll_dispatch_inter_args {
    struct ll_far far;
    struct ll_dispatch_args d;
};

struct ll_combine_inter_args {
    struct ll_far far;
    struct ll_combine_args c;
};

/* What both begin with: whoever has the frame finds what is far. */
struct ll_far_frame {
    struct ll_far far;
    struct op_frame f;
};

#endif
