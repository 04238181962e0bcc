/* SPDX-License-Identifier: Apache-2.0
 *
 * What the timed kernels leave behind is compared element by element: destinations with the formula of their
 * sources, logs with the values that words must have had. --corrupt flips one bit of rank 0's before. */
#include "drive.h"
#include "kernels/kernels.h"

#include <stdlib.h>

enum tern_status drive_check_blocks(struct drive *d, const struct shot *shot, uint64_t bytes,
                                    struct tally *tally)
{
    struct shot once = *shot;
    once.repeats = 1;
    TERN_TRY(wire_poison(&d->wire));
    TERN_TRY(drive_reset(d));
    TERN_TRY(drive_once(d, &once));
    TERN_TRY(party_barrier(d->party)); /* what peers give is here, and now to be spoilt */
    if (d->options->corrupt != CORRUPT_NONE) {
        TERN_TRY(wire_flip(&d->wire, shot->num_ranks));
    }
    return wire_compare(&d->wire, shot->num_ranks, bytes, tally);
}

/* ---- Logs ---- */

static uint64_t log_words(const struct drive *d, const struct shot *shot)
{
    uint64_t each = shot->kernel == TERN_KERNEL_drive_barrier ? (uint64_t)d->party->num_ranks : 1;
    return ((uint64_t)shot->args.rounds + 1) * each;
}

/* wanted[]: what rank 1's word held before each of the fetches of rank 0, by the one function that says what
 * atomics do. */
static void expect_fetches(const struct drive *d, const struct shot *shot, uint64_t *wanted)
{
    const struct drive_args *a = &shot->args;
    uint64_t word = net_amo_word(a->width, d->options->seed), old = 0;
    for (int64_t i = 0; i <= a->rounds; i++) {
        uint64_t value = drive_operand(d->options->seed, i, old), compare = drive_compare(i, old);
        old = wanted[i] = word;
        word = net_amo_apply(a->amo, a->width, word, value, compare);
    }
}

static void expect_log(const struct drive *d, const struct shot *shot, uint64_t *wanted)
{
    uint64_t seed = d->options->seed, ranks = (uint64_t)d->party->num_ranks;
    if (shot->kernel == TERN_KERNEL_drive_fetch) {
        expect_fetches(d, shot, wanted);
        return;
    }
    for (uint64_t k = 0; k < log_words(d, shot); k++) {
        wanted[k] = shot->kernel == TERN_KERNEL_drive_ping
                        ? drive_value(seed, shot->args.width, (int64_t)k)
                        : drive_value(seed + k % ranks, 8, (int64_t)(k / ranks));
    }
}

static enum tern_status compare_log(struct drive *d, const struct shot *shot, int i, uint64_t *seen,
                                    uint64_t *wanted, struct tally *tally)
{
    uint64_t num = log_words(d, shot);
    TERN_TRY(tern_copy(d->party->comms[i], seen, d->seats[i].log, num * 8, d->party->streams[i]));
    TERN_TRY(tern_stream_synchronize(d->party->comms[i], d->party->streams[i]));
    expect_log(d, shot, wanted);
    if (d->options->corrupt && d->party->first + i == 0) {
        seen[num / 2] ^= 4;
    }
    for (uint64_t k = 0; k < num; k++) {
        tally->wrong += seen[k] != wanted[k];
    }
    tally->compared += num;
    return TERN_OK;
}

enum tern_status drive_check_log(struct drive *d, const struct shot *shot, struct tally *tally)
{
    struct tally tallies[TERN_MAX_RANKS] = {{0, 0}};
    struct shot once = *shot;
    uint64_t each = log_words(d, shot) / ((uint64_t)shot->args.rounds + 1), most = DRIVE_LOG / each - 1;
    uint64_t *memory = (uint64_t *)malloc(2 * DRIVE_LOG * sizeof(*memory));
    enum tern_status status = TERN_OK;
    if (!memory) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a log of %d words", (int)DRIVE_LOG);
    }
    once.repeats = 1;
    once.wants_log = 1;
    once.args.rounds = once.args.rounds < most ? once.args.rounds : (uint32_t)most;
    status = drive_reset(d);
    for (int i = 0; status == TERN_OK && i < d->party->num_local; i++) {
        status = tern_fill(d->party->comms[i], d->seats[i].log, 0xa5, DRIVE_LOG * 8, d->party->streams[i]);
    }
    status = status != TERN_OK ? status : drive_once(d, &once);
    for (int i = 0; status == TERN_OK && i < d->party->num_local; i++) {
        if (d->party->first + i < shot->num_ranks) {
            status = compare_log(d, &once, i, memory, memory + DRIVE_LOG, &tallies[i]);
        }
    }
    free(memory);
    TERN_TRY(status);
    return party_tally(d->party, tallies, 1, tally);
}
