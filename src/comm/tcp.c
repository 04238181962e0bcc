/* SPDX-License-Identifier: Apache-2.0
 *
 * Boot between processes: a star of TCP connections through rank 0, which gathers everybody's bytes and sends
 * everybody the whole.
 *
 *     rank r    POST n ->          <- RESULT n            all well
 *               POST n ->          <- VERDICT             rank 0 saw a failure, or its own deadline passed
 *               POST n -> QUERY n  <- VERDICT             rank r's deadline passed first
 *               POST n -> QUERY n -> LEAVE n              no answer came to the question
 *
 * Only rank 0 can see who is missing, so only rank 0 names culprits, and all ranks fail with one sentence. A
 * rank whose deadline passes therefore asks; only if rank 0 stays silent does it conclude that rank 0 itself
 * is late, and leaves word of it, so that rank 0 does not take for well what others have given up. Nothing
 * runs between calls: sockets keep what arrives. */
#include "comm/tcp.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tells every connected rank why the exchange failed. A rank whose socket is full is not waited for. */
static void tell_verdict(struct tcp *t)
{
    for (int r = 1; r < t->boot.num_ranks; r++) {
        struct link *l = &t->links[r];
        if (l->fd >= 0 && !terni_link_is_sending(l)) {
            terni_link_put(l, TERN_FRAME_VERDICT, (uint32_t)t->verdict, t->sequence, t->sentence,
                           strlen(t->sentence));
            terni_link_send(l);
        }
    }
}

enum tern_status terni_tcp_judge(struct tcp *t, enum tern_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(t->sentence, sizeof t->sentence, format, args);
    va_end(args);
    t->verdict = status;
    if (t->boot.rank == 0) {
        tell_verdict(t);
    }
    return TERN_FAIL(status, "%s", t->sentence);
}

enum tern_status terni_tcp_judge_late(struct tcp *t, uint32_t timeout_ms)
{
    char late[TERN_SENTENCE_BYTES];
    unsigned char is_late[TERN_MAX_BOOT_RANKS];
    for (int r = 0; r < t->boot.num_ranks; r++) {
        is_late[r] = !t->has_arrived[r];
    }
    terni_late_print(is_late, t->boot.names, t->boot.num_ranks, timeout_ms, late);
    return terni_tcp_judge(t, TERN_TIMEOUT, "%s", late);
}

/* ---- Rank 0 ---- */

static int num_missing(const struct tcp *t)
{
    int n = 0;
    for (int r = 0; r < t->boot.num_ranks; r++) {
        n += !t->has_arrived[r];
    }
    return n;
}

/* A rank has given rank 0 up, in this exchange or in one that rank 0 believed well. */
static enum tern_status root_is_late(struct tcp *t, uint32_t timeout_ms)
{
    char own[TERN_SENTENCE_BYTES];
    int root = terni_boot_name(&t->boot, 0);
    enum tern_status status =
        terni_tcp_judge(t, TERN_TIMEOUT, "rank %d did not arrive within %u ms", root, timeout_ms);
    memcpy(own, t->sentence, sizeof own);
    terni_late_mark(own, root);
    return TERN_FAIL(status, "%s", own);
}

static enum tern_status root_header(struct tcp *t, int r)
{
    struct link *l = &t->links[r];
    const struct frame *in = &l->in;
    unsigned long long n = t->sequence;
    if (in->type == TERN_FRAME_QUERY && in->bytes == 0) {
        /* A question that crossed its result, or whose last missing rank has come, is answered by that. */
        if (in->sequence == t->sequence) {
            t->is_asked = 1;
            t->asked_ms = in->value;
        }
        return TERN_OK;
    }
    if (in->type == TERN_FRAME_LEAVE && in->bytes == 0) {
        return root_is_late(t, in->value);
    }
    if (in->type != TERN_FRAME_POST) {
        return terni_tcp_judge(t, TERN_MISMATCH, "rank %d sent a message of unknown type %u",
                               terni_boot_name(&t->boot, r), in->type);
    }
    if (in->sequence != t->sequence || t->has_arrived[r]) {
        return terni_tcp_judge(t, TERN_MISMATCH, "rank %d is at exchange %llu where rank %d is at %llu",
                               terni_boot_name(&t->boot, r), (unsigned long long)in->sequence,
                               terni_boot_name(&t->boot, 0), n);
    }
    if (in->bytes != t->bytes) {
        return terni_tcp_judge(t, TERN_MISMATCH,
                               "rank %d sent %llu bytes in exchange %llu where rank %d sent %llu",
                               terni_boot_name(&t->boot, r), (unsigned long long)in->bytes, n,
                               terni_boot_name(&t->boot, 0), (unsigned long long)t->bytes);
    }
    l->in_data = t->gather + (uint64_t)r * t->bytes;
    return TERN_OK;
}

