/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of pieces.h. */
#include "pieces.h"

#include <stdlib.h>
#include <string.h>

enum { FLIPPED_BIT = 0x10 };

enum tern_status pieces_open(struct pieces *p, struct tern_comm *comm, struct tern_stream *stream)
{
    memset(p, 0, sizeof(*p));
    p->comm = comm;
    p->stream = stream;
    p->wanted = malloc(PIECE_BYTES);
    if (!p->wanted) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d bytes of rows", (int)PIECE_BYTES);
    }
    enum tern_status status = tern_alloc(comm, TERN_MEMORY_HOST, PIECE_BYTES, &p->host);
    if (status != TERN_OK) {
        pieces_close(p);
    }
    return status;
}

void pieces_close(struct pieces *p)
{
    if (p->host) {
        tern_free(p->comm, p->host);
    }
    free(p->wanted);
    memset(p, 0, sizeof(*p));
}

/* Rows of the next piece from `at` on, and where they are. */
static uint64_t next_piece(const struct piece_rows *rows, uint64_t at, char **device)
{
    uint64_t most = PIECE_BYTES / rows->row_bytes, left = rows->first + rows->num - at;
    *device = (char *)rows->device + at * rows->row_bytes;
    return left < most ? left : most;
}

enum tern_status pieces_fill(struct pieces *p, const struct piece_rows *rows, piece_make make, void *user)
{
    uint64_t at = rows->first, end = rows->row_bytes ? at + rows->num : at;
    while (at < end) {
        char *device;
        uint64_t num = next_piece(rows, at, &device);
        for (uint64_t i = 0; i < num; i++) {
            make(user, at + i, (char *)p->host + i * rows->row_bytes);
        }
        TERN_TRY(tern_copy(p->comm, device, p->host, num * rows->row_bytes, p->stream));
        TERN_TRY(tern_stream_synchronize(p->comm, p->stream));
        at += num;
    }
    return TERN_OK;
}

enum tern_status pieces_compare(struct pieces *p, const struct piece_rows *rows, uint32_t element,
                                piece_make make, void *user, struct tally *tally)
{
    uint64_t at = rows->first, end = rows->row_bytes ? at + rows->num : at;
    while (at < end) {
        char *device;
        uint64_t num = next_piece(rows, at, &device);
        TERN_TRY(tern_copy(p->comm, p->host, device, num * rows->row_bytes, p->stream));
        TERN_TRY(tern_stream_synchronize(p->comm, p->stream));
        for (uint64_t i = 0; i < num; i++) {
            make(user, at + i, p->wanted);
            tally->wrong += pieces_count_wrong((char *)p->host + i * rows->row_bytes, p->wanted,
                                               rows->row_bytes, element);
            tally->compared += rows->row_bytes / element;
        }
        at += num;
    }
    return TERN_OK;
}

uint64_t pieces_count_wrong(const void *seen, const void *wanted, uint64_t bytes, uint32_t element)
{
    uint64_t wrong = 0;
    if (memcmp(seen, wanted, bytes) == 0) {
        return 0;
    }
    for (uint64_t i = 0; i < bytes; i += element) {
        wrong += memcmp((const char *)seen + i, (const char *)wanted + i, element) != 0;
    }
    return wrong;
}

enum tern_status pieces_flip(struct tern_comm *comm, struct tern_stream *stream, void *at)
{
    unsigned char byte = 0;
    TERN_TRY(tern_copy(comm, &byte, at, 1, stream));
    TERN_TRY(tern_stream_synchronize(comm, stream));
    byte ^= FLIPPED_BIT;
    TERN_TRY(tern_copy(comm, at, &byte, 1, stream));
    return tern_stream_synchronize(comm, stream);
}
