/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the TCP boot: what its handshake (tcp_open.c) and its exchanges (tcp.c) share. Opening is exchange
 * number 0: a hello instead of a post, an empty result as the welcome. */
#ifndef TERN_TCP_H
#define TERN_TCP_H

#include "comm/comm.h"
#include "comm/id.h"

/* Types of frames. */
enum {
    TERN_FRAME_HELLO = 0x4e524554, /* to rank 0: struct hello; value = rank */
    TERN_FRAME_POST = 1,           /* to rank 0: this rank's bytes of the exchange */
    TERN_FRAME_QUERY = 2,          /* to rank 0: my deadline of `value` ms has passed, who is late? */
    TERN_FRAME_RESULT = 3,         /* from rank 0: everybody's bytes */
    TERN_FRAME_VERDICT = 4,        /* from rank 0: the exchange failed; value = status, data = the sentence */
    TERN_FRAME_LEAVE = 5 /* to rank 0: you are late, I have given you up; value as in the question */
};

struct hello {
    unsigned char cookie[TERN_COOKIE_BYTES];
    uint32_t version; /* of the library: frames may differ in others */
    uint32_t num_ranks;
};

struct tcp {
    struct boot boot;
    uint64_t sequence;          /* number of the exchange in progress; 0: the handshake */
    uint64_t bytes;             /* each rank's, in this exchange */
    char *gather;               /* [num_ranks * bytes] */
    uint64_t gather_bytes;      /* allocated */
    struct link *links;         /* rank 0: [num_ranks], the first unused; others: [1], to rank 0 */
    struct pollfd *fds;         /* rank 0: [num_ranks] */
    unsigned char *has_arrived; /* rank 0: [num_ranks], in this exchange */
    unsigned char *took_none; /* rank 0: [num_ranks] took no result within took_none_ms: its link is closed */
    uint32_t took_none_ms;
    int is_asked; /* rank 0: a rank's deadline, of asked_ms, has passed in this exchange */
    uint32_t asked_ms;
    enum tern_status verdict; /* the failure that ended this boot */
    char sentence[TERN_SENTENCE_BYTES];
};

/* A rank that reaches its deadline asks rank 0 who is late, and waits so much longer for the answer. */
#define TERN_GRACE_NS 1000000000ull

/* Ends the boot with a failure: keeps it, and rank 0 tells everybody. Returns `status`. */
enum tern_status terni_tcp_judge(struct tcp *t, enum tern_status status, const char *format, ...)
    TERN_PRINTF(3, 4);
/* Rank 0: names the ranks that have not arrived. To a question only once all that has come was read: rank 0
 * may be the last itself, and the others' posts lie in its sockets. */
enum tern_status terni_tcp_judge_late(struct tcp *t, uint32_t timeout_ms);
/* Others: tells rank 0 that it has been given up. */
void terni_tcp_leave(struct tcp *t, uint32_t timeout_ms);
/* Rank 0: reads what rank r sent; a question is noted. */
enum tern_status terni_tcp_root_input(struct tcp *t, int r);
/* Rank 0: sends everybody the result of this exchange. `timeout_ms` is for sentences. */
void terni_tcp_root_scatter(struct tcp *t, uint64_t deadline_ns, uint32_t timeout_ms);

enum peer_event {
    PEER_RESULT,
    PEER_VERDICT, /* t->verdict and t->sentence say why */
    PEER_GONE,    /* rank 0 closed */
    PEER_SILENT   /* rank 0 did not answer by the deadline and the grace */
};
/* Other ranks: waits for the result of this exchange. */
enum peer_event terni_tcp_peer_wait(struct tcp *t, uint64_t deadline_ns, uint32_t timeout_ms);

void terni_tcp_close(struct boot *boot);
/* Groups (tcp_group.c). */
enum tern_status terni_tcp_invite(struct boot *boot, struct tern_id *id);
void terni_tcp_withdraw(struct boot *boot, const struct tern_id *id);
enum tern_status terni_tcp_join(struct boot *boot, const struct boot_group *group, const struct tern_id *id,
                                uint32_t timeout_ms, struct boot **joined);
enum tern_status terni_tcp_locate(struct boot *boot, struct address *own);
extern const struct boot_ops terni_tcp_ops;

#endif
