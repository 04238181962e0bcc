/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains, home: a warp takes this rank's own tokens in turn, in ascending order. It pulls
 * and adds the rows of this domain, as pull_bulk does, waits for the token's letters, the messages that
 * bring the sums of other domains, adds all sums in the order of domains, and says that it has read its part
 * of the letters. Loads from letters are under way while it waits for the rows of its own domain. Weights go
 * with the first part of a token, a lane a choice. */
#ifndef TERN_COMBINE_HOME_H
#define TERN_COMBINE_HOME_H

#include "kernels/combine_mix.h"

/* The messages of one token, each lane's of domains lane, lane + 32, ...; and, with up to 32 domains, what
 * the lane has read of those before and not said: parts of messages of one chunk. Saying it costs a fence,
 * so that several say it together. */
struct letters {
    const char *at[PULL_MAX_GROUPS]; /* NULL: none */
    uint32_t read;                   /* parts */
    uint32_t token;                  /* whose letter was the last of them */
    uint32_t chunk;                  /* of the operation */
};

/* The message that brings the sum of domain e for token t; 0 if none does. */
TERN_DEVICE int letter_of(const struct mixer *m, uint32_t t, uint32_t e, struct rail_letter *letter)
{
    const struct combine_inter_args *p = m->p;
    int32_t i = e < (uint32_t)p->rail.world.num_domains
                    ? p->far.message_of[(uint64_t)t * (uint32_t)p->rail.world.num_domains + e]
                    : -1;
    if (i >= 0) {
        *letter = rail_letter_of(&p->rail, rail_index(&p->rail, e), (uint32_t)i, (uint32_t)p->far.num_out[e]);
    }
    return i >= 0;
}

/* In how many parts letters are read. */
TERN_DEVICE uint32_t letter_parts(const struct mixer *m, const int bulk)
{
    return bulk ? m->p->c.parts : m->s.chunks;
}

/* This lane says what it has read, which its warp is synchronised with. 0: abandon. */
TERN_DEVICE int letter_say(const struct mixer *m, struct letters *l, const int bulk)
{
    struct rail_letter last;
    uint32_t num = l->read;
    l->read = 0;
    return num == 0 || !letter_of(m, l->token, (uint32_t)lane(), &last) ||
           rail_finish(&m->rail, &last, num, letter_parts(m, bulk));
}

/* All lanes do. */
TERN_DEVICE int letters_say(const struct mixer *m, struct letters *l, const int bulk)
{
    sync_warp(); /* all lanes have read */
    return !warp_any(!letter_say(m, l, bulk));
}

/* Waits for this lane's letter of domain e, and opens it; NULL if *ok has become 0. */
TERN_DEVICE const char *letter_open(const struct mixer *m, const struct rail_letter *letter, uint32_t e,
                                    int has_come, int *ok)
{
    const char *at = rail_letter_at(&m->p->rail, letter);
    *ok =
        (has_come || rail_await(&m->rail, letter)) &&
        inter_matches(&m->rail, (const struct rail_trailer *)(const void *)(at + m->p->trailer_offset),
                      (int)e, rail_number(&m->p->rail, letter->stream % m->p->rail.num_channels, letter->j));
    return *ok ? at : 0;
}

/* Before the lanes open letters of token t, this lane's `letter` if it `has` one: what it has read of another
 * chunk is said, and all if any of them is going to wait. 0: abandon. All lanes. */
TERN_DEVICE int letters_settle(const struct mixer *m, uint32_t t, struct letters *l, int has, int has_come,
                               const struct rail_letter *letter, const int bulk)
{
    const struct rail_args *p = &m->p->rail;
    int ok = !warp_any(!has_come) || letters_say(m, l, bulk);
    if (has) {
        uint32_t chunk = rail_number(p, letter->stream % p->num_channels, letter->j) / p->chunk;
        ok &= chunk == l->chunk || letter_say(m, l, bulk);
        l->chunk = chunk;
        l->token = t;
    }
    return ok;
}

/* All of token t's. Before it waits, it says what it has read. 0: abandon. All lanes. */
TERN_DEVICE int letters_open(const struct mixer *m, uint32_t t, struct letters *l, const int groups,
                             const int bulk)
{
    int ok = 1;
    TERN_UNROLL
    for (int i = 0; i < groups; i++) {
        struct rail_letter letter = {{0, 0, 0, 0, 0}, 0, 0};
        uint32_t e = (uint32_t)(i * 32 + lane());
        int has = letter_of(m, t, e, &letter), has_come = 0;
        if (groups == 1) {
            has_come = !has || rail_has_come(&m->p->rail, &letter);
            ok = letters_settle(m, t, l, has, has_come, &letter, bulk);
        }
        l->at[i] = ok && has ? letter_open(m, &letter, e, has_come, &ok) : 0;
    }
    ok = !warp_any(!ok);
    sync_warp(); /* what a lane has seen arrive, all may read */
    return ok;
}

