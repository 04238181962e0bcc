/* SPDX-License-Identifier: Apache-2.0
 *
 * A world of queue pairs on one cpu machine: a stream for the NIC, one for the kernels that drive it. */
#include "queue_rig.h"

#include "kernels/kernels.h"
#include "net/mlx5_cqe.h"
#include "net/softnic_engine.h"
#include "net/softnic_fleet.h"

#include <stdlib.h>
#include <string.h>

uint64_t queue_rig_remote(uint64_t i) { return RIG_REMOTE_ADDR + i; }
uint64_t queue_rig_local(const struct queue_rig *r, uint64_t i) { return (uint64_t)(uintptr_t)r->local + i; }

uint64_t queue_rig_word(const char *heap, uint64_t i)
{
    uint64_t value;
    memcpy(&value, heap + i, sizeof value);
    return value;
}

static int open_machine(struct queue_rig *r)
{
    void *memory;
    OK(terni_executor_open(r->shape.free_running ? 0 : r->seed, &r->x));
    OK(terni_cpu_open(r->x, &r->m));
    OK(r->m->ops->stream_open(r->m, &r->nic));
    OK(r->m->ops->stream_open(r->m, &r->app));
    OK(r->m->ops->alloc(r->m, sizeof(*r->s), &memory));
    r->s = (struct queue_shared *)memory;
    memset(r->s, 0, sizeof(*r->s));
    OK(r->m->ops->alloc(r->m, RIG_HEAP_BYTES, &memory));
    r->local = (char *)memory;
    OK(r->m->ops->alloc(r->m, RIG_HEAP_BYTES, &memory));
    r->remote = (char *)memory;
    OK(r->m->ops->alloc(r->m, RIG_QUEUES * r->ring_bytes, &memory));
    r->rings = (char *)memory;
    OK(r->m->ops->alloc(r->m, RIG_QUEUES * r->cq_bytes, &memory));
    r->cqes = (char *)memory;
    OK(r->m->ops->alloc(r->m, RIG_QUEUES * r->shape.blocks * 8, &memory));
    r->watch = (char *)memory;
    memset(r->local, 0, RIG_HEAP_BYTES);
    memset(r->remote, 0, RIG_HEAP_BYTES);
    memset(r->rings, 0xdd, RIG_QUEUES * r->ring_bytes);
    memset(r->cqes, 0xff, RIG_QUEUES * r->cq_bytes);
    return TEST_PASSED;
}

/* A heap in two registrations; its bytes are named by `addr`. */
static int add_heap(struct key_table *table, char *host, uint64_t addr, uint64_t cut, uint32_t pd,
                    struct queue_rig_list *list, uint32_t *keys)
{
    const uint32_t all = KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC;
    for (int i = 0; i < 2; i++) {
        uint64_t from = i == 0 ? 0 : cut, bytes = i == 0 ? cut : RIG_HEAP_BYTES - cut;
        struct key_registration g = {addr + from, bytes, host + from, pd, all};
        OK(terni_key_table_add(table, &g, &keys[i]));
        list->ranges[i].addr = addr + from;
        list->ranges[i].bytes = bytes;
        list->ranges[i].key = wqe_key_of(keys[i]);
    }
    list->head.num = 2;
    return TEST_PASSED;
}

static int add_keys(struct queue_rig *r)
{
    struct queue_shared *s = r->s;
    struct key_registration results = {(uint64_t)(uintptr_t)s->results, sizeof(s->results), s->results,
                                       RIG_PD, KEY_LOCAL_WRITE};
    OK(terni_key_table_init(&s->keys, s->entries, RIG_KEYS));
    OK(terni_key_table_init(&s->remote_keys, s->remote_entries, RIG_KEYS));
    PASS(add_heap(&s->keys, r->local, queue_rig_local(r, 0), r->shape.local_cut, RIG_PD, &s->local_list,
                  r->lkeys));
    PASS(add_heap(&s->remote_keys, r->remote, queue_rig_remote(0), r->shape.remote_cut, RIG_PEER_PD,
                  &s->remote_list, r->rkeys));
    OK(terni_key_table_add(&s->keys, &results, &r->results_lkey));
    return TEST_PASSED;
}

