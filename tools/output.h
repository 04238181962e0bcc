/* SPDX-License-Identifier: Apache-2.0
 *
 * Of programs that print an answer: that it is there, or that it is said that it is not. */
#ifndef TERN_TOOLS_OUTPUT_H
#define TERN_TOOLS_OUTPUT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* At the end: 1 if all of standard output was written; else 0, and a line on standard error. */
static inline int output_is_whole(const char *program)
{
    errno = 0; /* of a write that failed before it is no longer known */
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return 1;
    }
    fprintf(stderr, "%s: standard output is lost%s%s\n", program, errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    return 0;
}

#endif
