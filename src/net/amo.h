/* SPDX-License-Identifier: Apache-2.0
 *
 * Atomic operations on a word of 4 or 8 bytes as requests carry them, whoever carries them: which there are,
 * and what each makes of a word. Loads and stores (route p2p), engines that receive a request and the tests'
 * reference agree on this one function; how a NIC spells them is mlx5_atomic.h's.
 *
 * SET and FETCH are atomics as well: on a route whose words belong to a NIC or to an engine nobody else may
 * touch them. The old value is what every operation returns to those who asked for it. */
#ifndef TERN_AMO_H
#define TERN_AMO_H

#include "simt/simt.h"

enum net_amo {
    NET_AMO_ADD = 0,
    NET_AMO_AND = 1,
    NET_AMO_OR = 2,
    NET_AMO_XOR = 3,
    NET_AMO_SWAP = 4,
    NET_AMO_CAS = 5, /* value, if the word was compare */
    NET_AMO_SET = 6, /* as SWAP; nobody asks for the old value */
    NET_AMO_FETCH = 7,
    NET_AMO_COUNT = 8
};

/* Of an operand or a word: what a word of `width` bytes, 4 or 8, holds of it. */
TERN_DEVICE uint64_t net_amo_word(uint32_t width, uint64_t value)
{
    return width == 4 ? (uint32_t)value : value;
}

/* What the word holds afterwards. Bits above the width are ignored in the operands and zero in the answer. */
TERN_DEVICE uint64_t net_amo_apply(uint32_t amo, uint32_t width, uint64_t old, uint64_t value,
                                   uint64_t compare)
{
    switch (amo) {
    case NET_AMO_ADD:
        return net_amo_word(width, old + value);
    case NET_AMO_AND:
        return net_amo_word(width, old & value);
    case NET_AMO_OR:
        return net_amo_word(width, old | value);
    case NET_AMO_XOR:
        return net_amo_word(width, old ^ value);
    case NET_AMO_CAS:
        return net_amo_word(width, old) == net_amo_word(width, compare) ? net_amo_word(width, value)
                                                                        : net_amo_word(width, old);
    case NET_AMO_FETCH:
        return net_amo_word(width, old);
    default: /* SWAP, SET */
        return net_amo_word(width, value);
    }
}

#endif
