/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch and combine by the reference: first the row of every choice among its expert's, by
 * walking all tokens once an expert; then one row, one channel after another. By rank, a token's row is found
 * by counting its rank's earlier tokens that go there too. Railed, rows of one token made in another domain
 * become one first. */
#include <stdlib.h>
#include <string.h>

#include "ref/ref.h"

static uint32_t share_of(const struct ref_world *w) { return w->num_experts / (uint32_t)w->num_ranks; }

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    if (!memory) {
        abort();
    }
    return memory;
}

static int is_masked(const struct ref_ll *ll, int rank) { return ll->masked && ll->masked[rank]; }

static int reaches(const struct ref_ll *ll, int source, int rank)
{
    return !is_masked(ll, source) && !is_masked(ll, rank);
}

/* Gives the choices of expert e by one token its next row, if there are any. */
static int give_row(const struct ref_world *w, int64_t e, int source, uint32_t token, int32_t row,
                    int32_t *row_of)
{
    int found = 0;

    for (uint32_t k = 0; k < w->topk; k++) {
        size_t at = (size_t)token * w->topk + k;
        if (w->topk_idx[source][at] == e) {
            row_of[at] = row;
            found = 1;
        }
    }
    return found;
}

void terni_ref_ll_init(struct ref_ll *ll, const struct ref_world *w, uint32_t max_tokens)
{
    ll->world = w;
    ll->max_tokens = max_tokens;
    ll->masked = NULL;
    ll->rail_ranks = 0;
    ll->row_of = (int32_t **)take((size_t)w->num_ranks, sizeof(*ll->row_of));
    ll->counts = (int32_t *)take((size_t)w->num_experts * (size_t)w->num_ranks, sizeof(*ll->counts));
    for (int s = 0; s < w->num_ranks; s++) {
        ll->row_of[s] = (int32_t *)take((size_t)w->num_tokens[s] * w->topk, sizeof(int32_t));
    }
    terni_ref_ll_mask(ll, NULL);
}

void terni_ref_ll_mask(struct ref_ll *ll, const unsigned char *masked)
{
    const struct ref_world *w = ll->world;

    ll->masked = masked;
    for (int s = 0; s < w->num_ranks; s++) {
        for (size_t i = 0; i < (size_t)w->num_tokens[s] * w->topk; i++) {
            ll->row_of[s][i] = -1;
        }
    }
    for (uint32_t e = 0; e < w->num_experts; e++) {
        int32_t row = 0;
        for (int s = 0; s < w->num_ranks; s++) {
            int32_t first = row;
            int sent = reaches(ll, s, (int)(e / share_of(w)));
            for (uint32_t t = 0; sent && t < w->num_tokens[s]; t++) {
                row += give_row(w, e, s, t, row, ll->row_of[s]);
            }
            ll->counts[(size_t)e * (size_t)w->num_ranks + (size_t)s] = row - first;
        }
    }
}

void terni_ref_ll_fini(struct ref_ll *ll)
{
    for (int s = 0; ll->row_of && s < ll->world->num_ranks; s++) {
        free(ll->row_of[s]);
    }
    free(ll->row_of);
    free(ll->counts);
    memset(ll, 0, sizeof(*ll));
}

/* Whether an expert of that rank is among the ids of a token. */
static int goes_to(const struct ref_world *w, int rank, int source, uint32_t token)
{
    for (uint32_t k = 0; k < w->topk; k++) {
        int64_t id = w->topk_idx[source][(size_t)token * w->topk + k];
        if (id >= 0 && id < (int64_t)w->num_experts && id / share_of(w) == rank) {
            return 1;
        }
    }
    return 0;
}

/* By rank: how many of a source's tokens before this one go there. */
static uint32_t rows_before(const struct ref_world *w, int rank, int source, uint32_t token)
{
    uint32_t rows = 0;

    for (uint32_t t = 0; t < token; t++) {
        rows += (uint32_t)goes_to(w, rank, source, t);
    }
    return rows;
}

