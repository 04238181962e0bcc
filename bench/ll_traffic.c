/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that low-latency operations move. On the wire, dispatch has one row a (token, rank) with its header and
 * scales; combine one row a (token, expert), or one a (token, rank) if weights were given at dispatch. Words of
 * 8 bytes that tell of arrivals and counts are not counted. */
#include "bench_ll.h"
#include "ep/layout.h"

/* Rows from `source` to experts of `rank`, and how many (token, rank) pairs they are. */
static double rows_of(const struct ll_shape *s, int source, int rank)
{
    double rows = 0;
    for (uint32_t e = 0; e < s->experts_here; e++) {
        size_t expert = (size_t)rank * s->experts_here + e;
        rows += s->ref.counts[expert * (size_t)s->routing.num_ranks + (size_t)source];
    }
    return rows;
}

static double pairs_of(const struct ll_shape *s, int source, int rank)
{
    return s->routing.routes[rank].rank_counts[source];
}

/* Of what goes from tokens' rank `home` to experts' rank `away`, or back. */
static double wire_bytes(const struct ll_shape *s, enum ll_operation operation, int home, int away)
{
    const struct options *o = s->options;
    if (operation == LL_OP_DISPATCH) {
        double row = terni_ll_header_bytes(s->routing.topk) + s->row_bytes +
                     (double)align_up(terni_ll_scale_bytes(o->ll.cast, s->hidden), 16);
        return pairs_of(s, home, away) * row;
    }
    return 2.0 * s->hidden *
           (o->ll.weights == TERN_LL_WEIGHTS_AT_DISPATCH ? pairs_of(s, home, away) : rows_of(s, home, away));
}

static double larger(double a, double b) { return a > b ? a : b; }

struct ll_traffic ll_traffic(const struct ll_shape *s, enum ll_operation operation)
{
    double row = operation == LL_OP_DISPATCH ? s->row_bytes + 4.0 * s->scale_words : 2.0 * s->hidden;
    struct ll_traffic t = {0, 0};
    for (int r = 0; r < s->routing.num_ranks; r++) {
        double out = 0, in = 0, given = 0, got = 0;
        for (int peer = 0; peer < s->routing.num_ranks; peer++) {
            out += peer == r ? 0 : wire_bytes(s, operation, r, peer);
            in += peer == r ? 0 : wire_bytes(s, operation, peer, r);
            given += row * rows_of(s, r, peer);
            got += row * rows_of(s, peer, r);
        }
        t.remote = larger(t.remote, larger(out, in));
        t.logical = larger(t.logical, larger(given, got));
    }
    return t;
}
