/* SPDX-License-Identifier: Apache-2.0
 *
 * A mailbox read and written bit by bit, as bytes: what a firmware would see. Shares nothing with
 * net/devx_field.h; offsets are given as numbers where they are used. */
#ifndef TERN_TEST_DEVX_READ_H
#define TERN_TEST_DEVX_READ_H

#include <stdint.h>

static inline uint64_t box_read(const void *box, unsigned offset, unsigned bits)
{
    const unsigned char *bytes = (const unsigned char *)box;
    uint64_t value = 0;
    for (unsigned i = offset; i < offset + bits; i++) {
        value = value << 1 | (bytes[i / 8] >> (7 - i % 8) & 1u);
    }
    return value;
}

static inline void box_write(void *box, unsigned offset, unsigned bits, uint64_t value)
{
    unsigned char *bytes = (unsigned char *)box;
    for (unsigned i = offset + bits; i-- > offset; value >>= 1) {
        unsigned char bit = (unsigned char)(1u << (7 - i % 8));
        bytes[i / 8] = (unsigned char)(value & 1 ? bytes[i / 8] | bit : bytes[i / 8] & ~bit);
    }
}

#endif