/* Rank r's link has ended. It may be rank 0 that ended it. */
static enum tern_status root_closed(struct tcp *t, int r)
{
    int name = terni_boot_name(&t->boot, r);
    return t->took_none[r] ? terni_tcp_judge(t, TERN_TIMEOUT, "rank %d took no result within %u ms", name,
                                             t->took_none_ms)
                           : terni_tcp_judge(t, TERN_DISCONNECTED, "rank %d closed its connection", name);
}

enum tern_status terni_tcp_root_input(struct tcp *t, int r)
{
    for (;;) {
        switch (terni_link_recv(&t->links[r])) {
        case LINK_AGAIN:
            return TERN_OK;
        case LINK_HEADER:
            TERN_TRY(root_header(t, r));
            break;
        case LINK_FRAME:
            if (t->links[r].in.type == TERN_FRAME_POST) {
                t->has_arrived[r] = 1;
            }
            break;
        case LINK_CLOSED:
            return root_closed(t, r);
        }
    }
}

/* Ranks that have arrived are read too: they may ask, or die. */
static enum tern_status root_gather(struct tcp *t, uint64_t deadline_ns, uint32_t timeout_ms)
{
    int num_ranks = t->boot.num_ranks;
    while (num_missing(t) > 0) {
        for (int r = 1; r < num_ranks; r++) {
            t->fds[r].fd = t->links[r].fd;
            t->fds[r].events = POLLIN;
        }
        if (terni_poll(t->fds + 1, num_ranks - 1, terni_poll_ms(deadline_ns)) != TERN_OK) {
            return terni_tcp_judge(t, TERN_SYSTEM_ERROR, "rank %d: %s", terni_boot_name(&t->boot, 0),
                                   tern_last_error());
        }
        for (int r = 1; r < num_ranks; r++) {
            if (t->fds[r].revents != 0 || t->links[r].is_closed) {
                TERN_TRY(terni_tcp_root_input(t, r));
            }
        }
        if (num_missing(t) > 0 && t->is_asked) {
            return terni_tcp_judge_late(t, t->asked_ms);
        }
        if (num_missing(t) > 0 && terni_clock_ns() >= deadline_ns) {
            return terni_tcp_judge_late(t, timeout_ms);
        }
    }
    return TERN_OK;
}

/* The exchange has succeeded: a rank that goes away now, or takes nothing until the deadline, is found out by
 * the next one. */
void terni_tcp_root_scatter(struct tcp *t, uint64_t deadline_ns, uint32_t timeout_ms)
{
    int num_sending;
    for (int r = 1; r < t->boot.num_ranks; r++) {
        terni_link_put(&t->links[r], TERN_FRAME_RESULT, 0, t->sequence, t->gather,
                       (uint64_t)t->boot.num_ranks * t->bytes);
    }
    do {
        num_sending = 0;
        for (int r = 1; r < t->boot.num_ranks; r++) {
            struct link *l = &t->links[r];
            terni_link_send(l);
            t->fds[r].fd = terni_link_is_sending(l) ? l->fd : -1;
            t->fds[r].events = POLLOUT;
            num_sending += terni_link_is_sending(l);
        }
        if (num_sending > 0 &&
            terni_poll(t->fds + 1, t->boot.num_ranks - 1, terni_poll_ms(deadline_ns)) != TERN_OK) {
            break;
        }
    } while (num_sending > 0 && terni_clock_ns() < deadline_ns);
    for (int r = 1; r < t->boot.num_ranks && num_sending > 0; r++) {
        if (terni_link_is_sending(&t->links[r])) {
            t->took_none[r] = 1;
            t->took_none_ms = timeout_ms;
            terni_link_close(&t->links[r]); /* a frame cut short cannot be followed by another */
        }
    }
}

/* ---- Other ranks ---- */

