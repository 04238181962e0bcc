/* SPDX-License-Identifier: Apache-2.0
 *
 * See utf8.h. A first byte says how many follow. Of the second some values are ruled out: forms that are
 * longer than need be, halves of surrogate pairs, and what is beyond U+10FFFF. */
#include "utf8.h"

#include <stdio.h>
#include <string.h>

static int is_within(unsigned char byte, int least, int most) { return byte >= least && byte <= most; }

/* Of the letter that a first byte announces; 0: it is no first byte. */
static int announced(unsigned char first)
{
    return first < 0x80                   ? 1
           : is_within(first, 0xc2, 0xdf) ? 2
           : is_within(first, 0xe0, 0xef) ? 3
           : is_within(first, 0xf0, 0xf4) ? 4
                                          : 0;
}

int utf8_letter(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    int bytes = at[0] != 0 ? announced(at[0]) : 0;
    int least = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
    int most = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
    if (bytes > 1 && !is_within(at[1], least, most)) {
        return 0;
    }
    for (int k = 2; k < bytes; k++) { /* the 0 at the end is out of range, too */
        if (!is_within(at[k], 0x80, 0xbf)) {
            return 0;
        }
    }
    return bytes;
}

void utf8_vprint(char *text, size_t bytes, const char *format, va_list list)
{
    size_t end, first;
    if (vsnprintf(text, bytes, format, list) < (int)bytes) {
        return;
    }
    end = first = strlen(text);
    while (first > 0 && end - first < 3 && is_within((unsigned char)text[first - 1], 0x80, 0xbf)) {
        first--; /* behind the first byte of the last letter */
    }
    if (first > 0 && announced((unsigned char)text[first - 1]) > (int)(end - first + 1)) {
        text[first - 1] = 0;
    }
}

void utf8_print(char *text, size_t bytes, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    utf8_vprint(text, bytes, format, list);
    va_end(list);
}
