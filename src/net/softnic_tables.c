/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels and the NIC are told of memory and queues, in two blocks of device memory. One stays where it
 * is, as kernels and queue pairs have its address:
 *
 *     struct net_queue                  [num_ranks][num_queues]                   for kernels
 *     key tables of own memory, of peers'  [1 + num_ranks]                        for the NIC
 *
 * The other is made anew when memory comes or goes (key_lists.h), and the first told of it:
 *
 *     ranges of own memory, of peers'   [1 + num_ranks] lists                     for kernels
 *     entries of key tables, likewise                                             for the NIC, which pauses
 */
#include "net/softnic_packets.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct offsets {
    uint64_t queues, tables, end;
};

static struct offsets offsets_of(const struct softnic_provider *p)
{
    uint64_t num = (uint64_t)p->config.num_ranks + 1;
    struct offsets o;
    o.queues = 0;
    o.tables = o.queues + (num - 1) * p->config.num_queues * sizeof(struct net_queue);
    o.end = o.tables + num * sizeof(struct key_table);
    return o;
}

/* Peer -1: own memory, which comes first. */
const struct key_table *terni_softnic_keys(const struct softnic_provider *p, int peer)
{
    return (const struct key_table *)(void *)(p->tables + offsets_of(p).tables) + (peer + 1);
}

/* ---- Registrations ---- */

static enum tern_status add(struct softnic_memory *m, int rank, uint64_t addr, uint64_t bytes, void *host,
                            uint32_t *key)
{
    struct key_registration g = {addr, bytes, host, SOFTNIC_PD,
                                 KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC};
    enum tern_status status;
    void *entry;
    TERN_TRY(terni_region_add(&m->regions, rank, addr, bytes, &entry));
    status = terni_key_table_extend(&m->keys);
    status = status == TERN_OK ? terni_key_table_add(&m->keys, &g, key) : status;
    if (status != TERN_OK) {
        terni_region_remove(&m->regions, m->regions.num - 1);
        return status;
    }
    ((struct softnic_region *)entry)->key = *key;
    return TERN_OK;
}

/* A peer's, by a key that the peer's NIC knows. */
static enum tern_status add_foreign(struct softnic_memory *m, int rank,
                                    const struct softnic_region_card *card)
{
    void *entry;
    TERN_TRY(terni_region_add(&m->regions, rank, card->addr, card->bytes, &entry));
    ((struct softnic_region *)entry)->key = card->key;
    return TERN_OK;
}

static void drop(struct softnic_memory *m, uint64_t addr, int is_foreign)
{
    int at = terni_region_find(&m->regions, addr);
    if (at >= 0) {
        const struct softnic_region *r = (const struct softnic_region *)terni_region_at(&m->regions, at);
        if (!is_foreign) {
            (void)terni_key_table_remove(&m->keys, r->key); /* it is there */
        }
        terni_region_remove(&m->regions, at);
    }
}

enum tern_status terni_softnic_register(struct softnic_provider *p, void *memory, uint64_t bytes,
                                        struct softnic_region_card *card)
{
    uint64_t addr = (uint64_t)(uintptr_t)memory;
    TERN_TRY(add(&p->own, p->config.rank, addr, bytes, memory, &card->key));
    card->addr = addr;
    card->bytes = bytes;
    card->reserved = 0;
    return TERN_OK;
}

enum tern_status terni_softnic_import(struct softnic_provider *p, int peer,
                                      const struct softnic_region_card *card, void *mapped)
{
    uint32_t key;
    if (!p->is_connected || peer < 0 || peer >= p->config.num_ranks || !p->peers[peer].is_wanted) {
        return TERN_FAIL(TERN_BAD_STATE, "rank %d is not connected to rank %d", p->config.rank, peer);
    }
    return terni_softnic_has_packets(p)
               ? add_foreign(&p->peers[peer].memory, peer, card)
               : add(&p->peers[peer].memory, peer, card->addr, card->bytes, mapped, &key);
}

void terni_softnic_deregister(struct softnic_provider *p, const void *memory)
{
    drop(&p->own, (uint64_t)(uintptr_t)memory, 0);
}

