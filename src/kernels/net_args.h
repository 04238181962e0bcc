/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel net_ops: one that performs an array of requests, by the calls of tern_device.h. The host's
 * operations are one request each; tests give it thousands, to many threads, warps or blocks at once. */
#ifndef TERN_NET_ARGS_H
#define TERN_NET_ARGS_H

#include "tern/tern.h"

enum net_request_kind {
    NET_REQUEST_PUT,
    NET_REQUEST_GET,
    NET_REQUEST_PUT_INLINE,
    NET_REQUEST_PUT_SIGNAL,
    NET_REQUEST_SIGNAL,
    NET_REQUEST_ATOMIC, /* result or not */
    NET_REQUEST_FENCE,
    NET_REQUEST_QUIET, /* peer -1, queue TERN_ALL_QUEUES: all */
    NET_REQUEST_WAIT,
    NET_REQUEST_TEST,
    NET_REQUEST_AT_PEER,
    NET_REQUEST_BARRIER,
    NET_REQUEST_COUNT
};

enum {
    NET_REQUEST_PLAIN = 1,  /* PUT, GET, PUT_SIGNAL: not _nbi; of one thread's: a quiet of its peer and queue
                              follows */
    NET_REQUEST_NO_OLD = 2, /* ATOMIC: nobody asks for the old value */
    NET_REQUEST_BOUNCE = 4  /* PUT, GET, PUT_SIGNAL: `local` is where NICs do not reach */
};

/* In memory that the host reads. */
struct net_result {
    int64_t status;
    uint64_t value; /* ATOMIC: the old one; WAIT: seen last; TEST: 1 or 0; AT_PEER: the address */
};

struct net_request {
    uint32_t kind;
    uint32_t width; /* of a word */
    uint32_t op;    /* enum tern_amo, tern_signal or tern_compare */
    uint32_t queue;
    int32_t peer;
    uint32_t num_old_bytes; /* ATOMIC: 4 or 8 to write the old value to `local` */
    void *remote;           /* symmetric; of WAIT and TEST, this rank's */
    void *local;
    uint64_t bytes;
    void *word; /* PUT_SIGNAL: of the signal; symmetric */
    uint64_t value, compare;
    uint64_t timeout_ns;
    struct net_result *result; /* or NULL */
    uint32_t flags;            /* NET_REQUEST_* */
    uint32_t reserved;
};

/* Who has the bounce area, and who may have it still: a NIC to which it was handed over, and whose
 * completion was not waited for to its end. */
struct net_bounce_state {
    uint32_t lock;  /* 1: taken */
    uint32_t owner; /* 1 + the peer to which that queue leads; 0: no NIC has it */
    uint32_t queue;
};

/* Device memory that NICs reach; one group at a time has it. */
struct net_bounce {
    struct net_bounce_state *state;
    char *memory;
    uint64_t bytes;
};

struct net_args {
    struct tern_net net;
    struct tern_net_team team;          /* for BARRIER */
    struct net_request one;             /* if requests is NULL */
    const struct net_request *requests; /* [num_requests] */
    uint32_t num_requests;
    uint32_t num_each; /* consecutive ones, which one group performs in their order */
    int32_t group;     /* of net/group.h */
    uint32_t reserved;
    struct net_bounce bounce;
};

#endif
