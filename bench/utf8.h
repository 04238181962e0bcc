/* SPDX-License-Identifier: Apache-2.0
 *
 * Text that a reader of UTF-8 takes: names of files may be any bytes, and places for text are short. */
#ifndef TERN_BENCH_UTF8_H
#define TERN_BENCH_UTF8_H

#include "core/core.h"

#include <stdarg.h>

/* Bytes of the letter, 1 to 4, that a string begins with; 0: it begins with none, or is empty. */
int utf8_letter(const char *text);
/* vsnprintf and snprintf, but for what has no room: a letter goes whole. */
void utf8_vprint(char *text, size_t bytes, const char *format, va_list list);
void utf8_print(char *text, size_t bytes, const char *format, ...) TERN_PRINTF(3, 4);

#endif
