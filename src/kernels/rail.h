/* SPDX-License-Identifier: Apache-2.0
 *
 * Rails: streams of messages between this rank and the ranks of its index in other domains, one for each
 * channel and direction. A stream is a ring at the sender, from which puts go, and one at the receiver, which
 * a sender that loads and stores lead there writes itself.
 *
 *     sender                                           receiver
 *     credit: the peer has read up to here             tail: bytes up to here are in the ring
 *     messages -> own ring; put_signal: ring, tail ->  ld.acquire tail; reads the messages
 *     ld.acquire credit                         <-     signal: credit
 *
 * Over loads and stores a word is set, which a link without atomics can carry: it has one writer at a time,
 * whose signals come one after the other. Elsewhere it is added to, for signals of a network may overtake
 * each other. Tails are raised in order there, too, behind what they are for; credits may come in any order
 * and from several writers, since a sender that knows of less room than there is only waits.
 *
 * A message at position p, which counts the stream's bytes from its beginning, lies at p modulo the ring; one
 * that would cross the ring's end begins at its start instead. It may be written once the peer has read up to
 * p + its bytes - the ring's: that also says that whoever carried the ring's old content away has read it,
 * because it has arrived. So nobody ever waits for a put to complete.
 *
 * A warp looks after up to 32 streams, one a lane (rail_hand), and takes pieces of them in turn: messages of
 * one chunk that lie one behind the other in the ring. Where dispatch forwards warps share streams, and take
 * messages (dispatch_forward.h). It can look whether a piece is to be had, or wait for
 * one; a warp that still has something in its hands on which others wait only looks. */
#ifndef TERN_RAIL_H
#define TERN_RAIL_H

#include "kernels/inter_fault.h"
#include "kernels/rail_args.h"

/* Programs that are wrong on purpose, for test/tsan_awake.sh. */
#ifdef TERN_WEAKEN_RAIL
#define RAIL_LOAD(p) ld_relaxed_sys_u64(p)
#else
/* Pairs with rail_signal and with the put and signal of rail_put at the peer. */
#define RAIL_LOAD(p) ld_acquire_sys_u64(p)
#endif
#ifdef TERN_TEST_NO_RAIL_PROXY
#define RAIL_PROXY_FENCE() ((void)0)
#elif defined(TERN_TEST_OTHER_PROXY_FENCE)
#define RAIL_PROXY_FENCE() fence_proxy_async_shared()
#else
/* Ordinary accesses of a ring, of this warp or seen through the word, come before bulk copies there. */
#define RAIL_PROXY_FENCE() fence_proxy_async_global()
#endif

/* What a thread needs for streams. */
struct rail {
    const struct rail_args *p;
    const struct op_frame *f;
    uint64_t epoch;
};

/* ---- Who is who ---- */

/* The domain that has index x here. */
TERN_DEVICE uint32_t rail_domain(const struct rail_args *p, uint32_t x)
{
    return x + (x >= (uint32_t)p->world.domain);
}

TERN_DEVICE uint32_t rail_index(const struct rail_args *p, uint32_t domain)
{
    return domain - (domain > (uint32_t)p->world.domain);
}

/* The index that this rank's domain has in domain x. */
TERN_DEVICE uint32_t rail_mirror(const struct rail_args *p, uint32_t x)
{
    uint32_t own = (uint32_t)p->world.domain;
    return own - (own > rail_domain(p, x));
}

TERN_DEVICE uint32_t rail_streams(const struct rail_args *p)
{
    return ((uint32_t)p->world.num_domains - 1) * p->num_channels;
}

/* The first stream of worker w of `workers` in a block; its next one is blocks * workers behind. Few streams
 * are spread over the blocks; of many a block has neighbours, which go by different queues. */
TERN_DEVICE uint32_t rail_first_stream(const struct rail_args *p, uint32_t block, uint32_t blocks, uint32_t w,
                                       uint32_t workers)
{
    return rail_streams(p) < blocks * workers ? w * blocks + block : block * workers + w;
}

/* The rank of this rank's index in domain e. All that is known of streams is in their arguments, which a
 * poster has at hand (rail_poster.h). */
