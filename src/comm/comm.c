/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a communicator.
 *
 * Opening is a list of steps, each an exchange in two halves: what is posted, and what is done with the
 * answer. A rank with a process or thread of its own runs half by half; the one thread of tern_comm_open_all
 * runs each half for all of its ranks before the next. Step by step the ranks learn
 *
 *     meet     that their configurations agree, what to call the communicator, and which ranks share a host
 *              (hence which device to take)
 *     equip    which device each has opened, and where it listens for a roll call
 *     share    where each one's window memory is
 *     confirm  that each one has mapped the windows of all
 *
 * A rank whose machine does not open, or that has no socket to listen with, still takes part in `equip`, to
 * say so: all ranks name it. */
#include "comm/comm.h"
#include "comm/id.h"
#include "comm/roll_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const uint64_t default_heap_bytes = 256ull << 20, most_heap_bytes = 1ull << 62;

/* One rank while it opens. */
struct opening {
    struct tern_comm *comm;
    const struct tern_comm_config *config;
    struct executor
        *executor; /* borrowed: the ranks of tern_comm_open_all share one; NULL: each opens its own */
    uint64_t seed;
    struct rank_card card;
    enum tern_machine machine;
};

/* ---- Configuration: argument, else environment, else default ---- */

static enum tern_status choose_machine(const struct tern_comm_config *config, enum tern_machine *machine)
{
    const char *word = terni_env(TERN_ENV_MACHINE);
    int choice = config->machine;
    if (choice == TERN_MACHINE_AUTO) {
        if (strcmp(word, "cpu") == 0) {
            choice = TERN_MACHINE_CPU;
        } else if (strcmp(word, "cuda") == 0) {
            choice = TERN_MACHINE_CUDA;
        } else if (strcmp(word, "auto") != 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_MACHINE=%s is none of auto, cpu, cuda", word);
        }
    }
    if (choice == TERN_MACHINE_AUTO) {
        choice = terni_cuda_device_count() > 0 ? TERN_MACHINE_CUDA : TERN_MACHINE_CPU;
    }
    if (choice != TERN_MACHINE_CPU && choice != TERN_MACHINE_CUDA) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "machine %d is no enum tern_machine", choice);
    }
    *machine = (enum tern_machine)choice;
    return TERN_OK;
}

static enum tern_status opening_init(struct opening *o, const struct tern_comm_config *config)
{
    uint64_t timeout_ms = config->timeout_ms, domain_size;
    uint64_t heap_bytes = config->heap_bytes != 0 ? config->heap_bytes : default_heap_bytes;
    uint64_t heap_max_bytes = config->heap_max_bytes != 0 ? config->heap_max_bytes : heap_bytes;
    memset(o, 0, sizeof *o);
    o->config = config;
    o->seed = config->cpu_seed;
    TERN_TRY(choose_machine(config, &o->machine));
    if (timeout_ms == 0) {
        TERN_TRY(terni_env_uint(TERN_ENV_TIMEOUT_MS, UINT32_MAX, &timeout_ms));
    }
    if (timeout_ms == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_TIMEOUT_MS=0: a deadline must lie ahead");
    }
    TERN_TRY(terni_env_uint(TERN_ENV_DOMAIN_SIZE, TERN_MAX_BOOT_RANKS, &domain_size));
    if (o->seed == 0) {
        TERN_TRY(terni_env_uint(TERN_ENV_CPU_SEED, UINT64_MAX, &o->seed));
    }
    if (heap_bytes > most_heap_bytes || heap_max_bytes > most_heap_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s %llu is above the most allowed, %llu",
                         heap_bytes > most_heap_bytes ? "heap_bytes" : "heap_max_bytes",
                         (unsigned long long)(heap_bytes > most_heap_bytes ? heap_bytes : heap_max_bytes),
                         (unsigned long long)most_heap_bytes);
    }
    if (heap_max_bytes < heap_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "heap_max_bytes is %llu, less than heap_bytes, %llu",
                         (unsigned long long)heap_max_bytes, (unsigned long long)heap_bytes);
    }
    if (config->device < 0 || (config->device > 1 && o->machine == TERN_MACHINE_CPU)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "device %d: the %s machine has no TERN_DEVICE_ORDINAL(%d)",
                         config->device, o->machine == TERN_MACHINE_CPU ? "cpu" : "cuda", config->device - 1);
    }
    terni_card_fill(&o->card);
    o->card.machine = (int32_t)o->machine;
    o->card.heap_bytes = heap_bytes + 255 - (heap_bytes + 255) % 256;
    o->card.heap_max_bytes = heap_max_bytes + 255 - (heap_max_bytes + 255) % 256;
    o->card.domain_size = (uint32_t)domain_size;
    o->comm = (struct tern_comm *)calloc(1, sizeof *o->comm);
    if (o->comm == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a communicator");
    }
    pthread_mutex_init(&o->comm->children_lock, NULL);
    pthread_mutex_init(&o->comm->windows_lock, NULL);
    o->comm->timeout_ms = (uint32_t)timeout_ms;
    o->comm->cpu_seed = o->seed;
    o->comm->door_fd = -1;
    return TERN_OK;
}

