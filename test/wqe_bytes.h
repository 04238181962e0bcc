/* SPDX-License-Identifier: Apache-2.0
 *
 * Work queue entries a second time: assembled byte by byte at offsets copied from the tables of the format,
 * with none of the builders' code. What the builders write and what the decoder accepts is compared with
 * it. */
#ifndef TERN_TEST_WQE_BYTES_H
#define TERN_TEST_WQE_BYTES_H

#include "net/mlx5_decode.h"

enum { WQE_MAX_ENTRY_BYTES = WQE_MAX_SEGMENTS * WQE_SEGMENT_BYTES };

/* Writes the entry of `op`, all but its padding zeroed first; `payload` of inline data. Returns its bytes. */
size_t wqe_assemble(const struct wqe_op *op, uint32_t qpn, uint32_t idx, const void *payload,
                    unsigned char *entry);
/* Offset of the first byte of padding: it has none if that is its length. */
size_t wqe_padding(const struct wqe_op *op);
/* As bytes compare: every field, and no hole between them. 0 if equal. */
int wqe_op_compare(const struct wqe_op *a, const struct wqe_op *b);

#endif
