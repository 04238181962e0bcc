/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the libfabric engine among many ranks of which three are engines of this process: rank 0, the
 * last, and one that stands for all others. That one is polled only when a test says so, so it is a peer that
 * does not stir. */
#include "comm/socket.h"
#include "net/serve.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

enum { NUM_RANKS = 80, FIRST = 0, OTHERS = 1, LAST = NUM_RANKS - 1, PIECE = 32 * 1024 };

struct end {
    struct stage stage;
    struct serve *serve;
    struct engine *e;
    char *area;
    struct region region;
};

struct trio {
    struct executor *x;
    struct machine *m;
    struct address own;
    unsigned char cookie[16];
    unsigned char cards[NUM_RANKS * ENGINE_CARD_BYTES];
    struct end ends[3]; /* FIRST, OTHERS, LAST */
    int ended;          /* operations */
    uint32_t syndromes; /* of them, any bit */
};

static const int ranks[3] = {FIRST, OTHERS, LAST};

static enum tern_status open_end(struct trio *s, int i)
{
    struct engine_config config = {
        .rank = ranks[i], .num_ranks = NUM_RANKS, .own = &s->own, .cookie = s->cookie};
    struct end *end = &s->ends[i];
    config.provider = "tcp;ofi_rxm";
    end->serve = (struct serve *)test_take(1, sizeof *end->serve);
    end->area = (char *)test_take(1, PIECE);
    TERN_TRY(terni_stage_open(&end->stage, s->m, 2, NUM_RANKS));
    terni_serve_init(end->serve, &end->stage);
    end->region.base = (uint64_t)(uintptr_t)end->area;
    end->region.bytes = PIECE;
    end->region.access = KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ;
    end->region.is_staged = 1; /* everything by messages */
    TERN_TRY(terni_serve_add(end->serve, &end->region));
    TERN_TRY(terni_fabric_engine_open(&config, &end->e));
    end->e->serve = end->serve;
    for (int r = 0; r < NUM_RANKS; r++) {
        if (i == 1 ? r != FIRST && r != LAST : r == ranks[i]) {
            TERN_TRY(end->e->ops->card(end->e, s->cards + (size_t)r * ENGINE_CARD_BYTES));
        }
    }
    return TERN_OK;
}

static void turn(struct trio *s, int i)
{
    int busy = 0;
    struct engine_op *op = s->ends[i].e->ops->poll(s->ends[i].e, &busy);
    for (; op != NULL; op = op->next) {
        s->ended++;
        s->syndromes |= op->syndrome;
    }
    if (!busy) {
        s->ends[i].e->ops->rest(s->ends[i].e, 100000);
    }
}

/* Whether two ends have met, the third being polled or not. */
static int have_met(struct trio *s, int a, int b, int third_too)
{
    double end = test_seconds() + 20;
    struct engine *ea = s->ends[a].e, *eb = s->ends[b].e;
    while (test_seconds() < end) {
        for (int i = 0; i < 3; i++) {
            if (i == a || i == b || third_too) {
                turn(s, i);
            }
        }
        if (ea->ops->is_connected(ea, ranks[b]) && eb->ops->is_connected(eb, ranks[a])) {
            return 1;
        }
    }
    return 0;
}

static void fill_write(struct trio *s, struct engine_op *op, int i, int peer, uint32_t tag, uint64_t bytes)
{
    memset(op, 0, sizeof *op);
    op->kind = ENGINE_WRITE;
    op->peer = peer;
    op->tag = tag;
    op->there = s->ends[i].region;
    op->remote = s->ends[i].region.base;
    op->local = bytes != 0 ? s->ends[0].area : NULL;
    op->bytes = bytes;
}