/* ---- Steps ---- */

static enum tern_status open_machine(struct opening *o)
{
    struct tern_comm *comm = o->comm;
    struct executor *own = NULL;
    enum tern_status status;
    int num_devices, ordinal;
    if (o->machine == TERN_MACHINE_CPU) {
        if (o->executor != NULL) {
            return terni_cpu_open(o->executor, &comm->machine);
        }
        TERN_TRY(terni_executor_open(o->seed, &own));
        status = terni_cpu_open(own, &comm->machine);
        terni_executor_release(own);
        return status;
    }
    num_devices = terni_cuda_device_count();
    if (num_devices == 0) {
        return TERN_FAIL(TERN_UNSUPPORTED, "machine cuda was asked for: %s", terni_cuda_describe());
    }
    ordinal = o->config->device != 0 ? o->config->device - 1
                                     : terni_local_index(comm->cards, comm->rank) % num_devices;
    if (ordinal >= num_devices) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "device %d was asked for, there are %d", ordinal,
                         num_devices);
    }
    return terni_cuda_open(ordinal, &comm->machine);
}

static enum tern_status post_card(struct opening *o)
{
    return o->comm->boot->ops->post(o->comm->boot, &o->card, sizeof o->card);
}

static enum tern_status meet(struct opening *o)
{
    unsigned char *nonce = o->card.nonce;
    if (o->comm->rank == 0 && getrandom(nonce, sizeof o->card.nonce, 0) != (ssize_t)sizeof o->card.nonce) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no random bytes to name a communicator: %m");
    }
    if (o->comm->rank == 0) {
        TERN_TRY(o->comm->boot->ops->locate(o->comm->boot, &o->card.root));
    }
    return post_card(o);
}

static enum tern_status wait_cards(struct opening *o)
{
    struct tern_comm *comm = o->comm;
    return comm->boot->ops->wait(comm->boot, comm->cards, sizeof *comm->cards, comm->timeout_ms);
}

/* An id may open several communicators, at once if it was made from an agreed address: what tells them apart
 * is what rank 0 drew for each. All ranks have its card. */
static void agree_cookie(struct tern_comm *comm)
{
    for (size_t i = 0; i < sizeof comm->cookie; i++) {
        comm->cookie[i] ^= comm->cards[0].nonce[i];
    }
}

static enum tern_status met(struct opening *o)
{
    TERN_TRY(wait_cards(o));
    TERN_TRY(terni_cards_check(o->comm->cards, o->comm->num_ranks));
    agree_cookie(o->comm);
    o->comm->boot->root = o->comm->cards[0].root;
    return TERN_OK;
}

static enum tern_status equip(struct opening *o)
{
    struct rank_card *card = &o->card;
    card->status = (int32_t)terni_door_open(o->comm->boot, &card->door, &o->comm->door_fd);
    if (card->status == TERN_OK) {
        card->status = (int32_t)open_machine(o);
    }
    if (card->status != TERN_OK) {
        snprintf(card->reason, sizeof card->reason, "%s", tern_last_error());
    } else {
        const struct machine_info *info = &o->comm->machine->info;
        card->device = info->device;
        card->num_sms = info->num_sms;
        card->share_granule = info->share_granule;
        memcpy(card->uuid, info->uuid, sizeof card->uuid);
        snprintf(card->device_name, sizeof card->device_name, "%s", info->name);
    }
    return post_card(o);
}

static enum tern_status equipped(struct opening *o)
{
    struct tern_comm *comm = o->comm;
    TERN_TRY(wait_cards(o));
    for (int r = 0; r < comm->num_ranks; r++) {
        const struct rank_card *c = &comm->cards[r];
        if (c->status != TERN_OK) {
            return TERN_FAIL((enum tern_status)c->status, "rank %d cannot open its door or machine: %.*s", r,
                             (int)sizeof c->reason, c->reason);
        }
    }
    terni_topology_build(comm);
    return TERN_OK;
}

