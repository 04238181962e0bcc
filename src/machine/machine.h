/* SPDX-License-Identifier: Apache-2.0
 *
 * A machine runs kernels for one rank: memory, streams, events, graphs, launches. Two implementations, cpu.c
 * and cuda.c; nothing above this header knows which it has.
 *
 * Streams and events are the machine's own objects cast to the public opaque types; NULL is the default
 * stream. Everything that takes a stream is asynchronous on it. Functions return TERN_OK or fail through
 * TERN_FAIL. One machine serves one rank. Any threads may use it at once, each with streams, events, graphs
 * and memory of its own; settle and close are called when no other call is in progress. */
#ifndef TERN_MACHINE_H
#define TERN_MACHINE_H

#include "core/core.h"
#include "machine/resident.h" /* kernels that stay, and calls that wait for the device */

struct machine;

/* One kernel launch. `kernel` comes from kernels/kernels.h; args are copied before launch returns. */
struct launch {
    int kernel; /* enum terni_kernel */
    int num_blocks;
    int num_threads; /* a block; a multiple of 32 */
    uint32_t shared_bytes;
    const void *args;
    uint32_t args_bytes; /* at most 4000 */
};

/* Memory that other ranks can map: a range of addresses that never moves, filled from its beginning on with
 * pieces of memory. Exactly one owner; importers hold a struct of their own. Zeroed: nothing. */
struct share {
    char *base;        /* as this rank addresses it */
    uint64_t reserved; /* bytes of addresses from there on */
    uint64_t bytes;    /* of memory, likewise */
    int kind;          /* enum share_kind */
    void *opaque;      /* implementation's */
};

enum share_kind {
    SHARE_LOCAL, /* one piece, the whole range, for ranks of this process. cuda: base comes with the piece */
    SHARE_GROWING, /* pieces of whole info.share_granule each, for ranks of this process */
    SHARE_EXPORTED /* likewise, and other processes can import them */
};

/* What another process needs to import memory that is not of share_add. */
struct share_loan {
    int fd;              /* the caller's to close; -1 if no process is to import it */
    uint64_t offset;     /* into what fd names, for share_import */
    uint64_t span_bytes; /* to import from there */
    uint64_t inner;      /* where the memory begins in these */
};

struct machine_info {
    enum tern_machine kind;
    int device;             /* cuda ordinal; 0 on cpu */
    char name[96];          /* of the device */
    char driver[32];        /* driver and runtime version, "" on cpu */
    unsigned char uuid[16]; /* of the device; equal for ranks that share one (cpu: of the executor) */
    int num_sms;
    uint32_t max_shared_bytes; /* dynamic shared memory of one block */
    int has_bulk;              /* asynchronous bulk copies */
    int compute_capability;    /* 90 for sm_90; 0 on cpu */
    uint64_t memory_bytes;
    uint64_t share_granule; /* a power of two: pieces of shared memory are multiples of it */
    char pci[16];           /* where the device is on PCIe, "0000:5d:00.0"; "" on cpu */
    /* What NICs write into this device's memory becomes visible in the order of their writes, also to a
     * kernel that runs; else it may hang behind. */
    int nic_writes_ordered;
    int has_stamps; /* the kernels were built to take time stamps (kernels/stamp.h) */
};

struct machine_ops {
    void (*close)(struct machine *m); /* waits for the streams of this machine, then frees everything */
    /* Host waits for all streams that were opened here. Not for cuda's default stream and others that are not
     * Tern's: these may wait for streams of the whole device. Failures are logged. */
    void (*settle)(struct machine *m);

    enum tern_status (*alloc)(struct machine *m, size_t bytes, void **memory); /* device, 256-byte aligned */
    void (*free)(struct machine *m, void *memory);
    /* Host memory that kernels may write: *host and *device address the same bytes. Zeroed. */
    enum tern_status (*host_alloc)(struct machine *m, size_t bytes, void **host, void **device);
    void (*host_free)(struct machine *m, void *host);

    /* Addresses for `bytes`, and no memory yet. */
    enum tern_status (*share_reserve)(struct machine *m, int kind, uint64_t bytes, struct share *share);
    /* Zeroed memory at the end of what the share has. *fd: SHARE_EXPORTED, a descriptor for share_import in
     * another process, the caller's to close (memory lives without it); else -1. */
    enum tern_status (*share_add)(struct machine *m, struct share *share, uint64_t bytes, int *fd);
    /* There, `bytes` that another process has, from `offset` on in what fd names. On success fd is closed, on
     * failure it is still the caller's. */
    enum tern_status (*share_import)(struct machine *m, struct share *share, int fd, uint64_t offset,
                                     uint64_t bytes);
    /* Gives back the pieces from the one that begins at `bytes` on; their addresses stay reserved. */
    void (*share_trim)(struct machine *m, struct share *share, uint64_t bytes);
    /* Before this rank addresses in-process memory of a rank on `device` (info.device). */
    enum tern_status (*peer_enable)(struct machine *m, int device);
    /* 1: the link to the device that `uuid` names (info.uuid) does not carry atomics, so that this device's,
     * on memory of that one, may be lost beside others. 0 also where this process does not see that device,
     * and cannot ask. */
    int (*lacks_atomics)(struct machine *m, const unsigned char uuid[16]);
    /* Owner or importer. A share of share_add may also be freed through the machine of another rank of this
     * process, on the same or another device, after the owner's machine has closed: the last who maps it
     * does. Leaves the struct zeroed. */
    void (*share_free)(struct machine *m, struct share *share);
    /* Memory that the caller allocated, for peers on other devices of this process and, if exported, for
     * other processes. TERN_UNSUPPORTED says what memory would do. */
    enum tern_status (*share_lend)(struct machine *m, void *memory, uint64_t bytes, int exported,
                                   struct share_loan *loan);