static void place_counts(const struct ref_ll *ll, const struct tern_ll_dispatch_args *to, int rank)
{
    const struct ref_world *w = ll->world;

    for (int s = 0; to->layout == TERN_LL_BY_RANK && s < w->num_ranks; s++) {
        to->out_counts[s] = reaches(ll, s, rank) ? (int32_t)rows_before(w, rank, s, w->num_tokens[s]) : 0;
    }
    for (uint32_t e = 0; e < share_of(w); e++) {
        int64_t begin = 0;
        for (int s = 0; s < w->num_ranks; s++) {
            size_t expert = (size_t)rank * share_of(w) + e;
            int32_t count = ll->counts[expert * (size_t)w->num_ranks + (size_t)s];
            if (to->out_ranges) {
                to->out_ranges[(size_t)e * (size_t)w->num_ranks + (size_t)s] = begin * 4294967296 + count;
            }
            begin += count;
        }
        if (to->layout == TERN_LL_BY_EXPERT) {
            to->out_counts[e] = (int32_t)begin;
        }
        if (to->sum_counts) {
            to->sum_counts[e] += begin;
        }
    }
}

/* A cast row and its scales, the latter word by word to where all rows of a word are together. */
static void place_cast(const struct tern_ll_dispatch_args *to, const uint16_t *row, size_t at,
                       uint64_t slab_rows)
{
    uint32_t words = terni_ref_scale_bytes(to->cast, to->hidden) / 4;
    uint32_t *scales = (uint32_t *)take(words, 4);
    uint64_t expert = at / slab_rows, position = at % slab_rows;

    terni_ref_cast(to->cast, row, to->hidden, (uint8_t *)to->out + at * to->hidden, scales);
    for (uint32_t i = 0; i < words; i++) {
        ((uint32_t *)to->out_scales)[(expert * words + i) * slab_rows + position] = scales[i];
    }
    free(scales);
}

/* One token of `from` into row `at` of the output. */
static void place_row(const struct ref_ll *ll, const struct tern_ll_dispatch_args *from,
                      const struct tern_ll_dispatch_args *to, uint32_t token, size_t at)
{
    int64_t stride = from->in_stride ? from->in_stride : 2 * (int64_t)to->hidden;
    const char *row = (const char *)from->in + (int64_t)token * stride;

    if (to->cast != TERN_CAST_NONE) {
        place_cast(to, (const uint16_t *)(const void *)row, at,
                   (uint64_t)ll->world->num_ranks * ll->max_tokens);
    } else {
        memcpy((char *)to->out + at * 2 * to->hidden, row, 2 * (size_t)to->hidden);
    }
    if (to->out_source) {
        to->out_source[at] = (int32_t)token;
    }
}

/* By rank: which experts here row `at` is for. */
static void place_choices(const struct ref_ll *ll, const struct tern_ll_dispatch_args *args, int rank,
                          int source, uint32_t token, size_t at)
{
    const struct ref_world *w = ll->world;
    const struct tern_ll_dispatch_args *to = &args[rank];

    for (uint32_t k = 0; k < w->topk; k++) {
        int64_t expert = w->topk_idx[source][(size_t)token * w->topk + k] - (int64_t)rank * share_of(w);
        int here = expert >= 0 && expert < (int64_t)share_of(w);
        if (to->out_topk_idx) {
            to->out_topk_idx[at * w->topk + k] = here ? (int32_t)expert : -1;
        }
        if (to->out_topk_weights) {
            const float *weights = args[source].topk_weights;
            to->out_topk_weights[at * w->topk + k] =
                here && weights ? weights[(size_t)token * w->topk + k] : 0.0f;
        }
    }
}

static void dispatch_by_rank(const struct ref_ll *ll, const struct tern_ll_dispatch_args *args, int rank)
{
    const struct ref_world *w = ll->world;

    for (int s = 0; s < w->num_ranks; s++) {
        for (uint32_t t = 0; reaches(ll, s, rank) && t < w->num_tokens[s]; t++) {
            if (goes_to(w, rank, s, t)) {
                size_t at = (size_t)s * ll->max_tokens + rows_before(w, rank, s, t);
                place_row(ll, &args[s], &args[rank], t, at);
                place_choices(ll, args, rank, s, t, at);
            }
        }
    }
}

