/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory filled and compared row by row, a piece at a time through host memory of the machine: what a
 * row holds is made where it is needed, so that nobody keeps a copy of anybody's tensors. */
#ifndef TERN_BENCH_PIECES_H
#define TERN_BENCH_PIECES_H

#include "report.h"

/* Host memory that a rank copies through, at a time; no row is longer. */
enum { PIECE_BYTES = 4 << 20 };

struct pieces {
    struct tern_comm *comm;
    struct tern_stream *stream;
    void *host;   /* PIECE_BYTES */
    void *wanted; /* likewise: the row that should be there */
};

/* Rows first .. first + num - 1 of an array of rows of so many bytes; 0: nothing to do. */
struct piece_rows {
    void *device; /* of row 0 */
    uint32_t row_bytes;
    uint64_t first, num;
};

/* Writes one row to `at`. */
typedef void (*piece_make)(void *user, uint64_t row, void *at);

enum tern_status pieces_open(struct pieces *p, struct tern_comm *comm, struct tern_stream *stream);
void pieces_close(struct pieces *p);
enum tern_status pieces_fill(struct pieces *p, const struct piece_rows *rows, piece_make make, void *user);
/* Adds the elements of so many bytes that were compared, and those that differ. */
enum tern_status pieces_compare(struct pieces *p, const struct piece_rows *rows, uint32_t element,
                                piece_make make, void *user, struct tally *tally);
/* Elements of two arrays of `bytes` bytes that differ. */
uint64_t pieces_count_wrong(const void *seen, const void *wanted, uint64_t bytes, uint32_t element);
/* --corrupt: flips one bit of one byte of device memory. */
enum tern_status pieces_flip(struct tern_comm *comm, struct tern_stream *stream, void *at);

#endif
