/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts and kernels share about rails, the streams between rail peers (inter_args.h says who they are),
 * and the arguments of dispatch and combine across domains.
 *
 * A message takes one token to one other domain, and its sum home again. Both ends know from the route how
 * many there are. They go in chunks: chunk q, of `chunk` consecutive messages, belongs to channel q % C. The
 * words in a window, by other domain and channel:
 *
 *   tails[D - 1][C]    u64  raised by the rail peer: bytes that have arrived in this rank's ring
 *   credits[D - 1][C]  u64  raised by the rail peer: bytes of its ring that it has read
 *
 * Other domain e has index e - (e > d) in domain d. Counts of bytes never go back: no operation resets
 * anything, and the network needs no entry (docs/decisions/016-across-domains.md). */
#ifndef TERN_RAIL_ARGS_H
#define TERN_RAIL_ARGS_H

#include "kernels/inter_args.h"
#include "net/queue.h" /* struct queue_near */

enum {
    RAIL_UNIT = 32,             /* a message begins at a multiple of so many bytes */
    RAIL_CHUNK_BYTES = 1 << 16, /* that a put should have, if the ring is long enough */
    RAIL_USUAL_CHUNKS = 4,      /* of a ring: one is written, and others travel or are read */
    RAIL_MAX_CHUNKS = 64        /* that one stream can have on their way */
};

/* What a rank knows of a stream that it receives: chunks whose messages have all been read go back in order,
 * though warps finish them in any. Those that are kept (rail_is_kept) nobody counts. */
struct rail_release {
    uint32_t pending; /* chunks that are finished and that nobody has looked at yet */
    uint32_t next;    /* the first chunk of the operation that has not been seen finished */
    uint32_t held;    /* bytes that have been read and not gone back, also of earlier operations; of chunks
                       * that are kept from the end of theirs on */
    uint32_t counts
        [RAIL_MAX_CHUNKS]; /* parts of messages of chunk k that have been read, at k % RAIL_MAX_CHUNKS */
};

struct rail_args {
    struct inter_world world;
    uint32_t num_channels;     /* streams to each rail peer */
    uint32_t put_queues;       /* channel c goes by queue c % put_queues */
    uint32_t credit_queues;    /* behind them, which credits go by likewise; 0: by the channel's own */
    uint32_t ring_bytes;       /* of a stream: a multiple of RAIL_UNIT */
    uint32_t hold;             /* bytes of a ring that one operation may keep for the next to give back */
    uint32_t stride, chunk;    /* of the operation: bytes of a message, messages of a chunk */
    char *send, *arrived;      /* [D - 1][C] rings each, in this rank's network window */
    uint64_t *tails, *credits; /* [D - 1][C] in the window */
    uint64_t *sent, *taken;    /* [D - 1][C] device memory: positions when the operation begins, in bytes */
    struct rail_release *releases; /* [D - 1][C] device memory */
};

/* Behind the payloads of a message: weights[topk], and this in its last bytes. */
struct rail_trailer {
    uint64_t tag;         /* of the operation and the message's number: that both ends do the same */
    uint64_t has_weights; /* of a dispatch */
};

/* Messages of one stream that may be written, or read. */
struct rail_piece {
    uint32_t stream;
    uint32_t first, num; /* in the stream */
    uint32_t offset;     /* of the first in the ring */
    uint32_t bytes;      /* by which the stream's position advances, with the gap before */
    uint64_t end;        /* to which the position advances */
};

/* What a warp leaves for its block's poster (rail_poster.h), and what that takes of shared memory. The
 * release of a chunk is about its piece's stream, a message of the chunk (first), and how many messages the
 * stream has in the operation (num); one that gives something back becomes a credit in the poster's hands. */
