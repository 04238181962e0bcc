/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers between a machine's memory and the host. Used by a proxy's thread alone. */
#include "net/stage.h"

#include <stdlib.h>
#include <string.h>

enum tern_status terni_stage_open(struct stage *s, struct machine *machine, int num_shared, int num_fixed)
{
    memset(s, 0, sizeof *s);
    s->machine = machine;
    s->num_shared = num_shared;
    s->num_fixed = num_fixed;
    s->free = (char **)calloc((size_t)num_shared, sizeof *s->free);
    if (s->free == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a list of %d buffers", num_shared);
    }
    return TERN_OK;
}

enum tern_status terni_stage_need(struct stage *s)
{
    uint64_t bytes = (uint64_t)(s->num_shared + 2 * s->num_fixed) * STAGE_BYTES;
    void *host, *device;
    if (s->memory != NULL) {
        return TERN_OK;
    }
    if (s->stream == NULL) {
        TERN_TRY(s->machine->ops->stream_open(s->machine, &s->stream));
    }
    TERN_TRY(s->machine->ops->host_alloc(s->machine, bytes + 64, &host, &device));
    s->memory = (char *)host;
    s->word = (uint64_t *)(void *)(s->memory + bytes);
    for (int i = 0; i < s->num_shared; i++) {
        s->free[s->num_free++] = s->memory + (uint64_t)i * STAGE_BYTES;
    }
    return TERN_OK;
}

void terni_stage_close(struct stage *s)
{
    if (s->stream != NULL) {
        s->machine->ops->stream_close(s->machine, s->stream);
    }
    if (s->memory != NULL) {
        s->machine->ops->host_free(s->machine, s->memory);
    }
    free(s->free);
    memset(s, 0, sizeof *s);
}

char *terni_stage_take(struct stage *s) { return s->num_free > 0 ? s->free[--s->num_free] : NULL; }

void terni_stage_give(struct stage *s, char *buffer)
{
    if (buffer != NULL) {
        s->free[s->num_free++] = buffer;
    }
}

char *terni_stage_fixed(const struct stage *s, int rank, int which)
{
    return s->memory == NULL ? NULL : s->memory + (uint64_t)(s->num_shared + 2 * rank + which) * STAGE_BYTES;
}

enum tern_status terni_stage_copy(struct stage *s, void *dst, const void *src, uint64_t bytes)
{
    TERN_TRY(s->machine->ops->copy(s->machine, dst, src, bytes, s->stream));
    return s->machine->ops->stream_synchronize(s->machine, s->stream);
}

enum tern_status terni_stage_load(struct stage *s, const void *word, uint32_t width, uint64_t *value)
{
    *s->word = 0;
    TERN_TRY(terni_stage_copy(s, s->word, word, width));
    *value = *s->word; /* little-endian, like everything this runs on */
    return TERN_OK;
}

enum tern_status terni_stage_store(struct stage *s, void *word, uint32_t width, uint64_t value)
{
    if (width == 8) {
        TERN_TRY(s->machine->ops->store(s->machine, (uint64_t *)word, value, s->stream));
        return s->machine->ops->stream_synchronize(s->machine, s->stream);
    }
    *s->word = value;
    return terni_stage_copy(s, word, s->word, width);
}