static enum tern_status share(struct opening *o)
{
    uint64_t bytes = o->card.heap_bytes, max_bytes = o->card.heap_max_bytes;
    if (max_bytes > bytes) {
        bytes = terni_comm_granules(o->comm, bytes);
        max_bytes = terni_comm_granules(o->comm, max_bytes);
    }
    return terni_heap_begin_upto(o->comm, bytes, max_bytes, &o->comm->heap);
}

static enum tern_status shared(struct opening *o)
{
    enum tern_status status = terni_heap_end(o->comm, o->comm->heap);
    if (status == TERN_OK) {
        status = terni_blocks_open(o->comm);
    }
    return terni_comm_judge_post(o->comm, status);
}

static enum tern_status confirmed(struct opening *o) { return terni_comm_judge_wait(o->comm); }

static enum tern_status (*const halves[])(struct opening *o) = {meet,  met,    equip,    equipped,
                                                                share, shared, confirmed};

/* ---- Open and close ---- */

/* What was chosen, for whoever reads the log of a run that went well. */
static void tell(const struct tern_comm *comm)
{
    const struct machine_info *info = &comm->machine->info;
    TERN_LOG(
        TERN_LOG_INFO,
        "rank %d of %d opened: %s (%s), device %d shared by %d; domain %d of %d; a window of %llu bytes; "
        "deadline %u ms",
        comm->rank, comm->num_ranks, info->kind == TERN_MACHINE_CUDA ? "cuda" : "cpu", info->name,
        info->device, comm->ranks_on_device, comm->domain_of[comm->rank], comm->num_domains,
        (unsigned long long)terni_heap_bytes(comm->heap), comm->timeout_ms);
}

/* Gives the communicator its boot, which it owns from then on also when this fails. */
static enum tern_status attach(struct tern_comm *comm, struct boot *boot)
{
    size_t n = (size_t)boot->num_ranks;
    comm->boot = boot;
    comm->rank = boot->rank;
    comm->num_ranks = boot->num_ranks;
    comm->cards = (struct rank_card *)calloc(n, sizeof *comm->cards);
    comm->domain_of = (int *)calloc(n, sizeof *comm->domain_of);
    comm->lacks_atomics = (unsigned char *)calloc(n, 1);
    if (comm->cards == NULL || comm->domain_of == NULL || comm->lacks_atomics == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d ranks", boot->num_ranks);
    }
    return TERN_OK;
}

static enum tern_status check_ranks(int num_ranks)
{
    if (num_ranks < 1 || num_ranks > TERN_MAX_BOOT_RANKS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_ranks is %d, not 1 to %d", num_ranks,
                         TERN_MAX_BOOT_RANKS);
    }
    return TERN_OK;
}

enum tern_status terni_comm_open(const struct tern_id *id, int rank, int num_ranks,
                                 const struct tern_comm_config *config, struct tern_comm **comm)
{
    struct opening o;
    struct id_fields fields;
    struct address address;
    struct boot *boot;
    struct first_failure first = {TERN_OK, ""};
    enum tern_status status;
    TERN_TRY(check_ranks(num_ranks));
    if (rank < 0 || rank >= num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "rank %d is none of %d ranks", rank, num_ranks);
    }
    TERN_TRY(terni_id_read(id, &fields, &address));
    TERN_TRY(opening_init(&o, config));
    memcpy(o.comm->cookie, fields.cookie, sizeof o.comm->cookie); /* the id's part of it */
    status = terni_tcp_open(id, rank, num_ranks, NULL, o.comm->timeout_ms, &boot);
    if (status == TERN_OK) {
        status = attach(o.comm, boot);
    }
    for (size_t i = 0; i < sizeof halves / sizeof halves[0] && status == TERN_OK; i++) {
        status = halves[i](&o);
    }
    if (status != TERN_OK) {
        terni_first_add(&first, status);
        terni_comm_close(o.comm);
        return terni_first_end(&first); /* after all that closes */
    }
    tell(o.comm);
    *comm = o.comm;
    return TERN_OK;
}

/* Runs the steps for ranks that all live in this thread. On failure the caller closes what there is. */
static enum tern_status drive_all(struct opening *openings, int num_ranks, struct boot **boots)
{
    for (int r = 0; r < num_ranks; r++) {
        struct boot *boot = boots[r];
        boots[r] = NULL; /* the communicator's now */
        TERN_TRY(attach(openings[r].comm, boot));
    }
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        for (int r = 0; r < num_ranks; r++) {
            TERN_TRY(halves[i](&openings[r]));
        }
    }
    return TERN_OK;
}

