/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls of tern.h on EP objects and routes: arguments checked as far as the object need not be
 * asked, then one call down. */
#include <stdlib.h>

#include "ep/ep.h"

static enum tern_status check_route(const struct tern_route *route)
{
    TERN_TRY(terni_check_pointer("route", route));
    if (route->slot < 0) {
        return TERN_FAIL(TERN_BAD_STATE, "the route is closed");
    }
    if (route->stale) {
        return TERN_FAIL(TERN_BAD_STATE,
                         "the route was opened before tern_ep_reset; close it and open another");
    }
    return TERN_OK;
}

static enum tern_status check_reserved(uint32_t reserved)
{
    return reserved == 0 ? TERN_OK
                         : TERN_FAIL(TERN_INVALID_ARGUMENT, "args->reserved is %u, not 0", reserved);
}

enum tern_status tern_ep_get_sizes(const struct tern_ep_config *config, int num_ranks,
                                   struct tern_ep_sizes *sizes)
{
    struct ep_shape shape;
    struct ep_layout layout;
    TERN_TRY(terni_check_struct("config", config, sizeof(*config)));
    TERN_TRY(terni_check_struct("sizes", sizes, sizeof(*sizes)));
    TERN_TRY(terni_shape_init(config, num_ranks, config->domain_ranks, &shape));
    terni_layout_init(&shape, &layout);
    sizes->window_bytes = layout.window_bytes;
    sizes->device_bytes = layout.device_bytes;
    sizes->host_bytes = layout.host_bytes;
    sizes->staging_bytes = shape.staging_bytes;
    sizes->max_rows = shape.max_rows;
    sizes->net_bytes = layout.net_bytes;
    return TERN_OK;
}

enum tern_status tern_ep_max_rows(const struct tern_ep_config *config, int num_ranks, int layout,
                                  uint32_t expert_alignment, uint64_t *rows)
{
    struct ep_shape shape;
    uint64_t n = 0;
    TERN_TRY(terni_check_struct("config", config, sizeof(*config)));
    TERN_TRY(terni_check_pointer("rows", rows));
    TERN_TRY(terni_shape_init(config, num_ranks, config->domain_ranks, &shape));
    TERN_TRY(terni_shape_max_rows(&shape, layout, expert_alignment, &n));
    *rows = n;
    return TERN_OK;
}

enum tern_status tern_ep_open_all(int num_ranks, struct tern_comm **comms,
                                  const struct tern_ep_config *config, struct tern_ep **eps)
{
    TERN_TRY(terni_check_pointer("comms", comms));
    TERN_TRY(terni_check_pointer("eps", eps));
    TERN_TRY(terni_check_struct("config", config, sizeof(*config)));
    TERN_TRY(terni_comm_check_all(num_ranks, comms));
    struct tern_ep **made = (struct tern_ep **)calloc((size_t)num_ranks, sizeof(struct tern_ep *));
    if (!made) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for %d pointers", num_ranks);
    }
    struct first_failure first = {TERN_OK, ""};
    for (int step = 0; first.status == TERN_OK && step < EP_OPEN_STEPS; step++) {
        /* Every rank takes the step, also when one has failed: its peers' exchanges must stay in step. */
        for (int r = 0; r < num_ranks; r++) {
            enum tern_status one = terni_ep_open_step(comms[r], config, step, &made[r]);
            terni_first_add(&first, one);
        }
    }
    for (int r = 0; r < num_ranks; r++) {
        if (first.status == TERN_OK) {
            eps[r] = made[r];
        } else {
            terni_ep_close(made[r]);
        }
    }
    free(made);
    return terni_first_end(&first); /* after all that closes */
}

enum tern_status tern_ep_open(struct tern_comm *comm, const struct tern_ep_config *config,
                              struct tern_ep **ep)
{
    return tern_ep_open_all(1, &comm, config, ep);
}

void tern_ep_close(struct tern_ep *ep) { terni_ep_close(ep); }

enum tern_status tern_ep_synchronize(struct tern_ep *ep)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    return terni_ep_synchronize(ep);
}

enum tern_status tern_ep_reset_all(int num_ranks, struct tern_ep **eps)
{
    TERN_TRY(terni_check_pointer("eps", eps));
    if (num_ranks < 1) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "num_ranks is %d", num_ranks);
    }
    for (int r = 0; r < num_ranks; r++) {
        TERN_TRY(terni_check_pointer("an EP object", eps[r]));
        if (num_ranks > 1 && (eps[r]->comm->rank != r || eps[r]->comm->num_ranks != num_ranks)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "eps[%d] is rank %d of %d", r, eps[r]->comm->rank,
                             eps[r]->comm->num_ranks);
        }
    }
    struct first_failure first = {TERN_OK, ""};
    for (int step = 0; first.status == TERN_OK && step < EP_RESET_STEPS; step++) {
        for (int r = 0; r < num_ranks; r++) {
            enum tern_status one = terni_ep_reset_step(eps[r], step);
            terni_first_add(&first, one);
        }
    }
    return terni_first_end(&first);
}

enum tern_status tern_ep_reset(struct tern_ep *ep) { return tern_ep_reset_all(1, &ep); }

enum tern_status tern_fault_get(struct tern_ep *ep, struct tern_fault *fault)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_struct("fault", fault, sizeof(*fault)));
    return terni_ep_fault_copy(ep, fault);
}

int tern_fault_text(const struct tern_fault *fault, char *text, size_t text_bytes)
{
    return fault ? terni_fault_format(fault, text, text ? text_bytes : 0) : 0;
}

enum tern_status tern_route_open(struct tern_ep *ep, const struct tern_route_args *args,
                                 struct tern_stream *stream, struct tern_route **route)
{
    TERN_TRY(terni_check_pointer("ep", ep));
    TERN_TRY(terni_check_pointer("route", route));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    TERN_TRY(check_reserved(args->reserved));
    return terni_route_open(ep, args, stream, route);
}

enum tern_status tern_route_update(struct tern_route *route, const struct tern_route_args *args,
                                   struct tern_stream *stream)
{
    TERN_TRY(check_route(route));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    TERN_TRY(check_reserved(args->reserved));
    return terni_route_run(route, args, stream);
}

enum tern_status tern_route_wait(struct tern_route *route, struct tern_route_counts *counts)
{
    TERN_TRY(check_route(route));
    TERN_TRY(terni_check_struct("counts", counts, sizeof(*counts)));
    return terni_route_wait(route, counts);
}

enum tern_status tern_route_get_view(struct tern_route *route, struct tern_route_view *view)
{
    TERN_TRY(check_route(route));
    TERN_TRY(terni_check_struct("view", view, sizeof(*view)));
    terni_route_view(route, view);
    return TERN_OK;
}

void tern_route_close(struct tern_route *route)
{
    if (route) {
        route->slot = -1;
    }
}

enum tern_status tern_dispatch(struct tern_route *route, const struct tern_dispatch_args *args,
                               struct tern_stream *stream)
{
    TERN_TRY(check_route(route));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    return terni_ep_dispatch(route, args, stream);
}

enum tern_status tern_combine(struct tern_route *route, const struct tern_combine_args *args,
                              struct tern_stream *stream)
{
    TERN_TRY(check_route(route));
    TERN_TRY(terni_check_struct("args", args, sizeof(*args)));
    return terni_ep_combine(route, args, stream);
}