void terni_ref_ll_dispatch(const struct ref_ll *ll, const struct tern_ll_dispatch_args *args, int rank)
{
    const struct ref_world *w = ll->world;
    const struct tern_ll_dispatch_args *to = &args[rank];
    uint64_t slab_rows = (uint64_t)w->num_ranks * ll->max_tokens;

    place_counts(ll, to, rank);
    if (to->layout == TERN_LL_BY_RANK) {
        dispatch_by_rank(ll, args, rank);
        return;
    }
    for (int s = 0; s < w->num_ranks; s++) {
        for (uint32_t i = 0; i < w->num_tokens[s] * w->topk; i++) {
            int64_t expert = w->topk_idx[s][i] - (int64_t)rank * share_of(w);
            if (ll->row_of[s][i] < 0 || expert < 0 || expert >= (int64_t)share_of(w)) {
                continue;
            }
            place_row(ll, &args[s], to, i / w->topk, (size_t)expert * slab_rows + (size_t)ll->row_of[s][i]);
        }
    }
}

/* One token on its way home. */
struct sums {
    const struct ref_ll *ll;
    const struct tern_ll_dispatch_args *dispatch;
    const struct tern_ll_combine_args *args;
    int rank;
    uint32_t token;
    uint16_t *sent; /* [hidden] a row that comes home */
    float *arrived; /* [hidden] the same as it is read there */
    float *sum;     /* [hidden] */
    float *part;    /* [hidden] railed: of one other domain */
};

/* Rank that owns choice k's expert; -1: no expert, or one that is left out. */
static int owner_of(const struct sums *x, uint32_t k)
{
    const struct ref_world *w = x->ll->world;
    size_t at = (size_t)x->token * w->topk + k;
    int owner = x->ll->row_of[x->rank][at] < 0 ? -1 : (int)(w->topk_idx[x->rank][at] / share_of(w));

    return owner >= 0 && reaches(x->ll, owner, x->rank) ? owner : -1;
}

/* What the expert of choice k made. */
static const uint16_t *made_of(const struct sums *x, uint32_t k)
{
    const struct ref_world *w = x->ll->world;
    size_t at = (size_t)x->token * w->topk + k;
    size_t expert = (size_t)(w->topk_idx[x->rank][at] % share_of(w));
    size_t row = expert * (size_t)w->num_ranks * x->ll->max_tokens + (size_t)x->ll->row_of[x->rank][at];

    return (const uint16_t *)x->args[owner_of(x, k)].in + row * x->dispatch->hidden;
}

/* What the caller at `owner` made of the token's row there. */
static const uint16_t *made_by_rank(const struct sums *x, int owner)
{
    size_t row = (size_t)x->rank * x->ll->max_tokens + rows_before(x->ll->world, owner, x->rank, x->token);

    return (const uint16_t *)x->args[owner].in + row * x->dispatch->hidden;
}

/* The rounded sum of one rank's choices. */
static void sum_of_rank(const struct sums *x, int owner)
{
    uint32_t topk = x->ll->world->topk;
    const float *weights = x->dispatch->weights == TERN_LL_WEIGHTS_AHEAD ? x->args[x->rank].topk_weights
                                                                         : x->dispatch->topk_weights;

    for (uint32_t c = 0; c < x->dispatch->hidden; c++) {
        float sum = 0;
        for (uint32_t k = 0; k < topk; k++) {
            if (owner_of(x, k) == owner) {
                float product = weights[(size_t)x->token * topk + k] * terni_ref_bf16_value(made_of(x, k)[c]);
                sum += product;
            }
        }
        x->sent[c] = terni_ref_bf16(sum);
    }
}

/* The row travels and is added where it arrives. */
static void add_sent(const struct sums *x, float weight, float *sum)
{
    terni_ref_compress(x->args[x->rank].compression, x->sent, x->dispatch->hidden, x->arrived);
    for (uint32_t c = 0; c < x->dispatch->hidden; c++) {
        float product = weight * x->arrived[c];
        sum[c] += product;
    }
}