TERN_DEVICE int rail_far_rank(const struct rail_args *p, int e)
{
    return p->world.net.rank + (e - p->world.domain) * p->world.domain_ranks;
}

/* The domain at the other end of a stream. */
TERN_DEVICE int rail_far_end(const struct rail_args *p, uint32_t stream)
{
    return (int)rail_domain(p, stream / p->num_channels);
}

/* ---- Where messages are ---- */

/* One stream in one operation. Messages are counted from the operation's first. */
struct rail_stream {
    uint64_t begin;  /* position when the operation begins */
    uint32_t offset; /* of that in the ring */
    uint32_t num;    /* messages */
    uint32_t before; /* of them fit before the ring's end */
    uint32_t lap;    /* messages of a whole ring */
};

/* How many of `total` messages go by channel c. */
TERN_DEVICE uint32_t rail_share(const struct rail_args *p, uint32_t total, uint32_t c)
{
    uint32_t whole = total / p->chunk, rest = total % p->chunk;
    uint32_t last = whole % p->num_channels; /* the channel of the chunk that is not whole */
    return (whole / p->num_channels + (c < last)) * p->chunk + (c == last ? rest : 0);
}

/* Message j of channel c is message i of the operation. */
TERN_DEVICE uint32_t rail_number(const struct rail_args *p, uint32_t c, uint32_t j)
{
    return (j / p->chunk * p->num_channels + c) * p->chunk + j % p->chunk;
}

TERN_DEVICE uint32_t rail_channel(const struct rail_args *p, uint32_t i)
{
    return i / p->chunk % p->num_channels;
}

TERN_DEVICE uint32_t rail_place_in_channel(const struct rail_args *p, uint32_t i)
{
    return i / p->chunk / p->num_channels * p->chunk + i % p->chunk;
}

TERN_DEVICE struct rail_stream rail_stream_of(const struct rail_args *p, uint64_t begin, uint32_t num)
{
    struct rail_stream s;
    s.begin = begin;
    s.offset = (uint32_t)(begin % p->ring_bytes);
    s.num = num;
    s.before = (p->ring_bytes - s.offset) / p->stride;
    s.lap = p->ring_bytes / p->stride;
    return s;
}

/* Position of message j. */
TERN_DEVICE uint64_t rail_position(const struct rail_args *p, const struct rail_stream *s, uint32_t j)
{
    if (j < s->before) {
        return s->begin + (uint64_t)j * p->stride;
    }
    uint32_t laps = (j - s->before) / s->lap, rest = (j - s->before) % s->lap;
    return s->begin - s->offset + (uint64_t)p->ring_bytes * (1 + laps) + (uint64_t)rest * p->stride;
}

/* Where message j lies in the ring. */
TERN_DEVICE uint32_t rail_offset(const struct rail_args *p, const struct rail_stream *s, uint32_t j)
{
    return j < s->before ? s->offset + j * p->stride : (j - s->before) % s->lap * p->stride;
}

/* Position behind the first j messages: what is sent or read then, gaps included. */
TERN_DEVICE uint64_t rail_end(const struct rail_args *p, const struct rail_stream *s, uint32_t j)
{
    return j == 0 ? s->begin : rail_position(p, s, j - 1) + p->stride;
}

/* Bytes of the operation behind a position, or the ring's if that is less. */
TERN_DEVICE uint32_t rail_left(const struct rail_args *p, const struct rail_stream *s, uint64_t position)
{
    uint64_t left = rail_end(p, s, s->num) - position;
    return left < p->ring_bytes ? (uint32_t)left : p->ring_bytes;
}

/* Messages from j on that lie one behind the other, in one chunk. A stream's first chunk goes by halves, so
 * that the network has something to do sooner. */
TERN_DEVICE uint32_t rail_run(const struct rail_args *p, const struct rail_stream *s, uint32_t j)
{
    uint32_t chunk = p->chunk - j % p->chunk, left = s->num - j;
    uint32_t ring = j < s->before ? s->before - j : s->lap - (j - s->before) % s->lap;
    uint32_t run = chunk < left ? chunk : left, half = (p->chunk + 1) / 2;
    run = j < half && half - j < run ? half - j : run;
    return run < ring ? run : ring;
}

