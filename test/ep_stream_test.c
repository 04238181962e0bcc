/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, graphs and several objects: what runs beside what, and after what. Every step is judged
 * byte by byte. */
#include "scene.h"

#include <string.h>

/* ---- Two objects on one communicator, each on a stream of its own ---- */

static int objects(struct test *t)
{
    struct scene s;
    struct batch_shape by_rank = scene_shape(3, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    struct batch_shape by_expert = scene_shape(3, TERN_LAYOUT_EXPERT, ROUTING_MIXED);
    int result;

    scene_init(&s, 3, 300);
    scene_add(&s, &by_rank, 0);
    scene_add(&s, &by_expert, 0);
    result = scene_side_by_side(&s, test_scaled(t, 6));
    scene_fini(&s);
    return result;
}

/* ---- Events: inputs arrive on lane 1, the dispatch runs on lane 2 after them, the outputs leave on lane 3
 * ---- */

static int hand_over(struct scene *s, int rounds)
{
    struct world *w = &s->world;
    struct dispatch *d = &s->dispatches[0];
    int r, round;

    PASS(scene_open(s));
    for (r = 0; r < 2 * w->num_ranks; r++) {
        OK(tern_event_open(w->members[r / 2].comm, &s->events[r]));
    }
    scene_refill(s, 0);
    PASS(world_upload(w));
    PASS(batch_open(&s->batches[0], s->eps, 0));
    PASS(world_synchronize(w));
    for (round = 0; round < rounds; round++) {
        scene_refill(s, 0);
        for (r = 0; r < w->num_ranks; r++) {
            struct member *m = &w->members[r];
            struct arena *a = &m->arenas[ARENA_DEVICE];
            memcpy(a->staging, a->image, a->bytes);
            d->ranks[r].after = s->events[2 * r];
            d->ranks[r].record = s->events[2 * r + 1];
            OK(tern_copy(m->comm, a->device, a->staging, a->bytes, m->lanes[1]));
            OK(tern_event_record(m->comm, s->events[2 * r], m->lanes[1]));
            PASS(dispatch_issue_rank(d, r, 2));
        }
        dispatch_expect(d);
        for (r = 0; r < w->num_ranks; r++) {
            struct member *m = &w->members[r];
            struct place out = d->ranks[r].out[0].place;
            struct arena *a = &m->arenas[out.arena];
            OK(tern_event_wait(m->comm, s->events[2 * r + 1], m->lanes[3]));
            OK(tern_copy(m->comm, a->staging + out.offset, a->device + out.offset, out.bytes, m->lanes[3]));
        }
        for (r = 0; r < w->num_ranks; r++) {
            struct member *m = &w->members[r];
            struct place out = d->ranks[r].out[0].place;
            OK(tern_stream_synchronize(m->comm, m->lanes[3]));
            CHECK(!memcmp(m->arenas[out.arena].staging + out.offset, world_image(w, out), out.bytes),
                  "round %d, rank %d: the copy behind the event came too early", round, r);
        }
    }
    return world_ep_synchronize(w, s->eps);
}

static int events(struct test *t)
{
    struct batch_shape shape = scene_shape(3, TERN_LAYOUT_RANK, ROUTING_UNIFORM);
    int outside, result = 0;

    for (outside = 0; outside < 2 && !result; outside++) {
        struct scene s;
        scene_init(&s, 3, 600);
        if (outside) {
            scene_leave_windows(&s);
        }
        scene_add(&s, &shape, 0);
        result = hand_over(&s, test_scaled(t, 10));
        scene_fini(&s);
    }
    return result;
}

/* ---- Graphs: route, dispatch and combine captured once, replayed with other ids and rows ---- */

static int graphs_of(struct test *t, int branches)
{
    uint32_t layout;
    int result = 0;

    for (layout = TERN_LAYOUT_RANK; layout <= TERN_LAYOUT_EXPERT && !result; layout++) {
        struct scene s;
        result = scene_static(&s, 3, layout, 700 + layout, 1);
        s.branches = branches;
        result = result ? result : scene_replay(&s, 1, test_scaled(t, 20));
        result = result ? result : batch_check_view(&s.batches[0]);
        scene_fini(&s);
    }
    return result;
}

static int graphs(struct test *t) { return graphs_of(t, 0); }

/* The dispatch waits for two nodes: the route's kernel on its stream, and a copy on another. */
static int branches(struct test *t)
{
    int cpu = scene_on_cpu();

    if (cpu != 0) {
        return cpu < 0 ? cpu : test_skip(t, "the cpu machine captures one stream");
    }
    return graphs_of(t, 1);
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "two objects on one communicator, on streams of their own", objects);
    test_run(&t, "events order operations across streams", events);
    test_run(&t, "a captured graph replays with other ids and rows", graphs);
    test_run(&t, "a captured dispatch waits for another stream as well", branches);
    return test_end(&t);
}
