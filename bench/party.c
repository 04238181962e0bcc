/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the ranks of a run and lets them agree. */
#include "party.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_RANKS = 8 };

/* The machine that a communicator would choose, known before one is open: sizes depend on it. */
static enum tern_status choose_machine(uint32_t asked, enum tern_machine *machine)
{
    const char *word = terni_env(TERN_ENV_MACHINE);
    enum tern_machine found = (enum tern_machine)asked;
    if (found == TERN_MACHINE_AUTO) {
        if (strcmp(word, "cpu") == 0) {
            found = TERN_MACHINE_CPU;
        } else if (strcmp(word, "cuda") == 0) {
            found = TERN_MACHINE_CUDA;
        } else if (strcmp(word, "auto") != 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_MACHINE=%s is none of auto, cpu, cuda", word);
        }
    }
    if (found == TERN_MACHINE_AUTO) {
        found = terni_cuda_device_count() > 0 ? TERN_MACHINE_CUDA : TERN_MACHINE_CPU;
    }
    *machine = found;
    return TERN_OK;
}

enum tern_status party_init(struct party *p, const struct options *options)
{
    memset(p, 0, sizeof(*p));
    TERN_TRY(choose_machine(options->machine, &p->machine));
    p->in_process = terni_env(TERN_ENV_ID)[0] == 0;
    if (p->in_process) {
        p->num_ranks = options->ranks != 0 ? (int)options->ranks : DEFAULT_RANKS;
        p->num_local = p->num_ranks;
        return TERN_OK;
    }
    TERN_TRY(tern_id_from_environment(&p->id, &p->first, &p->num_ranks));
    p->num_local = 1;
    if (options->ranks != 0 && (int)options->ranks != p->num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--ranks %u, but tern-run started %d", options->ranks,
                         p->num_ranks);
    }
    return TERN_OK;
}

enum tern_status party_open(struct party *p, uint64_t heap_bytes)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    int i;
    config.machine = (int32_t)p->machine;
    config.heap_bytes = heap_bytes;
    if (p->in_process) {
        TERN_TRY(tern_comm_open_all(p->num_ranks, &config, p->comms));
    } else {
        TERN_TRY(tern_comm_open(&p->id, p->first, p->num_ranks, &config, &p->comms[0]));
    }
    for (i = 0; i < p->num_local; i++) {
        enum tern_status status = tern_stream_open(p->comms[i], &p->streams[i]);
        if (status != TERN_OK) {
            party_close(p);
            return status;
        }
    }
    return TERN_OK;
}

void party_close(struct party *p)
{
    int i;
    for (i = 0; i < p->num_local; i++) {
        if (p->streams[i] != NULL) {
            tern_stream_close(p->comms[i], p->streams[i]);
        }
        p->streams[i] = NULL;
    }
    for (i = 0; i < p->num_local; i++) {
        tern_comm_close(p->comms[i]);
        p->comms[i] = NULL;
    }
}

enum tern_status party_gather(struct party *p, const void *local, void *all, size_t bytes)
{
    if (p->in_process) {
        memcpy(all, local, bytes * (size_t)p->num_local);
        return TERN_OK;
    }
    return tern_comm_allgather(p->comms[0], local, all, bytes);
}

enum tern_status party_tally(struct party *p, const struct tally *local, int num, struct tally *sums)
{
    struct tally *all = (struct tally *)calloc((size_t)p->num_ranks * (size_t)num, sizeof(*all));
    enum tern_status status;
    int i;
    if (all == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the results of %d ranks", p->num_ranks);
    }
    status = party_gather(p, local, all, (size_t)num * sizeof(*all));
    memset(sums, 0, (size_t)num * sizeof(*sums));
    for (i = 0; status == TERN_OK && i < p->num_ranks * num; i++) {
        sums[i % num].wrong += all[i].wrong;
        sums[i % num].compared += all[i].compared;
    }
    free(all);
    return status;
}

enum tern_status party_open_eps(struct party *p, const struct tern_ep_config *config, struct tern_ep **eps)
{
    return p->in_process ? tern_ep_open_all(p->num_ranks, p->comms, config, eps)
                         : tern_ep_open(p->comms[0], config, &eps[0]);
}

enum tern_status party_sms(const struct party *p, uint32_t asked, uint32_t or_else, uint32_t *sms)
{
    uint32_t limit = (uint32_t)tern_comm_num_sms(p->comms[0]);
    uint32_t wanted = asked != 0 ? asked : or_else;
    if (asked > limit) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "--sms %u: a rank may use %u (the device's processors over the ranks that share it; "
                         "on the cpu machine TERN_CPU_SMS has more)",
                         asked, limit);
    }
    *sms = wanted < limit ? wanted : limit;
    return TERN_OK;
}

int party_domain_ranks(const struct party *p)
{
    const struct tern_comm *comm = p->comms[0];
    int num = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        num += comm->domain_of[r] == comm->domain_of[0];
    }
    return num;
}

enum tern_status party_one_domain(const struct party *p, const char *command)
{
    int num = party_domain_ranks(p);
    if (num != p->num_ranks) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "%s is for ranks that address each other; the %d here are in domains of %d", command,
                         p->num_ranks, num);
    }
    return TERN_OK;
}

enum tern_status party_barrier(struct party *p)
{
    return p->in_process ? TERN_OK : tern_comm_barrier(p->comms[0]);
}

enum tern_status party_synchronize(struct party *p)
{
    int i;
    for (i = 0; i < p->num_local; i++) {
        TERN_TRY(tern_stream_synchronize(p->comms[i], p->streams[i]));
    }
    return TERN_OK;
}

struct job {
    enum tern_status (*work)(void *user, int i);
    void *user;
    int i;
    enum tern_status status;
    char sentence[256]; /* of a failure: the thread that has it will be gone */
};

static void *run_job(void *arg)
{
    struct job *job = (struct job *)arg;
    job->status = job->work(job->user, job->i);
    snprintf(job->sentence, sizeof(job->sentence), "%s", tern_last_error());
    return NULL;
}

enum tern_status party_each(int num, enum tern_status (*work)(void *user, int i), void *user)
{
    struct job jobs[TERN_MAX_RANKS];
    pthread_t threads[TERN_MAX_RANKS];
    enum tern_status status = TERN_OK;
    int i, started[TERN_MAX_RANKS];
    for (i = 0; i < num; i++) {
        jobs[i].work = work;
        jobs[i].user = user;
        jobs[i].i = i;
        jobs[i].status = TERN_OK;
        started[i] = pthread_create(&threads[i], NULL, run_job, &jobs[i]) == 0;
        if (!started[i]) {
            run_job(&jobs[i]); /* no thread to be had: do it here */
        }
    }
    for (i = 0; i < num; i++) {
        if (started[i]) {
            pthread_join(threads[i], NULL);
        }
        if (status == TERN_OK && jobs[i].status != TERN_OK) {
            status = TERN_FAIL(jobs[i].status, "%s", jobs[i].sentence);
        }
    }
    return status;
}
