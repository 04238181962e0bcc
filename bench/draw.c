/* SPDX-License-Identifier: Apache-2.0
 *
 * A token shuffles as much of a deck of experts as it draws. For skew, a card of another rank than 0 is laid
 * back with some chance and another one drawn. How large the chance must be is found by bisection on a
 * sample, because rows count once a (token, rank), which has no handy formula. */
#include "draw.h"

#include "fill.h"

#include <math.h>
#include <stdlib.h>

enum { UNIFORM = 100, SAMPLE = 20000, STEPS = 20, TOLERANCE = 2 };

/* `keep` of 2^32: how often a card of another rank is kept. */
static const uint64_t ALWAYS = 1ull << 32, HARDLY_EVER = 1ull << 20;

/* Fills in tokens x topk ids. The deck stays shuffled: any order is a fair start. */
static void draw_tokens(const struct draw *d, struct fill_random *random, uint64_t keep, uint32_t tokens,
                        int64_t *deck, int64_t *ids)
{
    int64_t share = (int64_t)(d->experts / d->num_ranks);
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t k = 0; k < d->topk; k++) {
            uint32_t other;
            int64_t id;
            do {
                other = k + (uint32_t)(fill_next(random) % (d->experts - k));
                id = deck[other];
            } while (id >= share && keep < ALWAYS && fill_next(random) >> 32 >= keep);
            deck[other] = deck[k];
            deck[k] = id;
            *ids++ = id;
        }
    }
}

/* Rows of rank 0 in per cent of the mean. */
static double skew_of(const struct draw *d, const int64_t *ids, uint32_t tokens)
{
    uint64_t first = 0, all = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t seen[TERN_MAX_RANKS / 64] = {0};
        for (uint32_t k = 0; k < d->topk; k++) {
            uint32_t rank = (uint32_t)ids[t * d->topk + k] / (d->experts / d->num_ranks);
            uint64_t bit = 1ull << rank % 64;
            first += rank == 0 && (seen[0] & 1) == 0;
            all += (seen[rank / 64] & bit) == 0;
            seen[rank / 64] |= bit;
        }
    }
    return all > 0 ? 100.0 * (double)first * d->num_ranks / (double)all : UNIFORM;
}

static void fill_deck(const struct draw *d, int64_t *deck)
{
    for (uint32_t e = 0; e < d->experts; e++) {
        deck[e] = e;
    }
}

/* Of what the bisection meets, that which comes nearest. */
static enum tern_status find_keep(const struct draw *d, int64_t *deck, int64_t *ids, uint64_t *keep)
{
    uint64_t low = HARDLY_EVER, high = ALWAYS;
    double nearest = INFINITY;
    for (int step = 0; step < STEPS; step++) {
        struct fill_random random = fill_begin(d->seed, FILL_IDS, UINT64_MAX, 0);
        uint64_t middle = low + (high - low) / 2;
        fill_deck(d, deck);
        draw_tokens(d, &random, middle, SAMPLE, deck, ids);
        double skew = skew_of(d, ids, SAMPLE);
        if (fabs(skew - d->skew) < fabs(nearest - d->skew)) {
            nearest = skew;
            *keep = middle;
        }
        if (skew > d->skew) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (fabs(nearest - d->skew) > TOLERANCE) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "--skew %u: rank 0 cannot have %u per cent of the mean; %u of %u experts a token on %u "
            "ranks allow at most about %.0f",
            d->skew, d->skew, d->topk, d->experts, d->num_ranks, nearest);
    }
    return TERN_OK;
}

enum tern_status draw_ids(const struct draw *d, int64_t *ids)
{
    int64_t *deck = (int64_t *)malloc(d->experts * sizeof(*deck));
    int64_t *sample = (int64_t *)malloc((size_t)SAMPLE * d->topk * sizeof(*sample));
    uint64_t keep = ALWAYS;
    enum tern_status status = TERN_OK;
    if (deck == NULL || sample == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %u experts", d->experts);
    } else if (d->skew > UNIFORM) {
        status = find_keep(d, deck, sample, &keep);
    }
    for (uint32_t r = 0; status == TERN_OK && r < d->num_ranks; r++) {
        struct fill_random random = fill_begin(d->seed, FILL_IDS, r, 0);
        fill_deck(d, deck);
        draw_tokens(d, &random, keep, d->tokens, deck, ids + (uint64_t)r * d->tokens * d->topk);
    }
    free(sample);
    free(deck);
    return status;
}
