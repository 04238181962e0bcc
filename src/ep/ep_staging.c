/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that are in no window: peers write to, or read from, a staging window of the EP object, and one
 * more copy on this rank moves the rows. Rows from this rank to itself need none of that: in rank layout,
 * where they lie together, and in one domain, the kernel writes or reads them where they are. Operations of
 * one object run one at a time, so each may use the whole of it; a peer cannot touch it for the next
 * operation before this rank has entered that, after its copy. */
#include <string.h>

#include "ep/ep.h"
#include "kernels/kernels.h"

enum { COPY_THREADS = 512, COPY_BLOCKS_A_SM = 32, CPU_COPY_THREADS = 64, CPU_COPY_BLOCKS = 2 };
/* By bulk copies: a block a processor; two H100, a dispatch of 4096 tokens with its copy 235.6 us, with
 * stages of 4 KiB 238.9, two blocks of three warps a processor 235.9, one of two warps with 16 KiB 236.1. */
enum { BULK_COPY_THREADS = 128, BULK_COPY_STAGE = 8192, CPU_BULK_COPY_STAGE = 256 };

void terni_staging_begin(struct staging *s, struct tern_ep *ep, const struct tern_route *route,
                         uint64_t capacity, int padding, int copy_in)
{
    memset(s, 0, sizeof(*s));
    s->ep = ep;
    s->copies.num_rows = route->memory.num_rows;
    s->copies.expert_counts = route->memory.expert_counts;
    s->copies.expert_offsets = route->memory.expert_offsets;
    s->copies.num_groups = route->layout == TERN_LAYOUT_EXPERT ? ep->shape.experts_a_rank : 0;
    s->copies.padding = (uint32_t)padding;
    s->copies.capacity = capacity;
    s->copy_in = copy_in;
    if (route->layout == TERN_LAYOUT_RANK && ep->shape.num_domains == 1) {
        s->copies.own_rows = route->memory.rank_offsets + ep->comm->rank;
    }
}

enum tern_status terni_rows_span(const char *what, uint64_t rows, uint32_t row_bytes, int64_t row_stride,
                                 uint64_t *span)
{
    uint64_t bytes = 0;
    if (rows && (__builtin_mul_overflow(rows - 1, (uint64_t)row_stride, &bytes) ||
                 bytes > (uint64_t)INT64_MAX - row_bytes)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%s: %llu rows %lld bytes apart are more than an address space", what,
                         (unsigned long long)rows, (long long)row_stride);
    }
    *span = rows ? bytes + row_bytes : 0;
    return TERN_OK;
}

enum tern_status terni_staging_place(struct staging *s, const char *what, void *data, uint32_t row_bytes,
                                     int64_t row_stride, int all, struct ep_place *place, struct place *own)
{
    place->stride = row_stride;
    if (!data) {
        place->offset = PLACE_NONE;
        return TERN_OK;
    }
    uint64_t span = 0;
    TERN_TRY(terni_rows_span(what, s->copies.capacity, row_bytes, row_stride, &span));
    int64_t at = terni_heap_offset(s->ep->comm->heap, data, span);
    if (at >= 0) {
        place->offset = (uint64_t)at | PLACE_USER_HEAP;
        return TERN_OK;
    }
    uint64_t bytes = align_up(s->copies.capacity * row_bytes, 256);
    if (s->used + bytes > s->ep->shape.staging_bytes) {
        return TERN_FAIL(TERN_NO_SPACE,
                         "%s is in no window and needs %llu bytes of staging for %llu rows; %llu of %llu are "
                         "left: raise staging_bytes or use tern_alloc(TERN_MEMORY_WINDOW)",
                         what, (unsigned long long)bytes, (unsigned long long)s->copies.capacity,
                         (unsigned long long)(s->ep->shape.staging_bytes - s->used),
                         (unsigned long long)s->ep->shape.staging_bytes);
    }
    uint64_t offset = s->ep->layout.staging + s->used;
    char *staged = s->ep->heap->bases[s->ep->comm->rank] + offset;
    struct copy_column *c = &s->copies.columns[s->copies.num_columns++];
    c->src = s->copy_in ? (const char *)data : staged;
    c->dst = s->copy_in ? staged : (char *)data;
    c->src_stride = s->copy_in ? row_stride : (int64_t)row_bytes;
    c->dst_stride = s->copy_in ? (int64_t)row_bytes : row_stride;
    c->row_bytes = row_bytes;
    c->all = (uint32_t)(all && !s->copies.own_rows);
    s->used += bytes;
    place->offset = offset;
    place->stride = (int64_t)row_bytes;
    if (s->copies.own_rows) {
        own->base = (char *)data;
        own->stride = row_stride;
    }
    return TERN_OK;
}

