/* SPDX-License-Identifier: Apache-2.0
 *
 * Who shares what. Every rank holds the same array of cards and derives the same picture from it, so that
 * nothing here needs another message. */
#include "comm/comm.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* splitmix64's finisher over a running state: good enough to tell hosts and processes apart. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h += 0x9e3779b97f4a7c15 + v;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
    h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
    return h ^ (h >> 31);
}

static uint64_t mix_bytes(uint64_t h, const char *bytes, size_t num_bytes)
{
    for (size_t i = 0; i < num_bytes; i++) {
        h = mix(h, (unsigned char)bytes[i]);
    }
    return h;
}

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static uint64_t process_random; /* written once */

static void draw_process_random(void)
{
    if (getrandom(&process_random, sizeof process_random, 0) != (ssize_t)sizeof process_random) {
        process_random = terni_clock_ns();
    }
}

/* A forked child inherits the random number, hence the pid. */
static uint64_t process_name(void)
{
    pthread_once(&process_once, draw_process_random);
    return mix(process_random, (uint64_t)getpid());
}

/* Containers of one host that do not share a network namespace cannot reach each other's abstract sockets,
 * which carry memory handles; so they count as different hosts. */
static uint64_t host_name_hash(const char *host_name)
{
    static const char *const namespaces[] = {"/proc/self/ns/net", "/proc/self/ns/ipc"};
    char boot_id[64];
    uint64_t h = mix_bytes(0, host_name, strlen(host_name));
    ssize_t got = -1;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        got = read(fd, boot_id, sizeof boot_id);
        close(fd);
    }
    h = mix_bytes(h, boot_id, got > 0 ? (size_t)got : 0);
    for (size_t i = 0; i < sizeof namespaces / sizeof namespaces[0]; i++) {
        struct stat s;
        h = mix(h, stat(namespaces[i], &s) == 0 ? (uint64_t)s.st_ino : 0);
    }
    return h;
}

void terni_card_fill(struct rank_card *card)
{
    if (gethostname(card->host_name, sizeof card->host_name - 1) != 0) {
        strcpy(card->host_name, "unknown");
    }
    card->process = process_name();
    card->host = host_name_hash(card->host_name);
    card->pid = (int64_t)getpid();
    card->version = tern_version();
    card->abi = TERN_ABI;
}

enum tern_status terni_cards_check(const struct rank_card *cards, int num_ranks)
{
    for (int r = 1; r < num_ranks; r++) {
        const struct {
            const char *field;
            uint64_t first, other;
        } equal[] = {
            {"version", cards[0].version, cards[r].version},
            {"abi", cards[0].abi, cards[r].abi},
            {"machine", (uint64_t)cards[0].machine, (uint64_t)cards[r].machine},
            {"heap_bytes", cards[0].heap_bytes, cards[r].heap_bytes},
            {"heap_max_bytes", cards[0].heap_max_bytes, cards[r].heap_max_bytes},
            {"TERN_DOMAIN_SIZE", cards[0].domain_size, cards[r].domain_size},
        };
        for (size_t i = 0; i < sizeof equal / sizeof equal[0]; i++) {
            if (equal[i].first != equal[i].other) {
                return TERN_FAIL(TERN_MISMATCH, "rank %d has %s %llu where rank 0 has %llu", r,
                                 equal[i].field, (unsigned long long)equal[i].other,
                                 (unsigned long long)equal[i].first);
            }
        }
    }
    return TERN_OK;
}

/* Granules are powers of two, so the largest is a multiple of all. */
uint64_t terni_comm_granules(const struct tern_comm *comm, uint64_t bytes)
{
    uint64_t granule = 1;
    for (int r = 0; r < comm->num_ranks; r++) {
        granule = comm->cards[r].share_granule > granule ? comm->cards[r].share_granule : granule;
    }
    return (bytes + granule - 1) / granule * granule;
}

int terni_local_index(const struct rank_card *cards, int rank)
{
    int index = 0;
    for (int r = 0; r < rank; r++) {
        index += cards[r].host == cards[rank].host;
    }
    return index;
}

