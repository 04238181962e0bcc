/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a proxy on a communicator, in steps over its boot:
 *
 *     0   open engine and proxy, register the window; post both cards
 *     1   compare; the threads begin to call each other; post how that went
 *     2   where all have begun, wait until all connections are up; post how that went
 *     3   all are connected
 *
 * Nobody waits for connections before everybody is known to have begun: a rank that could not would cost the
 * others their whole deadline. */
#include "comm/courier.h"
#include "comm/socket.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct courier_card {
    struct proxy_card proxy;
    struct region window;
    int32_t status;                   /* enum tern_status of this rank's part */
    char reason[TERN_SENTENCE_BYTES]; /* of a status that is not TERN_OK */
};

struct courier {
    struct carrier carrier; /* first: a carrier is its courier */
    struct tern_comm *comm;
    struct proxy *proxy;
    struct courier_card card;
};

enum { ALL_RIGHTS = KEY_LOCAL_WRITE | KEY_REMOTE_WRITE | KEY_REMOTE_READ | KEY_REMOTE_ATOMIC };

static const char fabric_prefix[] = "fabric:";

static enum tern_status refuse(const char *name)
{
    return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s=%s is not tcp, fabric:PROVIDER or none",
                     terni_env_name(TERN_ENV_PROXY), name);
}

/* What follows "fabric:"; NULL if nothing does. */
static const char *provider_of(const char *name)
{
    size_t length = strlen(fabric_prefix);
    return strncmp(name, fabric_prefix, length) == 0 && name[length] != '\0' ? name + length : NULL;
}

enum tern_status terni_courier_check_environment(void)
{
    const char *name = terni_env(TERN_ENV_PROXY);
    int is_known = strcmp(name, "tcp") == 0 || strcmp(name, "none") == 0 || provider_of(name) != NULL;
    return is_known ? TERN_OK : refuse(name);
}

static enum tern_status open_engine(struct tern_comm *comm, const struct courier_config *config,
                                    struct engine **engine)
{
    const char *name = config->engine != NULL ? config->engine : terni_env(TERN_ENV_PROXY);
    struct address own;
    struct engine_config e = {comm->rank, comm->num_ranks, &own, comm->cookie, NULL};
    TERN_TRY(comm->boot->ops->locate(comm->boot, &own));
    if (strcmp(name, "tcp") == 0) {
        return terni_tcp_engine_open(&e, engine);
    }
    e.provider = provider_of(name);
    return e.provider != NULL ? terni_fabric_engine_open(&e, engine) : refuse(name);
}

static enum tern_status prepare(struct courier *courier, const struct courier_config *config)
{
    struct tern_comm *comm = courier->comm;
    struct proxy_config p = {
        comm->machine,    NULL, config->num_queues, config->depth, config->timeout_ms, config->stages_all,
        config->takes_any};
    TERN_TRY(open_engine(comm, config, &p.engine));
    TERN_TRY(terni_proxy_open(&p, &courier->proxy));
    TERN_TRY(terni_proxy_card(courier->proxy, &courier->card.proxy));
    return terni_proxy_register(courier->proxy, comm->heap->bases[comm->rank], terni_heap_bytes(comm->heap),
                                ALL_RIGHTS, 1, &courier->card.window);
}

/* ---- Memory ---- */

static struct proxy *proxy_of(struct carrier *c) { return ((struct courier *)c)->proxy; }

static enum tern_status add_piece(struct carrier *c, const struct carrier_piece *piece,
                                  struct carrier_card *card)
{
    struct region region;
    static_assert(sizeof region <= sizeof *card, "a card has room for a region");
    TERN_TRY(terni_proxy_register(proxy_of(c), piece->memory, piece->bytes, ALL_RIGHTS, 1, &region));
    memcpy(card, &region, sizeof region);
    return TERN_OK;
}

static enum tern_status import_pieces(struct carrier *c, const struct carrier_piece *piece,
                                      const struct carrier_card *cards)
{
    int n = c->comm->num_ranks;
    enum tern_status status;
    struct region *row = (struct region *)calloc((size_t)n, sizeof *row);
    (void)piece;
    if (row == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for regions of %d ranks", n);
    }
    for (int r = 0; r < n; r++) {
        memcpy(&row[r], &cards[r], sizeof row[r]);
    }
    status = terni_proxy_import(proxy_of(c), row);
    free(row);
    return status;
}

