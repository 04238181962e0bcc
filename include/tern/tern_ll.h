/* SPDX-License-Identifier: Apache-2.0
 *
 * The low-latency part of the interface. A program includes tern/tern.h, which includes this. */
#ifndef TERN_TERN_LL_H
#define TERN_TERN_LL_H

#include "tern/tern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Dispatch and combine for batches of few tokens: one kernel each (with TERN_LL_WEIGHTS_AHEAD a combine is
 * two), no route before it and no host between.
 * Tokens arrive packed by expert, or one row a token and rank, in slabs of a fixed shape, so that all of it
 * can be captured in a graph and replayed with other ids. Inputs and outputs may be any device memory: no
 * window, no staging. No output of a call may overlap an input that the same call reads, whole slabs counted:
 * TERN_INVALID_ARGUMENT.
 *
 * A lane holds one batch from its dispatch to its last combine, and the buffers it takes. Lanes are numbered
 * from 0 to ll_lanes - 1, and batches in different lanes know nothing of each other. In one lane comes a
 * dispatch, then any number of combines, then another dispatch, each complete before the next begins.
 *
 * An operation may be cut in two: the send phase waits for nobody, but with TERN_LL_WEIGHTS_AHEAD, and ends
 * when what this rank gives has arrived, or for ranks of other domains is on its way; the receive phase, a
 * call of its own, waits for what the peers give and completes the outputs. In between no processor is held
 * and anything may run, other lanes' operations too, in an order that is the same on all ranks; in the same
 * lane the receive phase is next. (Of railed objects see below.)
 *
 * Across domains every rank sends to every rank, unless the object is railed (ll_rail). Then a token crosses
 * the network once for each other domain, to the rank there that has the sender's place in its own, and that
 * rank's receive phase spreads it in its domain. Of a combine with weights at dispatch, by expert or by rank,
 * the rows of a domain for a token cross as their sum, which is made in the receive phase of the rank of that
 * domain that has the home's place; with weights at combine every row goes home by itself, since only home
 * has the weights. So a receive phase also waits for other ranks' receive phases: a rank that has sent and
 * comes late to receive holds up its domain in a dispatch, and in a combine the ranks that have its place in
 * other domains. Receive phases, of several railed objects too, are issued in one order on all ranks, none is
 * left out, and whatever else makes a rank wait for others on the same stream or processors (high-throughput
 * operations, barriers, collectives of other libraries) has one place in that order: of two ranks that begin
 * with different ones, each waits for the other. A row that does not come is blamed on the rank that should
 * have handed it on, or added it (TERN_AWAIT_DONE), up to a quarter of the deadline later than else; where
 * another rank stopped in the midst of its rows that may be an innocent one. Fewer bytes cross, by one hop
 * more: for batches whose bytes count more than that.
 *
 * Calls that are captured have an order of their own: they run when their graph is launched, many times or
 * never, and leave the order of calls outside graphs alone. A captured call goes with the captured calls
 * before it, of the same capture or an earlier one (a combine with the latest captured dispatch; a receive
 * phase with the latest captured send); a capture may be thrown away, and the next one begin anew. A call
 * outside goes with the calls outside. Launches must keep the order in a lane: what runs there, by graph or
 * not, is a dispatch, its combines, another dispatch. A combine that finds another dispatch's traces than
 * those it was issued for (another shape or number of tokens) is a fault, TERN_MISMATCH, and moves
 * nothing. */
enum tern_ll_phase {
    TERN_LL_BOTH = 0,   /* one kernel; with weights ahead two */
    TERN_LL_SEND = 1,   /* reads what is sent: all fields up to num_sms, and layout, in dispatch, `in`,
                           compression and weights that go ahead in combine; the others are ignored */
    TERN_LL_RECEIVE = 2 /* writes the outputs: reads the other fields, statistics and weights that do not go
                           ahead among them. The shape is that of the send phase, whose fields are ignored,
                           but for layout, which must be the same (TERN_INVALID_ARGUMENT). lane, num_sms,
                           after and record belong to each call */
};