enum tern_status terni_comm_open_all(int num_ranks, const struct tern_comm_config *config,
                                     struct tern_comm **comms)
{
    struct opening *openings;
    struct boot **boots;
    struct executor *executor = NULL;
    struct first_failure first = {TERN_OK, ""};
    enum tern_status status = TERN_OK;
    TERN_TRY(check_ranks(num_ranks));
    openings = (struct opening *)calloc((size_t)num_ranks, sizeof *openings);
    boots = (struct boot **)calloc((size_t)num_ranks, sizeof *boots);
    if (openings == NULL || boots == NULL) {
        terni_first_add(&first, TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d ranks", num_ranks));
        goto free_arrays;
    }
    for (int r = 0; r < num_ranks && status == TERN_OK; r++) {
        status = opening_init(&openings[r], config);
    }
    if (status == TERN_OK && openings[0].machine == TERN_MACHINE_CPU) {
        status = terni_executor_open(openings[0].seed, &executor);
    }
    if (status == TERN_OK) {
        status = terni_board_open(num_ranks, boots);
    }
    for (int r = 0; r < num_ranks; r++) {
        openings[r].executor = executor;
    }
    if (status == TERN_OK) {
        status = drive_all(openings, num_ranks, boots);
    }
    terni_first_add(&first, status);
    for (int r = 0; r < num_ranks; r++) {
        if (status == TERN_OK) {
            tell(openings[r].comm);
            comms[r] = openings[r].comm;
        } else {
            terni_comm_close(openings[r].comm);
            if (boots[r] != NULL) {
                boots[r]->ops->close(boots[r]);
            }
        }
    }
    if (executor != NULL) {
        terni_executor_release(executor);
    }

free_arrays:
    free(boots);
    free(openings);
    return terni_first_end(&first); /* after all that closes */
}

/* Also of a communicator that opened halfway. The machine goes after the memory it gave, the boot last.
 * Streams that Tern opened are waited for; what the user runs on others must have finished, the default
 * stream of a GPU among them: waiting for that one would mean waiting for streams of other ranks. */
void terni_comm_close(struct tern_comm *comm)
{
    int num_children;
    if (comm == NULL) {
        return;
    }
    num_children = terni_comm_num_children(comm);
    if (num_children != 0) {
        TERN_LOG(
            TERN_LOG_ERROR,
            "tern_comm_close of rank %d while EP objects, networks or teams are open on it (%d together): "
            "close those first; nothing is closed",
            comm->rank, num_children);
        return;
    }
    if (comm->machine != NULL) {
        comm->machine->ops->settle(comm->machine);
    }
    terni_windows_close(comm);
    terni_blocks_close(comm);
    terni_heap_close(comm->heap);
    if (comm->machine != NULL) {
        comm->machine->ops->close(comm->machine);
    }
    terni_door_close(&comm->door_fd);
    if (comm->boot != NULL) {
        comm->boot->ops->close(comm->boot);
    }
    free(comm->lacks_atomics);
    free(comm->domain_of);
    free(comm->cards);
    pthread_mutex_destroy(&comm->windows_lock);
    pthread_mutex_destroy(&comm->children_lock);
    free(comm);
}

enum tern_status terni_comm_check_all(int num_ranks, struct tern_comm *const *comms)
{
    if (num_ranks < 1) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_ranks is %d", num_ranks);
    }
    for (int r = 0; r < num_ranks; r++) {
        TERN_TRY(terni_check_pointer("a communicator", comms[r]));
        if (num_ranks > 1 && (comms[r]->rank != r || comms[r]->num_ranks != num_ranks)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "comms[%d] is rank %d of %d; it must be rank %d of %d", r,
                             comms[r]->rank, comms[r]->num_ranks, r, num_ranks);
        }
        if (memcmp(comms[r]->cookie, comms[0]->cookie, sizeof comms[r]->cookie) != 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "comms[%d] is of another communicator than comms[0]", r);
        }
    }
    return TERN_OK;
}

enum tern_status terni_comm_allgather(struct tern_comm *comm, const void *send, void *recv, size_t bytes)
{
    TERN_TRY(comm->boot->ops->post(comm->boot, send, bytes));
    return comm->boot->ops->wait(comm->boot, recv, bytes, comm->timeout_ms);
}