static int fill_queue(struct queue_rig *r, uint32_t i)
{
    const struct queue_shape *shape = &r->shape;
    struct queue_shared *s = r->s;
    struct net_queue *q = &s->queues[i];
    q->ring = wqe_ring_of(r->rings + i * r->ring_bytes, shape->blocks);
    q->qpn = 0x400 + i;
    q->flags = (shape->num_cqes ? NET_QUEUE_CQ_RING : 0u) | (shape->relay ? NET_QUEUE_RELAY : 0u) |
               (shape->late ? NET_QUEUE_DUMP : 0u) | (shape->no_record ? NET_QUEUE_NO_RECORD : 0u);
    q->record = shape->relay || shape->no_record ? NULL : s->records[i].words;
    q->doorbell = shape->relay ? NULL : &s->doorbells[i];
    q->relay = shape->relay ? &s->relays[i] : NULL;
    q->cqes = (uint32_t *)(void *)(r->cqes + i * r->cq_bytes);
    q->num_cqes = shape->num_cqes ? shape->num_cqes : 1;
    q->message_bytes = shape->message_bytes;
    q->batch_blocks = shape->batch_blocks;
    q->results_lkey = wqe_key_of(r->results_lkey);
    q->results = s->results[i];
    q->results_addr = (uint64_t)(uintptr_t)s->results[i];
    q->local = (uint64_t)(uintptr_t)&s->local_list.head;
    q->remote = (uint64_t)(uintptr_t)&s->remote_list.head;
    q->abort = &s->abort;
    q->timeout_ns = shape->timeout_ns;
    q->state = &s->states[i];
    terni_queue_state_init(q->state, shape->first);
    s->relays[i] = shape->first;
    OK(terni_queue_check(q));
    return TEST_PASSED;
}

static void fill_qp(struct queue_rig *r, uint32_t i)
{
    struct queue_shared *s = r->s;
    struct softnic_qp *p = &s->qps[i];
    p->ring = s->queues[i].ring;
    p->qpn = s->queues[i].qpn;
    p->pd = RIG_PD;
    p->remote_pd = RIG_PEER_PD;
    p->num_cqes = r->shape.num_cqes;
    s->records[i].words[DOORBELL_RECORD_SEND] = doorbell_record((uint32_t)r->shape.first);
    p->record = s->records[i].words;
    p->has_no_record = r->shape.no_record != 0;
    p->doorbell = &s->doorbells[i];
    p->cqes = s->queues[i].cqes;
    p->keys = &s->keys;
    p->remote_keys = &s->remote_keys;
    p->watch = (uint64_t *)(void *)r->watch + i * r->shape.blocks;
    p->late = r->shape.late && r->shape.net == NULL ? &s->late[i] : NULL;
    p->posted = p->fetched = p->reported = r->shape.first;
    if (r->shape.net == NULL && (r->shape.rates.bytes_per_s != 0 || r->shape.rates.latency_ns != 0)) {
        p->flights = s->flights[i];
        p->link = &s->link;
        p->peer_link = &s->peer_link;
    }
}

/* The other ends, and the network between. */
static void open_net(struct queue_rig *r)
{
    struct queue_shared *s = r->s;
    const struct key_table *keys[] = {&s->keys, &s->remote_keys};
    struct softnic_net_shape shape = *r->shape.net;
    shape.seed = r->seed;
    shape.hold_one_in = r->shape.hold_one_in;
    shape.modes[0] |= r->shape.late ? (uint32_t)RC_CST : 0;
    r->net = softnic_net_open(&shape, 2, keys);
    for (uint32_t i = 0; i < r->shape.num_queues; i++) {
        struct softnic_qp *p = &s->peer_qps[i];
        p->ring = wqe_ring_of(s->peer_ring, NET_QUEUE_MIN_BLOCKS);
        p->qpn = 0x800 + i;
        p->pd = RIG_PEER_PD;
        p->record = s->peer_records[i].words;
        p->doorbell = &s->peer_doorbell;
        p->cqes = s->peer_cqe;
        softnic_net_add(r->net, 0, 1, &s->qps[i], p->qpn, 0u - (uint32_t)r->seed % 8);
        softnic_net_add(r->net, 1, 0, p, s->qps[i].qpn, 0u - (uint32_t)r->seed % 8);
    }
}