static enum tern_status peer_header(struct tcp *t)
{
    struct link *l = &t->links[0];
    const struct frame *in = &l->in;
    if (in->type == TERN_FRAME_VERDICT && in->bytes < sizeof t->sentence) {
        memset(t->sentence, 0, sizeof t->sentence);
        l->in_data = t->sentence;
        return TERN_OK;
    }
    if (in->type == TERN_FRAME_RESULT && in->sequence == t->sequence &&
        in->bytes == (uint64_t)t->boot.num_ranks * t->bytes) {
        l->in_data = t->gather;
        return TERN_OK;
    }
    return terni_tcp_judge(
        t, TERN_MISMATCH,
        "rank %d sent message type %u of exchange %llu with %llu bytes where rank %d is at %llu",
        terni_boot_name(&t->boot, 0), in->type, (unsigned long long)in->sequence,
        (unsigned long long)in->bytes, terni_boot_name(&t->boot, t->boot.rank),
        (unsigned long long)t->sequence);
}

/* Rank 0 says why the exchange failed. One that is no failure known here leaves nothing to go on with. */
static void hear_verdict(struct tcp *t)
{
    int32_t value = (int32_t)t->links[0].in.value;
    if (!terni_status_is_failure(value)) {
        terni_tcp_judge(t, TERN_MISMATCH, "rank %d sent a verdict of unknown status %d",
                        terni_boot_name(&t->boot, 0), value);
        return;
    }
    t->verdict = (enum tern_status)value;
    if (t->verdict == TERN_TIMEOUT) {
        terni_late_mark(t->sentence, terni_boot_name(&t->boot, t->boot.rank));
    }
}

/* This rank alone fails: rank 0 hears by the end of the connection. */
static enum tern_status fail_alone(struct tcp *t, enum tern_status status, const char *why)
{
    status = terni_tcp_judge(t, status, "rank %d %s", terni_boot_name(&t->boot, t->boot.rank), why);
    if (t->boot.rank != 0) {
        terni_link_close(&t->links[0]);
    }
    return status;
}

/* Returns 1 with *event when the wait is over. */
static int peer_input(struct tcp *t, enum peer_event *event)
{
    struct link *l = &t->links[0];
    for (;;) {
        switch (terni_link_recv(l)) {
        case LINK_AGAIN:
            return 0;
        case LINK_HEADER:
            if (peer_header(t) != TERN_OK) {
                *event = PEER_VERDICT;
                return 1;
            }
            break;
        case LINK_FRAME:
            if (l->in.type == TERN_FRAME_VERDICT) {
                hear_verdict(t);
            }
            *event = l->in.type == TERN_FRAME_VERDICT ? PEER_VERDICT : PEER_RESULT;
            return 1;
        case LINK_CLOSED:
            *event = PEER_GONE;
            return 1;
        }
    }
}

enum peer_event terni_tcp_peer_wait(struct tcp *t, uint64_t deadline_ns, uint32_t timeout_ms)
{
    struct link *l = &t->links[0];
    enum peer_event event;
    uint64_t grace_end_ns = 0; /* 0: the deadline has not passed yet */
    uint64_t seen_bytes = 0;   /* of the answer when the grace began */
    for (;;) {
        struct pollfd fd = {.fd = l->fd, .events = POLLIN};
        uint64_t end_ns = grace_end_ns != 0 ? grace_end_ns : deadline_ns;
        terni_link_send(l);
        if (peer_input(t, &event)) {
            return event;
        }
        if (terni_clock_ns() >= end_ns) {
            int is_moving = l->in_done != seen_bytes; /* a long answer is on its way */
            if (grace_end_ns != 0 && !is_moving) {
                return PEER_SILENT;
            }
            grace_end_ns = terni_clock_ns() + TERN_GRACE_NS;
            seen_bytes = l->in_done;
            if (!is_moving && !terni_link_is_sending(l)) {
                terni_link_put(l, TERN_FRAME_QUERY, timeout_ms, t->sequence, NULL, 0);
            }
            continue;
        }
        fd.events = (short)(POLLIN | (terni_link_is_sending(l) ? POLLOUT : 0));
        if (terni_poll(&fd, 1, terni_poll_ms(end_ns)) != TERN_OK) {
            fail_alone(t, TERN_SYSTEM_ERROR, "cannot poll its socket");
            return PEER_VERDICT;
        }
    }
}

void terni_tcp_leave(struct tcp *t, uint32_t timeout_ms)
{
    if (!terni_link_is_sending(&t->links[0])) {
        terni_link_put(&t->links[0], TERN_FRAME_LEAVE, timeout_ms, t->sequence, NULL, 0);
        terni_link_send(&t->links[0]);
    }
}

