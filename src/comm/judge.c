/* SPDX-License-Identifier: Apache-2.0
 *
 * Ending a collective on all ranks alike.
 *
 * The last local step of a collective may fail on one rank alone, which the others would not notice: they
 * would go on with an object that has a dead member, and wait for it. So every rank posts how its step went,
 * and all judge the same notes. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct note {
    int32_t status;                       /* enum tern_status */
    char reason[TERN_SENTENCE_BYTES - 4]; /* of a success: of what, or empty */
};

enum tern_status terni_boot_judge_post(struct boot *boot, enum tern_status status)
{
    return terni_boot_judge_post_of(boot, status, "");
}

enum tern_status terni_boot_judge_post_of(struct boot *boot, enum tern_status status, const char *what)
{
    struct note note;
    enum tern_status posted;
    memset(&note, 0, sizeof note);
    note.status = (int32_t)status;
    snprintf(note.reason, sizeof note.reason, "%s", status != TERN_OK ? tern_last_error() : what);
    posted = boot->ops->post(boot, &note, sizeof note);
    if (posted != TERN_OK && status != TERN_OK) {
        /* The boot is what failed, or fails now for the same reason: the first sentence is the news. */
        return TERN_FAIL(status, "%s", note.reason);
    }
    return posted;
}

static int is_consequence(int32_t status) { return status == TERN_TIMEOUT || status == TERN_DISCONNECTED; }

/* The first rank that failed by itself, else the first that failed because of another; -1: none. */
static int find_culprit(const struct note *notes, int num_ranks)
{
    int culprit = -1;
    for (int r = num_ranks - 1; r >= 0; r--) {
        if (notes[r].status != TERN_OK &&
            (culprit < 0 || is_consequence(notes[culprit].status) || !is_consequence(notes[r].status))) {
            culprit = r;
        }
    }
    return culprit;
}

/* All have succeeded: in the same thing? */
static enum tern_status compare(const struct note *notes, const struct boot *boot)
{
    for (int r = 1; r < boot->num_ranks; r++) {
        if (strncmp(notes[r].reason, notes[0].reason, sizeof notes[r].reason) != 0) {
            const char *first = notes[0].reason[0] ? notes[0].reason : "does something else";
            const char *other = notes[r].reason[0] ? notes[r].reason : "does something else";
            return TERN_FAIL(TERN_MISMATCH, "rank %d %.*s, and rank %d %.*s", terni_boot_name(boot, 0), 100,
                             first, terni_boot_name(boot, r), 100, other);
        }
    }
    return TERN_OK;
}

static enum tern_status judge(const struct note *notes, const struct boot *boot)
{
    char sentence[TERN_SENTENCE_BYTES];
    int culprit = find_culprit(notes, boot->num_ranks);
    enum tern_status status = culprit < 0 ? TERN_OK : (enum tern_status)notes[culprit].status;
    if (status == TERN_OK) {
        return compare(notes, boot);
    }
    snprintf(sentence, sizeof sentence, "%.*s", (int)sizeof notes[culprit].reason, notes[culprit].reason);
    /* A sentence that begins with ranks has named the culprits itself: they need not be the teller. */
    if (strncmp(sentence, "rank", 4) != 0) {
        return TERN_FAIL(status, "rank %d: %s", terni_boot_name(boot, culprit), sentence);
    }
    if (status == TERN_TIMEOUT) {
        terni_late_mark(sentence, terni_boot_name(boot, boot->rank));
    }
    return TERN_FAIL(status, "%s", sentence);
}

/* *is_verdict: what is returned is the verdict on the notes, else why there are none here. */
static enum tern_status hear(struct boot *boot, uint32_t timeout_ms, int *is_verdict)
{
    /* Twice, because the step that is judged may itself have waited for its whole deadline elsewhere. */
    uint32_t patience_ms = timeout_ms <= UINT32_MAX / 2 ? 2 * timeout_ms : UINT32_MAX;
    enum tern_status status;
    struct note *notes = (struct note *)calloc((size_t)boot->num_ranks, sizeof *notes);
    *is_verdict = 0;
    if (notes == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the notes of %d ranks", boot->num_ranks);
    }
    status = boot->ops->wait(boot, notes, sizeof *notes, patience_ms);
    if (status == TERN_OK) {
        *is_verdict = 1;
        status = judge(notes, boot);
    }
    free(notes);
    return status;
}

enum tern_status terni_boot_judge_wait(struct boot *boot, uint32_t timeout_ms)
{
    int is_verdict;
    return hear(boot, timeout_ms, &is_verdict);
}

enum tern_status terni_comm_judge_post(struct tern_comm *comm, enum tern_status status)
{
    return terni_boot_judge_post(comm->boot, status);
}

enum tern_status terni_comm_judge_wait(struct tern_comm *comm)
{
    return terni_boot_judge_wait(comm->boot, comm->timeout_ms);
}

enum tern_status terni_comm_judge_hear(struct tern_comm *comm, int *is_verdict)
{
    return hear(comm->boot, comm->timeout_ms, is_verdict);
}
