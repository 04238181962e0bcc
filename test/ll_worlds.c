/* SPDX-License-Identifier: Apache-2.0
 *
 * See ll_worlds.h. */
#include "ll_worlds.h"

#include "tern/tern_net.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_GPU_RANKS = 16 }; /* that are on one device at once */

/* Many ranks have few tokens of few channels. */
static void shrink(struct ll_case *c)
{
    if (c->num_ranks > 8) {
        c->shape.batch.max_tokens = c->shape.batch.max_tokens > 6 ? 6 : c->shape.batch.max_tokens;
        c->shape.hidden = c->shape.hidden > 384 ? 384 : c->shape.hidden;
    }
    if (c->num_ranks > 16) {
        c->rounds = 1;
        c->shape.batch.num_experts = 2 * (uint32_t)c->num_ranks;
        c->config.num_experts = c->shape.batch.num_experts;
    }
}

void ll_world_draw(const struct test *t, const struct ll_world *w, uint64_t seed, struct ll_case *c)
{
    ll_case_draw(c, seed, w->ranks[0], t->scale < 100);
    shrink(c);
    ll_case_cut(c, w->ranks[1],
                w->carrier == BY_NIC     ? TERN_TRANSPORT_SOFTNIC
                : w->carrier == BY_PROXY ? TERN_TRANSPORT_PROXY
                                         : TERN_TRANSPORT_AUTO);
    if (w->carrier == BY_FORCE) {
        c->forces_domains = 1;
        c->config.domain_ranks = 0;
        c->deterministic = 0;
    }
    if (w->is_railed) {
        ll_case_rail(c);
    }
}

int ll_world_seed(const struct test *t, const struct ll_world *w, uint64_t seed)
{
    struct ll_case c;

    ll_world_draw(t, w, seed, &c);
    return ll_case_run(&c, -1, NULL);
}

int ll_world_run(struct test *t, const struct ll_world *w, int count)
{
    const char *machine = getenv("TERN_MACHINE");

    if (w->ranks[0] > LL_MAX_RANKS) {
        return test_skip(t, "ThreadSanitizer follows 8128 fibers, and %d ranks may have more", w->ranks[0]);
    }
    if (machine && strcmp(machine, "cuda") == 0 && w->ranks[0] > MAX_GPU_RANKS) {
        return test_skip(t, "%d ranks do not fit on one device at once", w->ranks[0]);
    }
    uint64_t first = t->has_seeds ? t->seeds[0] : 1;
    uint64_t last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    for (uint64_t seed = first; seed <= last; seed++) {
        PASS(ll_world_seed(t, w, seed));
    }
    test_detail(t, "seeds %llu-%llu", (unsigned long long)first, (unsigned long long)last);
    return 0;
}