/* A warp for every piece if the outputs are full, up to a limit: on a GPU that is faster than few warps with
 * many pieces each (docs/performance.md). */
static int blocks_of(const struct staging *s)
{
    uint64_t pieces = 0;
    for (uint32_t c = 0; c < s->copies.num_columns; c++) {
        pieces += s->copies.capacity * s->copies.columns[c].row_bytes / COPY_PIECE + 1;
    }
    uint64_t blocks = pieces / (COPY_THREADS / 32) + 1;
    uint64_t most = (uint64_t)COPY_BLOCKS_A_SM * (uint64_t)s->ep->machine->info.num_sms;
    return (int)(blocks < most ? blocks : most);
}

int terni_staging_tells(const struct staging *s)
{
    return s->copies.num_columns > 0 && s->ep->shape.transfer == TERN_TRANSFER_BULK;
}

/* A block a processor. */
static void bulk_launch(const struct staging *s, struct copy_args *a, struct launch *l)
{
    const struct machine_info *info = &s->ep->machine->info;
    int cpu = info->kind == TERN_MACHINE_CPU;
    uint32_t wanted = cpu ? (uint32_t)CPU_BULK_COPY_STAGE : (uint32_t)BULK_COPY_STAGE;
    l->kernel = TERN_KERNEL_copy_rows_bulk;
    l->num_blocks = cpu ? CPU_COPY_BLOCKS : info->num_sms;
    l->num_blocks = l->num_blocks < EP_MAX_BLOCKS ? l->num_blocks : EP_MAX_BLOCKS; /* one ticket each */
    l->num_threads = cpu ? (int)CPU_COPY_THREADS : (int)BULK_COPY_THREADS;
    uint32_t warps = (uint32_t)l->num_threads / 32;
    uint32_t most = info->max_shared_bytes / (warps * COPY_STAGES) - (uint32_t)RING_BESIDE;
    a->stage_bytes = wanted < most ? wanted : most & ~15u;
    a->warp_bytes = COPY_STAGES * (a->stage_bytes + (uint32_t)RING_BESIDE);
    l->shared_bytes = warps * a->warp_bytes;
}

enum tern_status terni_staging_copy(const struct staging *s, uint64_t ticket, struct tern_stream *stream)
{
    if (s->copies.num_columns == 0) {
        return TERN_OK;
    }
    struct tern_ep *ep = s->ep;
    int cpu = ep->machine->info.kind == TERN_MACHINE_CPU;
    struct copy_args a = s->copies;
    struct launch l = {TERN_KERNEL_copy_rows,
                       cpu ? CPU_COPY_BLOCKS : blocks_of(s),
                       cpu ? CPU_COPY_THREADS : COPY_THREADS,
                       0,
                       &a,
                       sizeof(a)};
    if (ep->shape.transfer == TERN_TRANSFER_BULK) {
        bulk_launch(s, &a, &l);
    }
    a.latest = (uint64_t *)(void *)(ep->host_memory_device + ep->layout.latest);
    a.ticket = ticket;
    return terni_ep_launch(ep, &l, ticket, stream);
}
