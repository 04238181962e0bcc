/* SPDX-License-Identifier: Apache-2.0
 *
 * Boot inside one process: ranks pin their messages to a shared board.
 *
 * Rank r may post number n + 2 only after its wait n + 1, which needed every rank's post n + 1, which came
 * after every rank's wait n. So two slots a rank, used in turn, are enough: when a slot is written again, all
 * have read what it held. The last closer frees the board.
 *
 * A group's board is found by its ranks in a list of the board they come from, under the number of the
 * exchange at which they join and its leader. It leaves that list when the last of them has joined; one that
 * is never complete, because joining failed somewhere, goes with the board that has the list. */
#include "comm/comm.h"
#include "comm/socket.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct note {
    void *data;
    size_t bytes;
};

struct place {
    uint64_t posted; /* number of this rank's last post, from 1 */
    int has_left;
    struct note notes[2]; /* of odd and even posts */
};

struct board {
    struct board
        *next;   /* in the list of the board that it came from; with `at` and `leader` under that lock */
    uint64_t at; /* exchange of that board */
    int leader;  /* rank there */
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t moved; /* something that a waiter looks at has changed */
    struct board *groups; /* that not all have joined yet */
    int num_ranks, num_open, num_joined;
    enum tern_status verdict; /* the first failure, for everyone */
    uint64_t verdict_at;      /* number of the exchange that failed */
    char sentence[TERN_SENTENCE_BYTES];
    unsigned char is_late[TERN_MAX_BOOT_RANKS];
    struct place places[];
};

struct board_boot {
    struct boot boot;
    struct board *board;
};

static void board_free(struct board *b)
{
    while (b->groups != NULL) {
        struct board *group = b->groups;
        b->groups = group->next;
        board_free(group);
    }
    for (int r = 0; r < b->num_ranks; r++) {
        free(b->places[r].notes[0].data);
        free(b->places[r].notes[1].data);
    }
    pthread_cond_destroy(&b->moved);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void board_close(struct boot *boot)
{
    struct board_boot *bb = (struct board_boot *)boot;
    struct board *b = bb->board;
    int is_last;
    pthread_mutex_lock(&b->lock);
    b->places[boot->rank].has_left = 1;
    is_last = --b->num_open == 0 && b->num_joined == b->num_ranks;
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
    if (is_last) {
        board_free(b);
    }
    free(bb);
}

/* All ranks share one sentence; this is the reader's own copy. */
static void tell_self(enum tern_status verdict, char sentence[TERN_SENTENCE_BYTES], const struct boot *boot)
{
    if (verdict == TERN_TIMEOUT) {
        terni_late_mark(sentence, terni_boot_name(boot, boot->rank));
    }
}

static enum tern_status board_post(struct boot *boot, const void *send, size_t bytes)
{
    struct board *b = ((struct board_boot *)boot)->board;
    struct place *place = &b->places[boot->rank];
    char sentence[TERN_SENTENCE_BYTES];
    enum tern_status earlier = TERN_OK;
    struct note *note;
    void *data = malloc(bytes + 1); /* one more, so that no bytes are not NULL */
    if (data == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a message of %zu bytes", bytes);
    }
    if (bytes != 0) {
        memcpy(data, send, bytes);
    }
    pthread_mutex_lock(&b->lock);
    if (b->verdict != TERN_OK && place->posted >= b->verdict_at) {
        earlier = b->verdict;
        memcpy(sentence, b->sentence, sizeof sentence);
    } else {
        note = &place->notes[++place->posted & 1];
        free(note->data);
        note->data = data;
        note->bytes = bytes;
        pthread_cond_broadcast(&b->moved);
    }
    pthread_mutex_unlock(&b->lock);
    if (earlier != TERN_OK) {
        free(data);
        tell_self(earlier, sentence, boot);
        return TERN_FAIL_EARLIER(boot, earlier, sentence);
    }
    return TERN_OK;
}

/* Under lock. Marks the ranks that have not posted number n; *left is one of them that never will, or -1. */
static int find_missing(struct board *b, uint64_t n, int *left)
{
    int num_missing = 0;
    *left = -1;
    for (int r = b->num_ranks - 1; r >= 0; r--) {
        b->is_late[r] = b->places[r].posted < n;
        num_missing += b->is_late[r];
        if (b->is_late[r] && b->places[r].has_left) {
            *left = r;
        }
    }
    return num_missing;
}

/* Under lock. Waits until all have posted number n, one of the others has left, or the deadline passes. */
static enum tern_status await_all(const struct boot *boot, uint64_t n, uint32_t timeout_ms)
{
    struct board *b = ((const struct board_boot *)boot)->board;
    uint64_t deadline = terni_clock_ns() + (uint64_t)timeout_ms * 1000000;
    struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                             .tv_nsec = (long)(deadline % 1000000000)};
    while (b->verdict == TERN_OK) {
        int left;
        if (find_missing(b, n, &left) == 0) {
            return TERN_OK;
        }
        if (left >= 0) {
            b->verdict = TERN_DISCONNECTED;
            b->verdict_at = n;
            snprintf(b->sentence, sizeof b->sentence, "rank %d closed its connection",
                     terni_boot_name(boot, left));
        } else if (terni_clock_ns() >= deadline) {
            b->verdict = TERN_TIMEOUT;
            b->verdict_at = n;
            terni_late_print(b->is_late, boot->names, b->num_ranks, timeout_ms, b->sentence);
        } else {
            pthread_cond_timedwait(&b->moved, &b->lock, &until);
        }
    }
    pthread_cond_broadcast(&b->moved);
    return b->verdict;
}

