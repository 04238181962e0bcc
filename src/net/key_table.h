/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory keys of a software NIC: which addresses a key names, where they are, and who may do what there.
 *
 * A key is the place of its registration in the table and, in the low byte, how often that place has been
 * given out: a key that outlives its registration is refused, until the byte has come round (256
 * registrations of one place, and places are given out in turn). Keys below 0x200 are never given: zeroed
 * memory and the invalid key 0x100 name nothing. lkey and rkey of a registration are the same number, as with
 * mlx5.
 *
 * The table and its entries are the owner's memory, so that a NIC that is a kernel of a GPU can read them;
 * the lookup is dialect. Nothing here locks: the NIC does, around additions, removals and the use of what a
 * lookup gave. */
#ifndef TERN_KEY_TABLE_H
#define TERN_KEY_TABLE_H

#include "tern/tern.h"
#include "net/nic_refusal.h"

/* Rights of a registration, with the values of libibverbs. */
enum {
    KEY_LOCAL_WRITE = 1 << 0,
    KEY_REMOTE_WRITE = 1 << 1,
    KEY_REMOTE_READ = 1 << 2,
    KEY_REMOTE_ATOMIC = 1 << 3,
    KEY_RELAXED_ORDERING = 1 << 20, /* not a right: its writes may be passed by later ones */
};

enum { KEY_FIRST_PLACE = 2, KEY_MAX_CAPACITY = (1 << 24) - KEY_FIRST_PLACE, KEY_MAX_PD = (1 << 24) - 1 };

struct key_entry {
    uint64_t addr, bytes; /* 0 bytes: the place is free, and key is what it will be called next */
    char *host;           /* where the first byte is */
    uint32_t key, pd, access;
    uint32_t next; /* free place */
};

struct key_table {
    struct key_entry *entries;
    uint32_t capacity, num_live;
    uint32_t first_free,
        last_free; /* given out from the front, returned at the back; valid while one is free */
};

struct key_registration {
    uint64_t addr; /* by which work queue entries name the first byte */
    uint64_t bytes;
    void *host;
    uint32_t pd;
    uint32_t access; /* KEY_* */
};

/* 1 to KEY_MAX_CAPACITY entries of the caller's memory; nothing needs undoing. */
enum tern_status terni_key_table_init(struct key_table *table, struct key_entry *entries, uint32_t capacity);
/* Of a table whose entries are of malloc, or NULL with no capacity: where all places are taken, as many
 * again, by realloc. Keys stay what they are. */
enum tern_status terni_key_table_extend(struct key_table *table);
/* TERN_INVALID_ARGUMENT: no bytes, a range past the end of addresses, unknown rights, rights for peers to
 * write without KEY_LOCAL_WRITE. TERN_NO_SPACE: every place is taken. */
enum tern_status terni_key_table_add(struct key_table *table, const struct key_registration *registration,
                                     uint32_t *key);
/* TERN_INVALID_ARGUMENT if there is no such key. */
enum tern_status terni_key_table_remove(struct key_table *table, uint32_t key);

/* What a NIC is about to do with memory. */
enum {
    KEY_USE_GATHER,  /* local: read what is sent */
    KEY_USE_SCATTER, /* local: write a READ's data or an atomic's old value */
    KEY_USE_WRITE,   /* remote, likewise the following */
    KEY_USE_READ,
    KEY_USE_ATOMIC,
};

struct key_request {
    uint32_t use;
    uint32_t key;
    uint32_t pd; /* of the queue pair */
    uint64_t addr, bytes;
};

struct key_memory {
    char *host;       /* NULL if there are no bytes */
    uint32_t relaxed; /* not 0: registered with KEY_RELAXED_ORDERING */
};

TERN_DEVICE uint32_t key_right(uint32_t use)
{
    switch (use) {
    case KEY_USE_SCATTER:
        return KEY_LOCAL_WRITE;
    case KEY_USE_WRITE:
        return KEY_REMOTE_WRITE;
    case KEY_USE_READ:
        return KEY_REMOTE_READ;
    case KEY_USE_ATOMIC:
        return KEY_REMOTE_ATOMIC;
    default:
        return 0; /* every registration may be read locally */
    }
}

/* The place that a key names, whatever is there now; NULL: the table has none. */
TERN_DEVICE const struct key_entry *key_place(const struct key_table *table, uint32_t key)
{
    uint32_t place = (key >> 8) - KEY_FIRST_PLACE;
    return place < table->capacity ? &table->entries[place] : NULL;
}

/* With `e`, what is at the key's place. SYNDROME_NONE and the memory, or the syndrome and why. InfiniBand
 * does not look at the key of an operation without bytes, and neither does this. */
TERN_DEVICE uint32_t key_use(const struct key_entry *e, const struct key_request *q,
                             struct key_memory *memory, struct nic_refusal *r)
{
    uint32_t right = key_right(q->use);
    int local = q->use == KEY_USE_GATHER || q->use == KEY_USE_SCATTER;
    uint64_t offset;
    memory->host = NULL;
    memory->relaxed = 0;
    nic_refuse(r, REFUSED_NOTHING, 0, 0);
    if (q->bytes == 0) {
        return SYNDROME_NONE;
    }
    if (e == NULL || e->bytes == 0 || e->key != q->key) {
        return nic_refuse(r, local ? REFUSED_LKEY : REFUSED_RKEY, q->key, q->key >> 8);
    }
    if (e->pd != q->pd) {
        return nic_refuse(r, local ? REFUSED_LOCAL_PD : REFUSED_REMOTE_PD, e->pd, q->pd);
    }
    if (q->addr < e->addr) {
        return nic_refuse(r, local ? REFUSED_LOCAL_BEFORE : REFUSED_REMOTE_BEFORE, q->addr, e->addr);
    }
    offset = q->addr - e->addr;
    if (offset > e->bytes || q->bytes > e->bytes - offset) {
        return nic_refuse(r, local ? REFUSED_LOCAL_BEYOND : REFUSED_REMOTE_BEYOND, q->addr,
                          offset + q->bytes - e->bytes);
    }
    if ((e->access & right) != right) {
        return nic_refuse(r, local ? REFUSED_LOCAL_RIGHT : REFUSED_REMOTE_RIGHT, e->access, right);
    }
    if (q->use == KEY_USE_ATOMIC && q->addr % q->bytes != 0) {
        return nic_refuse(r, REFUSED_ALIGNMENT, q->addr, q->bytes);
    }
    memory->host = e->host + offset;
    memory->relaxed = (e->access & KEY_RELAXED_ORDERING) != 0;
    return SYNDROME_NONE;
}

TERN_DEVICE uint32_t key_lookup(const struct key_table *table, const struct key_request *q,
                                struct key_memory *memory, struct nic_refusal *r)
{
    return key_use(key_place(table, q->key), q, memory, r);
}

#endif
