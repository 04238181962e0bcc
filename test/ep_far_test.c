/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes across domains against the reference: counts and views as in one domain, and the tables by which
 * messages find their rows in another domain, entry by entry. Domains are cut by the configuration, where
 * loads and stores carry what a network would and schedules follow their seeds, and by TERN_DOMAIN_SIZE,
 * where the proxy does. */
#include "far_scene.h"
#include "far_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank has in a slot of its route. */
struct tables {
    struct far_tables far;
    int32_t *num_out, *num_in, *bases, *message_of, *token_of;
};

/* Copies of device memory; NULL after a note. */
static int32_t *fetch(struct world *w, int rank, const int32_t *device, size_t count)
{
    int32_t *copy = (int32_t *)test_take(count + 1, sizeof *copy);
    size_t piece = SCRATCH_BYTES / sizeof *copy, at;

    for (at = 0; at < count; at += piece) {
        size_t n = count - at < piece ? count - at : piece;
        const void *peeked = world_peek(w, rank, device + at, n * sizeof *copy);
        if (!peeked) {
            free(copy);
            return NULL;
        }
        memcpy(copy + at, peeked, n * sizeof *copy);
    }
    return copy;
}

static int fetch_tables(struct batch *b, int rank, struct tables *x)
{
    size_t domains, tokens = b->num_tokens[rank];

    far_tables_of(b->routes[rank], &x->far);
    domains = x->far.domains;
    x->num_out = fetch(b->world, rank, x->far.num_out, domains);
    x->num_in = fetch(b->world, rank, x->far.num_in, domains);
    x->bases = fetch(b->world, rank, x->far.bases, domains * x->far.keys);
    x->message_of = fetch(b->world, rank, x->far.message_of, tokens * domains);
    x->token_of = fetch(b->world, rank, x->far.token_of, domains * x->far.max_tokens);
    return x->num_out && x->num_in && x->bases && x->message_of && x->token_of ? TEST_PASSED : TEST_FAILED;
}

static void drop_tables(struct tables *x)
{
    free(x->num_out);
    free(x->num_in);
    free(x->bases);
    free(x->message_of);
    free(x->token_of);
}

/* The choice as an expert of domain e, or -1. */
static int expert_in(const struct batch *b, int source, uint32_t t, uint32_t k, int e)
{
    int64_t id = b->ids[source][(size_t)t * b->shape.topk + k];
    int64_t experts = (int64_t)b->shape.num_experts / (b->world->num_ranks / b->world->domain_ranks);

    return id >= 0 && id < (int64_t)b->shape.num_experts && id / experts == e ? (int)(id % experts) : -1;
}

static int goes_to(const struct batch *b, int source, uint32_t t, int e)
{
    uint32_t k;

    for (k = 0; k < b->shape.topk; k++) {
        if (expert_in(b, source, t, k, e) >= 0) {
            return 1;
        }
    }
    return 0;
}

/* The entry of token t of rank `source` at forwarder `rank`: what is there, and what should be. */
static int check_entry(const struct batch *b, int rank, int source, const struct tables *x,
                       const int32_t *entry, uint32_t t)
{
    int size = b->world->domain_ranks, domain = rank / size, by_rank = b->shape.layout == TERN_LAYOUT_RANK;
    uint32_t topk = b->shape.topk, targets = by_rank ? (uint32_t)size : topk, found = 0, i;
    uint32_t share = b->shape.num_experts / (uint32_t)b->world->num_ranks;
    uint32_t keys = by_rank ? (uint32_t)size : share * (uint32_t)size;
    const int32_t *bases = x->bases + (size_t)(source / size) * keys;

    CHECK(entry[0] == (int32_t)t, "rank %d: an entry of rank %d has token %d, expected %u", rank, source,
          entry[0], t);
    for (i = 0; i < topk; i++) {
        CHECK(entry[2 + i] == expert_in(b, source, t, i, domain),
              "rank %d: choice %u of token %u of rank %d is %d", rank, i, t, source, entry[2 + i]);
    }
    for (i = 0; i < targets; i++) {
        int expert = by_rank ? 0 : expert_in(b, source, t, i, domain);
        int owner = domain * size + (by_rank ? (int)i : expert < 0 ? 0 : expert / (int)share);
        int64_t row = expert < 0 ? -1 : terni_ref_route_row(&b->expected[owner], &b->ref, source, t, i);
        const int32_t *target = entry + 2 + topk + 2 * (by_rank ? found : i);
        if (row < 0) {
            CHECK(by_rank || target[1] == -1, "rank %d: choice %u of token %u of rank %d has slot %d", rank,
                  i, t, source, target[1]);
            continue;
        }
        found++;
        CHECK(target[0] == (by_rank ? (int)i : expert) && target[1] >= 0 &&
                  target[1] + bases[target[0]] == row,
              "rank %d: target %u of token %u of rank %d is key %d, slot %d, expected row %lld", rank, i, t,
              source, target[0], target[1], (long long)row);
    }
    CHECK(entry[1] == (int32_t)found, "rank %d: token %u of rank %d has %d targets, expected %u", rank, t,
          source, entry[1], found);
    return 0;
}