/* ---- A warp's streams ---- */

struct rail_hand {
    struct rail_stream s;
    const uint64_t *word; /* that says how far this lane's stream may be used */
    uint64_t ahead;       /* what may be used beyond the word: the ring of a sender */
    uint64_t seen;        /* of the word */
    uint64_t wanted;      /* of it, for the next piece: as of the last look */
    uint32_t stream;      /* index * C + channel */
    uint32_t taken;       /* messages */
    uint32_t turn;        /* lane that is asked first */
    int awaited;          /* OP_AWAIT_* */
};

enum rail_found { RAIL_PIECE, RAIL_NOTHING, RAIL_OVER, RAIL_FAILED };

/* `stream`: this lane's, with `num` messages; to send or to receive. Every lane calls; one without a stream
 * gives num 0 and any stream. */
TERN_DEVICE struct rail_hand rail_hand_of(const struct rail_args *p, uint32_t stream, uint32_t num, int sends)
{
    struct rail_hand h;
    uint64_t begin = num == 0 ? 0 : sends ? p->sent[stream] : p->taken[stream];
    h.s = rail_stream_of(p, begin, num);
    h.word = (sends ? p->credits : p->tails) + stream;
    h.ahead = sends ? p->ring_bytes : 0;
    h.seen = 0;
    h.wanted = 0;
    h.stream = stream;
    h.taken = 0;
    h.turn = 0;
    h.awaited = sends ? OP_AWAIT_CREDIT : OP_AWAIT_CHUNK;
    return h;
}

/* Whether this lane's next piece is to be had; looks at the word if what it said last is not enough. */
TERN_DEVICE int rail_ready(const struct rail_args *p, struct rail_hand *h)
{
    if (h->taken == h->s.num) {
        return 0;
    }
    uint32_t run = rail_run(p, &h->s, h->taken);
    uint64_t end = rail_end(p, &h->s, h->taken + run);
    h->wanted = end > h->ahead ? end - h->ahead : 0;
    if (h->seen < h->wanted) {
        h->seen = RAIL_LOAD(h->word);
    }
    return h->seen >= h->wanted;
}

/* All lanes: lane `src` gives its next piece. */
TERN_DEVICE void rail_give(const struct rail_args *p, struct rail_hand *h, int src, struct rail_piece *piece)
{
    uint32_t run = 0, offset = 0, bytes = 0;
    uint64_t end = 0;
    if (lane() == src) {
        run = rail_run(p, &h->s, h->taken);
        offset = rail_offset(p, &h->s, h->taken);
        end = rail_end(p, &h->s, h->taken + run);
        bytes = (uint32_t)(end - rail_end(p, &h->s, h->taken));
    }
    piece->stream = shfl_u32(h->stream, src);
    piece->first = shfl_u32(h->taken, src);
    piece->num = shfl_u32(run, src);
    piece->offset = shfl_u32(offset, src);
    piece->bytes = shfl_u32(bytes, src);
    piece->end = shfl_u64(end, src);
    h->taken += run;
    h->turn = (uint32_t)(src + 1) & 31;
}

/* This lane's wait for its next piece, as a note says it. */
TERN_DEVICE struct op_note rail_wait_note(const struct rail *r, const struct rail_hand *h)
{
    struct op_note note = {OP_STATUS_TIMEOUT,
                           h->awaited,
                           rail_note(r->f, rail_far_end(r->p, h->stream)),
                           r->f->rank,
                           r->epoch,
                           h->wanted,
                           h->seen,
                           0,
                           0,
                           0};
    return note;
}

/* All lanes, after a look that has found nothing. 0: the operation is to be abandoned. */
TERN_DEVICE int rail_wait_on(const struct rail *r, const struct rail_hand *h, struct op_patience *patience)
{
    int failed = 0;
    if (h->taken < h->s.num) {
        struct op_note note = rail_wait_note(r, h);
        failed = !inter_wait_on(r->f, &r->p->world.net, patience, &note);
    }
    if (warp_any(failed)) {
        op_waited(r->f, patience, 0, 0);
        return 0;
    }
    return 1;
}

