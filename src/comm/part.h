/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's part of a heap, as the ranks of its process share it. */
#ifndef TERN_PART_H
#define TERN_PART_H

#include "machine/machine.h"

/* The same on every rank of a process; unique to (communicator, heap, rank). */
struct part_name {
    unsigned char cookie[16]; /* of the communicator */
    uint32_t heap;            /* running number in it */
    int32_t rank;             /* owner */
};

struct part;

/* Takes over `share` on success. The opener holds the first reference. */
enum tern_status terni_part_open(const struct part_name *name, const struct share *share, struct part **part);
/* Another reference to an open part of this process; NULL if it is not there any more. */
struct part *terni_part_find(const struct part_name *name);
/* As its owner addresses it, and so all ranks of the process. Never changes. */
char *terni_part_base(const struct part *part);
/* For the owner alone, who may add memory to it while it holds its reference. */
struct share *terni_part_share(struct part *part);
/* The last one out frees the memory, through its own machine: the owner's may have closed. Accepts NULL. */
void terni_part_release(struct part *part, struct machine *machine);

#endif
