/* SPDX-License-Identifier: Apache-2.0
 *
 * comm: who is there (boot), what reaches whom (topology), memory that all can address (heap).
 *
 * Host collectives come in two halves, post and wait, so that one thread can drive several ranks of a
 * process: it posts for each, then waits for each. */
#ifndef TERN_COMM_H
#define TERN_COMM_H

#include "comm/socket.h"
#include "machine/machine.h"

#include <pthread.h>

/* ---- Boot: messages between hosts of ranks. tcp.c (between processes) and board.c (inside one) ---- */

struct boot;
/* Some ranks of a boot that get one of their own. */
struct boot_group {
    int rank, num_ranks; /* in the group */
    int leader;          /* the rank in the old boot of the group's rank 0 */
    const int *names;    /* [num_ranks] for boot.names */
};
struct boot_ops {
    void (*close)(struct boot *b);
    /* Begins allgather number n of this rank; every rank calls post and wait alternately. The data are
     * copied. Does not wait for anybody. */
    enum tern_status (*post)(struct boot *b, const void *send, size_t bytes);
    /* Ends it: recv[r * bytes] is rank r's. TERN_TIMEOUT names every rank that did not post,
     * TERN_DISCONNECTED one that left, TERN_MISMATCH one that posted another size; all ranks get the same
     * sentence, in which "(this one)" marks the caller, and the boot is of no further use: each later call
     * returns that failure as one that came earlier. */
    enum tern_status (*wait)(struct boot *b, void *recv, size_t bytes, uint32_t timeout_ms);
    /* Groups, around one exchange: the leader invites before its post, the id travels, and each rank of the
     * group, whose boots then live on their own, joins after its wait. A leader that does not come to join
     * withdraws. */
    enum tern_status (*invite)(struct boot *b, struct tern_id *id);
    void (*withdraw)(struct boot *b, const struct tern_id *id);
    enum tern_status (*join)(struct boot *b, const struct boot_group *group, const struct tern_id *id,
                             uint32_t timeout_ms, struct boot **joined);
    /* The address of this host by which the other ranks' hosts reach it; port 0. */
    enum tern_status (*locate)(struct boot *b, struct address *own);
};
struct boot {
    const struct boot_ops *ops;
    int rank, num_ranks;
    const int *names;    /* [num_ranks] what sentences call the ranks, the caller's; NULL: by their numbers */
    struct address root; /* rank 0's own, once all know it; empty: they do not */
};
static inline int terni_boot_name(const struct boot *b, int r) { return b->names != NULL ? b->names[r] : r; }

enum { TERN_MAX_BOOT_RANKS = 4096, TERN_SENTENCE_BYTES = 256 };
/* "ranks 3, 5 did not arrive within 2000 ms" for the ranks whose byte in is_late is not zero. `names` as in
 * struct boot. */
void terni_late_print(const unsigned char *is_late, const int *names, int num_ranks, uint32_t timeout_ms,
                      char sentence[TERN_SENTENCE_BYTES]);
/* Where such a sentence names rank `self`: "ranks 3 (this one), 5 did not arrive within 2000 ms". */
void terni_late_mark(char sentence[TERN_SENTENCE_BYTES], int self);
/* The failure of a call on a boot that an earlier exchange has ended. */
#define TERN_FAIL_EARLIER(boot, verdict, sentence)                                                           \
    TERN_FAIL((verdict), "the %s failed earlier: %s", (boot)->names != NULL ? "team" : "communicator",       \
              (sentence))

/* A star of TCP connections through rank 0 (tcp.c). Blocks until all ranks have come. One thread a rank: a
 * rank waits in here for what the others' threads do, so one thread cannot drive two of its ranks. */
enum tern_status terni_tcp_open(const struct tern_id *id, int rank, int num_ranks, const int *names,
                                uint32_t timeout_ms, struct boot **boot);
/* num_ranks boots of one process (board.c); any threads, also a single one, may drive them. */
enum tern_status terni_board_open(int num_ranks, struct boot **boots);