/* Under lock, all have posted number n. */
static enum tern_status check_sizes(const struct boot *boot, uint64_t n)
{
    struct board *b = ((const struct board_boot *)boot)->board;
    size_t expected = b->places[0].notes[n & 1].bytes;
    for (int r = 1; r < b->num_ranks; r++) {
        size_t bytes = b->places[r].notes[n & 1].bytes;
        if (bytes != expected) {
            b->verdict = TERN_MISMATCH;
            b->verdict_at = n;
            snprintf(b->sentence, sizeof b->sentence,
                     "rank %d sent %zu bytes in exchange %llu where rank %d sent %zu",
                     terni_boot_name(boot, r), bytes, (unsigned long long)n, terni_boot_name(boot, 0),
                     expected);
            return b->verdict;
        }
    }
    return TERN_OK;
}

static enum tern_status board_wait(struct boot *boot, void *recv, size_t bytes, uint32_t timeout_ms)
{
    struct board *b = ((struct board_boot *)boot)->board;
    char sentence[TERN_SENTENCE_BYTES];
    enum tern_status status;
    uint64_t n;
    pthread_mutex_lock(&b->lock);
    n = b->places[boot->rank].posted;
    status = await_all(boot, n, timeout_ms);
    if (status == TERN_OK) {
        status = check_sizes(boot, n);
    }
    for (int r = 0; status == TERN_OK && bytes != 0 && r < b->num_ranks; r++) {
        memcpy((char *)recv + (size_t)r * bytes, b->places[r].notes[n & 1].data, bytes);
    }
    memcpy(sentence, b->sentence, sizeof sentence);
    pthread_mutex_unlock(&b->lock);
    tell_self(status, sentence, boot);
    return status == TERN_OK ? TERN_OK : TERN_FAIL(status, "%s", sentence);
}

static struct board *board_new(int num_ranks)
{
    pthread_condattr_t attributes;
    struct board *b = (struct board *)calloc(1, sizeof *b + (size_t)num_ranks * sizeof b->places[0]);
    if (b == NULL) {
        return NULL;
    }
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* terni_clock_ns gives the deadlines */
    pthread_cond_init(&b->moved, &attributes);
    pthread_condattr_destroy(&attributes);
    b->num_ranks = num_ranks;
    return b;
}

/* ---- Groups ---- */

/* Nothing need travel: a group is found by what its ranks know anyway. */
static enum tern_status board_invite(struct boot *boot, struct tern_id *id)
{
    (void)boot;
    memset(id, 0, sizeof *id);
    return TERN_OK;
}

static void board_withdraw(struct boot *boot, const struct tern_id *id)
{
    (void)boot;
    (void)id;
}

/* Under lock of b. The link to the group's board, which ends in NULL if nobody has made it yet. */
static struct board **find_group(struct board *b, uint64_t at, int leader)
{
    struct board **group = &b->groups;
    while (*group != NULL && ((*group)->at != at || (*group)->leader != leader)) {
        group = &(*group)->next;
    }
    return group;
}

/* Under lock of b: joins its group, making it if need be. NULL: no memory. */
static struct board *enter_group(struct board *b, uint64_t at, const struct boot_group *wanted)
{
    struct board **link = find_group(b, at, wanted->leader), *group = *link;
    if (group == NULL) {
        group = board_new(wanted->num_ranks);
        if (group == NULL) {
            return NULL;
        }
        group->at = at;
        group->leader = wanted->leader;
        *link = group;
    }
    pthread_mutex_lock(&group->lock);
    group->num_open++;
    if (++group->num_joined == group->num_ranks) {
        *link = group->next;
    }
    pthread_mutex_unlock(&group->lock);
    return group;
}

static enum tern_status board_join(struct boot *boot, const struct boot_group *group,
                                   const struct tern_id *id, uint32_t timeout_ms, struct boot **joined)
{
    struct board *b = ((struct board_boot *)boot)->board;
    struct board_boot *made = (struct board_boot *)calloc(1, sizeof *made);
    (void)id;
    (void)timeout_ms;
    if (made != NULL) {
        pthread_mutex_lock(&b->lock);
        made->board = enter_group(b, b->places[boot->rank].posted, group);
        pthread_mutex_unlock(&b->lock);
    }
    if (made == NULL || made->board == NULL) {
        free(made);
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a board of %d ranks", group->num_ranks);
    }
    made->boot.ops = boot->ops;
    made->boot.rank = group->rank;
    made->boot.num_ranks = group->num_ranks;
    made->boot.names = group->names;
    *joined = &made->boot;
    return TERN_OK;
}

/* All ranks are in this process. */
static enum tern_status board_locate(struct boot *boot, struct address *own)
{
    (void)boot;
    terni_address_loopback(own);
    return TERN_OK;
}

static const struct boot_ops board_ops = {board_close,    board_post, board_wait,  board_invite,
                                          board_withdraw, board_join, board_locate};

enum tern_status terni_board_open(int num_ranks, struct boot **boots)
{
    struct board *b = board_new(num_ranks);
    struct board_boot *made = NULL;
    if (b == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a board of %d ranks", num_ranks);
    }
    for (int r = 0; r < num_ranks; r++) {
        made = (struct board_boot *)calloc(1, sizeof *made);
        if (made == NULL) {
            goto free_boots;
        }
        made->boot.ops = &board_ops;
        made->boot.rank = r;
        made->boot.num_ranks = num_ranks;
        made->board = b;
        boots[r] = &made->boot;
        b->num_open = ++b->num_joined;
    }
    return TERN_OK;

free_boots:
    for (int r = 0; r < b->num_open; r++) {
        free(boots[r]);
    }
    board_free(b);
    return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a board of %d ranks", num_ranks);
}