/* At combine: one row a choice comes home and is weighted there. At dispatch: a rank weights and adds its
 * experts' rows, and one row a rank comes home, rounded. Ahead: likewise, but the weights are given at
 * combine, which sends them ahead of the rows, by a kernel more. By expert (else TERN_INVALID_ARGUMENT), in
 * one domain and without masks (else TERN_UNSUPPORTED); pays from some 32 tokens on. The send phase of such a
 * combine waits for the peers', and has one place in the order of all that makes a rank wait for others on
 * the same stream or processors (high-throughput operations, barriers, collectives of other libraries): of
 * two ranks that begin with different ones, each waits for the other. Weights of a rank that is in are
 * awaited for an eighth less than the deadline, so that nobody is blamed who waits for them. */
enum tern_ll_weights {
    TERN_LL_WEIGHTS_AT_COMBINE = 0,
    TERN_LL_WEIGHTS_AT_DISPATCH = 1,
    TERN_LL_WEIGHTS_AHEAD = 2
};

enum tern_ll_layout {
    TERN_LL_BY_EXPERT = 0, /* one row a (token, local expert) */
    TERN_LL_BY_RANK = 1    /* one row a (token, rank), whose experts' outputs the caller weights and adds */
};

/* Of rows on their way home: each 128 channels by themselves. docs/numerics.md has the formats and how
 * accurate they are. What is not finite comes out not finite. */
enum tern_ll_compression {
    TERN_LL_PLAIN = 0, /* BF16 */
    TERN_LL_FP8 = 1,   /* E4M3, an FP32 scale for each 128 channels */
    TERN_LL_LOG10 = 2  /* 10 bits a channel: sign and logarithm, in a range for each 128 channels */
};

/* R ranks, L local experts, T max_tokens, H hidden.
 *
 * By expert, a slab has R * T rows an expert, of which the first out_counts[e] are written: by source rank,
 * then token. A token that names an expert twice has one row there.
 *
 * By rank, every token that names an expert here has one row. Rows of source s begin at s * T, in the order
 * of its tokens; of these T the first out_counts[s] are written. Nothing is expanded: the caller weights and
 * adds what its experts make of a row. It goes with TERN_LL_WEIGHTS_AT_DISPATCH only, where one row a rank
 * comes home. topk_weights may then be NULL, on any rank: they serve out_topk_weights alone.
 *
 * Rows beyond a count are left as they are, in all outputs. */
struct tern_ll_dispatch_args {
    size_t size;
    uint32_t lane;
    uint32_t phase;            /* enum tern_ll_phase */
    const void *in;            /* device, BF16 [num_tokens, H], 16-byte aligned */
    int64_t in_stride;         /* bytes between its rows, a multiple of 16; default dense */
    const void *topk_idx;      /* device, [num_tokens, topk] dense; -1: no expert */
    const float *topk_weights; /* device, [num_tokens, topk] dense, with TERN_LL_WEIGHTS_AT_DISPATCH */
    uint32_t idx_bytes;        /* 4 or 8 (the default) */
    uint32_t num_tokens;       /* of this rank, to max_tokens; 0 is normal; ranks may differ */
    uint32_t topk;             /* 1 to max_topk of the object, which is at most 32; equal on all ranks */
    uint32_t max_tokens;       /* T; default the configuration's ll_tokens, the most; equal on all ranks. With
                                  few (16 with two ranks, 4 with eight, of top-8) a dispatch takes a fifth to
                                  a third less in one domain without masks, and its combine is faster if not
                                  compressed and T topk rows of H (weights not at combine: T R rows) have 16
                                  MiB at most: say it if a batch is small */
    uint32_t hidden;           /* H, to ll_hidden; a multiple of 8, with a cast of 16; equal on all ranks */
    uint32_t cast;             /* enum tern_cast; equal on all ranks */
    uint32_t weights;          /* enum tern_ll_weights; equal on all ranks */
    uint32_t num_sms; /* default: tern_comm_num_sms, capped at 256. Operations that may run at once, also
                         the model's own, must together fit the device */
    void *out; /* device, [L, R * T, H] BF16, or E4M3 with a cast; by rank [R, T, H]; 16-byte aligned */
    void *out_scales;    /* with a cast: 4-byte words [L, W, R * T], by rank [W, R * T], the rows of a word
                         together, as grouped GEMM reads them. Word w is the FP32 scale of channels 128 w on,
                         W = H / 128 rounded up; TERN_CAST_FP8_UE8M0: four exponent bytes, of channels 512 w
                         on, a quarter of the words, rounded up */
    int32_t *out_counts; /* [L] rows of each expert; by rank [R] rows from each source */
    int64_t *out_ranges; /* [L, R] rows from each source: first row << 32 | number; or NULL. By rank NULL, for
                             out_counts says it all */
    int32_t *out_source; /* [L, R * T] token at its source, by rank [R, T]; or NULL */
    struct tern_event *after;  /* start no sooner than this event; may be NULL */
    struct tern_event *record; /* record this event when done; may be NULL */
    uint32_t layout;           /* enum tern_ll_layout; equal on all ranks */
    uint32_t reserved;
    int32_t *out_topk_idx; /* by rank: [R, T, topk] local experts of the row's token, -1 for choices that are
                                not here; or NULL, as by expert */
    float *out_topk_weights; /* by rank: [R, T, topk] their weights, 0 where out_topk_idx is -1 or the source
                                gave none; or NULL, as by expert */
    int64_t *sum_counts; /* device, [L], in either layout: the number of tokens that name each expert is added
                                here, a token once; for statistics over any number of calls. Or NULL */
    uint64_t *wait_ns;   /* device, [R], nanoseconds: for each source is added the time from when a receiving
                          block began to the last of its words and rows that it found only on looking again,
                          the longest of all blocks; 0 if all was there. Railed, a row that a rank spreads or
                          adds counts for that rank. Belongs to the receive phase; or NULL */
};
#define TERN_LL_DISPATCH_ARGS_INIT                                                                           \
    {                                                                                                        \
        sizeof(struct tern_ll_dispatch_args), 0, 0, NULL, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, \
            NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL                                       \
    }

