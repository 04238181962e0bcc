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

/* A table as it will be in device memory: sorted windows; behind them a row of bases for the window of
 * tern_alloc and for each of these. */
struct image {
    char *bytes;
    int num;          /* windows */
    uint64_t changes; /* of the list of windows that it shows */
};

static size_t row_bytes(const struct tern_network *n) { return (size_t)n->comm->num_ranks * sizeof(char *); }

static size_t image_bytes(const struct tern_network *n, int num)
{
    return rows_at(num) + (size_t)(num + 1) * row_bytes(n);
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

/* Where the rows of bases are is told by point_rows: device memory cannot be allocated under the lock. */
static void fill_image(const struct tern_network *n, const struct window_place *places, struct image *image)
{
    struct tern_net_window *windows = (struct tern_net_window *)(void *)image->bytes;
    char *at = image->bytes + rows_at(image->num);
    fill_bases(n, n->comm->heap->bases, n->comm->heap->owners, at);
    for (int i = 0; i < image->num; i++) {
        at += row_bytes(n);
        windows[i].own = places[i].memory;
        windows[i].bytes = places[i].bytes;
        fill_bases(n, places[i].bases, places[i].owners, at);
    }
}

/* Returns the row of the own window. */
static char *const *point_rows(const struct tern_network *n, const struct image *image, char *device)
{
    struct tern_net_window *windows = (struct tern_net_window *)(void *)image->bytes;
    char *rows = device + rows_at(image->num);
    char *const *own = NULL;
    for (int i = 0; i < image->num; i++) {
        windows[i].bases = (char *const *)(void *)(rows + (size_t)(i + 1) * row_bytes(n));
        own = windows[i].own == n->heap->bases[n->comm->rank] ? windows[i].bases : own;
    }
    return own;
}

/* All under the lock: a window that is released meanwhile takes its addresses with it. */
static enum tern_status draw(const struct tern_network *n, struct image *image)
{
    struct window_place *places;
    int num, is_drawn;
    terni_windows_lock(n->comm);
    num = terni_windows_list(n->comm, NULL, 0);
    image->num = num + 1;
    image->changes = terni_windows_changes(n->comm);
    image->bytes = (char *)calloc(1, image_bytes(n, image->num));
    places = (struct window_place *)calloc((size_t)num + 1, sizeof *places);
    is_drawn = image->bytes != NULL && places != NULL;
    if (is_drawn) {
        sort_places(n, places, num);
        fill_image(n, places, image);
    }
    terni_windows_unlock(n->comm);
    free(places);
    return is_drawn ? TERN_OK
                    : TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a table of %d windows", num + 1);
}

static enum tern_status make_table(struct tern_network *n, const struct image *image)
{
    const struct machine_ops *ops = n->machine->ops;
    size_t bytes = image_bytes(n, image->num);
    enum tern_status status;
    char *const *own_row;
    struct pgas_table *table = (struct pgas_table *)calloc(1, sizeof *table);
    if (table == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a table of %d windows", image->num);
    }
    status = ops->alloc(n->machine, bytes, &table->memory);
    if (status != TERN_OK) {
        free(table);
        return status;
    }
    own_row = point_rows(n, image, (char *)table->memory);
    status = terni_pgas_move(n, table->memory, image->bytes, bytes);
    if (status != TERN_OK) {
        ops->free(n->machine, table->memory);
        free(table);
        return status;
    }
    table->next = n->tables;
    n->tables = table;
    n->own_row = own_row;
    n->view.heap.bases = (char *const *)(void *)((char *)table->memory + rows_at(image->num));
    n->view.windows = (const struct tern_net_window *)table->memory;
    n->view.num_windows = (uint32_t)image->num;
    n->windows_seen = image->changes;
    return TERN_OK;
}

enum tern_status terni_network_view(struct tern_network *n, struct tern_net *view)
{
    if (n->tables == NULL || n->windows_seen != terni_windows_changes(n->comm)) {
        struct image image = {NULL, 0, 0};
        enum tern_status status = draw(n, &image);
        status = status == TERN_OK ? make_table(n, &image) : status;
        free(image.bytes);
        TERN_TRY(status);
    }
    *view = n->view;
    return TERN_OK;
}

enum tern_status terni_network_own_view(struct tern_network *n, struct tern_net *view)
{
    TERN_TRY(terni_network_view(n, view));
    view->heap.own = n->heap->bases[n->comm->rank];
    view->heap.bytes = n->heap->bytes;
    view->heap.bases = n->own_row;
    terni_pgas_lay_near(n, n->heap->bases, view);
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
