/* SPDX-License-Identifier: Apache-2.0
 *
 * The sentence about late ranks, one form for every boot. It names sixteen at most: with more, it is not the
 * ranks that are the news. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_named = 16 };

static const char this_one[] = " (this one)";

void terni_late_print(const unsigned char *is_late, const int *names, int num_ranks, uint32_t timeout_ms,
                      char sentence[TERN_SENTENCE_BYTES])
{
    char list[max_named * 6 + 32] = ""; /* "1234, " each, then " and 4000 more" */
    size_t at = 0;
    int num_late = 0;
    for (int r = 0; r < num_ranks; r++) {
        if (is_late[r] && num_late++ < max_named) {
            at += (size_t)snprintf(list + at, sizeof list - at, num_late == 1 ? "%d" : ", %d",
                                   names != NULL ? names[r] : r);
        }
    }
    if (num_late > max_named) {
        snprintf(list + at, sizeof list - at, " and %d more", num_late - max_named);
    }
    snprintf(sentence, TERN_SENTENCE_BYTES, "rank%s %s did not arrive within %u ms", num_late == 1 ? "" : "s",
             list, timeout_ms);
}

/* The list begins after "rank " or "ranks ", and a comma parts its numbers. */
void terni_late_mark(char sentence[TERN_SENTENCE_BYTES], int self)
{
    char *at = sentence + strcspn(sentence, " ");
    size_t length = strlen(sentence);
    if (strncmp(sentence, "rank", 4) != 0 || length + sizeof this_one > TERN_SENTENCE_BYTES) {
        return;
    }
    while (*at == ' ' || *at == ',') {
        char *end;
        long rank = strtol(at + strspn(at, ", "), &end, 10);
        if (end == at + strspn(at, ", ")) {
            return; /* past the list */
        }
        if (rank == self) {
            memmove(end + sizeof this_one - 1, end, length + 1 - (size_t)(end - sentence));
            memcpy(end, this_one, sizeof this_one - 1);
            return;
        }
        at = end;
    }
}
