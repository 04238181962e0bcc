/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens areas and NICs, posts and compares. Whatever gives memory back pauses all NICs before: a device with
 * one that runs never comes to rest. */
#include "nic_ranks.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5, LINK_BYTES = 256, NIC_WORDS_AT = 128 };
#define DEADLINE_NS 5000000000ull

uint64_t nic_area(const struct party *p) { return p->machine == TERN_MACHINE_CPU ? 1 << 16 : 1 << 26; }

uint64_t nic_heap_bytes(const struct party *p) { return 2 * nic_area(p) + 3 * 4096; }

static char formula(const struct nic_ranks *n, int rank, uint64_t i)
{
    uint64_t h = (i / 8 + (uint64_t)rank * 0x100000001ull + n->options->seed) * 0x9e3779b97f4a7c15ull;
    return (char)((h ^ h >> 29) >> 8 * (i % 8));
}

/* ---- Memory ---- */

static enum tern_status open_seat(struct nic_ranks *n, int i)
{
    struct tern_comm *comm = n->party->comms[i];
    struct nic_seat *seat = &n->seats[i];
    void *memory = NULL, *device = NULL;
    TERN_TRY(tern_alloc(comm, TERN_MEMORY_WINDOW, n->area, &memory));
    seat->from = (char *)memory;
    TERN_TRY(tern_alloc(comm, TERN_MEMORY_WINDOW, n->area, &memory));
    seat->to = (char *)memory;
    TERN_TRY(tern_alloc(comm, TERN_MEMORY_WINDOW, LINK_BYTES, &memory));
    seat->link = (struct softnic_link *)memory;
    TERN_TRY(comm->machine->ops->host_alloc(comm->machine, 64, &memory, &device));
    seat->result = (uint64_t *)memory;
    seat->device_result = (uint64_t *)device;
    TERN_TRY(tern_event_open(comm, &seat->begin));
    TERN_TRY(tern_event_open(comm, &seat->end));
    for (uint64_t k = 0; k < n->area; k++) {
        n->copy[k] = formula(n, n->party->first + i, k);
    }
    TERN_TRY(tern_copy(comm, seat->from, n->copy, n->area, n->party->streams[i]));
    return tern_stream_synchronize(comm, n->party->streams[i]);
}

enum tern_status nic_ranks_open(struct nic_ranks *n, struct party *party, const struct options *options)
{
    enum tern_status status = TERN_OK;
    memset(n, 0, sizeof(*n));
    n->party = party;
    n->options = options;
    n->area = nic_area(party);
    n->copy = (char *)malloc(n->area);
    if (n->copy == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %llu bytes", (unsigned long long)n->area);
    }
    for (int i = 0; status == TERN_OK && i < party->num_local; i++) {
        status = open_seat(n, i);
    }
    if (status != TERN_OK) {
        nic_ranks_close(n);
    }
    return status;
}

void nic_ranks_close(struct nic_ranks *n)
{
    nic_end(n);
    for (int i = 0; i < n->party->num_local; i++) {
        struct tern_comm *comm = n->party->comms[i];
        struct nic_seat *seat = &n->seats[i];
        void *memory[] = {seat->from, seat->to, seat->link};
        for (int k = 0; k < 3; k++) {
            if (memory[k] != NULL) {
                tern_free(comm, memory[k]);
            }
        }
        if (seat->result != NULL) {
            comm->machine->ops->host_free(comm->machine, seat->result);
        }
        if (seat->begin != NULL) {
            tern_event_close(comm, seat->begin);
        }
        if (seat->end != NULL) {
            tern_event_close(comm, seat->end);
        }
    }
    memset(n->seats, 0, sizeof(n->seats));
    free(n->copy);
    n->copy = NULL;
}

/* ---- NICs ---- */

static enum tern_status open_nic(struct nic_ranks *n, int i, const struct softnic_rates *rates)
{
    struct party *p = n->party;
    struct softnic_config c;
    terni_softnic_config_init(&c, p->comms[i]->machine, p->first + i, p->num_ranks);
    c.num_queues = n->options->net.queues;
    c.timeout_ns = DEADLINE_NS;
    c.rates = *rates;
    c.link = n->seats[i].link;
    c.nic_blocks = (int)n->options->nic.sms;
    c.seed = n->options->seed;
    TERN_TRY(tern_fill(p->comms[i], n->seats[i].link, 0, sizeof(*c.link), p->streams[i]));
    TERN_TRY(tern_stream_synchronize(p->comms[i], p->streams[i]));
    return terni_softnic_open(&c, &n->seats[i].nic);
}

/* What is said about each rank: its card, and the cards of the memory where it receives. */
enum { CARD_BYTES = 64 };
struct said {
    char card[CARD_BYTES];
    struct softnic_region_card to, link;
};