/* What one rank tells the others when it opens. Plain bytes, equal layout on every rank. */
struct rank_card {
    uint64_t process; /* random, one per process */
    uint64_t host;    /* of the boot id and the namespaces: equal on one OS host */
    int64_t pid;
    int32_t machine; /* enum tern_machine */
    int32_t device;
    unsigned char uuid[16];
    uint64_t heap_bytes, heap_max_bytes;
    uint64_t share_granule; /* of the machine */
    uint32_t version;
    uint32_t abi;         /* of the structures shared between ranks: TERN_ABI */
    uint32_t domain_size; /* TERN_DOMAIN_SIZE */
    int32_t num_sms;      /* of the device */
    int32_t status;       /* enum tern_status: whether this rank's machine opened */
    uint32_t reserved;
    struct tern_id door;     /* where it listens for a roll call (roll_call.h); zero: nowhere */
    unsigned char nonce[16]; /* rank 0: random, drawn for this communicator; others: zero */
    struct address root;     /* rank 0: how the other ranks' hosts reach it; others: empty */
    char host_name[64];
    char device_name[96];
    char reason[128]; /* of a status that is not TERN_OK */
};

enum { TERN_ABI = 1 };

/* Fills the part of a card that is known before the machine opens: who, where, version and abi. */
void terni_card_fill(struct rank_card *card);
/* TERN_MISMATCH names the first rank that differs from rank 0 in what must be equal, and both values. */
enum tern_status terni_cards_check(const struct rank_card *cards, int num_ranks);
/* This rank's place among the ranks of its host. */
int terni_local_index(const struct rank_card *cards, int rank);
/* Fills domain_of, num_domains, ranks_on_device and lacks_atomics of `comm` from its cards and machine. */
void terni_topology_build(struct tern_comm *comm);
int terni_topology_describe(const struct tern_comm *comm, char *text, size_t text_bytes);

struct tern_comm {
    int rank, num_ranks;
    struct boot *boot;
    struct machine *machine;
    struct rank_card *cards; /* [num_ranks] */
    int *domain_of;          /* [num_ranks] */
    int num_domains;
    /* [num_ranks] 1: this rank addresses that one, but the link between their devices carries no atomics.
     * Only the one that operates needs to know, so ranks do not compare it. */
    unsigned char *lacks_atomics;
    int ranks_on_device; /* ranks that share this rank's device, itself included */
    uint32_t timeout_ms;
    uint64_t cpu_seed;           /* in force; 0: none */
    int door_fd;                 /* that listens at this rank's card's door; -1: there is none */
    unsigned char cookie[16];    /* names its sockets and windows; no other has it, see agree_cookie */
    uint32_t num_trades;         /* of windows, begun so far: the running number of the next */
    struct heap *heap;           /* the users' windows */
    struct block_list *blocks;   /* what tern_alloc handed out, by kind */
    struct window *windows;      /* adopted from the user; windows_lock, likewise the next two */
    uint64_t num_window_changes; /* of that list, ever */
    uint32_t num_adopted;        /* windows, ever: the latest one's number */
    /* Calls on networks look at the list while another thread changes it. Whoever holds it takes no other
     * lock, waits for nobody and tells nobody. */
    pthread_mutex_t windows_lock;
    struct carrier *carriers; /* open ones (carrier.c); children_lock */
    uint32_t num_carriers;    /* ever: the latest one's number; equal on all ranks */
    pthread_mutex_t children_lock;
    struct comm_child *children; /* objects open on it */
};

/* Part of an object that lives on a communicator. */
struct comm_child {
    uintptr_t stream_key; /* of the stream that its latest work was issued on; 0: none that is not done */
    struct comm_child *next;
};

/* The public calls behind their argument checks. `config` is complete, not NULL. */
enum tern_status terni_comm_open(const struct tern_id *id, int rank, int num_ranks,
                                 const struct tern_comm_config *config, struct tern_comm **comm);
enum tern_status terni_comm_open_all(int num_ranks, const struct tern_comm_config *config,
                                     struct tern_comm **comms);
/* What tern_comm_shrink is told; `config` as for terni_comm_open, NULL: as `comm` was opened. */
struct shrink {
    const struct tern_comm_config *config;
    uint32_t timeout_ms, min_ranks, whole_domains;
};
enum tern_status terni_comm_shrink(struct tern_comm *comm, const struct shrink *shrink, int32_t *old_ranks,
                                   struct tern_comm **shrunk);
/* For calls that take one rank, or all ranks of one communicator in order, driven by one thread. */
enum tern_status terni_comm_check_all(int num_ranks, struct tern_comm *const *comms);
/* An object that lives on the communicator opens and closes; any thread. */
void terni_comm_adopt(struct tern_comm *comm, struct comm_child *child);
void terni_comm_disown(struct tern_comm *comm, struct comm_child *child);
int terni_comm_num_children(struct tern_comm *comm);
/* The object's latest work is on `stream`; is done. The stream of it: 1, or 0 if there is none. */
void terni_child_used(struct comm_child *child, struct tern_stream *stream);
void terni_child_idle(struct comm_child *child);
int terni_child_stream(const struct comm_child *child, struct tern_stream **stream);
/* All that was issued on the stream has run, and it is no more. */
void terni_comm_stream_closed(struct tern_comm *comm, struct tern_stream *stream);
/* Waits for the streams that were opened through the communicator; work that the user put on any other one,
 * also on a GPU's default stream, must have finished. While children are open, logs an error and
 * closes nothing: the children's kernels and memory are in use, and a leak is the lesser harm. */
