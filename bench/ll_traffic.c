/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that low-latency operations move. On the wire, dispatch has one row a (token, rank) with its header
 * and scales; combine one row a (token, expert), or one a (token, rank) if weights were given at dispatch, in
 * BF16 or as compressed. Words of 8 bytes that tell of arrivals and counts are not counted. */
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

/* Of what goes from tokens' rank `home` to experts' rank `away`, or back. */
static double wire_bytes(const struct ll_shape *s, enum ll_operation operation, int home, int away)
{
    const struct options *o = s->options;
    if (operation == LL_OP_DISPATCH) {
        double row = terni_ll_header_bytes(s->routing.topk) + s->row_bytes +
                     (double)align_up(terni_ll_scale_bytes(o->ll.cast, s->hidden), 16);
        return ll_pairs(s, home, away) * row;
    }
    return (double)terni_ll_sent_bytes(o->ll.compression, s->hidden) *
           (o->ll.weights == TERN_LL_WEIGHTS_AT_DISPATCH ? (double)ll_pairs(s, home, away)
                                                         : rows_of(s, home, away));
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

struct ll_traffic ll_traffic(const struct ll_shape *s, enum ll_operation operation)
{
    struct ll_traffic t = {0, 0, 0};
    int domain = s->options->net.domain_size ? (int)s->options->net.domain_size : s->routing.num_ranks;
    for (int r = 0; r < s->routing.num_ranks; r++) {
        double out = 0, in = 0, given = 0, got = 0, left = 0, came = 0;
        for (int peer = 0; peer < s->routing.num_ranks; peer++) {
            out += peer == r ? 0 : wire_bytes(s, operation, r, peer);
            in += peer == r ? 0 : wire_bytes(s, operation, peer, r);
            left += peer / domain == r / domain ? 0 : wire_bytes(s, operation, r, peer);
            came += peer / domain == r / domain ? 0 : wire_bytes(s, operation, peer, r);
            given += slab_bytes(s, operation, r, peer);
            got += slab_bytes(s, operation, peer, r);
        }
        t.remote = larger(t.remote, larger(out, in));
        t.network = larger(t.network, larger(left, came));
        t.logical = larger(t.logical, larger(given, got));
    }
    return t;
}
