/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames over one connection, nothing ever waits. Out: many frames in one call, their bytes from where they
 * are. In: small frames many at a time through a buffer; the bytes of a large one straight to their place. */
#include "net/tcp_engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_PARTS = 64, MAX_READS = 16 };

void terni_wire_lose(struct tcp_engine *t, int r, enum tern_status status, const char *format, ...)
{
    struct wire *w = t->wires[r];
    char text[ENGINE_TEXT_BYTES];
    va_list args;
    if (w->state == WIRE_LOST) {
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    terni_engine_lose(&t->base, r, status, "%s", text);
    if (w->fd >= 0) {
        close(w->fd);
    }
    w->fd = -1;
    w->state = WIRE_LOST;
    w->num_out = 0;
    for (int i = 0; i < ENGINE_WINDOW; i++) {
        if (w->ops[i] != NULL) {
            w->ops[i]->syndrome = SYNDROME_TRANSPORT_RETRY;
            *t->last_ended = w->ops[i];
            t->last_ended = &w->ops[i]->next;
            w->ops[i] = NULL;
        }
    }
    *t->last_ended = NULL;
}

/* ---- Out ---- */

int terni_wire_put(struct wire *w, const struct wire_frame *frame, const char *data, uint64_t bytes)
{
    struct wire_out *out = &w->out[(w->first_out + w->num_out) % WIRE_MAX_OUT];
    if (w->is_deaf) {
        return 1; /* gone, as what was queued before */
    }
    if (w->num_out == WIRE_MAX_OUT) {
        return 0;
    }
    out->frame = *frame;
    out->data = data;
    out->bytes = bytes;
    w->num_out++;
    return 1;
}

static void sent(struct wire *w, uint64_t bytes)
{
    w->out_done += bytes;
    while (w->num_out > 0) {
        const struct wire_out *out = &w->out[w->first_out];
        uint64_t whole = sizeof out->frame + out->bytes;
        if (w->out_done < whole) {
            return;
        }
        w->out_done -= whole;
        w->first_out = (w->first_out + 1) % WIRE_MAX_OUT;
        w->num_out--;
    }
}

static size_t gather(const struct wire *w, struct iovec *parts)
{
    uint64_t skip = w->out_done;
    size_t n = 0;
    for (int i = 0; i < w->num_out && n + 2 <= MAX_PARTS; i++) {
        const struct wire_out *out = &w->out[(w->first_out + i) % WIRE_MAX_OUT];
        uint64_t head = sizeof out->frame, data_skip = skip > head ? skip - head : 0;
        if (skip < head) {
            parts[n].iov_base = (char *)(uintptr_t)&out->frame + skip;
            parts[n++].iov_len = head - skip;
        }
        if (data_skip < out->bytes) {
            parts[n].iov_base = (char *)(uintptr_t)(out->data + data_skip);
            parts[n++].iov_len = out->bytes - data_skip;
        }
        skip = 0;
    }
    return n;
}

void terni_wire_send(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    while (w->num_out > 0 && !w->is_blocked) {
        struct iovec parts[MAX_PARTS];
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = gather(w, parts)};
        ssize_t done = sendmsg(w->fd, &message, MSG_NOSIGNAL);
        if (done >= 0) {
            sent(w, (uint64_t)done);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            w->is_blocked = 1;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            /* What the peer said before it left can still be read, and reading will find it gone. */
            shutdown(w->fd, SHUT_WR);
            w->is_deaf = 1;
            w->num_out = 0;
        } else if (errno != EINTR) {
            /* Part of a frame may have gone: whatever followed would be taken for the rest of it. */
            terni_wire_lose(t, r, TERN_SYSTEM_ERROR, "nothing can be sent to rank %d: %s", r,
                            strerror(errno));
        }
    }
}

/* ---- In ---- */

static void answer(struct tcp_engine *t, int r, const struct wire_frame *request, const struct served *served)
{
    int has_data = request->kind == WIRE_READ && served->syndrome == SYNDROME_NONE;
    struct wire_frame f = {.kind = WIRE_ANSWER,
                           .tag = request->tag,
                           .key = served->syndrome,
                           .bytes = has_data ? request->bytes : 0,
                           .value = served->old};
    if (!terni_wire_put(t->wires[r], &f, served->at, f.bytes)) {
        terni_wire_lose(t, r, TERN_MISMATCH, "rank %d sent more than %d requests at once", r, ENGINE_WINDOW);
    }
}

/* An answer's header; 0: it makes no sense, and the peer is lost. */
static int hear_answer(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    const struct engine_op *op = w->frame.tag < ENGINE_WINDOW ? w->ops[w->frame.tag] : NULL;
    uint64_t wanted = op != NULL && op->kind == ENGINE_READ && w->frame.key == SYNDROME_NONE ? op->bytes : 0;
    if (op == NULL || w->frame.bytes != wanted) {
        terni_wire_lose(t, r, TERN_MISMATCH, "rank %d answered a request that was not made", r);
        return 0;
    }
    if (w->frame.key > WIRE_MAX_SYNDROME) {
        terni_wire_lose(t, r, TERN_MISMATCH, "rank %d answered with syndrome 0x%x", r, w->frame.key);
        return 0;
    }
    w->sink = op->local;
    w->sink_bytes = wanted;
    return 1;
}

