/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults on the host: the kernels' records become a status and one sentence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ep/ep.h"

static const char *operation_name(int operation)
{
    static const char *const names[] = {"an operation", "route", "dispatch", "combine"};
    return operation >= 0 && operation <= TERN_OP_COMBINE ? names[operation] : "an unknown operation";
}

/* Appends to text at *length, counting what did not fit. */
static void append(char *text, size_t bytes, int *length, const char *format, ...) TERN_PRINTF(4, 5);

static void append(char *text, size_t bytes, int *length, const char *format, ...)
{
    va_list list;
    size_t at = (size_t)*length < bytes ? (size_t)*length : bytes;
    va_start(list, format);
    int n = vsnprintf(bytes > at ? text + at : NULL, bytes - at, format, list);
    va_end(list);
    *length += n > 0 ? n : 0;
}

static void append_late(const struct tern_fault *f, char *text, size_t bytes, int *length)
{
    append(text, bytes, length, "; late:");
    for (int r = 0; r < 128; r++) {
        if (f->late[r >> 6] >> (r & 63) & 1) {
            append(text, bytes, length, " %d", r);
        }
    }
}

int terni_fault_format(const struct tern_fault *f, char *text, size_t bytes)
{
    int n = 0;
    append(text, bytes, &n, "rank %d, %s (operation %llu): ", f->rank, operation_name(f->operation),
           (unsigned long long)f->epoch);
    if (f->reporter != f->rank) {
        append(text, bytes, &n, "rank %d reported that rank %d%s %s", f->reporter, f->peer,
               f->peer == f->rank ? " (this one)" : "",
               f->status == TERN_MISMATCH ? "is in another operation" : "was late");
        return n;
    }
    switch (f->awaited) {
    case TERN_AWAIT_READY:
    case TERN_AWAIT_DONE:
        append(text, bytes, &n, "rank %d %s within %.1f ms (signal %llu, awaited %llu, block %d, warp %d)",
               f->peer, f->awaited == TERN_AWAIT_READY ? "did not arrive" : "did not finish",
               (double)f->elapsed_ns / 1e6, (unsigned long long)f->seen, (unsigned long long)f->expected,
               f->block, f->warp);
        append_late(f, text, bytes, &n);
        break;
    case TERN_AWAIT_MATCH:
        append(text, bytes, &n,
               "rank %d is in another operation, route or shape (signature %016llx, here %016llx)", f->peer,
               (unsigned long long)f->seen, (unsigned long long)f->expected);
        break;
    case TERN_AWAIT_EXPERT_ID:
        append(text, bytes, &n, "expert id %lld at index %llu of topk_idx is out of range",
               (long long)f->seen, (unsigned long long)f->expected);
        break;
    default:
        append(text, bytes, &n, "no fault");
        break;
    }
    return n;
}

/* 1 if the record has been written, and then a copy of it. */
static int read_record(const struct tern_ep *ep, uint64_t offset, struct ep_record *copy)
{
    const struct ep_record *r = (const struct ep_record *)(const void *)(ep->host_memory + offset);
    /* Pairs with the release in op_fill_record: the other fields are whole once this word is set. */
    if (__atomic_load_n(&r->written, __ATOMIC_ACQUIRE) == 0) {
        return 0;
    }
    *copy = *r;
    return 1;
}

static struct tern_fault fault_of(const struct ep_record *r)
{
    struct tern_fault f = TERN_FAULT_INIT;
    f.status = r->status;
    f.operation = r->operation;
    f.awaited = r->awaited;
    f.rank = r->rank;
    f.peer = r->peer;
    f.reporter = r->reporter;
    f.block = r->block;
    f.warp = r->warp;
    f.epoch = r->epoch;
    f.expected = r->expected;
    f.seen = r->seen;
    f.elapsed_ns = r->elapsed_ns;
    f.late[0] = r->late[0];
    f.late[1] = r->late[1];
    return f;
}

static enum tern_status state_record(const struct ep_record *r)
{
    char text[512];
    struct tern_fault f = fault_of(r);
    terni_fault_format(&f, text, sizeof(text));
    return TERN_FAIL((enum tern_status)r->status, "%s", text);
}

enum tern_status terni_ep_fault(struct tern_ep *ep)
{
    if (!ep->stated.written && !read_record(ep, ep->layout.record, &ep->stated)) {
        return TERN_OK;
    }
    return state_record(&ep->stated);
}

enum tern_status terni_ep_bad_id(struct tern_ep *ep, uint64_t ticket)
{
    struct ep_record r;
    if (!read_record(ep, ep->layout.bad_id, &r) || (ticket && r.written != ticket) ||
        (!ticket && r.written <= ep->reported_bad_id)) {
        return TERN_OK;
    }
    ep->reported_bad_id = r.written;
    return state_record(&r);
}

enum tern_status terni_ep_fault_copy(struct tern_ep *ep, struct tern_fault *fault)
{
    struct ep_record r;
    if (!read_record(ep, ep->layout.record, &r) && !read_record(ep, ep->layout.bad_id, &r)) {
        return TERN_FAIL(TERN_BAD_STATE, "the object has no fault");
    }
    struct tern_fault f = fault_of(&r);
    f.size = fault->size;
    memcpy(fault, &f, fault->size < sizeof(f) ? fault->size : sizeof(f));
    return TERN_OK;
}