int queue_rig_open(struct queue_rig *r, uint64_t seed, const struct queue_shape *shape)
{
    struct queue_shape *own = &r->shape;
    memset(r, 0, sizeof(*r));
    r->seed = seed;
    *own = *shape;
    own->num_queues = own->num_queues ? own->num_queues : 1;
    own->blocks = own->blocks ? own->blocks : NET_QUEUE_MIN_BLOCKS;
    own->batch_blocks = own->batch_blocks ? own->batch_blocks : 1;
    own->message_bytes = own->message_bytes ? own->message_bytes : (uint32_t)WQE_MAX_BYTES;
    own->timeout_ns = own->timeout_ns ? own->timeout_ns : RIG_PATIENCE_NS;
    own->nic_blocks = own->nic_blocks ? own->nic_blocks : 1;
    own->nic_warps = own->nic_warps ? own->nic_warps : 1;
    own->local_cut = own->local_cut ? own->local_cut : RIG_HEAP_BYTES / 2;
    own->remote_cut = own->remote_cut ? own->remote_cut : RIG_HEAP_BYTES / 2;
    r->ring_bytes = (uint64_t)own->blocks * WQE_BLOCK_BYTES;
    r->cq_bytes = (uint64_t)(own->num_cqes ? own->num_cqes : 1) * CQE_BYTES;
    PASS(open_machine(r));
    PASS(add_keys(r));
    for (uint32_t i = 0; i < own->num_queues; i++) {
        PASS(fill_queue(r, i));
        fill_qp(r, i);
    }
    if (own->net != NULL) {
        open_net(r);
    }
    return TEST_PASSED;
}

void queue_rig_close(struct queue_rig *r)
{
    if (r->nic_runs) {
        (void)queue_rig_nic_end(r);
    }
    if (r->m != NULL) {
        (void)r->m->ops->stream_synchronize(r->m, r->app);
        r->m->ops->free(r->m, r->s);
        r->m->ops->free(r->m, r->local);
        r->m->ops->free(r->m, r->remote);
        r->m->ops->free(r->m, r->rings);
        r->m->ops->free(r->m, r->cqes);
        r->m->ops->free(r->m, r->watch);
        r->m->ops->close(r->m);
    }
    if (r->x != NULL) {
        terni_executor_release(r->x);
    }
    softnic_net_close(r->net);
    memset(r, 0, sizeof(*r));
}

/* For the queue pairs of an engine that has two at most. */
enum { NEAR_BYTES = sizeof(struct softnic_shared) + 2 * SOFTNIC_NEAR_BYTES };

int queue_rig_nic(struct queue_rig *r)
{
    struct softnic_args args = {r->s->qps, r->shape.num_queues, r->shape.hold_one_in,
                                r->seed,   &r->s->stop,         {0, 0, 0, 0, 0}};
    struct softnic_crew crew;
    struct launch launch = {TERN_KERNEL_softnic, r->shape.nic_blocks, 32 * r->shape.nic_warps, 0, &crew,
                            sizeof(crew)};
    OK(terni_softnic_model(&r->shape.rates, &args.model));
    memset(&crew, 0, sizeof(crew));
    softnic_crew_add(&crew, &args, r->shape.nic_blocks, NEAR_BYTES);
    launch.shared_bytes = softnic_crew_bytes(&crew);
    __atomic_store_n(&r->s->stop, 0, __ATOMIC_RELEASE);
    if (r->net != NULL) {
        struct softnic_rc_args rc = softnic_net_args(r->net, &r->s->stop);
        struct launch cards = {TERN_KERNEL_softnic_rc, 1, 64, 0, &rc, sizeof(rc)};
        rc.num_cards -= (uint32_t)r->shape.peer_is_dead;
        OK(r->m->ops->launch(r->m, &cards, r->nic));
    } else {
        OK(r->m->ops->launch(r->m, &launch, r->nic));
    }
    r->nic_runs = 1;
    return TEST_PASSED;
}