/* Whether the buffer that the answer to this READ needs is still being sent. */
static int is_answering(const struct tcp_engine *t, int r)
{
    const struct wire *w = t->wires[r];
    const char *buffer = terni_stage_fixed(t->base.serve->stage, r, STAGE_FOR_READ);
    for (int i = 0; i < w->num_out; i++) {
        if (buffer != NULL && w->out[(w->first_out + i) % WIRE_MAX_OUT].data == buffer) {
            return 1;
        }
    }
    return 0;
}

/* A header is whole: says where its bytes go. 0: the peer is lost. */
static int hear_frame(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    const struct wire_frame *f = &w->frame;
    int which = f->kind == WIRE_READ ? STAGE_FOR_READ : STAGE_FOR_WRITE;
    w->sink = NULL;
    w->sink_bytes = w->sink_done = 0;
    if (w->state == WIRE_GREETING) {
        return terni_wire_greets(t, r, f);
    }
    switch (f->kind) {
    case WIRE_ANSWER:
        return hear_answer(t, r);
    case WIRE_BYE:
        t->base.peers[r].has_left = 1;
        terni_wire_lose(t, r, TERN_DISCONNECTED, "rank %d closed its connection", r);
        return 0;
    case WIRE_READ:
        if (terni_serve_is_staged(t->base.serve, f->key) && is_answering(t, r)) {
            terni_wire_lose(t, r, TERN_MISMATCH, "rank %d reads from a GPU twice at once", r);
            return 0;
        }
        break;
    case WIRE_WRITE:
        w->sink_bytes = f->bytes;
        break;
    case WIRE_ATOMIC:
    case WIRE_STORE:
        break;
    default:
        terni_wire_lose(t, r, TERN_MISMATCH, "rank %d sent a frame of unknown kind %u", r, f->kind);
        return 0;
    }
    terni_serve_begin(t->base.serve, f, r, terni_stage_fixed(t->base.serve->stage, r, which), &w->served);
    w->sink = w->served.syndrome == SYNDROME_NONE ? w->served.at : NULL;
    return 1;
}

/* Header and bytes are here. */
static void take_frame(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    const struct wire_frame *f = &w->frame;
    w->has_frame = 0;
    if (f->kind == WIRE_HELLO) {
        return;
    }
    if (f->kind == WIRE_ANSWER) {
        struct engine_op *op = w->ops[f->tag];
        w->ops[f->tag] = NULL;
        w->is_reading &= !(op->kind == ENGINE_READ && op->there.is_staged);
        op->syndrome = f->key;
        op->old = f->value;
        op->next = NULL;
        *t->last_ended = op;
        t->last_ended = &op->next;
        return;
    }
    terni_serve_end(t->base.serve, f, &w->served);
    answer(t, r, f, &w->served);
}

static uint32_t least(uint64_t a, uint32_t b) { return a < b ? (uint32_t)a : b; }

/* Everything in the buffer; 0: the peer is lost. */
static int digest(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    for (;;) {
        if (!w->has_frame) {
            if (w->end - w->begin < sizeof w->frame) {
                break;
            }
            memcpy(&w->frame, w->buffer + w->begin, sizeof w->frame);
            w->begin += (uint32_t)sizeof w->frame;
            w->has_frame = 1;
            if (!hear_frame(t, r)) {
                return 0;
            }
        }
        uint32_t bytes = least(w->sink_bytes - w->sink_done, w->end - w->begin);
        if (w->sink != NULL && bytes != 0) {
            memcpy(w->sink + w->sink_done, w->buffer + w->begin, bytes);
        }
        w->begin += bytes;
        w->sink_done += bytes;
        if (w->sink_done < w->sink_bytes) {
            break;
        }
        take_frame(t, r);
        if (w->state == WIRE_LOST) {
            return 0;
        }
    }
    memmove(w->buffer, w->buffer + w->begin, w->end - w->begin);
    w->end -= w->begin;
    w->begin = 0;
    return 1;
}

void terni_wire_read(struct tcp_engine *t, int r)
{
    struct wire *w = t->wires[r];
    for (int i = 0; i < MAX_READS; i++) {
        struct iovec parts[2];
        struct msghdr message = {.msg_iov = parts};
        uint64_t direct = 0;
        ssize_t got;
        /* The buffer is empty whenever bytes of a frame are missing. */
        if (w->has_frame && w->sink != NULL) {
            direct = w->sink_bytes - w->sink_done;
            parts[message.msg_iovlen].iov_base = w->sink + w->sink_done;
            parts[message.msg_iovlen++].iov_len = direct;
        }
        parts[message.msg_iovlen].iov_base = w->buffer + w->end;
        parts[message.msg_iovlen++].iov_len = sizeof w->buffer - w->end;
        got = recvmsg(w->fd, &message, 0);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            terni_wire_lose(t, r, TERN_DISCONNECTED, "rank %d closed its connection%s%s", r,
                            got < 0 ? ": " : " without a farewell", got < 0 ? strerror(errno) : "");
            return;
        }
        t->base.peers[r].heard_ns = terni_clock_ns();
        direct = (uint64_t)got < direct ? (uint64_t)got : direct;
        w->sink_done += direct;
        w->end += (uint32_t)((uint64_t)got - direct);
        if (!digest(t, r)) {
            return;
        }
    }
}
