/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults on the host: the kernels' records become a status and one sentence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ep/ep.h"

static const char *operation_name(int operation)
{
    static const char *const names[] = {
        "an operation", "route", "dispatch", "combine", "low-latency dispatch", "low-latency combine"};
    return operation >= 0 && operation <= TERN_OP_LL_COMBINE ? names[operation] : "an unknown operation";
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
    append(text, bytes, length, "; late ranks:");
    for (int r = 0; r < 128; r++) {
        if (f->late[r >> 6] >> (r & 63) & 1) {
            append(text, bytes, length, " %d", r);
        }
    }
}

/* Signatures tell that something differs, not what. */
static const char *compare_hint(const struct tern_fault *f)
{
    switch (f->operation) {
    case TERN_OP_LL_DISPATCH:
        return "; compare hidden, topk, max_tokens, cast, weights and layout of both ranks";
    case TERN_OP_LL_COMBINE:
        return "; compare compression of both ranks, and their lanes";
    default:
        return "; compare topk, layout, alignment, idx_bytes, payload sizes and cast of both ranks";
    }
}

/* Of a low-latency combine that found the traces of a dispatch it was not issued for. */
static int is_other_dispatch(const struct tern_fault *f)
{
    return f->awaited == TERN_AWAIT_MATCH && f->peer == f->reporter;
}

static void append_other_dispatch(const struct tern_fault *f, char *text, size_t bytes, int *length)
{
    append(
        text, bytes, length,
        "%sanother dispatch has run in the lane than the one that this combine was issued for%s; look for a "
        "graph between them",
        f->reporter == f->rank ? "" : "a peer reported that ",
        f->reporter == f->rank && !f->seen ? ", or none since a reset" : "");
}

/* What a rank of another domain was late with. Those of its domain are waited for as ever. */
static const char *far_thing(int awaited)
{
    switch (awaited) {
    case TERN_AWAIT_COUNTS:
        return "counts of a route";
    case TERN_AWAIT_BLOCK:
        return "tables of a route";
    case TERN_AWAIT_CREDIT:
        return "room for more messages";
    case TERN_AWAIT_CHUNK:
        return "messages";
    default:
        return NULL;
    }
}

/* What another rank found. */
static void append_heard(const struct tern_fault *f, char *text, size_t bytes, int *length)
{
    const char *this_one = f->peer == f->rank ? " (this one)" : "", *thing = far_thing(f->awaited);
    if (thing) {
        append(text, bytes, length, "rank %d reported that no %s came from rank %d%s in time", f->reporter,
               thing, f->peer, this_one);
        return;
    }
    if (f->awaited == TERN_AWAIT_TRANSPORT) {
        append(text, bytes, length, "rank %d reported that the network does not carry to rank %d%s",
               f->reporter, f->peer, this_one);
        return;
    }
    if (f->awaited == TERN_AWAIT_WEIGHTS) {
        append(text, bytes, length, "rank %d has no topk_weights, but rank %d%s asks it for out_topk_weights",
               f->reporter, f->peer, this_one);
        return;
    }
    if (is_other_dispatch(f)) {
        append_other_dispatch(f, text, bytes, length);
        return;
    }
    append(text, bytes, length, "rank %d reported that rank %d%s %s%s", f->reporter, f->peer, this_one,
           f->awaited == TERN_AWAIT_MATCH  ? "is in another operation, route or shape"
           : f->awaited == TERN_AWAIT_DONE ? "did not finish in time"
           : f->awaited == TERN_AWAIT_ROWS ? "brought no rows in time"
                                           : "was late",
           f->awaited == TERN_AWAIT_MATCH ? compare_hint(f) : "");
}

static void append_expert_id(const struct tern_fault *f, char *text, size_t bytes, int *length)
{
    append(text, bytes, length, "expert id %lld", (long long)f->seen);
    if (f->topk == 0) { /* of a caller who filled in less than tern_fault_get does */
        append(text, bytes, length, " at index %llu of topk_idx is out of range",
               (unsigned long long)f->expected);
        return;
    }
    append(text, bytes, length, " of token %llu, choice %llu is outside -1 .. %lld",
           (unsigned long long)(f->expected / f->topk), (unsigned long long)(f->expected % f->topk),
           (long long)f->num_experts - 1);
}

