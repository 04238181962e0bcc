/* SPDX-License-Identifier: Apache-2.0
 *
 * Sentences of syndromes and refusals, from the lists in their headers. */
#include "net/nic_refusal.h"

#include <stdio.h>

const char *terni_syndrome_text(uint32_t syndrome)
{
    switch (syndrome) {
#define TEXT(name, value, text)                                                                              \
    case name:                                                                                               \
        return text;
        TERN_SYNDROME_LIST(TEXT)
#undef TEXT
    case SYNDROME_NONE:
        return "no error";
    }
    return "unknown syndrome";
}

const char *terni_refusal_text(const struct nic_refusal *r, char *text, size_t size)
{
    unsigned long long seen = r->seen, wanted = r->wanted;
    int used = snprintf(text, size, "syndrome 0x%02x, %s: ", r->syndrome, terni_syndrome_text(r->syndrome));
    size_t at = used > 0 && (size_t)used < size ? (size_t)used : 0;

    switch (r->reason) {
#define TEXT(name, code, sentence)                                                                           \
    case REFUSED_##name:                                                                                     \
        snprintf(text + at, size - at, sentence, seen, wanted);                                              \
        break;
        REFUSAL_LIST(TEXT)
#undef TEXT
    default:
        snprintf(text + at, size - at, "nothing was refused");
    }
    return text;
}
