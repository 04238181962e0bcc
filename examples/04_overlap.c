/* SPDX-License-Identifier: Apache-2.0
 *
 * Two micro-batches of a decoding model, overlapped: while one awaits its rows, the device works for the
 * other. The send phase of an operation ends when this rank's rows are at the peers, the receive phase
 * collects theirs; in between no processor is held, so that on a GPU what runs there takes the time that it
 * takes alone (on the cpu machine all ranks share the cores). The ranks are uneven on purpose, each slow with
 * one batch: without overlap all wait for the slower one, twice a layer. stand_in.h does the model's work.
 *
 *     tern-run -n 2 ./04_overlap      a process a rank
 *     ./04_overlap                    one process, which on the cpu machine computes for both in turn */
#include "micro_batch.h"

enum { LAYERS = 2, A = 0, B = 1 };
enum { ATTENTION = 'a', DISPATCH = 'D', EXPERT = 'e', COMBINE = 'C' };
enum { ALONE, APART, OVERLAPPED }; /* schedules */

static void apart(struct schedule *s)
{
    for (int i = 0; i < 2 * LAYERS; i++) { /* a layer of A, then one of B */
        add(s, ATTENTION, i % 2, 0);
        add(s, DISPATCH, i % 2, TERN_LL_BOTH);
        add(s, EXPERT, i % 2, 0);
        add(s, COMBINE, i % 2, TERN_LL_BOTH);
    }
}

/* Between the two phases of one batch there is always work of the other. */
static void overlapped(struct schedule *s)
{
    add(s, ATTENTION, A, 0);
    for (int layer = 0; layer < LAYERS; layer++) {
        add(s, DISPATCH, A, TERN_LL_SEND);
        add(s, ATTENTION, B, 0);
        add(s, DISPATCH, A, TERN_LL_RECEIVE);
        add(s, DISPATCH, B, TERN_LL_SEND);
        add(s, EXPERT, A, 0);
        add(s, COMBINE, A, TERN_LL_SEND);
        add(s, DISPATCH, B, TERN_LL_RECEIVE);
        add(s, EXPERT, B, 0);
        add(s, COMBINE, A, TERN_LL_RECEIVE);
        add(s, COMBINE, B, TERN_LL_SEND);
        if (layer + 1 < LAYERS) {
            add(s, ATTENTION, A, 0); /* of the next layer */
        }
        add(s, COMBINE, B, TERN_LL_RECEIVE);
    }
}

/* On the rank's stream; nothing here waits. Lane b is batch b's. */
static void issue(struct rank *r, const struct step *s)
{
    struct batch *b = &r->batches[s->batch];
    struct tern_ll_dispatch_args out = {.size = sizeof(out), .lane = (uint32_t)s->batch, .phase = s->phase};
    struct tern_ll_combine_args home = {.size = sizeof(home), .lane = (uint32_t)s->batch, .phase = s->phase};
    out.in = b->hidden;
    out.topk_idx = b->ids;
    out.num_tokens = TOKENS;
    out.topk = TOPK;
    out.hidden = HIDDEN;
    out.out = b->slab;
    out.out_counts = b->counts;
    home.in = b->results;
    home.topk_weights = b->weights;
    home.out = b->state;
    if (s->letter == ATTENTION) { /* long contexts here, short ones there */
        stand_in_run(&r->work, b->hidden, b->state, TOKENS, b->rank == s->batch ? 8 : 4, r->stream);
    } else if (s->letter == EXPERT) {
        stand_in_run(&r->work, b->results, b->slab, SLAB_ROWS, 4, r->stream);
    } else if (s->letter == DISPATCH) {
        must(tern_ll_dispatch(r->ep, &out, r->stream));
    } else {
        must(tern_ll_combine(r->ep, &home, r->stream));
    }
}

/* On all ranks that this process drives, step after step, so that they begin together. Wrong elements. */
static int run(struct rank *ranks, int here, int number, const struct schedule *s)
{
    int wrong = 0;
    for (int r = 0; r < here; r++) {
        rank_restart(&ranks[r]);
    }
    if (here < RANKS) {
        must(tern_comm_barrier(ranks[0].comm));
    }
    for (int i = 0; i < (s->num + 1) * here; i++) {
        struct rank *r = &ranks[i % here];
        if (i >= here) {
            issue(r, &s->steps[i / here - 1]);
        }
        must(tern_event_record(r->comm, r->events[number][i / here], r->stream));
    }
    for (int r = 0; r < here; r++) {
        wrong += rank_compare(&ranks[r], number == ALONE ? 0 : LAYERS);
    }
    return wrong;
}

/* Rank 0's view. */
static void report(struct rank *r, const struct schedule *s)
{
    float one = elapsed(r->comm, r->events[APART][0], r->events[APART][s[APART].num]);
    float other = elapsed(r->comm, r->events[OVERLAPPED][0], r->events[OVERLAPPED][s[OVERLAPPED].num]);
    float whole = one > other ? one : other;
    timeline_legend(r->comm, stand_in_name(&r->work));
    printf("one after the other, %.3f ms:\n", one);
    timeline_print(&s[APART], r->comm, r->events[APART], whole);
    printf("overlapped, %.3f ms:\n", other);
    timeline_print(&s[OVERLAPPED], r->comm, r->events[OVERLAPPED], whole);
    printf("experts take %.3f ms by themselves, %.3f between phases\n",
           step_time(&s[ALONE], r->comm, r->events[ALONE], EXPERT),
           step_time(&s[OVERLAPPED], r->comm, r->events[OVERLAPPED], EXPERT));
}

int main(void)
{
    struct tern_ep_config config = ep_config(EXPERTS, TOPK, TOKENS, ROW_BYTES);
    static struct schedule schedules[SCHEDULES];
    static struct rank ranks[RANKS]; /* zeroed */
    struct tern_comm *comms[RANKS];
    struct tern_ep *eps[RANKS];
    int wrong = 0, each[RANKS] = {0}, first, here;
    config.ll_tokens = TOKENS;
    config.ll_hidden = HIDDEN;
    here = open_ranks(RANKS, &config, comms, eps, &first);
    for (int i = 0; i < here; i++) {
        rank_open(&ranks[i], comms[i], eps[i], first + i);
    }
    add(&schedules[ALONE], ATTENTION, A, 0);
    add(&schedules[ALONE], EXPERT, A, 0);
    apart(&schedules[APART]);
    overlapped(&schedules[OVERLAPPED]);
    for (int i = 0; i < 6; i++) { /* each a second time, when everything is warm */
        wrong += run(ranks, here, i / 2, &schedules[i / 2]);
    }
    if (here < RANKS) {
        must(tern_comm_allgather(comms[0], &wrong, each, sizeof(wrong)));
        wrong = each[0] + each[1];
    }
    if (first == 0) {
        report(&ranks[0], schedules);
        printf("%d of %d elements wrong\n", wrong, 12 * RANKS * TOKENS * HIDDEN);
    }
    for (int i = 0; i < here; i++) {
        rank_close(&ranks[i]);
    }
    return wrong == 0 ? 0 : 1;
}
