/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a processor cannot address, a GPU's, comes and goes through buffers that both can: pinned host
 * memory, filled and emptied by the machine's copies on a stream of its own. Each copy is waited for, about
 * 11 us on an H200 whatever its size up to a megabyte, so pieces are large. */
#ifndef TERN_STAGE_H
#define TERN_STAGE_H

#include "machine/machine.h"

enum { STAGE_BYTES = 256 * 1024 };

struct stage {
    struct machine *machine;
    struct tern_stream *stream;
    char *memory; /* of all buffers, one allocation; NULL until the first is needed */
    uint64_t *word;
    char **free; /* [num_free] */
    int num_shared, num_free;
    int num_fixed; /* ranks; two buffers each, for what they ask of this one */
};

/* No memory yet. */
enum tern_status terni_stage_open(struct stage *s, struct machine *machine, int num_shared, int num_fixed);
void terni_stage_close(struct stage *s);
/* Before staged memory is registered: memory for all buffers. Not later, for to pin memory may wait for
 * kernels. */
enum tern_status terni_stage_need(struct stage *s);
char *terni_stage_take(struct stage *s); /* NULL: all are in use */
void terni_stage_give(struct stage *s, char *buffer);
/* Of a rank: for the bytes that it writes, for those that it reads. NULL: nothing here is staged. */
enum { STAGE_FOR_WRITE = 0, STAGE_FOR_READ = 1 };
char *terni_stage_fixed(const struct stage *s, int rank, int which);
/* Between buffers and the machine's memory, and waits. */
enum tern_status terni_stage_copy(struct stage *s, void *dst, const void *src, uint64_t bytes);
/* The word's value; kernels may be waiting for it. 8 bytes become visible as one. */
enum tern_status terni_stage_load(struct stage *s, const void *word, uint32_t width, uint64_t *value);
enum tern_status terni_stage_store(struct stage *s, void *word, uint32_t width, uint64_t value);

#endif