/* The forward block of a source of this rank's rail. */
static int check_block(struct batch *b, int rank, int source, const struct tables *x)
{
    int size = b->world->domain_ranks, d = source / size;
    uint32_t count = (uint32_t)x->num_in[d], n = 0, t;
    int32_t *block = fetch(b->world, rank, x->far.blocks + (size_t)d * x->far.block_ints,
                           (size_t)count * x->far.entry_ints);
    int result = block ? TEST_PASSED : TEST_FAILED;

    for (t = 0; !result && t < b->num_tokens[source]; t++) {
        if (goes_to(b, source, t, rank / size) && n++ < count) {
            result = check_entry(b, rank, source, x, block + (size_t)(n - 1) * x->far.entry_ints, t);
        }
    }
    free(block);
    CHECK(result || n == count, "rank %d: %u messages from rank %d, expected %u", rank, count, source, n);
    return result;
}

/* What a source knows of its messages to domain e. */
static int check_messages(const struct batch *b, int rank, const struct tables *x, int e)
{
    int size = b->world->domain_ranks, domains = b->world->num_ranks / size;
    int32_t n = 0;
    uint32_t t;

    for (t = 0; t < b->num_tokens[rank]; t++) {
        int sent = e != rank / size && goes_to(b, rank, t, e);
        int32_t got = x->message_of[(size_t)t * (size_t)domains + (size_t)e];
        CHECK(got == (sent ? n : -1), "rank %d: token %u is message %d to domain %d, expected %d", rank, t,
              got, e, sent ? n : -1);
        if (sent) {
            int32_t token = x->token_of[(size_t)e * x->far.max_tokens + (size_t)n++];
            CHECK(token == (int32_t)t, "rank %d: message %d to domain %d is token %d, expected %u", rank,
                  n - 1, e, token, t);
        }
    }
    CHECK(x->num_out[e] == n, "rank %d: %d messages to domain %d, expected %d", rank, x->num_out[e], e, n);
    return 0;
}

/* Until the blocks of a rank's run have come: the route itself does not wait for them. */
static int await_block(struct batch *b, int rank, const struct tables *x, int e)
{
    uint64_t run = 0;
    const void *peeked = world_peek(b->world, rank, x->far.run, sizeof run);

    CHECK(peeked, "no run");
    memcpy(&run, peeked, sizeof run);
    OK(far_await_block(b->routes[rank], e, run));
    return 0;
}

static int check_rank(struct batch *b, int rank)
{
    int size = b->world->domain_ranks, domains = b->world->num_ranks / size;
    struct tables x;
    int result, e;

    memset(&x, 0, sizeof x);
    result = fetch_tables(b, rank, &x);
    for (e = 0; !result && e < domains; e++) {
        result = check_messages(b, rank, &x, e);
        if (!result && e != rank / size) {
            result = await_block(b, rank, &x, e);
            result = result ? result : check_block(b, rank, e * size + rank % size, &x);
        }
    }
    drop_tables(&x);
    return result;
}

/* What is on the devices. */
static int check_tables(struct batch *b)
{
    int r;

    PASS(world_synchronize(b->world));
    PASS(batch_check_view(b));
    for (r = 0; r < b->world->num_ranks; r++) {
        PASS(check_rank(b, r));
    }
    return 0;
}

static int check_batch(struct batch *b)
{
    PASS(batch_check_counts(b));
    return check_tables(b);
}

static int redo(struct far_scene *s, struct batch *b)
{
    PASS(world_synchronize(&s->world));
    batch_redraw(b, (int)rng_below(&s->rng, NUM_ROUTINGS), &s->rng);
    return world_upload(&s->world);
}

/* One route after another, in a slot of its own on every rank, then in slots that differ: closing is
 * local. */
static int steps(struct far_scene *s)
{
    int r;

    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batch, s->eps, 0));
    PASS(batch_open(&s->other, s->eps, 0));
    PASS(check_batch(&s->batch));
    PASS(check_batch(&s->other));
    PASS(redo(s, &s->other));
    PASS(batch_update(&s->other, 0));
    PASS(check_batch(&s->other));
    PASS(check_batch(&s->batch)); /* another route's run leaves its tables alone */
    for (r = 0; r < s->world.num_ranks; r++) {
        struct tern_route **closed = rng_one_in(&s->rng, 2) ? &s->batch.routes[r] : &s->other.routes[r];
        tern_route_close(*closed);
        *closed = NULL;
    }
    PASS(redo(s, &s->batch));
    for (r = 0; r < s->world.num_ranks; r++) {
        struct tern_route_args args = batch_args(&s->batch, r);
        struct tern_route *left = s->batch.routes[r] ? s->batch.routes[r] : s->other.routes[r];
        OK(tern_route_open(s->eps[r], &args, s->world.members[r].lanes[0], &s->batch.routes[r]));
        s->other.routes[r] = left;
    }
    PASS(check_batch(&s->batch));
    return world_ep_synchronize(&s->world, s->eps);
}

