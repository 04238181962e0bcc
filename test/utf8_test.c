/* SPDX-License-Identifier: Apache-2.0
 *
 * The letters of tern-bench's text. Every code point is written down by arithmetic, and must be one letter;
 * so many, and no others of all strings of up to four bytes, must there be. Text is cut at every length.
 *
 * utf8.c belongs to tern-bench and not to the library: this program compiles it in. */
#include "../bench/utf8.c"
#include "support.h"

enum { LAST = 0x10ffff, SURROGATES = 0xd800, NO_SURROGATES = 0xe000 };

static int encode(uint32_t code, char *text)
{
    int bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int k = bytes - 1; k > 0; k--, code >>= 6) {
        text[k] = (char)(0x80 | (code & 0x3f));
    }
    text[0] = (char)(bytes == 1 ? code : (0xf00u >> bytes & 0xff) | code);
    text[bytes] = 0;
    return bytes;
}

static int knows_letters(struct test *t)
{
    char text[8];
    int num = 0;
    for (uint32_t code = 1; code <= LAST; code += code == SURROGATES - 1 ? NO_SURROGATES - code : 1) {
        int bytes = encode(code, text), left = bytes;
        CHECK(utf8_letter(text) == bytes, "U+%04X is %d bytes, not %d", code, bytes, utf8_letter(text));
        text[--left] = 0;
        CHECK(utf8_letter(text) == 0, "U+%04X is a letter without its last byte", code);
        num++;
    }
    test_detail(t, "%d letters", num);
    return TEST_PASSED;
}

/* Of the fourth byte there are so many values behind any three, or none: two of each kind stand for all. */
static int refuses_others(struct test *t)
{
    static const unsigned char fourth[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    uint32_t num[5] = {0};
    for (uint32_t begin = 0; begin < 1u << 24; begin++) {
        for (int k = 0; k < 6; k++) {
            char text[5] = {(char)(begin >> 16), (char)(begin >> 8), (char)begin, (char)fourth[k], 0};
            num[utf8_letter(text)]++;
        }
    }
    /* Each letter once for all that may follow it. */
    CHECK(num[1] == 0x7fu * 65536 * 6 && num[2] == (0x800 - 0x80u) * 256 * 6 &&
              num[3] == (0x10000 - 0x800 - 0x800u) * 6 && num[4] == (0x110000 - 0x10000u) / 64 * 2,
          "%u of one byte, %u of two, %u of three, %u of four", num[1], num[2], num[3], num[4]);
    test_detail(t, "%u strings", num[0] + num[1] + num[2] + num[3] + num[4]);
    return TEST_PASSED;
}

static int cuts_between_letters(struct test *t)
{
    static const uint32_t codes[] = {'a', 0xe9, 0x20ac, 0x1f600, 'z', 0x1f601};
    char all[32] = "", text[32];
    size_t ends[7] = {0}, num = 0;
    (void)t;
    for (int k = 0; k < 6; k++) {
        ends[k + 1] = ends[k] + (size_t)encode(codes[k], all + ends[k]);
    }
    for (size_t bytes = 1; bytes <= sizeof(text); bytes++) {
        utf8_print(text, bytes, "%s", all);
        num = num < 6 && ends[num + 1] < bytes ? num + 1 : num;
        CHECK(strlen(text) == ends[num] && memcmp(text, all, ends[num]) == 0,
              "%zu bytes of text in %zu, and there is room for %zu letters of %zu", strlen(text), bytes, num,
              ends[num]);
    }
    /* What is no letter is cut wherever it is. */
    utf8_print(text, 6, "%s", "a\x80\x80\x80\x80\x80\x80");
    CHECK(strlen(text) == 5, "%zu bytes of what begins no letter", strlen(text));
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "every code point is a letter", knows_letters);
    test_run(&t, "nothing else is", refuses_others);
    test_run(&t, "text is cut between letters", cuts_between_letters);
    return test_end(&t);
}
