/* SPDX-License-Identifier: Apache-2.0
 *
 * Order of operations on one EP object. Its signals count epochs, one operation after the other, so
 * operations run in issue order even when the caller changes streams: then an event joins the two. An event
 * behind every kernel would cost each next one some 3 us, so none is recorded before an object has changed
 * streams, unless copies that leave no ticket follow the kernel. The host waits for a ticket that each
 * operation leaves in its memory, block by block, and not for a stream, where work of other objects and other
 * ranks' turns may have been issued since. Low-latency operations leave none, which would keep each of them
 * longer; behind the latest, if the host waits for it, an event is recorded then. Inside a graph the
 * capture's own order holds, and the caller orders launches of the graph against other operations. */
#include "ep/ep_trace.h"
#include "ep/trace_file.h"

/* Block b's ticket. */
static uint64_t *latest_word(const struct tern_ep *ep, int b)
{
    return (uint64_t *)(void *)(ep->host_memory + ep->layout.latest) + b;
}

/* All blocks of the latest operation have left. */
static int has_left(const struct tern_ep *ep)
{
    int left = 1;
    for (int b = 0; left && b < ep->num_leaving; b++) {
        /* Pairs with op_tell_host. */
        left = __atomic_load_n(latest_word(ep, b), __ATOMIC_ACQUIRE) == ep->num_issued;
    }
    return left;
}

static enum tern_status record_last(struct tern_ep *ep, struct tern_stream *stream)
{
    const struct machine_ops *ops = ep->machine->ops;
    if (ops->stream_capturing(ep->machine, stream)) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "the stream of the object's latest operation is being captured; synchronize the "
                         "object before a capture begins there");
    }
    TERN_TRY(ops->event_record(ep->machine, ep->last, stream));
    ep->is_recorded = 1;
    return TERN_OK;
}

/* The latest operation was issued on another stream, `before`. */
static enum tern_status join(struct tern_ep *ep, struct tern_stream *before, struct tern_stream *stream)
{
    ep->changes_streams = 1;
    if (!ep->is_recorded && !ep->lacks_ticket && has_left(ep)) { /* and nothing follows it */
        return TERN_OK;
    }
    if (!ep->is_recorded) {
        TERN_TRY(record_last(ep, before));
    }
    return ep->machine->ops->event_wait(ep->machine, ep->last, stream);
}

enum tern_status terni_ep_begin(struct tern_ep *ep, struct tern_stream *stream, struct tern_event *after)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct tern_stream *before;
    TERN_TRY(terni_ep_fault(ep));
    if (ep->no_default_stream && ops->is_default_stream(ep->machine, stream)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "stream is %s, but %d ranks share device %d and its default stream; give each a "
                         "stream of its own",
                         stream ? "cudaStreamLegacy" : "NULL", ep->comm->ranks_on_device,
                         ep->machine->info.device);
    }
    if (ops->is_thread_stream(ep->machine, stream)) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "stream is cudaStreamPerThread, which is another one in every thread; give a stream that "
            "was created");
    }
    if (after) {
        TERN_TRY(ops->event_wait(ep->machine, after, stream));
    }
    if (terni_child_stream(&ep->child, &before) && before != stream &&
        !ops->stream_capturing(ep->machine, stream)) {
        TERN_TRY(join(ep, before, stream));
    }
    return TERN_OK;
}

uint64_t terni_ep_ticket(struct tern_ep *ep, struct tern_stream *stream)
{
    return ep->machine->ops->stream_capturing(ep->machine, stream) ? 0 : ep->num_issued + 1;
}

void terni_ep_issued(struct tern_ep *ep, uint64_t ticket, int num_leaving)
{
    if (ticket) {
        ep->num_issued = ticket;
        ep->num_leaving = num_leaving;
        ep->lacks_ticket = 0;
    }
}

enum tern_status terni_ep_launch(struct tern_ep *ep, const struct launch *launch, uint64_t ticket,
                                 struct tern_stream *stream)
{
    TERN_TRY(ep->machine->ops->launch(ep->machine, launch, stream));
    terni_ep_issued(ep, ticket, launch->num_blocks);
    return TERN_OK;
}