/* Posts to LAST, and polls both until it has ended. */
static int ends_well(struct trio *s, struct engine_op *op)
{
    struct engine *e = s->ends[0].e;
    double end = test_seconds() + 20;
    enum engine_post posted = ENGINE_AGAIN;
    int before = s->ended;
    while ((posted == ENGINE_AGAIN || s->ended == before) && test_seconds() < end) {
        posted = posted == ENGINE_AGAIN ? e->ops->post(e, op) : posted;
        turn(s, 0);
        turn(s, 2);
    }
    CHECK(s->ended == before + 1 && op->syndrome == SYNDROME_NONE, "%s, %d ended, syndrome 0x%02x",
          posted == ENGINE_AGAIN ? "not posted" : "posted", s->ended - before, op->syndrome);
    return TEST_PASSED;
}

/* More ranks than letters for greetings, and most of them do not stir: the others meet. */
static int greetings(struct trio *s)
{
    for (int i = 0; i < 3; i++) {
        OK(s->ends[i].e->ops->connect(s->ends[i].e, s->cards));
    }
    CHECK(have_met(s, 0, 2, 0), "ranks %d and %d have not met", FIRST, LAST);
    CHECK(have_met(s, 0, 1, 1), "ranks %d and %d have not met", FIRST, OTHERS);
    return TEST_PASSED;
}

static int no_bytes(struct trio *s)
{
    struct engine_op op;
    for (int is_read = 0; is_read < 2; is_read++) {
        fill_write(s, &op, 2, LAST, 0, 0);
        op.kind = is_read ? ENGINE_READ : ENGINE_WRITE;
        PASS(ends_well(s, &op));
    }
    return TEST_PASSED;
}

static void close_engines(struct trio *s)
{
    for (int i = 0; i < 3; i++) {
        struct engine *e = s->ends[i].e;
        s->ends[i].e = NULL;
        if (e != NULL) {
            e->ops->close(e);
        }
    }
}

/* Peers that take nothing are written to until no letter for them is left: the last rank is reached. */
static int shares(struct trio *s)
{
    struct engine *e = s->ends[0].e;
    struct engine_op *ops = (struct engine_op *)test_take(NUM_RANKS * ENGINE_WINDOW, sizeof *ops), op;
    int result, num_posted = 0, num_refused = 0;
    for (int r = OTHERS; r < LAST; r++) {
        for (uint32_t tag = 0; tag < ENGINE_WINDOW; tag++) {
            struct engine_op *mine = &ops[r * ENGINE_WINDOW + (int)tag];
            fill_write(s, mine, 1, r, tag, PIECE);
            if (e->ops->post(e, mine) == ENGINE_AGAIN) {
                num_refused++;
                break;
            }
            num_posted++;
        }
        turn(s, 0);
    }
    memset(s->ends[0].area, 'w', PIECE);
    fill_write(s, &op, 2, LAST, 0, PIECE);
    result = ends_well(s, &op);
    if (!result && (memcmp(s->ends[2].area, s->ends[0].area, PIECE) != 0 || num_refused == 0)) {
        test_note(__FILE__, __LINE__, "the bytes; %d posted, %d refused", num_posted, num_refused);
        result = TEST_FAILED;
    }
    close_engines(s); /* before the operations go */
    free(ops);
    return result;
}

/* The pair's k-th read, every fourth a short write, which leaves though its receiver does not stir; whether
 * it is posted. */
static int post_kth(struct trio *s, int i, int to, int k, struct engine_op *op)
{
    fill_write(s, op, to, ranks[to], (uint32_t)k, k % 4 == 3 ? 8 : PIECE);
    op->kind = k % 4 == 3 ? ENGINE_WRITE : ENGINE_READ;
    op->local = s->ends[i].area;
    return s->ends[i].e->ops->post(s->ends[i].e, op) == ENGINE_POSTED;
}

/* As many reads and writes as there may be, from each of each. The first does not stir while the others post
 * theirs: these have no letter to answer in any more then, and what they are asked is parked; each is
 * answered in the end, whatever came behind it. */
