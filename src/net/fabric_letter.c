/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the libfabric engine. Buffers for requests and for answers are apart, and so are those that are
 * received into: they go back to the provider at once, whatever becomes of the request, for an answer of many
 * bytes leaves only when its receiver has such a buffer. A request whose answer has no buffer is parked
 * without one: so ranks that ask each other for much cannot wait for each other, however many they are.
 * Parked reads are served later than what came behind them; stores, writes and atomics at once. The
 * provider keeps messages between two ranks in order (FI_ORDER_SAS is asked for), and so does the queue in
 * front of it: that is the order of stores and atomics that an engine promises. */
#include "net/fabric.h"

#include <stdlib.h>
#include <string.h>

static struct letter_head *head_of(const struct letter *l) { return (struct letter_head *)(void *)l->memory; }

static char *payload_of(const struct letter *l) { return l->memory + sizeof(struct letter_head); }

static struct letter *take(struct letter **list)
{
    struct letter *l = *list;
    if (l != NULL) {
        *list = l->next;
        l->next = NULL;
    }
    return l;
}

static void give(struct letter **list, struct letter *l)
{
    l->next = *list;
    *list = l;
}

struct letter *terni_letter_of(struct fabric_engine *f, const void *context)
{
    const char *at = (const char *)context, *begin = (const char *)f->letters;
    int is_letter = at >= begin && at < (const char *)(f->letters + f->num_letters);
    return is_letter ? &f->letters[(size_t)(at - begin) / sizeof *f->letters] : NULL;
}

enum tern_status terni_letters_open(struct fabric_engine *f)
{
    size_t each = sizeof(struct letter_head) + LETTER_BYTES, bytes;
    int num_peers = f->base.num_ranks > 1 ? f->base.num_ranks - 1 : 1, last_request;
    void *device;
    f->max_requests = NUM_REQUESTS / num_peers > LEAST_REQUESTS ? NUM_REQUESTS / num_peers : LEAST_REQUESTS;
    last_request = NUM_LETTERS_IN + f->max_requests * num_peers;
    f->num_letters = last_request + NUM_ANSWERS;
    f->machine = f->base.serve->stage->machine;
    bytes = (size_t)f->num_letters * each;
    f->letters = (struct letter *)calloc((size_t)f->num_letters, sizeof *f->letters);
    if (f->letters == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d messages", f->num_letters);
    }
    TERN_TRY(f->machine->ops->host_alloc(f->machine, bytes, &f->letters_memory, &device));
    if (f->mr_mode & FI_MR_LOCAL) {
        int error = fi_mr_reg(f->its.domain, f->letters_memory, bytes, FI_SEND | FI_RECV, 0, 0, 0,
                              &f->letters_mr, NULL);
        if (error != 0) {
            return TERN_FAIL(TERN_SYSTEM_ERROR, "libfabric cannot register %zu bytes for messages: %s", bytes,
                             f->its.lib->strerror(-error));
        }
        f->letters_desc = fi_mr_desc(f->letters_mr);
    }
    f->last_parked = &f->parked;
    for (int i = 0; i < f->num_letters; i++) {
        struct letter *l = &f->letters[i];
        l->memory = (char *)f->letters_memory + (size_t)i * each;
        if (i < NUM_LETTERS_IN) {
            terni_letter_receive(f, l);
        } else {
            l->is_answer = i >= last_request;
            give(l->is_answer ? &f->free_answers : &f->free_requests, l);
        }
    }
    return TERN_OK;
}

void terni_letters_close(struct fabric_engine *f)
{
    if (f->letters_mr != NULL) {
        fi_close(&f->letters_mr->fid);
    }
    if (terni_fabric_end_endpoint(f)) {
        if (f->letters_memory != NULL) {
            f->machine->ops->host_free(f->machine, f->letters_memory);
        }
        free(f->letters);
    }
    while (f->parked != NULL) {
        struct parked *p = f->parked;
        f->parked = p->next;
        free(p);
    }
}

/* ---- Out ---- */