enum tern_status terni_ep_end(struct tern_ep *ep, int operation, enum tern_status status, int copies,
                              struct tern_stream *stream, struct tern_event *record)
{
    const struct machine_ops *ops = ep->machine->ops;
    int captured = ops->stream_capturing(ep->machine, stream);
    enum tern_status recorded = TERN_OK;
    struct first_failure first; /* not zeroed whole: every operation comes here */
    first.status = TERN_OK;
    terni_first_add(&first, status);
    if (!captured) {
        terni_child_used(&ep->child, stream);
        /* Copies of the operation before may still run behind an event. A call that has failed does not end
         * them, and its own event is behind them; if that cannot be recorded the older one stays. */
        ep->is_recorded = ep->is_recorded && status != TERN_OK;
        if (copies || ep->changes_streams || ep->is_recorded) {
            recorded = record_last(ep, stream);
        }
    }
    if (status == TERN_OK && recorded == TERN_OK && record) {
        recorded = ops->event_record(ep->machine, record, stream);
    }
    if (status == TERN_OK && recorded != TERN_OK && operation != TERN_OP_NONE) {
        /* The operation runs, and a caller who takes the failure for its own would issue it again. */
        recorded = captured ? TERN_FAIL(recorded, "%s; the operation is in the capture: throw that away",
                                        tern_last_error())
                            : terni_ep_break(ep, operation, recorded);
    }
    terni_first_add(&first, recorded);
    return terni_first_end(&first);
}

void terni_ep_issued_without(struct tern_ep *ep, struct tern_stream *stream)
{
    if (!ep->machine->ops->stream_capturing(ep->machine, stream)) {
        ep->lacks_ticket = 1;
    }
}

enum tern_status terni_ep_wait_ticket(struct tern_ep *ep, const char *what, const uint64_t *word,
                                      uint64_t ticket)
{
    uint64_t wait_ns = (uint64_t)ep->shape.timeout_ms * 1000000u + 1000000000u;
    enum tern_status status =
        ep->machine->ops->wait_word(ep->machine, word, ticket, terni_clock_ns() + wait_ns);
    if (status == TERN_TIMEOUT) {
        TERN_LOG(TERN_LOG_WARN, "%s has waited %llu ms behind other work", what,
                 (unsigned long long)(wait_ns / 1000000u));
    }
    return status;
}

/* Until block b of the latest operation has left. TERN_TIMEOUT: the operation has failed, and block 0 has
 * left, but not this one, which may never get a processor. */
static enum tern_status wait_block(struct tern_ep *ep, int b)
{
    enum tern_status status;
    do {
        status = terni_ep_wait_ticket(ep, "an operation", latest_word(ep, b), ep->num_issued);
    } while (status == TERN_TIMEOUT && (b == 0 || !terni_ep_has_failed(ep)));
    return status;
}

enum tern_status terni_ep_wait(struct tern_ep *ep)
{
    const struct machine_ops *ops = ep->machine->ops;
    struct tern_stream *stream;
    enum tern_status status = TERN_OK;
    for (int b = 0; status == TERN_OK && b < ep->num_leaving; b++) {
        status = wait_block(ep, b);
    }
    if (status == TERN_TIMEOUT) {
        status = TERN_OK; /* the rest is for terni_ep_wait_end */
    }
    if (status == TERN_OK && ep->lacks_ticket && !ep->is_recorded &&
        terni_child_stream(&ep->child, &stream)) {
        status = record_last(ep, stream);
    }
    if (status == TERN_OK && ep->is_recorded) {
        status = ops->event_synchronize(ep->machine, ep->last);
    }
    if (status == TERN_OK) {
        ep->is_recorded = 0;
        ep->lacks_ticket = 0;
        if (terni_ep_has_failed(ep) && terni_child_stream(&ep->child, &stream)) {
            (void)record_last(ep, stream); /* for terni_ep_wait_end; the caller hears of the fault instead */
        }
        terni_child_idle(&ep->child);
    }
    return status;
}