void terni_softnic_forget(struct softnic_provider *p, int peer, uint64_t addr)
{
    drop(&p->peers[peer].memory, addr, terni_softnic_has_packets(p));
}

/* ---- As kernels and the NIC read them ---- */

static struct net_queue *queue_of(const struct softnic_provider *p, int peer, uint32_t index)
{
    return (struct net_queue *)(void *)(p->tables_copy + offsets_of(p).queues) +
           ((uint64_t)peer * p->config.num_queues + index);
}

static uint64_t memory_bytes(const struct softnic_memory *m)
{
    return terni_key_list_share(m->regions.num) +
           terni_key_block_share(m->keys.capacity * sizeof(struct key_entry));
}

/* The list of one memory, and its entries, to which its table points. The list's address. */
static uint64_t put_memory(struct softnic_provider *p, struct key_block *b, const struct softnic_memory *m,
                           int peer)
{
    struct key_table *table =
        (struct key_table *)(void *)(p->tables_copy + offsets_of(p).tables) + (peer + 1);
    uint64_t bytes = m->keys.capacity * sizeof(struct key_entry);
    char *device;
    void *entries = terni_key_block_take(b, bytes, &device);
    if (bytes != 0) {
        memcpy(entries, m->keys.entries, bytes);
    }
    *table = m->keys;
    table->entries = (struct key_entry *)(void *)device;
    return terni_key_block_list(b, &m->regions, offsetof(struct softnic_region, key));
}

/* A block of all lists and entries as they are now, on the device; queues and tables of the copy name it. */
static enum tern_status put_keys(struct softnic_provider *p, struct key_block **block)
{
    uint64_t bytes = memory_bytes(&p->own), own, theirs;
    struct key_block *b = NULL;
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        bytes += p->peers[peer].is_wanted ? memory_bytes(&p->peers[peer].memory) : 0;
    }
    TERN_TRY(terni_key_block_open(p->machine, bytes, &b));
    own = put_memory(p, b, &p->own, -1);
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        if (!p->peers[peer].is_wanted) {
            continue;
        }
        theirs = put_memory(p, b, &p->peers[peer].memory, peer);
        for (uint32_t i = 0; i < p->config.num_queues; i++) {
            queue_of(p, peer, i)->local = own;
            queue_of(p, peer, i)->remote = theirs;
        }
    }
    return terni_key_block_send(p->machine, b, block);
}

static void put_doorbell(const struct softnic_provider *p, uint32_t place, struct net_queue *q)
{
    if (p->config.relay) {
        q->flags |= NET_QUEUE_RELAY;
        q->relay = (uint64_t *)(void *)(p->host_device + p->at.relays + (uint64_t)place * SOFTNIC_LINE);
    } else {
        q->flags |= terni_softnic_has_records(p) ? 0 : NET_QUEUE_NO_RECORD;
        q->record = (uint32_t *)(void *)terni_softnic_record(p, place);
        q->doorbell = (uint64_t *)(void *)terni_softnic_doorbell(p, place);
    }
}

static enum tern_status put_queue(struct softnic_provider *p, int peer, uint32_t index)
{
    const struct softnic_config *c = &p->config;
    uint32_t place = terni_softnic_place(p, peer, index);
    const struct softnic_share share = terni_softnic_share(p, p->device, place);
    struct net_queue *q = queue_of(p, peer, index);
    q->ring = share.ring;
    q->qpn = 1 + place;
    q->flags = (c->cq_ring ? NET_QUEUE_CQ_RING : 0u) | (c->dump ? NET_QUEUE_DUMP : 0u) |
               (c->num_nics > 1 ? NET_QUEUE_FAR_NICS : 0u);
    put_doorbell(p, place, q);
    q->num_cqes = terni_softnic_num_cqes(p);
    q->cqes = share.cqes;
    q->message_bytes = WQE_MAX_BYTES;
    q->batch_blocks = c->batch_blocks;
    q->results_lkey = wqe_key_of(p->results_key);
    q->results = share.results;
    q->results_addr = (uint64_t)(uintptr_t)q->results;
    q->abort = c->abort;
    q->timeout_ns = c->timeout_ns;
    q->lost = c->lost;
    q->state = share.state;
    return terni_queue_check(q);
}