int terni_fault_format(const struct tern_fault *f, char *text, size_t bytes)
{
    int n = 0;
    append(text, bytes, &n, "rank %d, %s", f->rank, operation_name(f->operation));
    if (f->epoch) { /* what failed while it was issued has no number yet */
        append(text, bytes, &n, " (operation number %llu)", (unsigned long long)f->epoch);
    }
    append(text, bytes, &n, ": ");
    if (f->reporter != f->rank) {
        append_heard(f, text, bytes, &n);
        return n;
    }
    switch (f->awaited) {
    case TERN_AWAIT_READY:
    case TERN_AWAIT_DONE:
        append(text, bytes, &n, "rank %d %s within %.1f ms (signal %llu, expected %llu, block %d, warp %d)",
               f->peer, f->awaited == TERN_AWAIT_READY ? "did not arrive" : "did not finish",
               (double)f->elapsed_ns / 1e6, (unsigned long long)f->seen, (unsigned long long)f->expected,
               f->block, f->warp);
        append_late(f, text, bytes, &n);
        break;
    case TERN_AWAIT_ROWS:
        append(text, bytes, &n,
               "rows of rank %d did not come to staging within %.1f ms (%llu, expected %llu)", f->peer,
               (double)f->elapsed_ns / 1e6, (unsigned long long)f->seen, (unsigned long long)f->expected);
        break;
    case TERN_AWAIT_COUNTS:
    case TERN_AWAIT_BLOCK:
    case TERN_AWAIT_CREDIT:
    case TERN_AWAIT_CHUNK:
        if ((f->late[0] | f->late[1]) == 0) { /* a domain-mate spoke for this rank */
            append(text, bytes, &n, "no %s came from rank %d in time; a rank of this domain gave up first",
                   far_thing(f->awaited), f->peer);
            break;
        }
        append(text, bytes, &n, "no %s from rank %d within %.1f ms (%llu, expected %llu, block %d, warp %d)",
               far_thing(f->awaited), f->peer, (double)f->elapsed_ns / 1e6, (unsigned long long)f->seen,
               (unsigned long long)f->expected, f->block, f->warp);
        append_late(f, text, bytes, &n);
        break;
    case TERN_AWAIT_TRANSPORT:
        append(text, bytes, &n, "the network does not carry to rank %d: %s", f->peer,
               tern_status_string((enum tern_status) - (int)f->seen));
        break;
    case TERN_AWAIT_MATCH:
        if (is_other_dispatch(f)) {
            append_other_dispatch(f, text, bytes, &n);
            break;
        }
        append(text, bytes, &n,
               "rank %d is in another operation, route or shape (signature %016llx, here %016llx)%s", f->peer,
               (unsigned long long)f->seen, (unsigned long long)f->expected, compare_hint(f));
        break;
    case TERN_AWAIT_WEIGHTS:
        append(text, bytes, &n, "rank %d asks for out_topk_weights, but topk_weights is NULL here", f->peer);
        break;
    case TERN_AWAIT_EXPERT_ID:
        append_expert_id(f, text, bytes, &n);
        break;
    default:
        append(text, bytes, &n, "%s",
               f->status ? "the machine failed while it was issued; part of it may have run" : "no fault");
        break;
    }
    return n;
}

/* 1 if the record has been written, and then a copy of it. A record that a kernel is rewriting is read again.
 */
static int read_record(const struct ep_record *r, struct ep_record *copy)
{
    for (int tries = 0; tries < 1000; tries++) {
        /* Pairs with the release in op_fill_record: the other fields are whole once this word is set. */
        uint64_t written = __atomic_load_n(&r->written, __ATOMIC_ACQUIRE);
        if (written == 0) {
            return 0;
        }
        const uint64_t *from = (const uint64_t *)(const void *)r;
        uint64_t *to = (uint64_t *)(void *)copy;
        for (size_t i = 0; i < sizeof(*r) / sizeof(uint64_t); i++) {
            /* Acquire, so that the word below is read after the fields; pairs with the fence before a
             * rewrite. */
            to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
        }
        if (__atomic_load_n(&r->written, __ATOMIC_RELAXED) == written) {
            copy->written = written;
            return 1;
        }
    }
    return 0;
}

static const struct ep_record *record_of(const struct tern_ep *ep)
{
    return (const struct ep_record *)(const void *)(ep->host_memory + ep->layout.record);
}

/* Where slot i's kernels record an id out of range. */
static const struct ep_record *bad_id_of(const struct tern_ep *ep, uint32_t i)
{
    const struct ep_layout *l = &ep->layout;
    return (const struct ep_record *)(const void *)(ep->host_memory + l->route_hosts +
                                                    i * l->route_host.bytes + l->route_host.bad_id);
}