static enum tern_status peer_exchange(struct tcp *t, uint32_t timeout_ms)
{
    switch (terni_tcp_peer_wait(t, terni_clock_ns() + (uint64_t)timeout_ms * 1000000, timeout_ms)) {
    case PEER_RESULT:
        return TERN_OK;
    case PEER_VERDICT:
        return TERN_FAIL(t->verdict, "%s", t->sentence);
    case PEER_GONE:
        return terni_tcp_judge(t, TERN_DISCONNECTED, "rank %d closed its connection",
                               terni_boot_name(&t->boot, 0));
    case PEER_SILENT:
        break;
    }
    terni_tcp_leave(t, timeout_ms);
    return terni_tcp_judge(t, TERN_TIMEOUT, "rank %d did not arrive within %u ms",
                           terni_boot_name(&t->boot, 0), timeout_ms);
}

/* ---- Both ---- */

static enum tern_status tcp_post(struct boot *boot, const void *send, size_t bytes)
{
    struct tcp *t = (struct tcp *)boot;
    uint64_t need = (uint64_t)boot->num_ranks * bytes;
    if (t->verdict != TERN_OK) {
        return TERN_FAIL_EARLIER(boot, t->verdict, t->sentence);
    }
    if (need > t->gather_bytes) {
        char *grown = (char *)realloc(t->gather, need);
        if (grown == NULL) {
            char why[TERN_SENTENCE_BYTES];
            snprintf(why, sizeof why, "has no memory for %d messages of %zu bytes", boot->num_ranks, bytes);
            return fail_alone(t, TERN_OUT_OF_MEMORY, why);
        }
        t->gather = grown;
        t->gather_bytes = need;
    }
    if (bytes != 0) {
        memcpy(t->gather + (uint64_t)boot->rank * bytes, send, bytes);
    }
    t->bytes = bytes;
    t->sequence++;
    if (boot->rank == 0) {
        memset(t->has_arrived, 0, (size_t)boot->num_ranks);
        t->has_arrived[0] = 1;
        t->is_asked = 0;
    } else {
        terni_link_put(&t->links[0], TERN_FRAME_POST, 0, t->sequence,
                       t->gather + (uint64_t)boot->rank * bytes, bytes);
        terni_link_send(&t->links[0]);
    }
    return TERN_OK;
}

static enum tern_status tcp_wait(struct boot *boot, void *recv, size_t bytes, uint32_t timeout_ms)
{
    struct tcp *t = (struct tcp *)boot;
    uint64_t deadline_ns = terni_clock_ns() + (uint64_t)timeout_ms * 1000000;
    if (t->verdict != TERN_OK) {
        return TERN_FAIL_EARLIER(boot, t->verdict, t->sentence);
    }
    if (boot->rank == 0) {
        TERN_TRY(root_gather(t, deadline_ns, timeout_ms));
        terni_tcp_root_scatter(t, deadline_ns + TERN_GRACE_NS, timeout_ms);
    } else {
        TERN_TRY(peer_exchange(t, timeout_ms));
    }
    if (bytes != 0) {
        memcpy(recv, t->gather, (size_t)boot->num_ranks * bytes);
    }
    return TERN_OK;
}

/* What a rank sent and rank 0 never read is read here first: closing a socket with unread data resets the
 * connection, which could overtake the verdict that is on its way. */
static void drain(struct link *l)
{
    char nothing[4096];
    if (l->fd >= 0 && shutdown(l->fd, SHUT_WR) == 0) {
        while (recv(l->fd, nothing, sizeof nothing, MSG_DONTWAIT) > 0) {
        }
    }
}

void terni_tcp_close(struct boot *boot)
{
    struct tcp *t = (struct tcp *)boot;
    int num_links = t->links == NULL ? 0 : boot->rank == 0 ? boot->num_ranks : 1;
    for (int i = 0; i < num_links; i++) {
        drain(&t->links[i]);
        terni_link_close(&t->links[i]);
    }
    free(t->links);
    free(t->fds);
    free(t->has_arrived);
    free(t->took_none);
    free(t->gather);
    free(t);
}

const struct boot_ops terni_tcp_ops = {terni_tcp_close,    tcp_post,       tcp_wait,        terni_tcp_invite,
                                       terni_tcp_withdraw, terni_tcp_join, terni_tcp_locate};
