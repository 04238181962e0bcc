/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that low-latency operations move. On the wire, dispatch has one row a (token, rank) with its header
 * and scales; combine one row a (token, expert), or one a (token, rank) if weights were given at dispatch, in
 * BF16 or as compressed. Railed, a dispatch has one row a (token, other domain) between domains, with a word
 * for each rank there, and inside the domain one for each of its ranks but the one that spreads it; a combine
 * has the same on its way back, if weights were given at dispatch. Words of 8 bytes that tell of arrivals and
 * counts are not counted. */
#include "bench_ll.h"
#include "ep/layout.h"

#include <math.h>

/* (token, expert) pairs from `source` to `rank`. */
static double rows_of(const struct ll_shape *s, int source, int rank)
{
    double rows = 0;
    for (uint32_t e = 0; e < s->experts_here; e++) {
        size_t expert = (size_t)rank * s->experts_here + e;
        rows += s->ref.counts[expert * (size_t)s->routing.num_ranks + (size_t)source];
    }
    return rows;
}

static double row_bytes(const struct ll_shape *s, enum ll_operation operation)
{
    const struct options *o = s->options;
    if (operation == LL_OP_COMBINE) {
        return terni_ll_sent_bytes(o->ll.compression, s->hidden);
    }
    return terni_ll_header_bytes(s->routing.topk, o->ll.rail) + s->row_bytes +
           (double)align_up(terni_ll_scale_bytes(o->ll.cast, s->hidden), 16);
}

/* Of what goes from tokens' rank `home` to experts' rank `away`, or back, if it goes straight. */
static double wire_bytes(const struct ll_shape *s, enum ll_operation operation, int home, int away)
{
    int by_expert = operation == LL_OP_COMBINE && s->options->ll.weights == TERN_LL_WEIGHTS_AT_COMBINE;
    return row_bytes(s, operation) * (by_expert ? rows_of(s, home, away) : (double)ll_pairs(s, home, away));
}

/* Likewise, of slabs. */
static double slab_bytes(const struct ll_shape *s, enum ll_operation operation, int home, int away)
{
    double row = operation == LL_OP_DISPATCH ? s->row_bytes + 4.0 * s->scale_words : 2.0 * s->hidden;
    return row * (s->options->ll.layout == TERN_LL_BY_RANK ? (double)ll_pairs(s, home, away)
                                                           : rows_of(s, home, away));
}

/* Masked ranks have no rows and take no part in the mean. */
double ll_skew(const struct ll_shape *s)
{
    double most = 0, all = 0, ranks = 0;
    for (int r = 0; r < s->routing.num_ranks; r++) {
        double rows = 0;
        for (uint32_t k = 0; k < ll_num_runs(s); k++) {
            rows += (double)ll_run(s, r, k).num;
        }
        most = rows > most ? rows : most;
        all += rows;
        ranks += !s->masked[r];
    }
    return all > 0 ? most * ranks / all : NAN;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Bytes that one rank sends and receives; of those, to and from other domains; and those of slabs. */
struct load {
    double out, in, left, came, given, got;
};

/* `to` and `from` as in a dispatch; a combine's go the other way. */
static void carry(struct load *loads, int from, int to, int domain, double bytes)
{
    int is_far = from / domain != to / domain;
    if (from != to) {
        loads[from].out += bytes;
        loads[to].in += bytes;
        loads[from].left += is_far ? bytes : 0;
        loads[to].came += is_far ? bytes : 0;
    }
}

static int is_railed(const struct ll_shape *s, enum ll_operation operation)
{
    return s->ref.rail_ranks != 0 &&
           (operation == LL_OP_DISPATCH || s->options->ll.weights == TERN_LL_WEIGHTS_AT_DISPATCH);
}

/* Between a rank and those of another domain: by `peer`, the one there on its rail. */
static void carry_railed(const struct ll_shape *s, enum ll_operation operation, struct load *loads, int home,
                         int peer)
{
    int size = s->ref.rail_ranks, first = peer - peer % size;
    double tail = operation == LL_OP_DISPATCH ? (double)align_up(sizeof(int32_t) * (uint32_t)size, 16) : 0;
    carry(loads, home, peer, size, ll_messages(s, home, peer / size) * (row_bytes(s, operation) + tail));
    for (int away = first; away < first + size; away++) {
        carry(loads, peer, away, size, wire_bytes(s, operation, home, away));
    }
}

static void carry_all(const struct ll_shape *s, enum ll_operation operation, int domain, struct load *loads,
                      int home)
{
    for (int away = 0; away < s->routing.num_ranks; away++) {
        loads[home].given += slab_bytes(s, operation, home, away);
        loads[away].got += slab_bytes(s, operation, home, away);
        if (!is_railed(s, operation) || away / domain == home / domain) {
            carry(loads, home, away, domain, wire_bytes(s, operation, home, away));
        } else if (away % domain == home % domain) {
            carry_railed(s, operation, loads, home, away);
        }
    }
}

struct ll_traffic ll_traffic(const struct ll_shape *s, enum ll_operation operation)
{
    struct ll_traffic t = {0, 0, 0};
    struct load loads[TERN_MAX_RANKS] = {{0, 0, 0, 0, 0, 0}};
    int domain = s->options->net.domain_size ? (int)s->options->net.domain_size : s->routing.num_ranks;
    for (int r = 0; r < s->routing.num_ranks; r++) {
        carry_all(s, operation, domain, loads, r);
    }
    for (int r = 0; r < s->routing.num_ranks; r++) {
        const struct load *l = &loads[r];
        t.remote = larger(t.remote, larger(l->out, l->in));
        t.network = larger(t.network, larger(l->left, l->came));
        t.logical = larger(t.logical, larger(l->given, l->got));
    }
    return t;
}
