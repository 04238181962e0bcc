/* SPDX-License-Identifier: Apache-2.0
 *
 * Outputs that have bytes of inputs: refused, with both ranges, before anything is issued. Rows of an input
 * and an output that lie between each other have no byte in common, and are as good as any. Low latency's are
 * in ep_ll_arguments_test.c. */
#include "scene.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 2 };

/* ---- Refusals ---- */

/* An output of a dispatch of rank 0 that lies where an input does. */
struct clash {
    struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
    struct tern_dispatch_args a;
};

#define BAD_DISPATCH(s, change, text)                                                                        \
    do {                                                                                                     \
        struct clash d;                                                                                      \
        memset(&d, 0, sizeof d);                                                                             \
        d.a = dispatch_args(&(s)->dispatches[0], 0, 1, d.in, d.out);                                         \
        change;                                                                                              \
        REFUSES(tern_dispatch((s)->batches[0].routes[0], &d.a, (s)->world.members[0].lanes[0]),              \
                TERN_INVALID_ARGUMENT, text);                                                                \
    } while (0)

/* A second payload, column by column: 1500 bytes from the first element of the first token on. */
static void take_columns(struct scene *s, struct clash *d, char *in)
{
    struct tern_rows columns = {in, 16, 4, 4, 4 * (int64_t)MAX_TOKENS + 372};
    struct tern_rows home = {combine_args(&s->combines[0], 0, 1).out.data, 16, 0, 0, 0};

    d->a.num_in = 2;
    d->in[0].row_bytes = d->out[0].row_bytes = 128;
    d->in[1] = columns;
    d->out[1] = home;
}

static int refuse_dispatches(struct scene *s)
{
    uint64_t bytes = s->dispatches[0].ranks[0].out_rows * SCENE_ROW_BYTES;
    uint64_t in_bytes = (uint64_t)SCENE_ROW_BYTES * MAX_TOKENS;
    char sentence[256];

    BAD_DISPATCH(s, d.out[0].data = d.in[0].data, "overlaps in[0], ");
    BAD_DISPATCH(s, d.out[0].data = (char *)d.in[0].data - bytes + 16, "overlaps in[0], "); /* by one piece */
    BAD_DISPATCH(s, d.out[0].data = (char *)d.in[0].data + in_bytes - 16, "overlaps in[0], ");
    if (s->batches[0].shape.layout == TERN_LAYOUT_RANK) {
        BAD_DISPATCH(s, d.a.out_topk_idx = d.in[0].data, "out_topk_idx, ");
    }
    BAD_DISPATCH(s, d.a.out_source = (int32_t *)((char *)d.in[0].data + in_bytes - 8), "overlaps in[0], ");
    BAD_DISPATCH(s, d.a.out_topk_weights = (float *)(uintptr_t)d.a.topk_weights, "overlaps topk_weights, ");
    BAD_DISPATCH(s,
                 (d.in[0].data = (char *)d.out[0].data + 2 * (in_bytes - SCENE_ROW_BYTES),
                  d.in[0].row_stride = -2 * SCENE_ROW_BYTES),
                 "overlaps in[0], "); /* rows that go back */
    BAD_DISPATCH(s, take_columns(s, &d, (char *)d.out[0].data + bytes - 4), "overlaps in[1], 1500 bytes at ");
    BAD_DISPATCH(s, take_columns(s, &d, (char *)d.out[0].data - 1496), "overlaps in[1], 1500 bytes at ");
    {
        struct tern_rows in[TERN_MAX_PAYLOADS], out[TERN_MAX_PAYLOADS + 1];
        struct tern_dispatch_args a = dispatch_args(&s->dispatches[0], 0, 1, in, out);
        out[0].data = in[0].data;
        snprintf(sentence, sizeof sentence,
                 "out[0], %" PRIu64 " bytes at 0x%" PRIxPTR ", overlaps in[0], %" PRIu64
                 " bytes at 0x%" PRIxPTR,
                 bytes, (uintptr_t)in[0].data, in_bytes, (uintptr_t)in[0].data);
        REFUSES(tern_dispatch(s->batches[0].routes[0], &a, s->world.members[0].lanes[0]),
                TERN_INVALID_ARGUMENT, sentence);
    }
    return 0;
}

#define BAD_COMBINE(s, change, text)                                                                         \
    do {                                                                                                     \
        struct tern_combine_args a = combine_args(&(s)->combines[0], 0, 1);                                  \
        change;                                                                                              \
        REFUSES(tern_combine((s)->batches[0].routes[0], &a, (s)->world.members[0].lanes[0]),                 \
                TERN_INVALID_ARGUMENT, text);                                                                \
    } while (0)

static int refuse_combines(struct scene *s)
{
    uint64_t in_bytes = s->combines[0].ranks[0].in_rows * SCENE_ROW_BYTES;

    BAD_COMBINE(s, a.out.data = a.in.data, "overlaps in, ");
    BAD_COMBINE(s, a.out.data = (char *)a.in.data + in_bytes - 16, "overlaps in, ");
    BAD_COMBINE(s, a.in.data = (char *)a.out.data - in_bytes + 16, "overlaps in, ");
    BAD_COMBINE(s, a.out.data = (void *)(uintptr_t)a.bias[1], "overlaps bias[1], ");
    BAD_COMBINE(s, a.out_weights = (float *)(uintptr_t)a.in_weights, "overlaps in_weights, ");
    BAD_COMBINE(s, a.out_weights = (float *)a.in.data, "out_weights, ");
    BAD_COMBINE(s, (a.bias[0] = (char *)a.out.data + SCENE_ROW_BYTES, a.out.row_stride = 2 * SCENE_ROW_BYTES),
                "overlaps bias[0], "); /* between its rows, but dense */
    return 0;
}