/* COLLECTIVE, asynchronous on `stream`; operations of one object, high-throughput ones too, run in the order
 * they are issued. An id out of range counts as -1; tern_ep_synchronize tells of the first one in each lane
 * since the object was opened or reset. Counts are exact, and written in the order of the stream. */
TERN_API enum tern_status tern_ll_dispatch(struct tern_ep *ep, const struct tern_ll_dispatch_args *args,
                                           struct tern_stream *stream);

struct tern_ll_combine_args {
    size_t size;
    uint32_t lane;
    uint32_t phase; /* enum tern_ll_phase */
    const void *in; /* device, BF16 [L, R * T, H], by rank [R, T, H], rows as dispatch laid them out; 16-byte
                       aligned. Read where it lies, by the send phase */
    const float *topk_weights; /* device, [num_tokens, topk] dense, with TERN_LL_WEIGHTS_AT_COMBINE, where it
                                  belongs to the receive phase, and TERN_LL_WEIGHTS_AHEAD, to the send
                                  phase */
    void *out;                 /* device, BF16 [num_tokens, H]; 16-byte aligned */
    int64_t out_stride;        /* bytes between its rows, a multiple of 16; default dense */
    uint32_t num_sms;          /* as in dispatch */
    uint32_t compression;      /* enum tern_ll_compression: of rows on their way; equal on all ranks */
    struct tern_event *after;
    struct tern_event *record;
    uint64_t *wait_ns; /* as in dispatch; with weights ahead in the send phase, too, for weights: give both
                          phases the same array, where the longer wait counts. A rank that waits for weights
                          itself counts for what others wait for its rows */
};
#define TERN_LL_COMBINE_ARGS_INIT                                                                            \
    {                                                                                                        \
        sizeof(struct tern_ll_combine_args), 0, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL               \
    }

/* COLLECTIVE, asynchronous on `stream`. Sizes are those of the lane's latest dispatch. In FP32, from 0,
 * every product and every sum rounded by itself:
 * weights at combine: out[t] = the sum of w[t][k] * y[t][k], choices ascending, rounded once to BF16;
 * weights at dispatch, or ahead: each rank's sum of w[t][k] * y[t][k] over its choices, ascending, rounded to
 * BF16; and out[t] = the sum of these, ranks in the order of their first choice, rounded to BF16;
 * by rank: out[t] = the sum of the ranks' rows as they were given, in the same order, rounded to BF16.
 * Railed, with weights at dispatch or by rank, another domain's rows count as one, in the place of the first
 * choice that any of them has: their sum, ranks ascending, rounded to BF16.
 * With a compression, each row that comes home, y[t][k] or a rank's, is what comes out of it, in FP32;
 * railed, that is so of rows that are added to a domain's sum, and of the sum.
 * A token without experts gets zeros. */
