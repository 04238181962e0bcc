/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes for the decoder of work queue entries: what it accepts must be, byte for byte, what the assembler
 * writes for the operation that came out (but for padding), what it refuses must have a syndrome and a
 * sentence, and nothing outside the ring is read (it is an allocation of its size; AddressSanitizer looks).
 *
 * Input: log2 of the ring's blocks, blocks posted, index (16 bits), QPN (24 bits), a byte unused, all
 * little-endian; then the entry, which is laid around the end of the ring.
 *
 * `make fuzz` links this with libFuzzer; test/mlx5_corpus_test.c replays the kept inputs without it. */
#include "../wqe_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DECODE_FUZZ_HEAD = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the last input came to, for the replay. */
static struct {
    uint32_t reason, opcode;
} decode_fuzz_last;

#define MUST(condition, text)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "decode_fuzz: %s\n", text);                                                      \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

static void check_accepted(const struct wqe_source *from, const struct wqe_op *op)
{
    unsigned char entry[WQE_MAX_ENTRY_BYTES], payload[WQE_MAX_ENTRY_BYTES];
    size_t padding = wqe_padding(op), bytes;
    MUST(op->segments >= 1 && op->segments <= WQE_MAX_SEGMENTS, "length");
    MUST(op->blocks <= from->posted && op->blocks <= wqe_ring_blocks(&from->ring), "longer than is posted");
    MUST(!op->is_inline || op->bytes + 4u <= (op->segments - 2) * 16, "payload longer than the entry");
    for (uint32_t i = 0; op->is_inline && i < op->bytes; i++) {
        payload[i] = (unsigned char)*wqe_inline_payload(from, i);
    }
    bytes = wqe_assemble(op, from->qpn, from->idx, payload, entry);
    for (size_t i = 0; i < bytes && i < padding; i++) {
        MUST((unsigned char)*wqe_byte(&from->ring, from->idx, (uint32_t)i) == entry[i],
             "accepted bytes are not those of the operation");
    }
}

static void check_refused(uint32_t syndrome, const struct nic_refusal *r)
{
    char text[REFUSAL_TEXT_BYTES];
    MUST(syndrome == SYNDROME_LOCAL_QP_OPERATION || syndrome == SYNDROME_LOCAL_LENGTH, "syndrome");
    MUST(r->syndrome == syndrome && r->reason != REFUSED_NOTHING && r->reason < REFUSED_COUNT, "reason");
    terni_refusal_text(r, text, sizeof(text));
    MUST(strlen(text) > 40 && strlen(text) < sizeof(text) - 1, "sentence");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wqe_source from;
    struct nic_refusal refusal;
    struct wqe_op op;
    unsigned char *ring;
    uint32_t num_blocks, syndrome;
    if (size < DECODE_FUZZ_HEAD) {
        return 0;
    }
    num_blocks = 1u << data[0] % 6;
    ring = (unsigned char *)aligned_alloc(WQE_BLOCK_BYTES, (size_t)num_blocks * WQE_BLOCK_BYTES);
    MUST(ring != NULL, "no memory");
    from.ring = wqe_ring_of(ring, num_blocks);
    from.posted = data[1];
    from.idx = data[2] | (uint32_t)data[3] << 8;
    from.qpn = data[4] | (uint32_t)data[5] << 8 | (uint32_t)data[6] << 16;
    memset(ring, 0xee, (size_t)num_blocks * WQE_BLOCK_BYTES);
    for (size_t i = DECODE_FUZZ_HEAD; i < size && i - DECODE_FUZZ_HEAD < num_blocks * WQE_BLOCK_BYTES; i++) {
        *wqe_byte(&from.ring, from.idx, (uint32_t)(i - DECODE_FUZZ_HEAD)) = (char)data[i];
    }
    syndrome = wqe_decode(&from, &op, &refusal);
    if (syndrome == SYNDROME_NONE) {
        check_accepted(&from, &op);
    } else {
        check_refused(syndrome, &refusal);
    }
    decode_fuzz_last.reason = syndrome == SYNDROME_NONE ? REFUSED_NOTHING : refusal.reason;
    decode_fuzz_last.opcode = op.opcode;
    free(ring);
    return 0;
}