void terni_comm_close(struct tern_comm *comm);

/* ---- Heap: one symmetric range; every rank maps every peer's part ---- */

struct heap {
    struct machine *machine;
    int rank, num_ranks;
    uint64_t bytes; /* of memory in each part; others than the thread that grows it use terni_heap_bytes */
    uint64_t max_bytes;  /* of addresses: what it may grow to */
    char **bases;        /* [num_ranks], host array of peer addresses; they never change */
    uint64_t *owners;    /* [num_ranks] where each part begins for its owner; all ranks' */
    char **device_bases; /* the same, in device memory */
    struct heap_state *state;
};
/* The halves of a collective; open = begin on every rank, then end on every rank. Zeroed memory. A rank that
 * finds no memory fails in end, together with all the others, who name it; the communicator stays usable.
 * Each rank must call end after a begin that returned TERN_OK; when end fails, the caller closes the heap. A
 * rank that cannot map a peer's part fails in end alone: whoever opens a heap ends with terni_comm_judge_post
 * and _wait. An open heap holds no descriptor. */
enum tern_status terni_heap_begin(struct tern_comm *comm, uint64_t bytes, struct heap **heap);
/* One that may grow; both sizes are whole granules if they differ. */
enum tern_status terni_heap_begin_upto(struct tern_comm *comm, uint64_t bytes, uint64_t max_bytes,
                                       struct heap **heap);
enum tern_status terni_heap_end(struct tern_comm *comm, struct heap *heap);
/* Local; peers' mappings of this part live on until they close theirs. Accepts NULL and half-open heaps. */
void terni_heap_close(struct heap *heap);
uint64_t terni_heap_bytes(const struct heap *heap);
/* Offset of `p` in this rank's part, or -1 if [p, p + bytes) does not lie in it. */
int64_t terni_heap_offset(const struct heap *heap, const void *p, uint64_t bytes);

/* Growing comm->heap: every step on every rank, as long as none fails, then finish with the outcome, also
 * where the first step failed. All ranks fail alike, and are then as they were. */
enum { HEAP_GROW_STEPS = 6 };
enum tern_status terni_heap_grow_step(struct tern_comm *comm, uint64_t bytes, int step);
void terni_heap_grow_finish(struct tern_comm *comm, enum tern_status status);
/* `bytes` rounded up to what shared memory comes in on every rank's machine. */
uint64_t terni_comm_granules(const struct tern_comm *comm, uint64_t bytes);

/* Host allgather on top of boot, for one rank by a blocking caller; a barrier is one of zero bytes. */
enum tern_status terni_comm_allgather(struct tern_comm *comm, const void *send, void *recv, size_t bytes);

/* The end of a collective, in two halves: each rank says how its own part went, all learn whether every part
 * went well. post takes the status with this thread's tern_last_error; when it cannot tell the others, it
 * returns `status` if that is a failure. wait fails on every rank alike, with the status and the sentence of
 * the first rank that failed, "rank 3: no memory for ..."; one that only waited for another in vain comes
 * after those that failed by themselves. A rank whose post returned TERN_OK calls wait. */
enum tern_status terni_comm_judge_post(struct tern_comm *comm, enum tern_status status);
enum tern_status terni_comm_judge_wait(struct tern_comm *comm);
/* The same, for who has another way after a failure, which all ranks must take or none. *is_verdict: what is
 * returned is what all ranks hear; else this one heard nothing, and can only give up. */
enum tern_status terni_comm_judge_hear(struct tern_comm *comm, int *is_verdict);
/* The same among the ranks of any boot. */
enum tern_status terni_boot_judge_post(struct boot *boot, enum tern_status status);
/* And where ranks might come with different things, a few words, as of "rank 3": it "resets EP object 2". If
 * all have succeeded, but not in the same, all fail with TERN_MISMATCH. */
enum tern_status terni_boot_judge_post_of(struct boot *boot, enum tern_status status, const char *what);
enum tern_status terni_boot_judge_wait(struct boot *boot, uint32_t timeout_ms);