/* Whole, while no kernel has seen them. */
static enum tern_status build(struct softnic_provider *p)
{
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        if (peer == p->config.rank) {
            queue_of(p, peer, 0)->lost = p->config.lost;
        }
        for (uint32_t i = 0; p->peers[peer].is_wanted && i < p->config.num_queues; i++) {
            TERN_TRY(put_queue(p, peer, i));
        }
    }
    TERN_TRY(put_keys(p, &p->keys));
    return terni_softnic_copy(p, p->tables, p->tables_copy, offsets_of(p).end);
}

/* The NIC pauses; kernels need not. */
static enum tern_status publish(struct softnic_provider *p)
{
    const struct offsets o = offsets_of(p);
    TERN_TRY(terni_softnic_copy(p, p->tables + o.tables, p->tables_copy + o.tables, o.end - o.tables));
    return terni_key_lists_publish(p->machine, (struct net_queue *)(void *)(p->tables + o.queues),
                                   queue_of(p, 0, 0), (uint64_t)p->config.num_ranks * p->config.num_queues);
}

enum tern_status terni_softnic_refresh(struct softnic_provider *p)
{
    struct key_block *fresh = NULL;
    enum tern_status status;
    TERN_TRY(put_keys(p, &fresh));
    status = terni_softnic_pause(p);
    if (status == TERN_OK) {
        terni_softnic_packets_land(p);
        status = publish(p);
    }
    status = status == TERN_OK ? terni_softnic_resume(p) : status;
    terni_key_block_replace(p->machine, &p->keys, fresh, status, p->config.copies);
    return status; /* a device that does not copy will not run a NIC either */
}

/* ---- Open and close ---- */

static void memory_open(struct softnic_memory *m) { m->regions.entry_bytes = sizeof(struct softnic_region); }

static void memory_close(struct softnic_memory *m)
{
    terni_region_list_close(&m->regions);
    free(m->keys.entries);
}

/* Before the queue pairs, which point here. */
enum tern_status terni_softnic_tables_open(struct softnic_provider *p)
{
    void *memory = NULL;
    memory_open(&p->own);
    for (int peer = 0; peer < p->config.num_ranks; peer++) {
        memory_open(&p->peers[peer].memory);
    }
    p->tables_copy = (char *)calloc(1, offsets_of(p).end);
    if (p->tables_copy == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the tables of %u queues", p->num_places);
    }
    TERN_TRY(p->machine->ops->alloc(p->machine, offsets_of(p).end, &memory));
    p->tables = (char *)memory;
    return TERN_OK;
}

/* The words where old values come back, and the first tables. */
enum tern_status terni_softnic_tables_fill(struct softnic_provider *p)
{
    struct key_registration g = {0, 0, p->device + p->at.results, SOFTNIC_PD, KEY_LOCAL_WRITE};
    g.addr = (uint64_t)(uintptr_t)g.host;
    g.bytes = p->at.states - p->at.results;
    if (g.bytes != 0) {
        TERN_TRY(terni_key_table_extend(&p->own.keys));
        TERN_TRY(terni_key_table_add(&p->own.keys, &g, &p->results_key));
    }
    return build(p);
}

void terni_softnic_tables_close(struct softnic_provider *p)
{
    memory_close(&p->own);
    for (int peer = 0; p->peers != NULL && peer < p->config.num_ranks; peer++) {
        memory_close(&p->peers[peer].memory);
    }
    terni_key_block_close(p->machine, p->keys);
    free(p->tables_copy);
    if (p->tables != NULL) {
        p->machine->ops->free(p->machine, p->tables);
    }
}

const struct net_queue *terni_softnic_queues(const struct softnic_provider *p)
{
    return (const struct net_queue *)(void *)(p->tables + offsets_of(p).queues);
}

const struct net_queue *terni_softnic_queue(const struct softnic_provider *p, int peer, uint32_t index)
{
    if (peer < 0 || peer >= p->config.num_ranks || !p->peers[peer].is_wanted ||
        index >= p->config.num_queues) {
        return NULL;
    }
    return queue_of(p, peer, index);
}
