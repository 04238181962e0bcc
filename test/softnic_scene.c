/* SPDX-License-Identifier: Apache-2.0
 *
 * Two NICs and the threads that drive one of them; see softnic_scene.h. */
#include "softnic_scene.h"

#include <stdlib.h>
#include <string.h>

struct softnic_scene *nics_take(void)
{
    struct softnic_scene *w = (struct softnic_scene *)test_take(1, sizeof(*w));
    w->net = softnic_net_kind(1);
    w->net.config.retry_count = 7;
    w->shape.num_queues = 2;
    w->shape.blocks = 8;
    w->shape.net = &w->net;
    return w;
}

int nics_leave(struct softnic_scene *w, int result)
{
    queue_rig_close(&w->rig);
    free(w);
    return result;
}

int nics_begin(struct softnic_scene *w, uint64_t seed) { return queue_rig_open(&w->rig, seed, &w->shape); }

struct queue_step *nics_add(struct softnic_scene *w, int thread, uint32_t kind, uint64_t away, uint64_t home,
                            uint64_t bytes)
{
    struct queue_step *s = &w->steps[thread][w->num[thread]++];
    s->kind = kind;
    s->remote = queue_rig_remote(away);
    s->local = queue_rig_local(&w->rig, home);
    s->bytes = bytes;
    s->amo = NET_AMO_ADD;
    s->width = 8;
    s->value = 1;
    return s;
}

struct queue_step *nics_look(struct softnic_scene *w, int thread, uint32_t kind, const void *at,
                             uint64_t bytes, uint64_t value)
{
    struct queue_step *s = nics_add(w, thread, kind, 0, 0, bytes);
    s->local = (uint64_t)(uintptr_t)at;
    s->value = value;
    return s;
}

int nics_drive(struct softnic_scene *w, uint64_t timeout_ns)
{
    PASS(queue_rig_drive(&w->rig, &w->steps[0][0], SCENE_STEPS, 1, 32, ~0u, timeout_ns));
    PASS(queue_rig_wait(&w->rig));
    memset(w->num, 0, sizeof(w->num));
    return TEST_PASSED;
}

int nics_go(struct softnic_scene *w)
{
    PASS(queue_rig_nic(&w->rig));
    PASS(nics_drive(w, RIG_PATIENCE_NS));
    return queue_rig_nic_end(&w->rig);
}

int nics_ends(const struct softnic_scene *w, int thread, int step, uint32_t wanted)
{
    const struct queue_step *s = &w->steps[thread][step];
    CHECK(s->status == wanted, "seed %llu: step %d of thread %d ends with 0x%x, not 0x%x",
          (unsigned long long)w->rig.seed, step, thread, s->status, wanted);
    return TEST_PASSED;
}

int nics_each_seed(struct test *t, int count, int (*body)(struct softnic_scene *w, uint64_t seed))
{
    uint64_t first = t->has_seeds ? t->seeds[0] : 1,
             last = t->has_seeds ? t->seeds[1] : (uint64_t)test_scaled(t, count);
    for (uint64_t seed = first; seed <= last; seed++) {
        struct softnic_scene *w = nics_take();
        PASS(nics_leave(w, body(w, seed)));
    }
    return TEST_PASSED;
}