/* All lanes: the next piece of any of the warp's streams. waits: RAIL_NOTHING is no answer. */
TERN_DEVICE enum rail_found rail_take(const struct rail *r, struct rail_hand *h, int waits,
                                      struct rail_piece *piece)
{
    struct op_patience patience = {0};
    for (;;) {
        uint32_t ready = warp_ballot(rail_ready(r->p, h));
        if (ready != 0) {
            op_waited(r->f, &patience, 0, (int)(ready >> lane() & 1));
            uint32_t later = ready >> h->turn << h->turn;
            sync_warp(); /* what the lane has seen through the word, all may read and overwrite */
            rail_give(r->p, h, TERN_FFS(later != 0 ? later : ready) - 1, piece);
            return RAIL_PIECE;
        }
        if (!warp_any(h->taken < h->s.num)) {
            return RAIL_OVER;
        }
        if (!waits) {
            return RAIL_NOTHING;
        }
        if (!rail_wait_on(r, h, &patience)) {
            return RAIL_FAILED;
        }
    }
}

/* ---- Sending and giving back ---- */

/* This rank's rings of a stream. */
TERN_DEVICE char *rail_send_ring(const struct rail_args *p, uint32_t stream)
{
    return p->send + (uint64_t)stream * p->ring_bytes;
}

TERN_DEVICE char *rail_arrived_ring(const struct rail_args *p, uint32_t stream)
{
    return p->arrived + (uint64_t)stream * p->ring_bytes;
}

/* The number that the peer has for the stream in the other direction. */
TERN_DEVICE uint32_t rail_at_peer(const struct rail_args *p, uint32_t stream)
{
    return rail_mirror(p, stream / p->num_channels) * p->num_channels + stream % p->num_channels;
}

/* The queues of this rank that a stream goes by, and what it gives back: behind puts a credit would wait for
 * all that has been posted there, which is most of what rings hold. */
TERN_DEVICE uint32_t rail_put_queue(const struct rail_args *p, uint32_t stream)
{
    return stream % p->num_channels % p->put_queues;
}

TERN_DEVICE uint32_t rail_credit_queue(const struct rail_args *p, uint32_t stream)
{
    return p->credit_queues != 0 ? p->put_queues + stream % p->num_channels % p->credit_queues
                                 : rail_put_queue(p, stream);
}

/* Whether loads and stores of this rank lead to its rail peer in domain e. */
TERN_DEVICE int rail_is_near(const struct rail_args *p, int e)
{
    return net_route_to(&p->world.net, rail_far_rank(p, e)) == NET_ROUTE_P2P;
}

/* One thread: this stream's word among the rail peer's `words` goes on by `bytes`, to `end`: set where loads
 * and stores lead there, added to elsewhere. */
TERN_DEVICE int rail_signal(const struct rail *r, uint32_t stream, uint32_t queue, uint64_t *words,
                            uint64_t bytes, uint64_t end)
{
    const struct rail_args *p = r->p;
    int e = rail_far_end(p, stream), sets = rail_is_near(p, e);
    return route_signal(&p->world.net, rail_far_rank(p, e), queue, words + rail_at_peer(p, stream), 8,
                        sets ? TERN_SIGNAL_SET : TERN_SIGNAL_ADD, sets ? end : bytes);
}

/* The ring that messages of a stream are written to: its peer's, or this rank's, from which rail_put takes
 * them there. */
TERN_DEVICE char *rail_out_ring(const struct rail *r, uint32_t stream)
{
    char *there = net_pointer(&r->p->world.net, rail_far_rank(r->p, rail_far_end(r->p, stream)),
                              rail_arrived_ring(r->p, rail_at_peer(r->p, stream)));
    return there ? there : rail_send_ring(r->p, stream);
}

/* A thread, or all lanes of a warp, each of which has completed what it wrote: a piece leaves. 0: the
 * operation is to be abandoned. */