static void sum_of_choices(const struct sums *x)
{
    uint32_t topk = x->ll->world->topk;

    for (uint32_t k = 0; k < topk; k++) {
        if (owner_of(x, k) >= 0) {
            memcpy(x->sent, made_of(x, k), 2 * (size_t)x->dispatch->hidden);
            add_sent(x, x->args[x->rank].topk_weights[(size_t)x->token * topk + k], x->sum);
        }
    }
}

/* The row that one rank sends for the token. */
static void send_of_rank(const struct sums *x, int owner)
{
    if (x->dispatch->layout == TERN_LL_BY_RANK) {
        memcpy(x->sent, made_by_rank(x, owner), 2 * (size_t)x->dispatch->hidden);
    } else {
        sum_of_rank(x, owner);
    }
}

/* Railed: the rows of a domain's ranks, lowest rank first, as the one row that it sends. */
static void send_of_domain(const struct sums *x, int domain)
{
    int size = x->ll->rail_ranks;

    memset(x->part, 0, x->dispatch->hidden * sizeof(*x->part));
    for (int owner = domain * size; owner < (domain + 1) * size; owner++) {
        int has_row = 0;
        for (uint32_t k = 0; k < x->ll->world->topk; k++) {
            has_row |= owner_of(x, k) == owner;
        }
        if (has_row) {
            send_of_rank(x, owner);
            add_sent(x, 1.0f, x->part);
        }
    }
    for (uint32_t c = 0; c < x->dispatch->hidden; c++) {
        x->sent[c] = terni_ref_bf16(x->part[c]);
    }
}

/* Who sends the row that has choice k in it: a rank, or railed -2 - d for the other domain d; -1: nobody. */
static int sender_of(const struct sums *x, uint32_t k)
{
    int owner = owner_of(x, k);
    int size = x->ll->rail_ranks;

    return owner < 0 || size == 0 || owner / size == x->rank / size ? owner : -2 - owner / size;
}

static void sum_of_senders(const struct sums *x)
{
    for (uint32_t k = 0; k < x->ll->world->topk; k++) {
        int sender = sender_of(x, k);
        int seen = sender == -1;
        for (uint32_t i = 0; i < k; i++) {
            seen |= sender_of(x, i) == sender;
        }
        if (seen) {
            continue;
        }
        if (sender < 0) {
            send_of_domain(x, -2 - sender);
        } else {
            send_of_rank(x, sender);
        }
        add_sent(x, 1.0f, x->sum);
    }
}

void terni_ref_ll_combine(const struct ref_ll *ll, const struct tern_ll_dispatch_args *dispatch,
                          const struct tern_ll_combine_args *args, int rank)
{
    const struct tern_ll_combine_args *home = &args[rank];
    const struct tern_ll_dispatch_args *sent = &dispatch[rank];
    struct sums x = {ll, sent, args, rank, 0, NULL, NULL, NULL, NULL};
    int64_t stride = home->out_stride ? home->out_stride : 2 * (int64_t)sent->hidden;

    x.sent = (uint16_t *)take(sent->hidden, sizeof(*x.sent));
    x.arrived = (float *)take(sent->hidden, sizeof(*x.arrived));
    x.sum = (float *)take(sent->hidden, sizeof(*x.sum));
    x.part = (float *)take(sent->hidden, sizeof(*x.part));
    for (; x.token < ll->world->num_tokens[rank]; x.token++) {
        uint16_t *out = (uint16_t *)(void *)((char *)home->out + (int64_t)x.token * stride);
        memset(x.sum, 0, sent->hidden * sizeof(*x.sum));
        if (sent->weights != TERN_LL_WEIGHTS_AT_COMBINE) {
            sum_of_senders(&x);
        } else {
            sum_of_choices(&x);
        }
        for (uint32_t c = 0; c < sent->hidden; c++) {
            out[c] = terni_ref_bf16(x.sum[c]);
        }
    }
    free(x.sent);
    free(x.arrived);
    free(x.sum);
    free(x.part);
}