/* One part of token t's letters, which are open, has been read. 0: abandon. All lanes. */
TERN_DEVICE int letters_close(const struct mixer *m, uint32_t t, struct letters *l, const int groups,
                              const int bulk)
{
    int ok = 1;
    if (groups == 1) {
        l->read += l->at[0] != 0;
        return 1;
    }
    sync_warp(); /* all lanes have read */
    for (uint32_t e = (uint32_t)lane(); e < (uint32_t)m->p->rail.world.num_domains; e += 32) {
        struct rail_letter letter;
        if (letter_of(m, t, e, &letter)) {
            ok &= rail_finish(&m->rail, &letter, 1, letter_parts(m, bulk));
        }
    }
    return !warp_any(!ok);
}

/* ---- Weights ---- */

/* Of choice k: those of domains e0 .. e0 + 31, whose letters the lanes hold, onto `sum`. All lanes. */
TERN_DEVICE float home_add_weights(const struct mixer *m, const char *letter, uint32_t e0, uint32_t k,
                                   float own, float sum)
{
    uint32_t domain = (uint32_t)m->p->rail.world.domain, left = warp_ballot(letter != 0);
    left |= domain / 32 == e0 / 32 ? 1u << (domain & 31) : 0;
    for (; left; left &= left - 1) {
        int e = TERN_FFS(left) - 1;
        const char *at = (const char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)letter, e);
        sum +=
            e0 + (uint32_t)e == domain ? own : ((const float *)(const void *)(at + m->p->weights_offset))[k];
    }
    return sum;
}

/* Token t's, whose letters are open. All lanes. */
TERN_DEVICE void home_weights(const struct mixer *m, uint32_t t, const struct letters *letters,
                              const int groups)
{
    const struct combine_args *p = &m->p->c;
    for (uint32_t k0 = 0; k0 < p->topk; k0 += 32) {
        uint32_t k = k0 + (uint32_t)lane() < p->topk ? k0 + (uint32_t)lane() : p->topk - 1;
        uint32_t begin = p->layout == 0 ? 0 : k, end = p->layout == 0 ? m->s.map.num_targets : k + 1;
        float own = 0.0f, sum = 0.0f;
        for (uint32_t i = begin; i < end; i += WEIGHTS_AT_ONCE) {
            own = add_weights(&m->s, t, k, i, end, own);
        }
        TERN_UNROLL
        for (int i = 0; i < groups; i++) {
            sum = home_add_weights(m, letters->at[i], (uint32_t)i * 32, k, own, sum);
        }
        if (k0 + (uint32_t)lane() < p->topk) {
            p->out_weights[(uint64_t)t * p->topk + k] = sum;
        }
    }
}

/* ---- Rows ---- */

/* A chunk of the sums of two domains, loads of one letter beside the other's. */
enum { HOME_AT_ONCE = 2 };
struct home_sums {
    int domain[HOME_AT_ONCE]; /* in its group; -1: none */
    struct vec16 v[HOME_AT_ONCE][COMBINE_VECS];
};

/* Domains of group i that have a sum for the token, as bits. All lanes. */
TERN_DEVICE uint32_t home_domains(const struct mixer *m, const struct letters *letters, const int i)
{
    uint32_t domain = (uint32_t)m->p->rail.world.domain;
    return warp_ballot(letters->at[i] != 0) | (domain / 32 == (uint32_t)i ? 1u << (domain & 31) : 0);
}

/* Starts to read the first of those that `left` has; what is left then. `at`: of the group. All lanes. */
TERN_DEVICE uint32_t home_read(const struct mixer *m, const char *at, uint32_t left, uint32_t chunk,
                               struct home_sums *sums)
{
    TERN_UNROLL
    for (int j = 0; j < HOME_AT_ONCE; j++) {
        int e = left ? TERN_FFS(left) - 1 : 0;
        const char *letter = (const char *)(uintptr_t)shfl_u64((uint64_t)(uintptr_t)at, e);
        sums->domain[j] = left ? e : -1;
        left &= left - 1;
        TERN_UNROLL
        for (int q = 0; q < COMBINE_VECS; q++) {
            uint32_t i = (uint32_t)(q * 512 + lane() * 16);
            if (sums->domain[j] >= 0 && letter && i < chunk_size(&m->s, chunk)) {
                sums->v[j][q] = ld_stream_vec16(letter + (size_t)chunk * m->s.p->chunk_bytes + i);
            }
        }
    }
    return left;
}

/* Adds them, in their order; for this rank's domain, if it is in the group, `own`. */
TERN_DEVICE void home_add(const struct puller *s, struct accumulator *all, const struct accumulator *own,
                          int domain, uint32_t chunk, const struct home_sums *sums)
{
    TERN_UNROLL
    for (int j = 0; j < HOME_AT_ONCE; j++) {
        TERN_UNROLL
        for (int q = 0; q < COMBINE_VECS; q++) {
            if (sums->domain[j] >= 0 && sums->domain[j] == domain) {
                sum_add(all->sum[q], sum_round(own->sum[q]));
            } else if (sums->domain[j] >= 0 && (uint32_t)(q * 512 + lane() * 16) < chunk_size(s, chunk)) {
                sum_add(all->sum[q], sums->v[j][q]);
            }
        }
    }
}