enum { POSTER_PUT, POSTER_RELEASE, POSTER_CREDIT, POSTER_END };
enum { POSTER_BOXES = 4, POSTER_MAX_PRODUCERS = 32 / POSTER_BOXES };
struct poster_letter {
    struct rail_piece piece;
    uint32_t what, reserved;
};
enum {
    FORWARD_TAKEN_BYTES = 32 * sizeof(uint32_t), /* of a team of forwarders, and one a warp at most */
    POSTER_DESK_BYTES = 5 * sizeof(uint64_t),
    /* Queue pairs that a poster has at hand, 168 bytes each: with 32 a line of combine would have eight slots
     * for usual rows on an H200, not nine. */
    POSTER_NEAR = 24,
    POSTER_NEAR_BYTES = POSTER_NEAR * sizeof(struct queue_near),
    POSTER_PRODUCER_BYTES = POSTER_BOXES * (2 * sizeof(uint64_t) + sizeof(struct poster_letter))
};

/* A message in a stage, between the lanes of a warp. */
struct stage_note {
    char *at;               /* in the ring */
    uint64_t end;           /* of its piece: the stream's position behind it */
    uint32_t token, number; /* of the message in its operation */
    uint32_t stream, num, offset,
        bytes; /* of its piece, whose last message it is if `last`; or see `place` */
    uint32_t last;
    uint32_t chunk; /* combine: of the message's row */
    uint32_t place; /* dispatch, where it has arrived: in its stream, which has `num` messages */
    uint32_t kept;  /* likewise: its chunk is not released (rail_is_kept) */
};

/* How blocks are shared out; all run at once. */
struct inter_roles {
    uint32_t own, rails, forwarders; /* blocks of each, in this order; in combine: forwarders, then home */
};

struct dispatch_inter_args {
    struct dispatch_args d;
    struct route_far far;
    struct rail_args rail;
    struct inter_roles roles;
    const uint64_t *block_tails;             /* [D] */
    uint32_t weights_offset, trailer_offset; /* in a stage, which is a message */
    uint32_t notes_offset, poster_offset;    /* in shared memory */
    uint32_t forward_stages;                 /* of a warp that forwards; d.num_stages: of the others */
    uint32_t forward_teams;             /* of a block's warps, which share streams (dispatch_forward.h) */
    uint32_t taken_offset, rail_offset; /* in shared memory: what forwarders have taken; `rail` */
};

struct combine_inter_args {
    struct combine_args c;
    struct route_far far;
    struct rail_args rail;
    struct inter_roles roles;
    const uint64_t *block_tails;             /* [D] */
    uint32_t weights_offset, trailer_offset; /* in a message */
    uint32_t notes_offset;                   /* in shared memory: forwarders' */
    uint32_t poster_offset;                  /* likewise, of a block of lines */
    uint32_t num_lines, line_bytes;          /* lines of a block; what each has of shared memory */
    uint32_t bars_offset;                    /* in that: what is behind its slots */
    uint32_t args_offset;                    /* in shared memory: these, of a block of lines */
};

/* What a line of combine (combine_line.h) has on its way: items, and rows in slots. */
enum {
    LINE_ITEMS = 8,
    LINE_ROWS = 32,   /* of an item: targets, and letters */
    LINE_PIECE = 2560 /* bytes, at most, that an adder has of a slot */
};

/* An item. Of a forwarder, a message; at home a token, of which the note says no more. */
struct line_item {
    struct stage_note n;
    uint32_t over, reserved;         /* no item: no more come */
    const float *weights[LINE_ROWS]; /* of each target, where it lies; NULL: it has none */
    const char *letter[LINE_ROWS];   /* home: of each domain, in the ring; NULL: none */
    int32_t message[LINE_ROWS];      /* its number, or -1 */
};

/* What the row in a slot is. */
struct line_step {
    uint32_t place, chunk, flags, reserved; /* place: the item's; flags: enum of combine_line.h */
};

/* Barriers and flags, steps and items: behind the slots. */
enum {
    LINE_SLOT_BYTES = 2 * sizeof(uint64_t) + sizeof(struct line_step), /* a slot */
    LINE_BYTES = (3 * LINE_ITEMS + 1) * sizeof(uint64_t) + LINE_ITEMS * sizeof(struct line_item)
};

#endif