/* The ranks of one host can address each other; TERN_DOMAIN_SIZE cuts them, in order, into smaller groups. */
void terni_topology_build(struct tern_comm *comm)
{
    const struct rank_card *cards = comm->cards;
    const struct rank_card *mine = &cards[comm->rank];
    comm->num_domains = 0;
    comm->ranks_on_device = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        int last = -1; /* the latest rank of this host before r */
        int num_in_domain = 0;
        for (int q = 0; q < r; q++) {
            if (cards[q].host == cards[r].host) {
                last = q;
            }
        }
        for (int q = 0; last >= 0 && q <= last; q++) {
            num_in_domain += comm->domain_of[q] == comm->domain_of[last];
        }
        if (last < 0 || (cards[r].domain_size != 0 && num_in_domain >= (int)cards[r].domain_size)) {
            comm->domain_of[r] = comm->num_domains++;
        } else {
            comm->domain_of[r] = comm->domain_of[last];
        }
        comm->ranks_on_device += cards[r].host == mine->host && memcmp(cards[r].uuid, mine->uuid, 16) == 0;
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        comm->lacks_atomics[r] = r != comm->rank && comm->domain_of[r] == comm->domain_of[comm->rank] &&
                                 comm->machine->ops->lacks_atomics(comm->machine, cards[r].uuid);
    }
}

struct text {
    char *at;
    size_t left;
    int needed;
};

static void add(struct text *t, const char *format, ...) TERN_PRINTF(2, 3);
static void add(struct text *t, const char *format, ...)
{
    va_list args;
    int n;
    va_start(args, format);
    n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    if (n > 0) {
        size_t used = (size_t)n < t->left ? (size_t)n : t->left > 0 ? t->left - 1 : 0;
        t->needed += n;
        t->at += used;
        t->left -= used;
    }
}

/* How many different values of host or process the cards hold. */
static int num_different(const struct tern_comm *comm, int of_process)
{
    int num = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        int is_new = 1;
        for (int q = 0; q < r && is_new; q++) {
            is_new = of_process ? comm->cards[q].process != comm->cards[r].process
                                : comm->cards[q].host != comm->cards[r].host;
        }
        num += is_new;
    }
    return num;
}

static void add_count(struct text *t, int n, const char *noun, const char *plural)
{
    add(t, "%d %s, ", n, n == 1 ? noun : plural);
}

int terni_topology_describe(const struct tern_comm *comm, char *text, size_t text_bytes)
{
    struct text t = {text, text_bytes, 0};
    add(&t, "tern %d.%d.%d, %s machine: ", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH,
        comm->cards[comm->rank].machine == TERN_MACHINE_CUDA ? "cuda" : "cpu");
    add_count(&t, comm->num_ranks, "rank", "ranks");
    add_count(&t, num_different(comm, 0), "host", "hosts");
    add_count(&t, num_different(comm, 1), "process", "processes");
    add(&t, "%d %s\n", comm->num_domains, comm->num_domains == 1 ? "domain" : "domains");
    add(&t, "windows of %llu bytes a rank", (unsigned long long)terni_heap_bytes(comm->heap));
    if (comm->heap->max_bytes > terni_heap_bytes(comm->heap)) {
        add(&t, " that may grow to %llu", (unsigned long long)comm->heap->max_bytes);
    }
    add(&t, ", deadline %u ms, %d processors a rank\n", comm->timeout_ms, tern_comm_num_sms(comm));
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct rank_card *c = &comm->cards[r];
        add(&t, "rank %d: host %s, process %lld, device %d (%s, %d processors), domain %d\n", r, c->host_name,
            (long long)c->pid, c->device, c->device_name, c->num_sms, comm->domain_of[r]);
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        if (comm->lacks_atomics[r]) {
            add(&t, "rank %d: no atomics to rank %d: the link to its device carries none\n", comm->rank, r);
        }
    }
    return t.needed;
}