TERN_DEVICE int rail_put(const struct rail *r, struct net_group g, const struct rail_piece *piece)
{
    const struct rail_args *p = r->p;
    uint32_t there = rail_at_peer(p, piece->stream), queue = rail_put_queue(p, piece->stream);
    int e = rail_far_end(p, piece->stream);
    int status = TERN_OK;
    if (rail_is_near(p, e)) {
        group_sync(g);
        status = group_status(
            g, g.index == 0 ? rail_signal(r, piece->stream, queue, p->tails, piece->bytes, piece->end)
                            : TERN_OK);
    } else {
        status = route_put_signal_away(
            &p->world.net, g, rail_far_rank(p, e), queue, rail_arrived_ring(p, there) + piece->offset,
            rail_send_ring(p, piece->stream) + piece->offset, (uint64_t)piece->num * p->stride,
            p->tails + there, 8, TERN_SIGNAL_ADD, piece->bytes, 0);
    }
    return inter_carried(r->f, r->epoch, e, status, g.index == 0);
}

/* One thread, with what others have read synchronised: so many bytes of the ring, up to position `end`, may
 * be written again. */
TERN_DEVICE int rail_credit(const struct rail *r, uint32_t stream, uint64_t bytes, uint64_t end)
{
    int status = rail_signal(r, stream, rail_credit_queue(r->p, stream), r->p->credits, bytes, end);
    return inter_carried(r->f, r->epoch, rail_far_end(r->p, stream), status, 1);
}

/* Room goes back when this share of the ring has been read, since handing a credit over costs as much as
 * handing over a piece. */
#define RAIL_HOLD(p) ((p)->ring_bytes / 4)

/* The thread that looks after a stream's release: bytes that go back. What is little is held, and goes
 * back with what follows. Where all that is still to come has room, nobody waits for a credit any more: then
 * what is left may be held for the next operation, which so begins with less room, and only what is more
 * than that goes back, before the last chunks, so that no operation ends later for it. left: bytes behind
 * them in this operation, or the ring's if that is less. */
TERN_DEVICE uint32_t rail_due(const struct rail_args *p, uint32_t stream, uint32_t bytes, uint32_t left)
{
    struct rail_release *e = p->releases + stream;
    uint32_t held = e->held + bytes;
    uint64_t all = (uint64_t)held + left;
    int is_much = held >= RAIL_HOLD(p), is_awaited = all > p->ring_bytes;
    int goes = is_awaited ? is_much : all > p->hold && (is_much || left <= p->hold);
    e->held = goes ? 0 : held;
    return goes ? held : 0;
}

/* Whether chunk k is neither counted nor released: at the end of the chunk before it all that was still to
 * come might be held, and since then nothing is due (rail_due). What it holds rail_advance adds. */
TERN_DEVICE int rail_is_kept(const struct rail_args *p, const struct rail_stream *s, uint32_t k)
{
    return k != 0 && rail_left(p, s, rail_end(p, s, k * p->chunk)) <= p->hold;
}

/* Chunks from the release's next one on were kept. */
TERN_DEVICE void rail_hold_kept(const struct rail_args *p, const struct rail_stream *s,
                                struct rail_release *e)
{
    uint32_t next = e->next;
    if (next * p->chunk < s->num) {
        e->held += (uint32_t)(rail_end(p, s, s->num) - rail_end(p, s, next * p->chunk));
    }
    e->next = 0;
}

/* Threads of block 0 at the end of an operation, when all blocks of the rank have left it: the next one
 * begins behind this one's messages, `to` and `from` the stream's other domain. */
TERN_DEVICE void rail_advance(const struct rail_args *p, uint32_t stream, uint32_t to, uint32_t from)
{
    uint32_t c = stream % p->num_channels;
    uint32_t out = rail_share(p, to, c), in = rail_share(p, from, c);
    struct rail_stream s = rail_stream_of(p, p->sent[stream], out),
                       a = rail_stream_of(p, p->taken[stream], in);
    p->sent[stream] = rail_end(p, &s, out);
    p->taken[stream] = rail_end(p, &a, in);
    rail_hold_kept(p, &a, p->releases + stream);
}

#endif