static int refuse_all(struct scene *s)
{
    PASS(scene_open(s));
    PASS(scene_round(s, 0));
    PASS(refuse_dispatches(s));
    PASS(refuse_combines(s));
    scene_refill(s, 0);
    PASS(dispatch_check(&s->dispatches[0], s->eps, 0));
    return combine_check(&s->combines[0], s->eps, 0);
}

static int refused(struct test *t)
{
    struct scene s;
    uint32_t layout;
    int result = 0;

    (void)t;
    test_quiet();
    for (layout = TERN_LAYOUT_RANK; layout <= TERN_LAYOUT_EXPERT && !result; layout++) {
        struct batch_shape shape = scene_shape(RANKS, layout, ROUTING_UNIFORM);
        shape.equal_tokens = 1;
        scene_init(&s, RANKS, 1000 + layout);
        scene_add(&s, &shape, 0);
        result = refuse_all(&s);
        scene_fini(&s);
    }
    return result;
}

/* ---- One rank, whose rows and outputs are columns of one matrix, or lie end to end ---- */

enum { TOKENS = 20, CHANNELS = 72, ROW = 2 * CHANNELS };

struct columns {
    struct tern_comm *comm;
    struct tern_ep *ep;
    struct tern_stream *stream;
    struct tern_route *route;
    int64_t *ids;
    char *matrix; /* device, [TOKENS][2][ROW] */
    char image[TOKENS * 2 * ROW];
};

static int columns_open(struct columns *x)
{
    struct tern_comm_config machine = TERN_COMM_CONFIG_INIT;
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    struct tern_route_args a = TERN_ROUTE_ARGS_INIT;

    config.num_experts = config.max_topk = 1;
    config.max_tokens = TOKENS;
    config.max_row_bytes = ROW;
    OK(tern_comm_open_all(1, &machine, &x->comm));
    OK(tern_stream_open(x->comm, &x->stream));
    OK(tern_ep_open(x->comm, &config, &x->ep));
    OK(tern_alloc(x->comm, TERN_MEMORY_DEVICE, TOKENS * sizeof *x->ids, (void **)&x->ids));
    OK(tern_alloc(x->comm, TERN_MEMORY_DEVICE, sizeof x->image, (void **)&x->matrix));
    OK(tern_fill(x->comm, x->ids, 0, TOKENS * sizeof *x->ids, x->stream));
    a.topk_idx = x->ids;
    a.num_tokens = TOKENS;
    a.topk = 1;
    OK(tern_route_open(x->ep, &a, x->stream, &x->route));
    return 0;
}

static void columns_close(struct columns *x)
{
    tern_route_close(x->route);
    tern_ep_close(x->ep);
    if (x->comm) {
        tern_free(x->comm, x->ids);
        tern_free(x->comm, x->matrix);
        tern_stream_close(x->comm, x->stream);
    }
    tern_comm_close(x->comm);
}

/* Every row of the matrix is BF16 numbers of its own. */
static int upload(struct columns *x)
{
    uint16_t *numbers = (uint16_t *)(void *)x->image;
    for (int i = 0; i < TOKENS * 2 * CHANNELS; i++) {
        numbers[i] = (uint16_t)(0x3f80 + i / CHANNELS * 3 + i % CHANNELS);
    }
    OK(tern_copy(x->comm, x->matrix, x->image, sizeof x->image, x->stream));
    return 0;
}

/* Rows at `from` are at `to` afterwards, by dispatch or combine, and all else is as it was. */
static int moves(struct columns *x, int combines, uint64_t from, uint64_t to, int64_t stride)
{
    struct tern_dispatch_args out = TERN_DISPATCH_ARGS_INIT;
    struct tern_combine_args home = TERN_COMBINE_ARGS_INIT;
    struct tern_rows rows[2] = {{x->matrix + from, ROW, 0, stride, 0}, {x->matrix + to, ROW, 0, stride, 0}};
    static char got[sizeof x->image];

    PASS(upload(x));
    out.in = &rows[0];
    out.out = &rows[1];
    out.num_in = 1;
    home.in = rows[0];
    home.out = rows[1];
    out.out_rows = home.in_rows = TOKENS;
    if (combines) {
        OK(tern_combine(x->route, &home, x->stream));
    } else {
        OK(tern_dispatch(x->route, &out, x->stream));
    }
    OK(tern_ep_synchronize(x->ep));
    OK(tern_copy(x->comm, got, x->matrix, sizeof got, x->stream));
    OK(tern_stream_synchronize(x->comm, x->stream));
    for (int t = 0; t < TOKENS; t++) {
        memcpy(x->image + to + t * stride, x->image + from + t * stride, ROW);
    }
    CHECK(!memcmp(got, x->image, sizeof got), "%s from byte %d to byte %d, rows %d apart: other bytes",
          combines ? "combine" : "dispatch", (int)from, (int)to, (int)stride);
    return 0;
}

static int between(struct columns *x)
{
    PASS(columns_open(x));
    for (int combines = 0; combines < 2; combines++) {
        PASS(moves(x, combines, 0, ROW, 2 * ROW));
        PASS(moves(x, combines, ROW, 0, 2 * ROW));
        PASS(moves(x, combines, 0, (uint64_t)TOKENS * ROW, ROW)); /* end to end */
        PASS(moves(x, combines, (uint64_t)TOKENS * ROW, 0, ROW));
    }
    return 0;
}

static int apart(struct test *t)
{
    struct columns x;
    int result;

    (void)t;
    memset(&x, 0, sizeof x);
    result = between(&x);
    columns_close(&x);
    return result;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_run(&t, "an output with bytes of an input is refused", refused);
    test_run(&t, "rows of an input and an output may lie between each other", apart);
    return test_end(&t);
}
