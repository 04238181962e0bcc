/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks: the ranks of a host share one on the cpu machine, each GPU has its own. What is known of two is
 * what ranks have seen: nobody has received before it was sent. */
#include "trace_parts.h"

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

static const int64_t far_away = INT64_MAX / 4;

/* bounds[s * n + d]: a wait on clock d was over so long after what it was for had begun on clock s, at
 * least: what s is to be shifted by may exceed that of d by no more. */
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
                /* The first block to begin, as it may be any that this one waited for. */
                size_t b = trace_find_operation(peer, &w->e);
                if (b < peer->num_blocks && trace_compare_operation(&peer->in_order[b]->e, &w->e) == 0 &&
                    w->end - peer->in_order[b]->begin < *bound) {
                    *bound = w->end - peer->in_order[b]->begin;
                }
            }
        }
    }
}

/* Nothing may be over before it began, on whatever clocks. Between the bounds that this sets, clocks are
 * shifted to the middle; on one host they are left alone if they keep them. */
static void choose_offsets(struct traces *t)
{
    int n = t->num_clocks, keeps = 1;
    int64_t *bounds = (int64_t *)trace_make((size_t)n * (size_t)n, sizeof(*bounds));
    for (int i = 0; i < n * n; i++) {
        bounds[i] = i / n == i % n ? 0 : far_away;
    }
    bound_by_waits(t, bounds);
    for (int i = 0; i < n * n; i++) {
        keeps &= bounds[i] >= 0 && t->clocks[i / n].host == t->clocks[0].host;
    }
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < n * n; i++) {
            int64_t by_k = bounds[i / n * n + k] + bounds[k * n + i % n];
            bounds[i] = by_k < bounds[i] ? by_k : bounds[i];
        }
    }
    for (int c = 1; c < n; c++) {
        int64_t most = bounds[c * n], least = -bounds[c]; /* of clock c's shift against clock 0 */
        int has_most = most<far_away / 2, has_least = least> - far_away / 2;
        struct clock *k = &t->clocks[c];
        k->half = has_most && has_least ? (most - least) / 2 : -1;
        k->offset = keeps                   ? 0
                    : has_most && has_least ? least + (most - least) / 2
                    : has_most              ? most
                    : has_least             ? least
                                            : 0;
        if (!keeps && !has_most && !has_least && t->files[k->first].num_blocks && t->files[0].num_blocks) {
            k->offset = t->files[0].blocks[0].begin - t->files[k->first].blocks[0].begin;
        }
    }
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
    for (size_t i = 0; i < t->num_files; i++) {
        struct file *f = &t->files[i];
        shift(f->blocks, f->num_blocks, t->clocks[f->clock].offset);
        shift(f->waits, f->num_waits, t->clocks[f->clock].offset);
    }
}
