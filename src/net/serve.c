/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of peers, checked and carried out. */
#include "net/serve.h"

#include <stdlib.h>
#include <string.h>

void terni_serve_init(struct serve *s, struct stage *stage)
{
    memset(s, 0, sizeof *s);
    s->stage = stage;
}

void terni_serve_close(struct serve *s)
{
    free(s->keys.entries);
    free(s->is_staged);
    memset(s, 0, sizeof *s);
}

/* For one registration more. */
static enum tern_status make_room(struct serve *s)
{
    unsigned char *is_staged;
    TERN_TRY(terni_key_table_extend(&s->keys));
    is_staged = (unsigned char *)realloc(s->is_staged, s->keys.capacity);
    if (is_staged == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %u registrations", s->keys.capacity);
    }
    s->is_staged = is_staged;
    return TERN_OK;
}

enum tern_status terni_serve_add(struct serve *s, struct region *card)
{
    struct key_registration registration = {card->base, card->bytes, (void *)(uintptr_t)card->base, SERVE_PD,
                                            card->access};
    if (card->is_staged) {
        TERN_TRY(terni_stage_need(s->stage));
    }
    TERN_TRY(make_room(s));
    TERN_TRY(terni_key_table_add(&s->keys, &registration, &card->key));
    s->is_staged[(card->key >> 8) - KEY_FIRST_PLACE] = card->is_staged != 0;
    return TERN_OK;
}

void terni_serve_remove(struct serve *s, const struct region *card)
{
    if (terni_key_table_remove(&s->keys, card->key) != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "%s", tern_last_error());
    }
}

int terni_serve_is_staged(const struct serve *s, uint32_t key)
{
    const struct key_entry *e = key_place(&s->keys, key);
    return e != NULL && e->bytes != 0 && s->is_staged[e - s->keys.entries];
}

void terni_serve_request(const struct engine_op *op, struct wire_frame *frame)
{
    static const uint32_t kinds[] = {WIRE_WRITE, WIRE_READ, WIRE_ATOMIC, WIRE_STORE};
    frame->kind = kinds[op->kind];
    frame->tag = op->tag;
    frame->key = op->there.key;
    frame->how = op->amo | op->width << 8;
    frame->addr = op->remote;
    frame->bytes = op->bytes;
    frame->value = op->value;
    frame->compare = op->compare;
}

/* Memory of the host: atomic even with kernels of the cpu machine that take the word for their own. */
static uint64_t change_word(char *at, uint32_t amo, uint32_t width, uint64_t value, uint64_t compare)
{
    if (width == 4) {
        uint32_t *word = (uint32_t *)(void *)at;
        uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
        /* Pairs with the acquire of whoever waits for the word in a kernel: what this peer put before. */
        while (!__atomic_compare_exchange_n(word, &old, (uint32_t)net_amo_apply(amo, 4, old, value, compare),
                                            0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        }
        return old;
    }
    uint64_t *word = (uint64_t *)(void *)at;
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    /* Pairs with the same. */
    while (!__atomic_compare_exchange_n(word, &old, net_amo_apply(amo, 8, old, value, compare), 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    return old;
}

/* Memory of a GPU: read, changed, written. Nobody else changes such a word. */
static enum tern_status change_staged(struct stage *stage, char *at, const struct wire_frame *frame,
                                      uint64_t *old)
{
    uint32_t amo = frame->how & 0xff, width = frame->how >> 8;
    if (amo == NET_AMO_SET) {
        *old = 0; /* nobody asks */
        return terni_stage_store(stage, at, width, frame->value);
    }
    TERN_TRY(terni_stage_load(stage, at, width, old));
    if (amo == NET_AMO_FETCH) {
        return TERN_OK;
    }
    return terni_stage_store(stage, at, width, net_amo_apply(amo, width, *old, frame->value, frame->compare));
}

/* The machine failed: its sentence is in this thread's last error. */
static void settle(struct served *served, enum tern_status status)
{
    if (status != TERN_OK) {
        TERN_LOG(TERN_LOG_WARN, "a request of a peer: %s", tern_last_error());
        served->syndrome = SYNDROME_REMOTE_OPERATION;
    }
}

/* What the frame asks for, for the key table; 0 if it makes no sense. */
static int read_request(const struct wire_frame *frame, struct key_request *q)
{
    uint32_t amo = frame->how & 0xff, width = frame->how >> 8;
    q->key = frame->key;
    q->pd = SERVE_PD;
    q->addr = frame->addr;
    q->bytes = frame->bytes;
    switch (frame->kind) {
    case WIRE_WRITE:
        q->use = KEY_USE_WRITE;
        return 1;
    case WIRE_READ:
        q->use = KEY_USE_READ;
        return 1;
    default:
        q->use = frame->kind == WIRE_ATOMIC ? KEY_USE_ATOMIC : KEY_USE_WRITE;
        q->bytes = width;
        return (frame->kind == WIRE_ATOMIC || frame->kind == WIRE_STORE) && (width == 4 || width == 8) &&
               amo < NET_AMO_COUNT && frame->addr % width == 0;
    }
}

void terni_serve_begin(struct serve *s, const struct wire_frame *frame, int peer, char *buffer,
                       struct served *served)
{
    struct key_request q;
    struct key_memory memory = {NULL, 0};
    struct nic_refusal refusal;
    char text[REFUSAL_TEXT_BYTES];
    int staged = terni_serve_is_staged(s, frame->key);
    memset(served, 0, sizeof *served);
    if (!read_request(frame, &q)) {
        TERN_LOG(TERN_LOG_WARN, "refused rank %d: kind %u, 0x%x at 0x%llx", peer, frame->kind, frame->how,
                 (unsigned long long)frame->addr);
        served->syndrome = SYNDROME_REMOTE_INVALID_REQUEST;
        return;
    }
    served->syndrome = key_lookup(&s->keys, &q, &memory, &refusal);
    if (served->syndrome == SYNDROME_NONE && staged && q.bytes > STAGE_BYTES) {
        nic_refuse(&refusal, REFUSED_LONG, q.bytes, STAGE_BYTES);
        served->syndrome = SYNDROME_REMOTE_INVALID_REQUEST;
    }
    if (served->syndrome != SYNDROME_NONE) {
        TERN_LOG(TERN_LOG_WARN, "refused rank %d: %s", peer, terni_refusal_text(&refusal, text, sizeof text));
        return;
    }
    served->at = staged ? buffer : memory.host;
    served->staged = staged ? memory.host : NULL;
    if (q.bytes == 0) {
        return; /* there is no memory to it */
    }
    if (q.use == KEY_USE_READ && staged) {
        settle(served, terni_stage_copy(s->stage, served->at, served->staged, q.bytes));
    } else if (frame->kind == WIRE_ATOMIC || frame->kind == WIRE_STORE) {
        if (staged) {
            settle(served, change_staged(s->stage, memory.host, frame, &served->old));
        } else {
            served->old =
                change_word(memory.host, frame->how & 0xff, frame->how >> 8, frame->value, frame->compare);
        }
    }
}

void terni_serve_end(struct serve *s, const struct wire_frame *frame, struct served *served)
{
    if (served->syndrome == SYNDROME_NONE && served->staged != NULL) {
        settle(served, terni_stage_copy(s->stage, served->staged, served->at, frame->bytes));
    }
}
