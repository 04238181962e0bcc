/* SPDX-License-Identifier: Apache-2.0
 *
 * What a status means, and the sentence that goes with the last one.
 *
 * Text and recovery class come from TERN_STATUS_LIST in tern.h, so that a new status is one line there. The
 * sentence is kept per thread: a rank's thread reads its own failure, never a neighbour's. Failures are
 * logged at level INFO, not ERROR: the caller has the status and the sentence and decides whether it is news;
 * a library that shouts about an argument it refused makes its users' logs useless. */
#include "core/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[TERN_LAST_ERROR_BYTES];

const char *tern_status_string(enum tern_status status)
{
    switch (status) {
#define TEXT(name, value, recovery, text)                                                                    \
    case name:                                                                                               \
        return text;
        TERN_STATUS_LIST(TEXT)
#undef TEXT
    case TERN_STATUS_END:
        break;
    }
    return "unknown status";
}

int terni_status_is_failure(int32_t value)
{
#define IS_IT(name, number, recovery, text) || value == (number)
    return value != TERN_OK && (0 TERN_STATUS_LIST(IS_IT));
#undef IS_IT
}

enum tern_recovery tern_status_recovery(enum tern_status status)
{
    switch (status) {
#define RECOVERY(name, value, recovery, text)                                                                \
    case name:                                                                                               \
        return recovery;
        TERN_STATUS_LIST(RECOVERY)
#undef RECOVERY
    case TERN_STATUS_END:
        break;
    }
    return TERN_RECOVER_PROCESS; /* of an unknown status, assume the worst */
}

const char *tern_last_error(void) { return sentence; }

uint32_t tern_version(void)
{
    return (TERN_VERSION_MAJOR << 16) | (TERN_VERSION_MINOR << 8) | TERN_VERSION_PATCH;
}

enum tern_status terni_fail(const char *file, int line, enum tern_status status, const char *format, ...)
{
    char text[sizeof sentence]; /* not `sentence` itself: the arguments may quote tern_last_error() */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(sentence, text, sizeof sentence);
    terni_log(TERN_LOG_INFO, file, line, "%s: %s", tern_status_string(status), text);
    return status;
}

void terni_first_add(struct first_failure *first, enum tern_status one)
{
    if (first->status == TERN_OK && one != TERN_OK) {
        first->status = one;
        memcpy(first->sentence, sentence, sizeof sentence);
    }
}

enum tern_status terni_first_end(const struct first_failure *first)
{
    if (first->status != TERN_OK) {
        memcpy(sentence, first->sentence, sizeof sentence);
    }
    return first->status;
}
