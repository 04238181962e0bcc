/* SPDX-License-Identifier: Apache-2.0
 *
 * The windows as kernels know them: a table in device memory, of the network's own window and of those that
 * were adopted, sorted, with each one's addresses at all peers: where this rank's loads and stores reach
 * them, else where the peer's do. The window of tern_alloc is not in it, only its addresses; its bounds
 * travel with the view, and as its addresses never change, growth needs nothing here.
 *
 * Another table is made once the list of windows has changed. Older ones live until the network closes: a
 * kernel, or a captured graph, may hold a view of one. */
#include "pgas/pgas.h"

#include <stdlib.h>
#include <string.h>

static size_t rows_at(int num) { return (size_t)num * sizeof(struct tern_net_window); }

/* Where windows begin at each rank, as its route names them. */
static void fill_bases(const struct tern_network *n, char *const *bases, const uint64_t *owners, char *image)
{
    for (int r = 0; r < n->comm->num_ranks; r++) {
        uint64_t base = n->routes[r] == NET_ROUTE_P2P    ? (uint64_t)(uintptr_t)bases[r]
                        : n->routes[r] == NET_ROUTE_NONE ? 0
                                                         : owners[r];
        memcpy(image + (size_t)r * sizeof base, &base, sizeof base);
    }
}

/* Sorted windows; behind the table a row of bases for the window of tern_alloc and for each of these. */
static void fill_table(const struct tern_network *n, const struct window_place *places, int num, char *image,
                       char *device)
{
    size_t row = (size_t)n->comm->num_ranks * sizeof(char *);
    struct tern_net_window *windows = (struct tern_net_window *)(void *)image;
    size_t at = rows_at(num);
    fill_bases(n, n->comm->heap->bases, n->comm->heap->owners, image + at);
    for (int i = 0; i < num; i++) {
        at += row;
        windows[i].own = places[i].memory;
        windows[i].bytes = places[i].bytes;
        windows[i].bases = (char *const *)(void *)(device + at);
        fill_bases(n, places[i].bases, places[i].owners, image + at);
    }
}

static enum tern_status make_table(struct tern_network *n, const struct window_place *places, int num)
{
    const struct machine_ops *ops = n->machine->ops;
    size_t bytes = rows_at(num) + (size_t)(num + 1) * (size_t)n->comm->num_ranks * sizeof(char *);
    enum tern_status status;
    struct pgas_table *table = (struct pgas_table *)calloc(1, sizeof *table);
    char *image = (char *)calloc(1, bytes);
    if (table == NULL || image == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a table of %d windows", num);
        goto out;
    }
    status = ops->alloc(n->machine, bytes, &table->memory);
    if (status != TERN_OK) {
        goto out;
    }
    fill_table(n, places, num, image, (char *)table->memory);
    status = terni_pgas_move(n, table->memory, image, bytes);
    if (status != TERN_OK) {
        ops->free(n->machine, table->memory);
        goto out;
    }
    table->next = n->tables;
    n->tables = table;
    n->view.heap.bases = (char *const *)(void *)((char *)table->memory + rows_at(num));
    n->view.windows = (const struct tern_net_window *)table->memory;
    n->view.num_windows = (uint32_t)num;
    table = NULL;
out:
    free(image);
    free(table);
    return status;
}

static int compare_places(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct window_place *)a)->memory;
    uintptr_t y = (uintptr_t)((const struct window_place *)b)->memory;
    return (x > y) - (x < y);
}

/* The own window and the adopted ones, by address. places: [num + 1]. */
static void sort_places(const struct tern_network *n, struct window_place *places, int num)
{
    struct window_place *own = &places[num];
    (void)terni_windows_list(n->comm, places, num);
    own->memory = n->heap->bases[n->comm->rank];
    own->bytes = n->heap->bytes;
    own->bases = n->heap->bases;
    own->owners = n->heap->owners;
    qsort(places, (size_t)num + 1, sizeof *places, compare_places);
}

enum tern_status terni_network_view(struct tern_network *n, struct tern_net *view)
{
    if (n->tables == NULL || n->windows_seen != n->comm->num_window_changes) {
        int num = terni_windows_list(n->comm, NULL, 0);
        enum tern_status status;
        struct window_place *places = (struct window_place *)calloc((size_t)num + 1, sizeof *places);
        if (places == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d windows", num);
        }
        sort_places(n, places, num);
        status = make_table(n, places, num + 1);
        free(places);
        TERN_TRY(status);
        n->windows_seen = n->comm->num_window_changes;
    }
    *view = n->view;
    return TERN_OK;
}

void terni_pgas_tables_close(struct tern_network *n)
{
    while (n->tables != NULL) {
        struct pgas_table *table = n->tables;
        n->tables = table->next;
        n->machine->ops->free(n->machine, table->memory);
        free(table);
    }
}

/* ---- For carriers ---- */

static void put(struct carrier_parcel *parcel, struct carrier *carrier, void *memory, uint64_t bytes,
                char *const *bases, const uint64_t *owners)
{
    struct carrier_piece piece = {memory, bytes, bases, owners};
    parcel->carrier = carrier;
    parcel->piece = piece;
}

enum tern_status terni_pgas_list_windows(struct tern_network *n, struct carrier *carrier, int with_heap)
{
    struct tern_comm *comm = n->comm;
    struct heap *heap = comm->heap, *own = n->heap;
    int num = terni_windows_list(comm, NULL, 0), first = with_heap ? 1 : 0;
    struct window_place *places = (struct window_place *)calloc((size_t)num + 1, sizeof *places);
    struct carrier_parcel *list;
    n->parcels.num = first + 1 + (int)comm->num_adopted;
    n->parcels.list = list = (struct carrier_parcel *)calloc((size_t)n->parcels.num, sizeof *list);
    if (places == NULL || list == NULL) {
        free(places);
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d windows", num);
    }
    if (with_heap) {
        put(&list[0], carrier, heap->bases[comm->rank], terni_heap_bytes(heap), heap->bases, heap->owners);
    }
    put(&list[first], carrier, own->bases[comm->rank], own->bytes, own->bases, own->owners);
    (void)terni_windows_list(comm, places, num);
    for (int i = 0; i < num; i++) {
        struct window_place *w = &places[i];
        put(&list[first + (int)w->number], carrier, w->memory, w->bytes, w->bases, w->owners);
    }
    free(places);
    return TERN_OK;
}