static void address_to(struct fabric_engine *f, struct letter *l, int peer, uint64_t payload_bytes)
{
    struct letter_head *head = head_of(l);
    memcpy(head->cookie, f->cookie, sizeof head->cookie);
    head->rank = (uint32_t)f->base.rank;
    head->reserved = 0;
    l->peer = peer;
    l->bytes = sizeof *head + payload_bytes;
}

/* 0: not now. What the provider says otherwise is the peer's loss. */
static int try_send(struct fabric_engine *f, struct letter *l)
{
    struct iovec part = {l->memory, l->bytes};
    void *desc = f->letters_desc;
    struct fi_msg message = {.msg_iov = &part,
                             .desc = &desc,
                             .iov_count = 1,
                             .addr = f->peers[l->peer].addr,
                             .context = &l->context};
    /* Complete once the buffer may be used again; the answer says that the message has arrived. */
    ssize_t error = fi_sendmsg(f->its.ep, &message, FI_COMPLETION | FI_INJECT_COMPLETE);
    if (error == -FI_EAGAIN) {
        return 0;
    }
    if (error != 0) {
        terni_engine_lose(&f->base, l->peer, TERN_DISCONNECTED, "no message to rank %d can be sent: %s",
                          l->peer, f->its.lib->strerror((int)-error));
        terni_letter_sent(f, l);
    }
    return 1;
}

void terni_letter_sent(struct fabric_engine *f, struct letter *l)
{
    f->peers[l->peer].num_requests -= !l->is_answer;
    give(l->is_answer ? &f->free_answers : &f->free_requests, l);
}

static void send_or_queue(struct fabric_engine *f, struct letter *l)
{
    struct fabric_peer *p = &f->peers[l->peer];
    if (p->unsent == NULL && try_send(f, l)) {
        return;
    }
    l->next = NULL;
    *p->last_unsent = l;
    p->last_unsent = &l->next;
}

/* Hello or farewell, in a letter that is held only while the provider has it: of peers that cannot be reached
 * there may be more than letters. */
static int greet(struct fabric_engine *f, int peer)
{
    struct fabric_peer *p = &f->peers[peer];
    struct letter *l = p->greeting != 0 && p->unsent == NULL ? take(&f->free_answers) : NULL;
    if (l == NULL) {
        return 0;
    }
    memset(head_of(l), 0, sizeof *head_of(l));
    head_of(l)->frame.kind = p->greeting;
    address_to(f, l, peer, 0);
    if (!try_send(f, l)) {
        give(&f->free_answers, l);
        return 0;
    }
    p->greeting = 0;
    return 1;
}

enum engine_post terni_letter_request(struct fabric_engine *f, struct engine_op *op)
{
    struct fabric_peer *p = &f->peers[op->peer];
    uint64_t payload = op->kind == ENGINE_WRITE ? op->bytes : 0;
    struct letter *l;
    if (p->unsent != NULL || p->num_requests == f->max_requests) {
        return ENGINE_AGAIN;
    }
    l = take(&f->free_requests); /* there is one: the shares add up to all */
    p->num_requests++;
    terni_serve_request(op, &head_of(l)->frame);
    address_to(f, l, op->peer, payload);
    if (payload != 0) {
        memcpy(payload_of(l), op->local, payload);
    }
    if (!try_send(f, l)) {
        terni_letter_sent(f, l);
        return ENGINE_AGAIN;
    }
    p->ops[op->tag] = op;
    return ENGINE_POSTED;
}

/* ---- In ---- */

/* 0: not now. A buffer that the provider refuses otherwise is lost. */
static int try_receive(struct fabric_engine *f, struct letter *l)
{
    ssize_t error = fi_recv(f->its.ep, l->memory, sizeof(struct letter_head) + LETTER_BYTES, f->letters_desc,
                            FI_ADDR_UNSPEC, &l->context);
    if (error == -FI_EAGAIN) {
        return 0;
    }
    if (error != 0) {
        TERN_LOG(TERN_LOG_WARN, "rank %d: one buffer for messages less: %s", f->base.rank,
                 f->its.lib->strerror((int)-error));
    }
    return 1;
}

