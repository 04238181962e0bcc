/* SPDX-License-Identifier: Apache-2.0
 *
 * The software NICs of one device that are kernels: one kernel for all of them, in one stream. A kernel for
 * each would take a hardware queue of the GPU each, of which there are 32 at most, and behind a kernel that
 * never ends whatever else is in that queue would wait for ever.
 *
 * A NIC enlists when it opens, runs from join to leave, and is discharged when it closes; joining and leaving
 * end the kernel and start another with those that are left. Fleets are residents (machine/resident.h): calls
 * that wait for the device end the kernel meanwhile. Any thread may call, for any NIC. */
#ifndef TERN_SOFTNIC_FLEET_H
#define TERN_SOFTNIC_FLEET_H

#include "machine/machine.h"
#include "net/softnic_engine.h"

struct softnic_fleet;

/* Zeroed but for the first part to begin with. */
struct softnic_member {
    struct machine *machine; /* whose device it runs on */
    int num_warps;           /* of each engine */
    int num_blocks;          /* engines */
    struct softnic_args args;
    uint64_t *stop; /* the word of args.stop, as the host addresses it */
    /* The fleet's. */
    struct softnic_fleet *fleet;
    struct softnic_member *next;
    int is_running;
};

/* Before anything runs that waits for a peer, as a first kernel on a stream may wait for the device.
 * TERN_NO_SPACE: the device has SOFTNIC_MAX_FLEET. Only the machine is looked at. */
enum tern_status terni_softnic_enlist(struct softnic_member *m);
void terni_softnic_discharge(struct softnic_member *m); /* one that has left; or was never enlisted */
/* From now on the NIC runs, unless calls hold it. On failure it has not joined. */
enum tern_status terni_softnic_join(struct softnic_member *m);
/* It has ended, between two entries. A device error is returned, and it has left all the same. */
enum tern_status terni_softnic_leave(struct softnic_member *m);

/* One more NIC for a kernel, of which a block may have `most` bytes of shared memory: if that is enough for
 * the queue pairs of each of its engines, there is room for them. */
static inline void softnic_crew_add(struct softnic_crew *crew, const struct softnic_args *args,
                                    int num_blocks, uint32_t most)
{
    uint32_t end = crew->num > 0 ? crew->ends[crew->num - 1] : 0;
    uint32_t each = (args->num_qps + (uint32_t)num_blocks - 1) / (uint32_t)num_blocks;
    crew->nics[crew->num] = *args;
    crew->ends[crew->num] = end + (uint32_t)num_blocks;
    crew->num++;
    if (each > crew->near && sizeof(struct softnic_shared) + (uint64_t)each * SOFTNIC_NEAR_BYTES <= most) {
        crew->near = each;
    }
}

/* Of a block, with all NICs that the kernel is. */
static inline uint32_t softnic_crew_bytes(const struct softnic_crew *crew)
{
    return (uint32_t)sizeof(struct softnic_shared) + crew->near * SOFTNIC_NEAR_BYTES;
}

#endif