/* ---- Memory handed to the user (carver.c, memory.c) ---- */

/* A range [0, bytes) carved into blocks of 256-byte multiples; holds no memory itself. */
struct carver;
enum tern_status terni_carver_open(uint64_t bytes, struct carver **carver);
void terni_carver_close(struct carver *c);
/* TERN_OUT_OF_MEMORY names the bytes asked for, free, and in the largest free block. */
enum tern_status terni_carver_take(struct carver *c, uint64_t bytes, uint64_t *offset);
/* Whether `offset` began a block that was taken; the block is free again, joined with its free neighbours. */
int terni_carver_give(struct carver *c, uint64_t offset);
void terni_carver_get_free(const struct carver *c, uint64_t *free_bytes, uint64_t *largest_bytes);

/* The range has `bytes` from now on. begin may fail and changes nothing; end, later, does not fail. */
enum tern_status terni_carver_grow_begin(struct carver *c);
void terni_carver_grow_end(struct carver *c, uint64_t bytes);

enum tern_status terni_blocks_open(struct tern_comm *comm); /* over comm->heap, into comm->blocks */
void terni_blocks_close(struct tern_comm *comm);            /* frees what the user left */
enum tern_status terni_blocks_grow_begin(struct tern_comm *comm);
void terni_blocks_grow_end(struct tern_comm *comm); /* comm->heap has grown */
enum tern_status terni_alloc(struct tern_comm *comm, enum tern_memory kind, size_t bytes, void **memory);
void terni_free(struct tern_comm *comm, void *memory);

/* ---- Windows of the user's own memory, and peers' addresses (window.c) ---- */

/* Every step on every rank, as long as none fails, then finish with the outcome; *window is NULL before. All
 * ranks fail alike. */
enum { WINDOW_ADOPT_STEPS = 6 };
enum tern_status terni_window_adopt_step(struct tern_comm *comm, void *memory, uint64_t bytes, int step,
                                         struct window **window);
void terni_window_adopt_finish(struct tern_comm *comm, struct window *window, enum tern_status status);
void terni_window_release(struct tern_comm *comm, const void *memory);
void terni_windows_close(struct tern_comm *comm); /* releases what the user left */
/* An adopted window, as long as it is one. */
struct window_place {
    char *memory;
    uint64_t bytes;
    char *const *bases;     /* [num_ranks] as in struct heap */
    const uint64_t *owners; /* likewise */
    uint32_t number;        /* from 1 on, in the order of adopting; equal on all ranks */
};
/* Between them adopted windows neither come nor go, and what places name stays. */
void terni_windows_lock(const struct tern_comm *comm);
void terni_windows_unlock(const struct tern_comm *comm);
/* The first `max` of them; returns how many there are. By who has the lock, or in a use of the communicator,
 * which nothing changes the list beside. */
int terni_windows_list(const struct tern_comm *comm, struct window_place *places, int max);
/* How often the list has changed: at least as often as the calling thread can know. */
uint64_t terni_windows_changes(const struct tern_comm *comm);
/* Bytes from `memory` to the end of the window that has it; 0: none has. */
uint64_t terni_window_left(const struct tern_comm *comm, const void *memory);
enum tern_status terni_peer_pointer(const struct tern_comm *comm, const void *memory, int peer,
                                    void **pointer);

/* ---- Teams (team.c) ---- */

/* Which ranks: of a kind, or start, start + stride, ... of a parent. */
struct team_spec {
    int32_t kind;                /* enum tern_team_kind; -1: a split */
    int32_t start, stride, size; /* of a split */
};
/* COLLECTIVE over the communicator, or over `parent` if that is not NULL: every step on every rank, as long
 * as none fails, then finish with the outcome; *team is NULL before, and after finish where this rank is in
 * no team, or on failure. All ranks fail alike. */
enum { TEAM_OPEN_STEPS = 3 };
enum tern_status terni_team_open_step(struct tern_comm *comm, const struct tern_team *parent,
                                      const struct team_spec *spec, int step, struct tern_team **team);
void terni_team_open_finish(struct tern_team **team, enum tern_status status);
void terni_team_close(struct tern_team *team);
enum tern_status terni_team_barrier(struct tern_team *team);
struct tern_comm *terni_team_comm(const struct tern_team *team);
struct boot *terni_team_boot(const struct tern_team *team);
int terni_team_rank(const struct tern_team *team);
int terni_team_size(const struct tern_team *team);
/* NULL is the communicator; -1: there is no such rank. */
int terni_team_translate(const struct tern_team *from, int rank, const struct tern_team *to);

#endif