int queue_rig_nic_end(struct queue_rig *r)
{
    __atomic_store_n(&r->s->stop, 1, __ATOMIC_RELEASE);
    r->nic_runs = 0;
    OK(r->m->ops->stream_synchronize(r->m, r->nic));
    return TEST_PASSED;
}

/* The NIC gets time while kernels run; where it is can be read when it is off. */
int queue_rig_serve(struct queue_rig *r, uint64_t next)
{
    struct queue_step steps[32 * 8];
    for (int tries = 0; tries < 10000; tries++) {
        memset(steps, 0, sizeof(steps));
        for (int i = 0; i < 8; i++) {
            steps[i].kind = STEP_POLL;
        }
        PASS(queue_rig_nic(r));
        PASS(queue_rig_drive(r, steps, 8, 1, 32, ~0u, RIG_PATIENCE_NS));
        PASS(queue_rig_wait(r));
        PASS(queue_rig_nic_end(r));
        if (r->s->qps[0].fetched == next && !r->s->qps[0].is_held &&
            (r->net == NULL || softnic_net_is_idle(r->net))) {
            return TEST_PASSED;
        }
    }
    CHECK(0, "the NIC stays at %llu, not %llu", (unsigned long long)r->s->qps[0].fetched,
          (unsigned long long)next);
}

int queue_rig_drive(struct queue_rig *r, struct queue_step *steps, uint32_t num_steps, int num_blocks,
                    int num_threads, uint32_t warp_step, uint64_t timeout_ns)
{
    struct queue_drive_args args = {r->s->queues, r->shape.num_queues, num_steps,
                                    steps,        warp_step,           timeout_ns};
    struct launch launch = {0, num_blocks, num_threads, 0, &args, sizeof(args)};
    OK(terni_cpu_launch_function(r->m, tern_cpu_queue_drive, "queue_drive", &launch, r->app));
    return TEST_PASSED;
}

int queue_rig_wait(struct queue_rig *r)
{
    OK(r->m->ops->stream_synchronize(r->m, r->app));
    return TEST_PASSED;
}

int queue_rig_check_idle(const struct queue_rig *r)
{
    for (uint32_t i = 0; i < r->shape.num_queues; i++) {
        const struct net_queue_state *s = &r->s->states[i];
        const struct softnic_qp *p = &r->s->qps[i];
        CHECK(s->reserved == s->ready && s->ready == s->consumed,
              "seed %llu: queue %u is at reserved %llu ready %llu consumed %llu", (unsigned long long)r->seed,
              i, (unsigned long long)s->reserved, (unsigned long long)s->ready,
              (unsigned long long)s->consumed);
        CHECK(s->error == 0 && s->results_busy == 0,
              "seed %llu: queue %u keeps error 0x%llx, result words 0x%llx", (unsigned long long)r->seed, i,
              (unsigned long long)s->error, (unsigned long long)s->results_busy);
        CHECK(p->num_overwritten == 0 && p->num_overruns == 0 && p->num_wrong_bells == 0,
              "seed %llu: queue %u: %llu blocks overwritten, %llu overruns, %llu wrong doorbells",
              (unsigned long long)r->seed, i, (unsigned long long)p->num_overwritten,
              (unsigned long long)p->num_overruns, (unsigned long long)p->num_wrong_bells);
        CHECK(p->fetched == s->consumed && p->state == SOFTNIC_READY,
              "seed %llu: the NIC of queue %u is at %llu", (unsigned long long)r->seed, i,
              (unsigned long long)p->fetched);
    }
    CHECK(r->net == NULL || r->net->cards[0].num_lost + r->net->cards[1].num_lost == 0,
          "seed %llu: packets for nobody", (unsigned long long)r->seed);
    return TEST_PASSED;
}