static int floods(struct trio *s)
{
    struct engine_op *ops = (struct engine_op *)test_take(9 * ENGINE_WINDOW, sizeof *ops);
    double end = test_seconds() + 20;
    int num_posted[9] = {0}, result = TEST_PASSED;
    while (s->ended < 6 * ENGINE_WINDOW && test_seconds() < end) {
        for (int p = 0; p < 9; p++) { /* end p / 3 reads what p % 3 has */
            while (p / 3 != p % 3 && num_posted[p] < ENGINE_WINDOW &&
                   post_kth(s, p / 3, p % 3, num_posted[p], &ops[p * ENGINE_WINDOW + num_posted[p]])) {
                num_posted[p]++;
            }
        }
        int are_all[2] = {num_posted[1] + num_posted[2] == 2 * ENGINE_WINDOW,
                          num_posted[3] + num_posted[5] + num_posted[6] + num_posted[7] == 4 * ENGINE_WINDOW};
        for (int i = 0; i < 3; i++) {
            if (i == 0 ? !are_all[0] || are_all[1] : are_all[0]) {
                turn(s, i);
            }
        }
    }
    if (s->ended < 6 * ENGINE_WINDOW || s->syndromes != 0) {
        test_note(__FILE__, __LINE__, "%d of %d ended, syndromes 0x%02x", s->ended, 6 * ENGINE_WINDOW,
                  s->syndromes);
        result = TEST_FAILED;
    }
    close_engines(s); /* before the operations go */
    free(ops);
    return result;
}

static int refusals; /* of buffers, before the provider takes the first */
static int stubborn; /* refusals to close an endpoint to which nothing is bound any more */

#if __has_include(<rdma/fabric.h>)
#include "net/fabric.h"

static int num_refused;
static struct fi_ops_msg moody_msg[3], *sound_msg[3];

static ssize_t moody_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, void *context)
{
    for (int i = 0; i < 3; i++) {
        if (ep->msg == &moody_msg[i]) {
            return num_refused++ < refusals ? -FI_EAGAIN
                                            : sound_msg[i]->recv(ep, buf, len, desc, src, context);
        }
    }
    return -FI_EINVAL;
}

static void make_moody(struct trio *s)
{
    num_refused = 0;
    for (int i = 0; i < 3; i++) {
        struct fid_ep *ep = ((struct fabric_engine *)s->ends[i].e)->its.ep;
        sound_msg[i] = ep->msg;
        moody_msg[i] = *ep->msg;
        moody_msg[i].recv = moody_recv;
        ep->msg = &moody_msg[i];
    }
}
/* A provider that binds regions to endpoints: it refuses to close one while a region is there, and then
 * `stubborn` times more. */
static struct fid_ep *bound_ep;
static int num_regions, num_closings, num_freed;
static struct fi_ops bound_ops[2], *sound_ops[2]; /* of the endpoint, of the region */

static int close_bound(struct fid *fid)
{
    int is_ep = fid == &bound_ep->fid;
    num_closings += is_ep;
    if (is_ep && (num_regions != 0 || stubborn-- > 0)) {
        return -FI_EBUSY;
    }
    num_regions -= !is_ep;
    fid->ops = sound_ops[!is_ep];
    return fid->ops->close(fid);
}

static void bind_closing(struct fid *fid, int i)
{
    sound_ops[i] = fid->ops;
    bound_ops[i] = *fid->ops;
    bound_ops[i].close = close_bound;
    fid->ops = &bound_ops[i];
}

static void (*sound_free)(struct machine *m, void *host);

static void count_free(struct machine *m, void *host)
{
    num_freed++;
    sound_free(m, host);
}