void terni_letter_receive(struct fabric_engine *f, struct letter *l)
{
    if (!try_receive(f, l)) {
        give(&f->unposted, l);
    }
}

/* What the provider had no room for. */
static int receive_unposted(struct fabric_engine *f)
{
    int busy = 0;
    while (f->unposted != NULL) {
        struct letter *l = take(&f->unposted);
        if (!try_receive(f, l)) {
            give(&f->unposted, l);
            break;
        }
        busy = 1;
    }
    return busy;
}

static void hear_answer(struct fabric_engine *f, const struct letter *l, int peer)
{
    const struct wire_frame *frame = &head_of(l)->frame;
    struct fabric_peer *p = &f->peers[peer];
    struct engine_op *op = frame->tag < ENGINE_WINDOW ? p->ops[frame->tag] : NULL;
    uint64_t wanted = op != NULL && op->kind == ENGINE_READ && frame->key == SYNDROME_NONE ? op->bytes : 0;
    if (op == NULL || frame->bytes != wanted || l->bytes != sizeof(struct letter_head) + wanted) {
        return; /* of a request that was given up, or nonsense */
    }
    if (frame->key > WIRE_MAX_SYNDROME) {
        terni_engine_lose(&f->base, peer, TERN_MISMATCH, "rank %d answered with syndrome 0x%x", peer,
                          frame->key);
        return;
    }
    if (wanted != 0 && op->local != NULL) {
        memcpy(op->local, payload_of(l), wanted);
    }
    p->ops[frame->tag] = NULL;
    op->old = frame->value;
    terni_fabric_end(f, op, frame->key);
}

/* Of a request; `payload`: what has come with a write, or room for what a read asks for. Staged bytes go
 * straight between there and the machine. */
static void serve_request(struct fabric_engine *f, int peer, const struct wire_frame *in, char *payload,
                          uint64_t payload_bytes, struct wire_frame *answer)
{
    struct served served;
    uint64_t bytes = 0;
    if ((in->kind == WIRE_WRITE && payload_bytes != in->bytes) ||
        (in->kind == WIRE_READ && in->bytes > LETTER_BYTES)) {
        memset(&served, 0, sizeof served);
        served.syndrome = SYNDROME_REMOTE_INVALID_REQUEST;
    } else {
        terni_serve_begin(f->base.serve, in, peer, payload, &served);
        if (in->kind == WIRE_WRITE && served.syndrome == SYNDROME_NONE) {
            if (in->bytes != 0 && served.at != payload) {
                memcpy(served.at, payload, in->bytes);
            }
            terni_serve_end(f->base.serve, in, &served);
        }
        if (in->kind == WIRE_READ && served.syndrome == SYNDROME_NONE) {
            bytes = in->bytes;
            if (bytes != 0 && served.at != payload) {
                memcpy(payload, served.at, bytes);
            }
        }
    }
    memset(answer, 0, sizeof *answer);
    answer->kind = WIRE_ANSWER;
    answer->tag = in->tag;
    answer->key = served.syndrome;
    answer->bytes = bytes;
    answer->value = served.old;
}

static void send_answer(struct fabric_engine *f, struct letter *answer, int peer)
{
    address_to(f, answer, peer, head_of(answer)->frame.bytes);
    send_or_queue(f, answer);
}

static void park(struct fabric_engine *f, struct letter *l, int peer)
{
    const struct wire_frame *in = &head_of(l)->frame;
    struct parked *p = NULL;
    if (f->peers[peer].num_parked == ENGINE_WINDOW) {
        terni_engine_lose(&f->base, peer, TERN_MISMATCH, "rank %d asks for more than %d things at once", peer,
                          ENGINE_WINDOW);
        return;
    }
    p = (struct parked *)malloc(sizeof *p);
    if (p == NULL) {
        terni_engine_lose(&f->base, peer, TERN_OUT_OF_MEMORY, "no memory for what rank %d asks for", peer);
        return;
    }
    p->next = NULL;
    p->peer = peer;
    p->is_read = in->kind == WIRE_READ;
    if (p->is_read) {
        p->frame = *in;
    } else {
        serve_request(f, peer, in, payload_of(l), l->bytes - sizeof(struct letter_head), &p->frame);
    }
    f->peers[peer].num_parked++;
    *f->last_parked = p;
    f->last_parked = &p->next;
}