static enum tern_status connect_nic(struct nic_ranks *n, int i, const struct said *said)
{
    struct party *p = n->party;
    struct nic_seat *seat = &n->seats[i];
    struct softnic_link *links[TERN_MAX_RANKS] = {NULL};
    uint32_t bytes = terni_softnic_card_bytes(seat->nic);
    char cards[TERN_MAX_RANKS * CARD_BYTES];
    void *mapped = NULL;
    for (int r = 0; r < p->num_ranks; r++) {
        memcpy(cards + (size_t)r * bytes, said[r].card, bytes);
        TERN_TRY(tern_peer_pointer(p->comms[i], seat->link, r, &mapped));
        links[r] = (struct softnic_link *)mapped;
    }
    TERN_TRY(terni_softnic_connect(seat->nic, cards, links, NULL));
    for (int r = 0; r < p->num_ranks; r++) {
        if (r != p->first + i) {
            TERN_TRY(tern_peer_pointer(p->comms[i], seat->to, r, &mapped));
            TERN_TRY(terni_softnic_import(seat->nic, r, &said[r].to, mapped));
            TERN_TRY(terni_softnic_import(seat->nic, r, &said[r].link, links[r]));
        }
    }
    return terni_softnic_refresh(seat->nic);
}

enum tern_status nic_start(struct nic_ranks *n, const struct softnic_rates *rates)
{
    struct party *p = n->party;
    struct said local[TERN_MAX_RANKS], all[TERN_MAX_RANKS];
    struct softnic_region_card from;
    memset(local, 0, sizeof(local));
    for (int i = 0; i < p->num_local; i++) {
        TERN_TRY(open_nic(n, i, rates));
        terni_softnic_card(n->seats[i].nic, local[i].card);
        TERN_TRY(terni_softnic_register(n->seats[i].nic, n->seats[i].from, n->area, &from));
        TERN_TRY(terni_softnic_register(n->seats[i].nic, n->seats[i].to, n->area, &local[i].to));
        TERN_TRY(terni_softnic_register(n->seats[i].nic, n->seats[i].link, LINK_BYTES, &local[i].link));
    }
    TERN_TRY(party_gather(p, local, all, sizeof(*all)));
    n->peer_to = all[1].to.addr;
    n->peer_words = all[1].link.addr + NIC_WORDS_AT;
    for (int i = 0; i < p->num_local; i++) {
        TERN_TRY(connect_nic(n, i, all));
    }
    return party_barrier(p);
}

void nic_end(struct nic_ranks *n)
{
    for (int i = 0; i < n->party->num_local; i++) {
        if (n->seats[i].nic != NULL && terni_softnic_pause(n->seats[i].nic) != TERN_OK) {
            TERN_LOG(TERN_LOG_WARN, "%s", tern_last_error());
        }
    }
    for (int i = 0; i < n->party->num_local; i++) {
        terni_softnic_close(n->seats[i].nic);
        n->seats[i].nic = NULL;
    }
}

/* ---- Posting ---- */

static int num_senders(const struct nic_ranks *n, const struct nic_shot *shot)
{
    return shot->from_all ? n->party->num_ranks - 1 : 1;
}

static int is_sender(const struct nic_shot *shot, int rank)
{
    return rank == 0 || (shot->from_all && rank != 1);
}

/* Rank 1 has none. */
static uint64_t part_begin(const struct nic_ranks *n, const struct nic_shot *shot, int rank)
{
    return nic_part(n, shot) * (uint64_t)(rank > 1 ? rank - 1 : 0);
}

uint64_t nic_part(const struct nic_ranks *n, const struct nic_shot *shot)
{
    return n->area / (uint64_t)num_senders(n, shot) / 64 * 64;
}

static enum tern_status post_one(struct nic_ranks *n, const struct nic_shot *shot, int i)
{
    struct party *p = n->party;
    struct nic_seat *seat = &n->seats[i];
    struct drive_nic_args args = {terni_softnic_queues(seat->nic) + n->options->net.queues,
                                  n->options->net.queues,
                                  shot->kind,
                                  shot->ops,
                                  shot->bytes,
                                  (uint64_t)(uintptr_t)seat->from,
                                  n->peer_to + part_begin(n, shot, p->first + i),
                                  nic_part(n, shot),
                                  n->peer_words,
                                  DEADLINE_NS,
                                  seat->device_result};
    struct launch l = {TERN_KERNEL_drive_nic, shot->blocks, 32 * shot->warps, 0, &args, sizeof(args)};
    seat->result[0] = seat->result[1] = 0;
    TERN_TRY(tern_event_record(p->comms[i], seat->begin, p->streams[i]));
    TERN_TRY(p->comms[i]->machine->ops->launch(p->comms[i]->machine, &l, p->streams[i]));
    return tern_event_record(p->comms[i], seat->end, p->streams[i]);
}

static enum tern_status wait_one(struct nic_ranks *n, const struct nic_shot *shot, int i, double *us)
{
    struct party *p = n->party;
    struct nic_seat *seat = &n->seats[i];
    float ms = 0;
    TERN_TRY(tern_stream_synchronize(p->comms[i], p->streams[i]));
    TERN_TRY(tern_event_elapsed(p->comms[i], seat->begin, seat->end, &ms));
    if (seat->result[0] != 0) {
        return TERN_FAIL(TERN_TIMEOUT, "an operation of rank %d ended with status 0x%llx", p->first + i,
                         (unsigned long long)seat->result[0]);
    }
    *us = shot->kind == NIC_TRIP ? (double)seat->result[1] / 1e3 / shot->ops : 1e3 * (double)ms;
    return TERN_OK;
}