static struct tern_fault fault_of(const struct tern_ep *ep, const struct ep_record *r)
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
    if (r->awaited == TERN_AWAIT_EXPERT_ID) { /* nobody is late: the kernel leaves topk there */
        f.topk = (uint32_t)r->late[0];
        f.num_experts = ep->shape.num_experts;
        return f;
    }
    f.late[0] = r->late[0];
    f.late[1] = r->late[1];
    return f;
}

static enum tern_status state_record(const struct tern_ep *ep, const struct ep_record *r)
{
    char text[512];
    struct tern_fault f = fault_of(ep, r);
    terni_fault_format(&f, text, sizeof(text));
    if (r == &ep->stated && ep->broken[0] != '\0') {
        return TERN_FAIL((enum tern_status)r->status, "%s: %s", text, ep->broken);
    }
    return TERN_FAIL((enum tern_status)r->status, "%s", text);
}

int terni_ep_has_failed(const struct tern_ep *ep)
{
    struct ep_record copy;
    return ep->stated.written || (ep->host_memory != NULL && read_record(record_of(ep), &copy));
}

enum tern_status terni_ep_fault(struct tern_ep *ep)
{
    if (!ep->stated.written && !read_record(record_of(ep), &ep->stated)) {
        return TERN_OK;
    }
    return state_record(ep, &ep->stated);
}

enum tern_status terni_ep_break(struct tern_ep *ep, int operation, enum tern_status status)
{
    if (!ep->stated.written) {
        snprintf(ep->broken, sizeof(ep->broken), "%s", tern_last_error());
        ep->stated.written = 1;
        ep->stated.status = (int32_t)status;
        ep->stated.operation = operation;
        ep->stated.rank = ep->stated.peer = ep->stated.reporter = ep->comm->rank;
    }
    return TERN_FAIL(status, "%s; the operation is issued, and the object's last until a reset",
                     tern_last_error());
}

enum tern_status terni_route_bad_id(struct tern_route *route)
{
    struct ep_record r;
    if (!read_record(bad_id_of(route->ep, (uint32_t)route->slot), &r) ||
        r.written != __atomic_load_n(route->host.epoch, __ATOMIC_RELAXED)) {
        return TERN_OK;
    }
    route->reported = r.written;
    return state_record(route->ep, &r);
}

/* Where lane i's kernels record an id out of range. */
static const struct ep_record *lane_bad_id_of(const struct tern_ep *ep, uint32_t i)
{
    return (const struct ep_record *)(const void *)(ep->host_memory + ep->layout.ll_bad_ids) + i;
}

enum tern_status terni_ep_bad_id(struct tern_ep *ep)
{
    for (uint32_t i = 0; i < ep->shape.ll_lanes; i++) {
        struct ep_record r;
        if (!ep->lanes[i].bad_id_told && read_record(lane_bad_id_of(ep, i), &r)) {
            ep->lanes[i].bad_id_told = 1;
            return state_record(ep, &r);
        }
    }
    for (uint32_t i = 0; i < ep->shape.max_routes; i++) {
        struct ep_record r;
        if (read_record(bad_id_of(ep, i), &r) && r.written > ep->routes[i].reported) {
            ep->routes[i].reported = r.written;
            return state_record(ep, &r);
        }
    }
    return TERN_OK;
}

int terni_record_read(const struct tern_ep *ep, const struct ep_record *record, uint64_t *written,
                      struct tern_fault *fault)
{
    struct ep_record r;
    if (!read_record(record, &r)) {
        return 0;
    }
    *written = r.written;
    *fault = fault_of(ep, &r);
    return 1;
}

enum tern_status terni_ep_fault_copy(struct tern_ep *ep, struct tern_fault *fault)
{
    struct ep_record r = ep->stated;
    int found = r.written != 0 || read_record(record_of(ep), &r);
    for (uint32_t i = 0; !found && i < ep->shape.max_routes; i++) {
        found = read_record(bad_id_of(ep, i), &r);
    }
    for (uint32_t i = 0; !found && i < ep->shape.ll_lanes; i++) {
        found = read_record(lane_bad_id_of(ep, i), &r);
    }
    if (!found) {
        return TERN_FAIL(TERN_BAD_STATE, "the object has no fault");
    }
    struct tern_fault f = fault_of(ep, &r);
    f.size = fault->size;
    memcpy(fault, &f, sizeof(f));
    return TERN_OK;
}