/* Runs are counted on the device, so a graph that holds two of them goes on counting when it is replayed. */
static int replay(struct far_scene *s, struct tern_graph **graphs)
{
    int round, r;

    PASS(world_upload(&s->world));
    PASS(batch_open(&s->batch, s->eps, 0));
    PASS(batch_open(&s->other, s->eps, 0));
    PASS(check_batch(&s->batch));
    PASS(world_ep_synchronize(&s->world, s->eps));
    for (r = 0; r < s->world.num_ranks; r++) {
        struct member *m = &s->world.members[r];
        struct tern_route_args args = batch_args(&s->batch, r), others = batch_args(&s->other, r);
        OK(tern_graph_begin(m->comm, m->lanes[0]));
        OK(tern_route_update(s->batch.routes[r], &args, m->lanes[0]));
        OK(tern_route_update(s->other.routes[r], &others, m->lanes[0]));
        OK(tern_graph_end(m->comm, m->lanes[0], &graphs[r]));
    }
    for (round = 0; round < 3; round++) {
        PASS(redo(s, &s->batch));
        PASS(redo(s, &s->other));
        for (r = 0; r < s->world.num_ranks; r++) {
            OK(tern_graph_launch(s->world.members[r].comm, graphs[r], s->world.members[r].lanes[0]));
        }
        PASS(check_tables(&s->batch));
        PASS(check_tables(&s->other));
    }
    PASS(batch_update(&s->batch, 0));
    return check_batch(&s->batch);
}

static int graphs(struct test *t)
{
    struct far_case c;
    struct far_scene s;
    struct tern_graph *made[6];
    int result, r;

    (void)t;
    memset(made, 0, sizeof made);
    far_draw(&c, 500, 3, 2, 30);
    far_begin(&s, &c);
    result = far_open(&s, 60000);
    result = result ? result : replay(&s, made);
    for (r = 0; r < c.num_ranks; r++) {
        if (made[r]) {
            tern_graph_close(s.world.members[r].comm, made[r]);
        }
    }
    far_end(&s);
    return result;
}

static int run_case(const struct far_case *c)
{
    struct far_scene s;
    int result;

    far_begin(&s, c);
    result = far_open(&s, 60000);
    result = result ? result : steps(&s);
    if (result) {
        test_note(__FILE__, __LINE__, "seed %llu: %d ranks in domains of %d%s, %u experts, top-%u, %s layout",
                  (unsigned long long)c->seed, c->num_ranks, c->domain_ranks, c->by_proxy ? ", by proxy" : "",
                  c->shape.num_experts, c->shape.topk,
                  c->shape.layout == TERN_LAYOUT_RANK ? "rank" : "expert");
    }
    far_end(&s);
    return result;
}

static const struct {
    int domains, ranks, seeds;
    uint32_t max_tokens;
} worlds[] = {{2, 2, 40, 90}, {2, 1, 10, 90}, {5, 1, 10, 40}, {2, 8, 6, 60}, {4, 4, 6, 60},
              {3, 5, 6, 60},  {8, 8, 1, 20},  {2, 34, 2, 6},  {66, 1, 1, 6}};

static int by_stores(struct test *t)
{
    uint64_t seed = 1;
    size_t i;
    int n;

    for (i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        if (worlds[i].domains * worlds[i].ranks > 16 && t->scale < 100) {
            continue; /* minutes, under a sanitizer */
        }
        for (n = 0; n < test_scaled(t, worlds[i].seeds); n++, seed++) {
            struct far_case c;
            far_draw(&c, seed, worlds[i].domains, worlds[i].ranks, worlds[i].max_tokens);
            PASS(run_case(&c));
        }
    }
    test_detail(t, "%d routes", (int)(seed - 1) * 4);
    return 0;
}

static int by_proxy(struct test *t)
{
    uint64_t seed = 1000;
    size_t i;

    for (i = 0; i < sizeof worlds / sizeof worlds[0]; i++, seed++) {
        struct far_case c;
        far_draw(&c, seed, worlds[i].domains, worlds[i].ranks, worlds[i].max_tokens);
        c.by_proxy = 1;
        if (c.num_ranks < (t->scale >= 100 ? 65 : 8)) {
            PASS(run_case(&c));
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "routes across domains, over loads and stores", by_stores);
    test_run(&t, "routes across domains, by the proxy", by_proxy);
    test_run(&t, "routes across domains in a graph", graphs);
    return test_end(&t);
}