static void hear_request(struct fabric_engine *f, struct letter *l, int peer)
{
    const struct wire_frame *in = &head_of(l)->frame;
    struct letter *answer = f->parked == NULL ? take(&f->free_answers) : NULL;
    if (answer == NULL) {
        park(f, l, peer);
        return;
    }
    serve_request(f, peer, in, in->kind == WIRE_READ ? payload_of(answer) : payload_of(l),
                  l->bytes - sizeof(struct letter_head), &head_of(answer)->frame);
    send_answer(f, answer, peer);
}

/* There is a letter. */
static void answer_parked(struct fabric_engine *f)
{
    struct parked *p = f->parked;
    struct letter *answer = take(&f->free_answers);
    f->parked = p->next;
    f->last_parked = f->parked == NULL ? &f->parked : f->last_parked;
    if (p->is_read) {
        serve_request(f, p->peer, &p->frame, payload_of(answer), 0, &head_of(answer)->frame);
    } else {
        head_of(answer)->frame = p->frame;
    }
    send_answer(f, answer, p->peer);
    f->peers[p->peer].num_parked--;
    free(p);
}

void terni_letter_arrived(struct fabric_engine *f, struct letter *l, uint64_t bytes)
{
    const struct letter_head *head = head_of(l);
    int peer = (int)head->rank;
    l->bytes = bytes;
    if (bytes < sizeof *head || memcmp(head->cookie, f->cookie, sizeof head->cookie) != 0 ||
        head->rank >= (uint32_t)f->base.num_ranks || peer == f->base.rank) {
        TERN_LOG(TERN_LOG_INFO, "rank %d dropped a message of a stranger", f->base.rank);
        terni_letter_receive(f, l);
        return;
    }
    switch (head->frame.kind) {
    case WIRE_HELLO:
        f->peers[peer].is_here = 1;
        break;
    case WIRE_BYE:
        f->base.peers[peer].has_left = 1;
        terni_engine_lose(&f->base, peer, TERN_DISCONNECTED, "rank %d closed its connection", peer);
        break;
    case WIRE_ANSWER:
        hear_answer(f, l, peer);
        break;
    default:
        hear_request(f, l, peer);
        break;
    }
    terni_letter_receive(f, l);
}

int terni_letters_advance(struct fabric_engine *f)
{
    int busy = receive_unposted(f);
    for (int r = 0; r < f->base.num_ranks; r++) {
        struct fabric_peer *p = &f->peers[r];
        while (p->unsent != NULL) {
            struct letter *l = take(&p->unsent);
            if (!try_send(f, l)) {
                give(&p->unsent, l);
                break;
            }
            p->last_unsent = p->unsent == NULL ? &p->unsent : p->last_unsent;
            busy = 1;
        }
        busy |= greet(f, r);
    }
    while (f->parked != NULL && f->free_answers != NULL) {
        answer_parked(f);
        busy = 1;
    }
    return busy;
}

void terni_letters_drop(struct fabric_engine *f, int peer)
{
    struct fabric_peer *p = &f->peers[peer];
    struct letter *l;
    while ((l = take(&p->unsent)) != NULL) {
        terni_letter_sent(f, l);
    }
    p->last_unsent = &p->unsent;
    p->greeting = 0;
    for (int i = 0; i < ENGINE_WINDOW; i++) {
        if (p->ops[i] != NULL) {
            terni_fabric_end(f, p->ops[i], SYNDROME_TRANSPORT_RETRY);
            p->ops[i] = NULL;
        }
    }
}

void terni_letters_release(struct fabric_engine *f, const struct region *gone)
{
    for (int i = 0; i < f->base.num_ranks * ENGINE_WINDOW; i++) {
        struct engine_op *op = f->peers[i / ENGINE_WINDOW].ops[i % ENGINE_WINDOW];
        if (op != NULL && op->kind == ENGINE_READ && terni_region_holds(gone, op->local)) {
            op->local = NULL;
        }
    }
}
