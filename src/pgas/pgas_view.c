/* SPDX-License-Identifier: Apache-2.0
 *
 * The windows as kernels know them: a table in device memory, of the network's own window and of those that
 * were adopted, with each one's addresses at all peers. The window of tern_alloc is not in it; its bounds
 * travel with the view, and as its addresses never change, growth needs nothing here.
 *
 * Another table is made once the list of windows has changed. Older ones live until the network closes: a
 * kernel, or a captured graph, may hold a view of one. */
#include "pgas/pgas.h"

#include <stdlib.h>
#include <string.h>

/* The own window, then the adopted ones; bases lie behind the table. */
static void fill_table(const struct tern_network *n, const struct window_place *places, int num, char *image,
                       char *device)
{
    size_t num_ranks = (size_t)n->comm->num_ranks;
    struct tern_net_window *windows = (struct tern_net_window *)(void *)image;
    size_t at = (size_t)(num + 1) * sizeof *windows;
    windows[0].own = n->heap->bases[n->comm->rank];
    windows[0].bytes = n->heap->bytes;
    windows[0].bases = n->heap->device_bases;
    for (int i = 0; i < num; i++) {
        windows[i + 1].own = places[i].memory;
        windows[i + 1].bytes = places[i].bytes;
        windows[i + 1].bases = (char *const *)(void *)(device + at);
        memcpy(image + at, places[i].bases, num_ranks * sizeof(char *));
        at += num_ranks * sizeof(char *);
    }
}

static enum tern_status make_table(struct tern_network *n, const struct window_place *places, int num)
{
    const struct machine_ops *ops = n->machine->ops;
    size_t bytes = (size_t)(num + 1) * sizeof(struct tern_net_window) +
                   (size_t)num * (size_t)n->comm->num_ranks * sizeof(char *);
    enum tern_status status;
    struct pgas_table *table = (struct pgas_table *)calloc(1, sizeof *table);
    char *image = (char *)calloc(1, bytes);
    if (table == NULL || image == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a table of %d windows", num + 1);
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
    n->view.windows = (const struct tern_net_window *)table->memory;
    n->view.num_windows = (uint32_t)num + 1;
    table = NULL;
out:
    free(image);
    free(table);
    return status;
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
        (void)terni_windows_list(n->comm, places, num);
        status = make_table(n, places, num);
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
