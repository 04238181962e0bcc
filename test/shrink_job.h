/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank runs, in a process of its own, until another is lost: route, dispatch and combine of a few
 * tokens, or those of low latency, round after round. */
#ifndef TERN_TEST_SHRINK_JOB_H
#define TERN_TEST_SHRINK_JOB_H

#include "support.h"

#include <stdint.h>

struct job_plan {
    int num_ranks, victim;
    int low_latency;
    uint32_t domain_ranks, transport; /* of the object, as its configuration has them */
    uint32_t deadline_ms;
    int fate; /* the victim goes so many eighths of a round after it has begun its last one; 0: before */
    uint32_t num_sms; /* of the object; 0: the default */
};

struct job {
    const struct job_plan *plan;
    struct tern_comm *comm;
    struct tern_stream *stream;
    struct tern_ep *ep;
    struct tern_route *route; /* NULL in low latency */
    void *topk_idx, *tokens, *sums;
    void *rows; /* in a window; in low latency device memory, as all */
    float *weights;
    int32_t *counts;
    uint64_t max_rows;
};

int job_open(struct job *j, const struct job_plan *plan, const struct tern_id *id, int rank);
/* Rounds until the victim is gone, with operations under way; the others' end in a fault within the
 * deadline, and *blamed is the rank that this one's record names. */
int job_run(struct job *j, int *blamed);
/* That its NICs have sent so far. */
int job_packets(const struct job *j, uint64_t *packets);
/* All but the communicator, which shrinking needs; its windows go with it. */
void job_close(struct job *j);

#endif
