/* SPDX-License-Identifier: Apache-2.0
 *
 * Masks on the host. What is masked is on the device; kernels tell the host through a word and a record a
 * rank in host memory, so that looking there costs the device nothing. */
#include <stdio.h>
#include <string.h>

#include "ep/ep_ll.h"
#include "kernels/kernels.h"

static const struct ep_record *news_of(const struct tern_ep *ep, int rank)
{
    return (const struct ep_record *)(const void *)(ep->host_memory + ep->layout.ll_news) + rank;
}

struct ll_masks terni_ll_masks(const struct tern_ep *ep, uint32_t lane)
{
    const struct ep_layout *l = &ep->layout;
    struct ll_masks m;
    memset(&m, 0, sizeof(m));
    if (ep->shape.ll_mask) {
        m.heard = l->ll_heard;
        m.alive = l->ll_alive;
        m.peers = (struct ll_peer *)(ep->device_memory + l->ll_peers);
        m.verdicts = (uint64_t *)(ep->device_memory + l->ll_verdicts + lane * l->ll.verdict_bytes);
        m.news = (struct ep_record *)(ep->host_memory_device + l->ll_news);
        m.view = (uint64_t *)(ep->host_memory_device + l->ll_view);
    }
    return m;
}

static enum tern_status check_masks(const struct tern_ep *ep)
{
    return ep->shape.ll_mask
               ? TERN_OK
               : TERN_FAIL(TERN_BAD_STATE, "the object was opened with ll_mask 0, without masks");
}

static enum tern_status check_rank(const struct tern_ep *ep, int rank, int least)
{
    return rank >= least && rank < ep->comm->num_ranks
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "rank is %d; it must be %d to %d", rank, least,
                           ep->comm->num_ranks - 1);
}

static enum tern_status launch(struct tern_ep *ep, int rank, int action, int32_t *out,
                               struct tern_stream *stream)
{
    struct ll_mask_args k;
    struct launch l;
    memset(&k, 0, sizeof(k));
    k.masks = terni_ll_masks(ep, 0);
    k.own = ep->heap->bases[ep->comm->rank];
    k.num_ranks = ep->comm->num_ranks;
    k.rank = rank;
    k.action = action;
    k.out = out;
    memset(&l, 0, sizeof(l));
    l.kernel = TERN_KERNEL_ll_mask;
    l.num_blocks = 1;
    l.num_threads = TERN_THREADS_ll_mask;
    l.args = &k;
    l.args_bytes = sizeof(k);
    TERN_TRY(terni_ep_begin(ep, stream, NULL));
    enum tern_status status = ep->machine->ops->launch(ep->machine, &l, stream);
    if (status == TERN_OK) {
        terni_ep_issued_without(ep, stream);
    }
    return terni_ep_end(ep, TERN_OP_NONE, status, 0, stream, NULL);
}

/* Of a rank that is to be taken in again, or of all: what has failed on the way there stays so, and the rank
 * would be given up again, with this one. What a graph clears is cleared later: nobody knows yet. */
static enum tern_status check_way(const struct tern_ep *ep, int rank, struct tern_stream *stream)
{
    if (ep->network == NULL || ep->machine->ops->stream_capturing(ep->machine, stream)) {
        return TERN_OK;
    }
    for (int r = rank < 0 ? 0 : rank; r < (rank < 0 ? ep->comm->num_ranks : rank + 1); r++) {
        if (terni_pgas_reaches(ep->network, r) != TERN_OK) {
            char why[TERN_SENTENCE_BYTES / 2];
            snprintf(why, sizeof(why), "%s", tern_last_error());
            return TERN_FAIL(
                TERN_DISCONNECTED,
                "rank %d cannot be taken in again; close the object on all ranks, and open another: %s", r,
                why);
        }
    }
    return TERN_OK;
}

enum tern_status terni_ll_mask_set(struct tern_ep *ep, int rank, int masked, struct tern_stream *stream)
{
    TERN_TRY(check_masks(ep));
    TERN_TRY(check_rank(ep, rank, -1));
    if (!masked) {
        TERN_TRY(check_way(ep, rank, stream));
    }
    terni_ll_mask_log(ep); /* a record that is about to be cleared */
    return launch(ep, rank, masked ? LL_MASK_SET : LL_MASK_CLEAR, NULL, stream);
}

enum tern_status terni_ll_mask_get(struct tern_ep *ep, int32_t *out, struct tern_stream *stream)
{
    TERN_TRY(check_masks(ep));
    TERN_TRY(terni_check_aligned("out", out, 4));
    return launch(ep, -1, LL_MASK_GET, out, stream);
}

enum tern_status terni_ll_mask_peek(struct tern_ep *ep, uint64_t ranks[2])
{
    TERN_TRY(check_masks(ep));
    const uint64_t *view = (const uint64_t *)(const void *)(ep->host_memory + ep->layout.ll_view);
    ranks[0] = ranks[1] = 0;
    for (int r = 0; r < ep->comm->num_ranks; r++) {
        /* Pairs with the releases in ll_tell_host and the ll_mask kernel. */
        if (__atomic_load_n(&view[r], __ATOMIC_ACQUIRE)) {
            ranks[r >> 6] |= 1ull << (r & 63);
        }
    }
    return TERN_OK;
}

enum tern_status terni_ll_mask_fault(struct tern_ep *ep, int rank, struct tern_fault *fault)
{
    struct tern_fault f;
    uint64_t written;
    TERN_TRY(check_masks(ep));
    TERN_TRY(check_rank(ep, rank, 0));
    if (!terni_record_read(ep, news_of(ep, rank), &written, &f)) {
        return TERN_FAIL(TERN_BAD_STATE, "no deadline has masked rank %d", rank);
    }
    f.size = fault->size;
    memcpy(fault, &f, sizeof(f));
    return TERN_OK;
}

void terni_ll_mask_log(struct tern_ep *ep)
{
    for (int r = 0; ep->shape.ll_mask && r < ep->comm->num_ranks; r++) {
        struct tern_fault f;
        uint64_t written;
        char text[512];
        if (terni_record_read(ep, news_of(ep, r), &written, &f) && written != ep->masks_told[r]) {
            ep->masks_told[r] = written;
            terni_fault_format(&f, text, sizeof(text));
            TERN_LOG(TERN_LOG_WARN, "rank %d is masked: %s", r, text);
        }
    }
}