enum tern_status terni_ep_wait_end(struct tern_ep *ep)
{
    TERN_TRY(terni_ep_wait(ep));
    return ep->is_recorded ? terni_ep_wait(ep) : TERN_OK;
}

/* For a program that ends without closing the object. Not where an operation is refused for the fault: there
 * the host may be capturing, and must not wait. */
static void trace_fault(struct tern_ep *ep)
{
    if (ep->stamps && !ep->trace_has_fault && terni_ep_has_failed(ep) && terni_ep_wait_end(ep) == TERN_OK) {
        ep->trace_has_fault = 1;
        terni_ep_trace_write(ep, TRACE_AT_FAULT);
    }
}

enum tern_status terni_ep_synchronize(struct tern_ep *ep)
{
    TERN_TRY(terni_ep_wait(ep));
    terni_ll_mask_log(ep);
    trace_fault(ep);
    TERN_TRY(terni_ep_fault(ep));
    if (ep->network) {
        /* The credits that the last operation gave back are awaited by nobody: they arrive before a peer, who
         * has synchronised as well, gives its window back. What cannot arrive any more is no fault of an
         * operation: the next one that needs that peer finds it. */
        struct pgas_call all = {ep->network, -1, 0, NULL, 1};
        (void)terni_pgas_quiet(&all, -1);
    }
    return terni_ep_bad_id(ep);
}

void terni_ep_frame(struct tern_ep *ep, int operation, struct op_frame *f)
{
    const struct ep_layout *l = &ep->layout;
    int domain_ranks = (int)ep->shape.domain_ranks;
    f->rank = ep->comm->rank % domain_ranks;
    f->num_ranks = domain_ranks;
    f->first_rank = ep->comm->rank - f->rank;
    f->own = ep->heap->bases[ep->comm->rank];
    f->ep_bases = ep->heap->device_bases + f->first_rank;
    f->user_bases = ep->comm->heap->device_bases + f->first_rank;
    f->done_offset = l->done;
    f->abort_offset = l->abort;
    f->message_offset = l->message;
    f->counts_offset = l->counts;
    f->pieces_offset = l->pieces;
    f->state = (struct ep_state *)(ep->device_memory + l->state);
    f->record = (struct ep_record *)(ep->host_memory_device + l->record);
    f->latest = (uint64_t *)(ep->host_memory_device + l->latest);
    f->timeout_ns = (uint64_t)ep->shape.timeout_ms * 1000000u;
    f->operation = operation;
    for (int c = 0; c < EP_MAX_COLUMNS; c++) {
        f->message.columns[c].offset = PLACE_NONE;
    }
}

enum tern_status terni_ep_check_roles(const struct tern_ep *ep, const char *option, int fewest)
{
    int sms = tern_comm_num_sms(ep->comm);
    if (ep->shape.transfer != TERN_TRANSFER_BULK) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "%s is 1, but transfer is plain: it goes by bulk copies, which take compute "
                         "capability 9.0, and transfer auto or bulk",
                         option);
    }
    if (sms < fewest) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "%s is 1, but this rank may use %d processor of its device; it takes %d", option,
                         sms, fewest);
    }
    return TERN_OK;
}

uint32_t terni_longest_stage(const struct ep_shape *shape)
{
    return (uint32_t)align_up(shape->max_row_bytes + TERN_MAX_PAYLOADS * 16u, 128);
}

uint32_t terni_place_table(const struct ep_shape *shape, uint32_t num_columns)
{
    return (uint32_t)align_up(
        shape->domain_ranks * (num_columns * sizeof(struct place) + 2 * sizeof(uint64_t)), 128);
}

/* FNV-1a over the value's bytes. */
uint64_t terni_ep_sign(uint64_t signature, uint64_t value)
{
    signature = signature ? signature : 0xcbf29ce484222325ull;
    for (int i = 0; i < 8; i++) {
        signature = (signature ^ (value >> (8 * i) & 0xff)) * 0x100000001b3ull;
    }
    return signature;
}