/* The regions go, and the endpoint is tried again; what lives on keeps the buffers that it may write to. */
static int bound_regions(struct trio *s)
{
    struct fabric_engine *f = (struct fabric_engine *)s->ends[0].e;
    struct own_region own = {.card = s->ends[0].region};
    struct letter *letters = f->letters;
    void *memory = f->letters_memory;
    const struct machine_ops *sound = s->m->ops;
    struct machine_ops counting = *sound;
    int wanted = 2 + stubborn; /* while a region is there, and when it is not */
    own.card.is_staged = 0;
    OK(f->base.ops->add(&f->base, &own));
    bound_ep = f->its.ep;
    bind_closing(&bound_ep->fid, 0);
    bind_closing(&f->regions->mr->fid, 1);
    num_regions = 1;
    num_closings = num_freed = 0;
    sound_free = sound->host_free;
    counting.host_free = count_free;
    s->m->ops = &counting;
    s->ends[0].e = NULL;
    f->base.ops->close(&f->base);
    s->m->ops = sound;
    CHECK(num_regions == 0 && num_closings == wanted, "%d regions are left, closed %d times", num_regions,
          num_closings);
    CHECK(num_freed == (wanted == 2), "its buffers were freed %d times", num_freed);
    if (num_freed == 0) {
        s->m->ops->host_free(s->m, memory);
        free(letters);
    }
    return TEST_PASSED;
}
#else
static int bound_regions(struct trio *s)
{
    (void)s;
    return TEST_PASSED;
}
static void make_moody(struct trio *s) { (void)s; }
#endif

static int with_trio(struct test *t, int (*body)(struct trio *s))
{
    struct trio *s = (struct trio *)test_take(1, sizeof *s);
    enum tern_status status = terni_executor_open(0, &s->x);
    int result = TEST_PASSED;
    OK(status);
    OK(terni_cpu_open(s->x, &s->m));
    terni_address_loopback(&s->own);
    memset(s->cookie, 0x5c, sizeof s->cookie);
    for (int i = 0; i < 3 && status == TERN_OK; i++) {
        status = open_end(s, i);
    }
    if (status == TERN_UNSUPPORTED) {
        result = test_skip(t, "%s", tern_last_error());
    } else if (status != TERN_OK) {
        test_note(__FILE__, __LINE__, "\"%s\"", tern_last_error());
        result = TEST_FAILED;
    }
    if (result == TEST_PASSED && refusals != 0) {
        make_moody(s);
    }
    result = result ? result : greetings(s);
    result = result || body == NULL ? result : body(s);
    close_engines(s);
    for (int i = 0; i < 3; i++) {
        struct end *end = &s->ends[i];
        terni_stage_close(&end->stage);
        if (end->serve != NULL) {
            terni_serve_close(end->serve);
        }
        free(end->serve);
        free(end->area);
    }
    s->m->ops->close(s->m);
    terni_executor_release(s->x);
    free(s);
    return result;
}

static int run_unposted(struct test *t)
{
    int result;
    refusals = 256; /* there are fewer */
    result = with_trio(t, no_bytes);
    refusals = 0;
    return result;
}
static int run_bound(struct test *t)
{
    for (int i = 0; i < 2; i++) {
        int result;
        stubborn = i;
        result = with_trio(t, bound_regions);
        if (result != TEST_PASSED) {
            return result;
        }
    }
    return TEST_PASSED;
}
static int run_greetings(struct test *t) { return with_trio(t, NULL); }
static int run_no_bytes(struct test *t) { return with_trio(t, no_bytes); }
static int run_shares(struct test *t) { return with_trio(t, shares); }
static int run_floods(struct test *t) { return with_trio(t, floods); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "more ranks than letters meet, though most do not stir", run_greetings);
    test_run(&t, "messages of no bytes", run_no_bytes);
    test_run(&t, "a provider that takes no buffers at first", run_unposted);
    test_run(&t, "a provider that closes no endpoint before its regions", run_bound);
    test_run(&t, "peers that take nothing hold no other's letters", run_shares);
    test_run(&t, "more than there are letters to answer in, of everybody by everybody", run_floods);
    return test_end(&t);
}