    /* For NICs. Whole pages of a device's registers that this process has mapped, for kernels to store to:
     * *device addresses them. TERN_UNSUPPORTED: kernels cannot reach them. Unmapped by the same address. */
    enum tern_status (*io_map)(struct machine *m, void *registers, size_t bytes, void **device);
    void (*io_unmap)(struct machine *m, void *registers);
    /* A dma-buf over `memory` of the device: *fd is the caller's to close, `memory` begins `*offset` bytes
     * into it. TERN_UNSUPPORTED: there is none for this memory; a driver may still find it by its address. */
    enum tern_status (*dmabuf)(struct machine *m, void *memory, uint64_t bytes, int *fd, uint64_t *offset);

    enum tern_status (*copy)(struct machine *m, void *dst, const void *src, size_t bytes,
                             struct tern_stream *s);
    enum tern_status (*fill)(struct machine *m, void *dst, int byte, size_t bytes, struct tern_stream *s);
    /* *word = value, in device memory of any rank, as a release at system scope of what the stream did
     * before. */
    enum tern_status (*store)(struct machine *m, uint64_t *word, uint64_t value, struct tern_stream *s);
    enum tern_status (*launch)(struct machine *m, const struct launch *launch, struct tern_stream *s);
    /* A kernel that is not in the list: launch->kernel does not count. */
    enum tern_status (*launch_other)(struct machine *m, const struct tern_kernel *kernel,
                                     const struct launch *launch, struct tern_stream *s);

    enum tern_status (*stream_open)(struct machine *m, struct tern_stream **s);
    int (*stream_is_open)(struct machine *m, struct tern_stream *s); /* opened here and not closed */
    void (*stream_close)(struct machine *m, struct tern_stream *s);
    enum tern_status (*stream_synchronize)(struct machine *m, struct tern_stream *s);
    int (*stream_capturing)(struct machine *m, struct tern_stream *s);
    /* Number of the capture that the stream is in, another one for each; 0: in none. */
    uint64_t (*stream_capture)(struct machine *m, struct tern_stream *s);
    /* Whether `s` is the default stream: NULL, or another name that the machine has for it. */
    int (*is_thread_stream)(struct machine *m,
                            struct tern_stream *s); /* one handle, a stream a host thread */
    int (*is_default_stream)(struct machine *m, struct tern_stream *s);
    /* The machine's stream for short work of the library that the host waits for: not the default stream,
     * where work of the user may be waiting for a peer, and in no capture. One and the same: a GPU has few
     * hardware queues, handed out in turn to streams as they are created, and streams that share one wait for
     * each other. */
    struct tern_stream *(*own_stream)(struct machine *m);

    enum tern_status (*event_open)(struct machine *m, struct tern_event **e);
    void (*event_close)(struct machine *m, struct tern_event *e);
    enum tern_status (*event_record)(struct machine *m, struct tern_event *e, struct tern_stream *s);
    enum tern_status (*event_wait)(struct machine *m, struct tern_event *e, struct tern_stream *s);
    enum tern_status (*event_synchronize)(struct machine *m, struct tern_event *e); /* host waits */
    enum tern_status (*event_elapsed)(struct machine *m, struct tern_event *a, struct tern_event *b,
                                      float *ms);

    enum tern_status (*graph_begin)(struct machine *m, struct tern_stream *s);
    enum tern_status (*graph_end)(struct machine *m, struct tern_stream *s, struct tern_graph **g);
    enum tern_status (*graph_launch)(struct machine *m, struct tern_graph *g, struct tern_stream *s);
    void (*graph_close)(struct machine *m, struct tern_graph *g);

    /* Host waits until *word == value, where a kernel writes the word in host_alloc memory with a
     * system-scope release. TERN_TIMEOUT (without a sentence) if deadline_ns of terni_clock_ns passes first.
     */
    enum tern_status (*wait_word)(struct machine *m, const uint64_t *word, uint64_t value,
                                  uint64_t deadline_ns);
};

struct machine {
    const struct machine_ops *ops;
    struct machine_info info;
};

/* CUDA devices that can be used; 0 without a driver or in a build without CUDA. Never fails. */
int terni_cuda_device_count(void);
/* Opens device `ordinal`. In a build without CUDA: TERN_UNSUPPORTED. Loads every kernel now, because loading
 * one while another spins for a peer on the same device would wait for ever. */
enum tern_status terni_cuda_open(int ordinal, struct machine **m);
/* One line on what the build and the machine have of CUDA, for make and tern-info. */
const char *terni_cuda_describe(void);

/* The cpu machine: ranks of one executor share its scheduler. seed as tern_comm_config.cpu_seed. An executor
 * lives until the last machine on it closes. */
struct executor;
enum tern_status terni_executor_open(uint64_t seed, struct executor **x);
void terni_executor_release(struct executor *x);                         /* the opener's own reference */
enum tern_status terni_cpu_open(struct executor *x, struct machine **m); /* takes a reference */

#endif