TERN_API enum tern_status tern_ll_combine(struct tern_ep *ep, const struct tern_ll_combine_args *args,
                                          struct tern_stream *stream);

/* Masks, of an object opened with ll_mask; TERN_BAD_STATE without. Each rank has its own view of who is
 * masked. A masked rank is neither sent to nor waited for: it brings no rows, and its experts' outputs are
 * left out of sums. A rank that is masked in its own view runs its operations alone: it sends nothing, waits
 * for nobody, and gets counts of 0 and sums of zeros. High-throughput operations know nothing of masks; nor
 * do tern_comm_barrier, opening and resetting, which need every rank to be alive.
 *
 * A rank that misses the deadline of a low-latency operation is masked by whoever waited for it, in the views
 * of all ranks, its own among them; the operation goes on without it, and neither it nor tern_ep_synchronize
 * fails: ask tern_ll_mask_peek now and then. Across domains so is a rank that the network does not carry to;
 * if it fails between two ranks only, one is masked, or both, and no other. In the operation in which a rank
 * learns of a mask, its own too, what has come is used: a row as a whole, or not at all. Of rows that were
 * announced and did not come, out and out_scales are zeros, out_source is -1, and combine sends nothing back;
 * they stay in out_counts. Before a rank is masked, it gets up to four deadlines more while it waits for
 * others itself.
 *
 * A process that died is gone: open the communicator anew, or let those that are left shrink it
 * (tern_comm_shrink). Across domains a rank to which the network has failed is not taken in again either:
 * clearing its mask is refused where that is known (TERN_DISCONNECTED); then close the object on all ranks
 * and open another. A rank that lives is taken in again so:
 *
 *   1. it issues every operation that the others have issued meanwhile; masked, it runs them alone;
 *   2. every rank waits for its own operations (tern_ep_synchronize), then for the other ranks;
 *   3. every rank, this one too, clears the mask (tern_ll_mask_set) and waits for that;
 *   4. every rank waits for the others once more; then the next operation has them all.
 *
 * A rank that was only late may, until its kernel has ended, still write rows that it had begun to copy into
 * its peers' buffers of that lane. A later operation there could then add a wrong row, or take another rank
 * for lost. So let the deadline be longer than any pause that a rank can make in the middle of a kernel, and
 * than the network between domains can make, or
 * end the late rank's process, before the lane's results are trusted.
 *
 * While a rank waits in a low-latency operation of the same object, it says so, and is not masked for it, up
 * to four deadlines; one that waits for something else does not. tern_ep_reset takes in all ranks and needs
 * all. */

/* Local, asynchronous on `stream`, in order with the object's operations; may be captured in a graph. Masks
 * `rank` in this rank's view, or all for -1; masked 0: takes in again, and forgets why. Call it on all ranks,
 * while no lane is between a send and its receive phase or a dispatch and its combines, with the same rank.
 * If only some mask a rank, it waits for those who no longer send to it, and when its deadline has passed it
 * masks them. */
TERN_API enum tern_status tern_ll_mask_set(struct tern_ep *ep, int rank, int masked,
                                           struct tern_stream *stream);
/* The same for reading: out, device, [num_ranks], becomes 1 for masked ranks, else 0. */
TERN_API enum tern_status tern_ll_mask_get(struct tern_ep *ep, int32_t *out, struct tern_stream *stream);
/* Local, at once, without a word to the device: ranks[0] gets bit r for rank r, ranks[1] for rank r + 64, as
 * far as kernels that have run know. May be called while work runs on the device; as with all calls on an
 * object, by one host thread at a time. */
TERN_API enum tern_status tern_ll_mask_peek(struct tern_ep *ep, uint64_t ranks[2]);
/* Likewise: why and by whom `rank` was masked. TERN_BAD_STATE if it is not, or by tern_ll_mask_set. A line in
 * the log, at level warn, says it once too: with the next low-latency call, tern_ll_mask_set or
 * tern_ep_synchronize. */
TERN_API enum tern_status tern_ll_mask_fault(struct tern_ep *ep, int rank, struct tern_fault *fault);

#ifdef __cplusplus
}
#endif
#endif