static void release_piece(struct carrier *c, const struct carrier_piece *piece)
{
    if (terni_proxy_release(proxy_of(c), piece->memory) != TERN_OK) {
        TERN_LOG(TERN_LOG_ERROR, "rank %d: %s", c->comm->rank, tern_last_error());
    }
}

static const struct carrier_ops carrier_ops = {add_piece, import_pieces, release_piece};

/* ---- Opening ---- */

/* Whatever fails from here on travels in the card. */
static enum tern_status begin(struct tern_comm *comm, const struct courier_config *config,
                              struct courier **made)
{
    struct courier *courier = (struct courier *)calloc(1, sizeof *courier);
    if (courier == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a courier");
    }
    courier->comm = courier->carrier.comm = comm;
    courier->carrier.ops = &carrier_ops;
    *made = courier;
    courier->card.status = (int32_t)prepare(courier, config);
    if (courier->card.status != TERN_OK) {
        snprintf(courier->card.reason, sizeof courier->card.reason, "%s", tern_last_error());
    }
    return comm->boot->ops->post(comm->boot, &courier->card, sizeof courier->card);
}

/* All cards are alike on all ranks, so all find the same culprit. */
static enum tern_status take_cards(struct courier *courier, const struct courier_card *cards)
{
    int n = courier->comm->num_ranks;
    struct proxy_card *proxies = (struct proxy_card *)calloc((size_t)n, sizeof *proxies);
    struct region *windows = (struct region *)calloc((size_t)n, sizeof *windows);
    enum tern_status status = TERN_OK;
    if (proxies == NULL || windows == NULL) {
        status = TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d cards", n);
    }
    for (int r = 0; r < n && status == TERN_OK; r++) {
        if (cards[r].status != TERN_OK) {
            status = TERN_FAIL((enum tern_status)cards[r].status, "rank %d: %.*s", r, TERN_SENTENCE_BYTES - 1,
                               cards[r].reason);
        } else {
            proxies[r] = cards[r].proxy;
            windows[r] = cards[r].window;
        }
    }
    if (status == TERN_OK) {
        status = terni_proxy_import(courier->proxy, windows);
    }
    if (status == TERN_OK) {
        status = terni_proxy_connect(courier->proxy, proxies);
    }
    free(windows);
    free(proxies);
    return status;
}

static enum tern_status connect_all(struct courier *courier)
{
    struct tern_comm *comm = courier->comm;
    struct courier_card *cards = (struct courier_card *)calloc((size_t)comm->num_ranks, sizeof *cards);
    enum tern_status status;
    if (cards == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d cards", comm->num_ranks);
    }
    status = comm->boot->ops->wait(comm->boot, cards, sizeof *cards, comm->timeout_ms);
    status = status == TERN_OK ? take_cards(courier, cards) : status;
    free(cards);
    return status;
}

enum tern_status terni_courier_open_step(struct tern_comm *comm, const struct courier_config *config,
                                         int step, struct courier **courier)
{
    enum tern_status status;
    switch (step) {
    case 0:
        return begin(comm, config, courier);
    case 1:
        return terni_comm_judge_post(comm, connect_all(*courier));
    case 2:
        status = terni_comm_judge_wait(comm);
        status = status == TERN_OK ? terni_proxy_await((*courier)->proxy, comm->timeout_ms) : status;
        return terni_comm_judge_post(comm, status);
    default:
        return terni_comm_judge_wait(comm);
    }
}

void terni_courier_close(struct courier *courier)
{
    if (courier != NULL) {
        terni_carrier_unlink(&courier->carrier);
        terni_proxy_close(courier->proxy);
        free(courier);
    }
}

struct proxy *terni_courier_proxy(const struct courier *courier) { return courier->proxy; }

struct carrier *terni_courier_carrier(struct courier *courier) { return &courier->carrier; }
