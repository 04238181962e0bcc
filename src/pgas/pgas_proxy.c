/* SPDX-License-Identifier: Apache-2.0
 *
 * The way to ranks that this one does not address: a courier on the communicator (comm/courier.h),
 * whose rings kernels post to. It opens only where a rank of the communicator needs it, then on all, for it
 * answers peers as well.
 *
 * What it registers: the window of tern_alloc, the network's own, and the windows that are adopted, now or
 * later; local memory may be any, what is not in a window goes by way of a stage. */
#include "pgas/pgas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RING_DEPTH = 256 }; /* requests of a queue that wait for the host */

int terni_pgas_needs_proxy(const struct tern_comm *comm, uint32_t transport)
{
    int has_engine = strcmp(terni_env(TERN_ENV_PROXY), "none") != 0;
    return transport == TERN_TRANSPORT_PROXY ||
           (transport == TERN_TRANSPORT_AUTO && has_engine && comm->num_domains > 1);
}

enum tern_status terni_pgas_proxy_step(struct tern_network *n, int step)
{
    /* A silent peer is lost before the waits for it end, so that they can say so. */
    uint32_t silence_ms = n->timeout_ms - n->timeout_ms / 4;
    struct courier_config config = {NULL, (int)n->num_queues, RING_DEPTH, silence_ms, 0, 1};
    if (n->nics != NULL || !terni_pgas_needs_proxy(n->comm, n->transport)) {
        return TERN_OK;
    }
    if (step < COURIER_OPEN_STEPS) {
        return terni_courier_open_step(n->comm, &config, step, &n->courier);
    }
    if (step == COURIER_OPEN_STEPS) {
        TERN_TRY(terni_pgas_list_windows(n, terni_courier_carrier(n->courier), 0));
    }
    return terni_carrier_step(n->comm, &n->parcels, step - COURIER_OPEN_STEPS);
}

enum tern_status terni_pgas_lay_rings(struct tern_network *n)
{
    int num_queues = (int)n->num_queues, num = n->comm->num_ranks * num_queues;
    size_t bytes = 2 * (size_t)num * sizeof(struct net_ring);
    struct net_ring *image;
    enum tern_status status;
    if (n->courier == NULL) {
        return TERN_OK;
    }
    image = (struct net_ring *)calloc(2 * (size_t)num, sizeof *image);
    if (image == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d rings", num);
    }
    for (int i = 0; i < num; i++) {
        image[i] = *terni_proxy_ring(terni_courier_proxy(n->courier), i / num_queues, i % num_queues);
        image[num + i] = image[i];
        image[i].abort = n->view.abort_word; /* one word ends all waits */
        image[num + i].abort = NULL;
    }
    status = n->machine->ops->alloc(n->machine, bytes, &n->rings);
    if (status == TERN_OK) {
        status = terni_pgas_move(n, n->rings, image, bytes);
    }
    free(image);
    n->view.rings = n->rings;
    return status;
}

const void *terni_pgas_rings_calm(const struct tern_network *n)
{
    return (const struct net_ring *)n->rings + (size_t)n->comm->num_ranks * n->num_queues;
}

void terni_pgas_proxy_sees(struct tern_network *n)
{
    struct proxy_counts counts; /* any errand will do */
    if (n->courier != NULL) {
        terni_proxy_counts(terni_courier_proxy(n->courier), &counts);
    }
}

void terni_pgas_proxy_close(struct tern_network *n)
{
    terni_courier_close(n->courier);
    if (n->rings != NULL) {
        n->machine->ops->free(n->machine, n->rings);
    }
}

void terni_pgas_proxy_print_lost(const struct tern_network *n, char *text, size_t bytes)
{
    for (int r = 0; r < n->comm->num_ranks && text[0] == '\0'; r++) {
        if (terni_proxy_loss(terni_courier_proxy(n->courier), r) != TERN_OK) {
            snprintf(text, bytes, "; %s", tern_last_error());
        }
    }
}
