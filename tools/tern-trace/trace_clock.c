/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks: the ranks of a host share one on the cpu machine, each GPU has its own. What is known of two is
 * what ranks have seen: nobody has received before it was sent. */
#include "trace_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void number_clocks(struct traces *t)
{
    t->clocks = (struct clock *)trace_make(t->num_files, sizeof(*t->clocks));
    for (size_t i = 0; i < t->num_files; i++) {
        struct file *f = &t->files[i];
        int c = 0;
        while (c < t->num_clocks &&
               (t->clocks[c].host != f->h.host || t->clocks[c].kind != f->h.clock ||
                (f->h.clock == TRACE_CLOCK_GPU && memcmp(t->clocks[c].device, f->h.device, 16) != 0))) {
            c++;
        }
        f->clock = c;
        if (c == t->num_clocks) {
            t->num_clocks++;
            t->clocks[c].kind = f->h.clock;
            t->clocks[c].host = f->h.host;
            t->clocks[c].first = (int)i;
            memcpy(t->clocks[c].device, f->h.device, 16);
        }
    }
}

static const int64_t none = INT64_MAX;

/* bounds[s * n + d]: a wait on clock d was over so long after what it was for had begun on clock s, at
 * least: what s is to be shifted by may exceed that of d by no more. Within MAX_TIME either way, or none. */
static void bound_by_waits(const struct traces *t, int64_t *bounds)
{
    for (size_t i = 0; i < t->num_files; i++) {
        const struct file *waiter = &t->files[i];
        for (size_t j = 0; j < t->num_files; j++) {
            const struct file *peer = &t->files[j];
            if (peer->clock == waiter->clock || peer->comm != waiter->comm ||
                peer->h.object != waiter->h.object) {
                continue;
            }
            int64_t *bound = &bounds[peer->clock * t->num_clocks + waiter->clock];
            for (size_t k = 0; k < waiter->num_waits; k++) {
                const struct slice *w = &waiter->waits[k];
                /* Room in a stream may have come before the operation. */
                if (w->e.peer != peer->h.rank || w->e.outcome != STAMP_CAME ||
                    w->e.what == TERN_AWAIT_CREDIT) {
                    continue;
                }
                /* The first block to begin, as it may be any that this one waited for: if it is there. */
                size_t b = trace_find_operation(peer, &w->e);
                if (b < peer->num_blocks && trace_compare_operation(&peer->in_order[b]->e, &w->e) == 0 &&
                    !trace_may_lack_blocks(peer, b) && w->end - peer->in_order[b]->begin < *bound) {
                    *bound = w->end - peer->in_order[b]->begin;
                }
            }
        }
    }
}

/* Bounds by way of clock k. Returns the least of a clock against itself, which is 0 unless they contradict
 * each other: they would shrink without end then. */
static int64_t tighten(int64_t *bounds, int n, int k)
{
    int64_t least = 0;
    for (int i = 0; i < n * n; i++) {
        int64_t to_k = bounds[i / n * n + k], from_k = bounds[k * n + i % n];
        if (to_k != none && from_k != none && to_k + from_k < bounds[i] && to_k + from_k <= MAX_TIME) {
            bounds[i] = to_k + from_k > -MAX_TIME ? to_k + from_k : -MAX_TIME;
        }
        least = i / n == i % n && bounds[i] < least ? bounds[i] : least;
    }
    return least;
}

/* Nothing may be over before it began, on whatever clocks. Between the bounds that this sets, clocks are
 * shifted to the middle; if all are of one host, they are left alone where they keep them. Clocks that drift
 * may contradict each other: each is then shifted to the middle of what it and clock 0 say. */
static void choose_offsets(struct traces *t)
{
    int n = t->num_clocks, keeps = 1;
    size_t num = (size_t)n * (size_t)n;
    int64_t *direct = (int64_t *)trace_make(num, sizeof(*direct));
    int64_t *bounds = (int64_t *)trace_make(num, sizeof(*bounds));
    for (int i = 0; i < n * n; i++) {
        direct[i] = i / n == i % n ? 0 : none;
    }
    bound_by_waits(t, direct);
    memcpy(bounds, direct, num * sizeof(*bounds));
    for (int i = 0; i < n * n; i++) {
        keeps &= bounds[i] >= 0 && t->clocks[i / n].host == t->clocks[0].host;
    }
    for (int k = 0; k < n && !t->contradiction; k++) {
        t->contradiction = -tighten(bounds, n, k);
    }
    if (t->contradiction) {
        memcpy(bounds, direct, num * sizeof(*bounds));
    }
    for (int c = 1; c < n; c++) {
        int has_most = bounds[c * n] != none, has_least = bounds[c] != none;
        int64_t most = bounds[c * n], least = has_least ? -bounds[c] : 0; /* of its shift against clock 0 */
        struct clock *k = &t->clocks[c];
        k->half = has_most && has_least && !t->contradiction ? (most - least) / 2 : -1;
        k->offset = keeps                   ? 0
                    : has_most && has_least ? least + (most - least) / 2
                    : has_most              ? most
                    : has_least             ? least
                                            : 0;
        if (!keeps && !has_most && !has_least && t->files[k->first].num_blocks && t->files[0].num_blocks) {
            k->offset = t->files[0].blocks[0].begin - t->files[k->first].blocks[0].begin;
        }
    }
    free(direct);
    free(bounds);
}

static void shift(struct slice *slices, size_t num, int64_t by)
{
    for (size_t i = 0; i < num; i++) {
        slices[i].begin += by;
        slices[i].end += by;
    }
}

void trace_align(struct traces *t)
{
    number_clocks(t);
    choose_offsets(t);
    if (t->contradiction) {
        fprintf(stderr,
                "tern-trace: warning: waits contradict each other by %.6f ms, as if clocks drifted: times of "
                "different clocks are no better than that\n",
                (double)t->contradiction / 1e6);
    }
    for (size_t i = 0; i < t->num_files; i++) {
        struct file *f = &t->files[i];
        shift(f->blocks, f->num_blocks, t->clocks[f->clock].offset);
        shift(f->waits, f->num_waits, t->clocks[f->clock].offset);
    }
}