/* The sums of all domains, in their order, onto the biases, and out. `own`: of this domain; `first` have been
 * read of the first group, of which `left` is left. All lanes. */
TERN_DEVICE void home_fold(const struct mixer *m, const struct letters *letters,
                           const struct accumulator *own, uint32_t t, uint32_t chunk, struct home_sums *first,
                           uint32_t left, const int groups)
{
    struct accumulator all;
    int domain = m->p->rail.world.domain;
    begin_sum(&m->s, &all, t, chunk);
    home_add(&m->s, &all, own, domain, chunk, first);
    TERN_UNROLL
    for (int i = 0; i < groups; i++) {
        left = i == 0 ? left : home_domains(m, letters, i);
        while (left) {
            struct home_sums sums;
            left = home_read(m, letters->at[i], left, chunk, &sums);
            home_add(&m->s, &all, own, domain - i * 32, chunk, &sums);
        }
    }
    end_sum(&m->s, &all, t, chunk);
}

/* As pull_bulk, until the operation is abandoned: then nothing more is loaded, and what is under way is
 * awaited, because loads must not outlive the block. */
TERN_DEVICE int home_bulk(const struct mixer *m, const int groups)
{
    const struct puller *s = &m->s;
    const struct combine_args *p = s->p;
    uint32_t ahead = p->num_stages - 1, stage = 0, parity = 0, under_way = 0;
    struct loader l = {0};
    struct letters letters = {{0}, 0, 0, 0};
    struct accumulator a;
    int ok = 1;
    puller_init_bars(s);
    l.unit = first_of(s);
    l.failed = 0;
    loader_begin_unit(s, &l, groups);
    for (uint32_t n = 0; n < ahead; n++) {
        under_way += load_step(s, &l, n, groups);
    }
    for (uint32_t u = first_of(s); ok && u < s->units; u = unit_after(s, u)) {
        struct chunk_range c = chunks_of(s, u);
        struct home_sums sums;
        uint32_t t = u / p->parts, left = 0;
        int first = 1;
        ok = letters_open(m, t, &letters, groups, 1);
        if (ok && p->out_weights && c.begin == 0) {
            home_weights(m, t, &letters, groups);
        }
        for (uint32_t chunk = c.begin; ok && chunk < c.end; chunk += (uint32_t)first) {
            under_way += load_step(s, &l, stage == 0 ? ahead : stage - 1, groups);
            if (first) {
                mix_begin(&a);
                left = home_read(m, letters.at[0], home_domains(m, &letters, 0), chunk, &sums);
            }
            first = add_stage(s, &a, chunk_size(s, chunk), stage, parity);
            if (first) {
                home_fold(m, &letters, &a, t, chunk, &sums, left, groups);
            }
            pass_stage(s, &stage, &parity);
            under_way--;
        }
        ok = ok && letters_close(m, t, &letters, groups, 1);
    }
    ok = ok && letters_say(m, &letters, 1);
    for (; under_way != 0; under_way--) {
        while (!mbar_test(s->bars + stage, parity)) {
            spin();
        }
        pass_stage(s, &stage, &parity);
    }
    return ok;
}

TERN_DEVICE int home_plain(const struct mixer *m)
{
    const struct puller *s = &m->s;
    uint64_t units = (uint64_t)s->p->num_tokens * s->chunks;
    struct letters letters = {{0}, 0, 0, 0};
    int ok = 1;
    for (uint64_t unit = first_of(s); ok && unit < units; unit += gap_of(s)) {
        uint32_t t = (uint32_t)(unit / s->chunks), chunk = (uint32_t)(unit % s->chunks);
        struct accumulator a;
        mix_begin(&a);
        for (uint32_t i = 0; i < s->map.num_targets; i++) {
            struct target g = target_of(&s->map, t, i); /* the same in all lanes */
            if (g.rank >= 0) {
                mix_add(s, &a, row_address(s, g), chunk);
            }
        }
        ok = letters_open(m, t, &letters, PULL_MAX_GROUPS, 0);
        if (ok && s->p->out_weights && chunk == 0) {
            home_weights(m, t, &letters, PULL_MAX_GROUPS);
        }
        if (ok) {
            struct home_sums sums;
            uint32_t left = home_read(m, letters.at[0], home_domains(m, &letters, 0), chunk, &sums);
            home_fold(m, &letters, &a, t, chunk, &sums, left, PULL_MAX_GROUPS);
            ok = letters_close(m, t, &letters, PULL_MAX_GROUPS, 0);
        }
    }
    return ok;
}

TERN_DEVICE int mix_home(const struct mixer *m, const int bulk, const int groups)
{
    return bulk ? home_bulk(m, groups) : home_plain(m);
}

#endif