/* The senders' kernels; other ranks only wait for them. */
static enum tern_status post(struct nic_ranks *n, const struct nic_shot *shot, struct nic_took *took)
{
    struct party *p = n->party;
    double local[TERN_MAX_RANKS] = {0};
    memset(took, 0, sizeof(*took));
    TERN_TRY(party_barrier(p));
    for (int i = 0; i < p->num_local; i++) {
        if (is_sender(shot, p->first + i)) {
            TERN_TRY(post_one(n, shot, i));
        }
    }
    for (int i = 0; i < p->num_local; i++) {
        if (is_sender(shot, p->first + i)) {
            TERN_TRY(wait_one(n, shot, i, &local[i]));
        }
    }
    return party_gather(p, local, took->us, sizeof(*local));
}

enum tern_status nic_time(struct nic_ranks *n, const struct nic_shot *shot, double *us, struct nic_took *took)
{
    struct nic_took one;
    for (uint32_t k = 0; k < n->options->warmup; k++) {
        TERN_TRY(post(n, shot, &one));
    }
    if (took != NULL) {
        memset(took, 0, sizeof(*took));
    }
    for (uint32_t k = 0; k < n->options->iters; k++) {
        us[k] = 0;
        TERN_TRY(post(n, shot, &one));
        for (int r = 0; r < n->party->num_ranks; r++) {
            us[k] = one.us[r] > us[k] ? one.us[r] : us[k];
            if (took != NULL) {
                took->us[r] += one.us[r] / n->options->iters;
            }
        }
    }
    return TERN_OK;
}

/* Byte `at` of the receiver's area. */
static char wanted(const struct nic_ranks *n, const struct nic_shot *shot, uint64_t bytes, uint64_t at)
{
    uint64_t part = nic_part(n, shot), sender = at / part, place = at % part;
    if (sender >= (uint64_t)num_senders(n, shot) || place >= bytes) {
        return (char)POISON;
    }
    return formula(n, sender == 0 ? 0 : (int)sender + 1, place);
}

static enum tern_status compare(struct nic_ranks *n, const struct nic_shot *shot, uint64_t bytes,
                                struct tally *tally)
{
    struct party *p = n->party;
    int i = 1 - p->first;
    TERN_TRY(tern_copy(p->comms[i], n->copy, n->seats[i].to, n->area, p->streams[i]));
    TERN_TRY(tern_stream_synchronize(p->comms[i], p->streams[i]));
    n->copy[bytes / 2] ^= n->options->corrupt ? 4 : 0;
    for (uint64_t k = 0; k < n->area; k++) {
        tally->wrong += n->copy[k] != wanted(n, shot, bytes, k);
    }
    tally->compared += n->area;
    return TERN_OK;
}

/* The receiver's words of signals: set to 0, or, after so many signals, compared by their sum. */
static enum tern_status clear_words(struct nic_ranks *n, int i)
{
    struct party *p = n->party;
    TERN_TRY(tern_fill(p->comms[i], (char *)n->seats[i].link + NIC_WORDS_AT, 0, DRIVE_NIC_WORDS * 8,
                       p->streams[i]));
    return tern_stream_synchronize(p->comms[i], p->streams[i]);
}

static enum tern_status compare_words(struct nic_ranks *n, uint64_t signals, struct tally *tally)
{
    struct party *p = n->party;
    uint64_t words[DRIVE_NIC_WORDS], sum = 0;
    int i = 1 - p->first;
    TERN_TRY(tern_copy(p->comms[i], words, (const char *)n->seats[i].link + NIC_WORDS_AT, sizeof(words),
                       p->streams[i]));
    TERN_TRY(tern_stream_synchronize(p->comms[i], p->streams[i]));
    for (int k = 0; k < DRIVE_NIC_WORDS; k++) {
        sum += words[k];
    }
    tally->wrong += sum != signals;
    tally->compared++;
    return TERN_OK;
}

enum tern_status nic_check(struct nic_ranks *n, const struct nic_shot *shot, uint64_t bytes,
                           struct tally *tally)
{
    struct party *p = n->party;
    struct tally local[TERN_MAX_RANKS];
    struct nic_took unused;
    uint64_t most = nic_part(n, shot) / shot->bytes * shot->bytes;
    int i = 1 - p->first, has_receiver = i >= 0 && i < p->num_local;
    memset(local, 0, sizeof(local));
    if (has_receiver) {
        TERN_TRY(tern_fill(p->comms[i], n->seats[i].to, POISON, n->area, p->streams[i]));
        TERN_TRY(clear_words(n, i));
    }
    TERN_TRY(post(n, shot, &unused));
    if (has_receiver) {
        TERN_TRY(compare(n, shot, bytes < most ? bytes : most, &local[i]));
    }
    if (has_receiver && shot->kind == NIC_PAIR) {
        TERN_TRY(compare_words(n, bytes / shot->bytes, &local[i]));
    }
    return party_tally(p, local, 1, tally);
}
