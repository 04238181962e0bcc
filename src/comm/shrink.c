/* SPDX-License-Identifier: Apache-2.0
 *
 * Shrinking: a roll call says which ranks of a communicator are left, and these open another, numbered anew
 * in the same order. The old one stays as it is until its owner closes it, so that who fails halfway,
 * because one more rank was lost, can call again. */
#include "comm/roll_call.h"

#include <stdlib.h>
#include <string.h>

/* What the communicator was opened with; its windows as large as at first, and the device that it has. */
static struct tern_comm_config config_of(const struct tern_comm *comm)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    const struct rank_card *card = &comm->cards[comm->rank];
    config.machine = card->machine;
    config.device = card->machine == TERN_MACHINE_CUDA ? TERN_DEVICE_ORDINAL(card->device) : 0;
    config.heap_bytes = card->heap_bytes;
    config.heap_max_bytes = card->heap_max_bytes;
    config.timeout_ms = comm->timeout_ms;
    config.cpu_seed = comm->cpu_seed;
    return config;
}

/* Lists the chosen ranks' numbers; returns how many there are, and in *rank this rank's among them. */
static int list_chosen(const struct tern_comm *comm, const unsigned char *marks, int32_t *old_ranks,
                       int *rank)
{
    int num = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        if (marks[r] == ROLL_CHOSEN) {
            *rank = r == comm->rank ? num : *rank;
            old_ranks[num++] = r;
        }
    }
    for (int i = num; i < comm->num_ranks; i++) {
        old_ranks[i] = -1;
    }
    return num;
}

static enum tern_status call_and_open(struct tern_comm *comm, const struct shrink *shrink, struct roll *roll,
                                      struct tern_id *own, int32_t *list, struct tern_comm **shrunk)
{
    struct tern_comm_config config = shrink->config != NULL ? *shrink->config : config_of(comm);
    /* Twice the deadline, because others may just have begun to wait for who is lost. */
    uint32_t twice_ms = comm->timeout_ms <= UINT32_MAX / 2 ? 2 * comm->timeout_ms : UINT32_MAX;
    struct roll_terms terms = {shrink->timeout_ms != 0 ? shrink->timeout_ms : twice_ms, shrink->min_ranks,
                               shrink->whole_domains != 0};
    int rank = -1, num;
    TERN_TRY(terni_roll_call(comm, &terms, own, roll));
    num = list_chosen(comm, roll->marks, list, &rank);
    if (roll->lowest != comm->rank) {
        terni_roll_withdraw(own);
    }
    TERN_LOG(TERN_LOG_INFO, "rank %d of %d: %d ranks are left; this one is number %d", comm->rank,
             comm->num_ranks, num, rank);
    *shrunk = NULL;
    return rank < 0 ? TERN_OK : terni_comm_open(&roll->id, rank, num, &config, shrunk);
}

enum tern_status terni_comm_shrink(struct tern_comm *comm, const struct shrink *shrink, int32_t *old_ranks,
                                   struct tern_comm **shrunk)
{
    size_t n = (size_t)comm->num_ranks;
    struct roll roll = {-1, {{0}}, (unsigned char *)calloc(n, 1)};
    int32_t *list = (int32_t *)calloc(n, sizeof *list);
    struct tern_comm *made = NULL;
    struct tern_id own = {{0}};
    enum tern_status status;
    if (n > 1 && comm->door_fd < 0) {
        status = TERN_FAIL(TERN_UNSUPPORTED,
                           "the %d ranks are one process's and one tern_comm_open_all's, which "
                           "opens others with those that are left",
                           comm->num_ranks);
    } else if (roll.marks == NULL || list == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the marks of %d ranks", comm->num_ranks);
    } else {
        status = call_and_open(comm, shrink, &roll, &own, list, &made);
        terni_roll_withdraw(&own); /* nothing if it was opened */
    }
    if (status == TERN_OK) {
        if (old_ranks != NULL) {
            memcpy(old_ranks, list, n * sizeof *list);
        }
        *shrunk = made;
    }
    free(list);
    free(roll.marks);
    return status;
}
