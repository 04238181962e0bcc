/* SPDX-License-Identifier: Apache-2.0
 *
 * The libfabric engine: a reliable-datagram endpoint of any provider that has messages, RDMA,
 * delivery-complete and messages in order. Tried: tcp;ofi_rxm and shm. By name, never run: efa,
 * verbs;ofi_rxm, cxi.
 *
 * What differs between providers is asked, not assumed: whether remote addresses count from zero or are the
 * owner's (FI_MR_VIRT_ADDR), who chooses keys, whether local memory needs a descriptor, whether a
 * registration belongs to an endpoint. Every operation asks for its completion by itself: an endpoint that
 * reports only some would leave the others unnoticed. Nothing moves here, and at no peer either, unless the
 * completion queue is read: poll does. */
#include "comm/socket.h"
#include "net/fabric.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { CQ_BATCH = 16, MAX_BATCHES = 8, HOST_TEXT = 80 };
#define FABRIC_MAX_BYTES (4ull << 20)
#define FABRIC_VERSION   FI_VERSION(1, 17)

/* What a rank tells the others. */
struct fabric_card {
    uint64_t mr_mode;
    uint64_t bytes;
    unsigned char name[ENGINE_CARD_BYTES - 16];
};

static struct fabric_engine *fabric_of(struct engine *e) { return (struct fabric_engine *)e; }

static enum tern_status failed(const struct fabric_engine *f, const char *what, int error)
{
    return TERN_FAIL(TERN_SYSTEM_ERROR, "libfabric, %s: %s: %s", f->base.name, what,
                     f->its.lib->strerror(-error));
}

void terni_fabric_end(struct fabric_engine *f, struct engine_op *op, uint32_t syndrome)
{
    op->syndrome = syndrome;
    op->next = NULL;
    *f->last_ended = op;
    f->last_ended = &op->next;
}

/* ---- Operations ---- */

static enum engine_post fabric_post(struct engine *e, struct engine_op *op)
{
    struct fabric_engine *f = fabric_of(e);
    struct iovec here = {op->local, op->bytes};
    struct fi_rma_iov there = {op->remote, op->bytes, op->there.rma_key};
    struct fi_msg_rma message = {.msg_iov = &here,
                                 .desc = &op->desc,
                                 .iov_count = 1,
                                 .addr = f->peers[op->peer].addr,
                                 .rma_iov = &there,
                                 .rma_iov_count = 1,
                                 .context = op->context};
    int is_rma = (op->kind == ENGINE_WRITE || op->kind == ENGINE_READ) && !op->there.is_staged &&
                 (op->staged == NULL || !(f->mr_mode & FI_MR_LOCAL));
    ssize_t error;
    if (e->peers[op->peer].lost != TERN_OK) {
        return ENGINE_AGAIN; /* the proxy is about to see it */
    }
    if (!is_rma) {
        return terni_letter_request(f, op);
    }
    there.addr -= f->mr_mode & FI_MR_VIRT_ADDR ? 0 : op->there.base;
    error = op->kind == ENGINE_WRITE ? fi_writemsg(f->its.ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)
                                     : fi_readmsg(f->its.ep, &message, FI_COMPLETION);
    if (error == -FI_EAGAIN) {
        return ENGINE_AGAIN;
    }
    if (error != 0) {
        TERN_LOG(TERN_LOG_WARN, "%s of %llu bytes to rank %d: %s", e->name, (unsigned long long)op->bytes,
                 op->peer, f->its.lib->strerror((int)-error));
        terni_fabric_end(f, op, SYNDROME_LOCAL_QP_OPERATION);
    }
    return ENGINE_POSTED;
}

static struct engine_op *op_of(void *context)
{
    return (struct engine_op *)(void *)((char *)context - offsetof(struct engine_op, context));
}

static void take_error(struct fabric_engine *f)
{
    struct fi_cq_err_entry entry;
    struct letter *l;
    memset(&entry, 0, sizeof entry);
    if (fi_cq_readerr(f->its.cq, &entry, 0) != 1 || entry.op_context == NULL) {
        return;
    }
    l = terni_letter_of(f, entry.op_context);
    if (l != NULL && l < f->letters + NUM_LETTERS_IN) {
        if (entry.err != FI_ECANCELED) {
            terni_letter_receive(f, l);
        }
        return;
    }
    if (l != NULL) {
        terni_engine_lose(&f->base, l->peer, TERN_DISCONNECTED, "a message to rank %d was not delivered: %s",
                          l->peer, f->its.lib->strerror(entry.err));
        terni_letter_sent(f, l);
        return;
    }
    if (entry.err != FI_EACCES && entry.err != FI_EPERM && entry.err != FI_EKEYREJECTED) {
        int peer = op_of(entry.op_context)->peer;
        terni_engine_lose(&f->base, peer, TERN_DISCONNECTED, "rank %d cannot be reached any more: %s", peer,
                          f->its.lib->strerror(entry.err));
        terni_fabric_end(f, op_of(entry.op_context), SYNDROME_TRANSPORT_RETRY);
    } else {
        terni_fabric_end(f, op_of(entry.op_context), SYNDROME_REMOTE_ACCESS);
    }
}

static void take_entry(struct fabric_engine *f, const struct fi_cq_msg_entry *entry)
{
    struct letter *l = terni_letter_of(f, entry->op_context);
    if (l == NULL) {
        terni_fabric_end(f, op_of(entry->op_context), SYNDROME_NONE);
    } else if (l < f->letters + NUM_LETTERS_IN) {
        terni_letter_arrived(f, l, entry->len);
    } else {
        terni_letter_sent(f, l);
    }
}

static int take_completions(struct fabric_engine *f)
{
    struct fi_cq_msg_entry entries[CQ_BATCH];
    int busy = 0;
    for (int batch = 0; batch < MAX_BATCHES; batch++) {
        ssize_t n = fi_cq_read(f->its.cq, entries, CQ_BATCH);
        if (n == -FI_EAVAIL) {
            take_error(f);
            busy = 1;
            continue;
        }
        if (n <= 0) {
            break;
        }
        for (ssize_t i = 0; i < n; i++) {
            take_entry(f, &entries[i]);
        }
        busy = 1;
    }
    return busy;
}

static struct engine_op *fabric_poll(struct engine *e, int *busy)
{
    struct fabric_engine *f = fabric_of(e);
    struct engine_op *ended;
    *busy |= take_completions(f);
    *busy |= terni_letters_advance(f);
    for (int r = 0; r < e->num_ranks; r++) {
        if (e->peers[r].lost != TERN_OK) {
            terni_letters_drop(f, r);
        }
    }
    ended = f->ended;
    f->ended = NULL;
    f->last_ended = &f->ended;
    return ended;
}

/* Providers with manual progress have nothing that would wake a sleeper for everything. */
static void fabric_rest(struct engine *e, uint64_t ns)
{
    struct timespec nap = {0, (long)ns};
    (void)e;
    nanosleep(&nap, NULL);
}

/* What the provider has of this peer stays the provider's until the endpoint closes. */
static void fabric_drop(struct engine *e, int peer) { terni_letters_drop(fabric_of(e), peer); }

static int fabric_is_connected(const struct engine *e, int peer)
{
    const struct fabric_peer *p = &((const struct fabric_engine *)e)->peers[peer];
    return p->is_here && p->greeting == 0 && p->unsent == NULL;
}

/* ---- Memory ---- */

static uint64_t access_of(uint32_t access)
{
    return FI_WRITE | FI_READ | (access & KEY_REMOTE_WRITE ? FI_REMOTE_WRITE : 0) |
           (access & KEY_REMOTE_READ ? FI_REMOTE_READ : 0);
}

/* A key that cannot be guessed, where the provider leaves the choice. */
static uint64_t draw_key(const struct fabric_engine *f)
{
    uint64_t key = 0;
    size_t bytes = f->its.info->domain_attr->mr_key_size < 8 ? f->its.info->domain_attr->mr_key_size : 8;
    if (f->mr_mode & FI_MR_PROV_KEY || getrandom(&key, bytes, 0) != (ssize_t)bytes) {
        key = 0;
    }
    return key;
}

static enum tern_status fabric_add(struct engine *e, struct own_region *r)
{
    struct fabric_engine *f = fabric_of(e);
    struct fabric_region *region;
    struct fid_mr *mr;
    int error;
    if (r->card.is_staged) {
        return TERN_OK; /* goes by messages */
    }
    region = (struct fabric_region *)calloc(1, sizeof *region);
    if (region == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a registration");
    }
    error = fi_mr_reg(f->its.domain, (void *)(uintptr_t)r->card.base, r->card.bytes,
                      access_of(r->card.access), 0, draw_key(f), 0, &mr, NULL);
    if (error != 0) {
        free(region);
        return failed(f, "registering memory", error);
    }
    if (f->mr_mode & FI_MR_ENDPOINT) {
        error = fi_mr_bind(mr, &f->its.ep->fid, 0);
        error = error != 0 ? error : fi_mr_enable(mr);
        if (error != 0) {
            fi_close(&mr->fid);
            free(region);
            return failed(f, "binding memory to the endpoint", error);
        }
    }
    region->mr = mr;
    region->next = f->regions;
    f->regions = region;
    r->handle = region;
    r->desc = fi_mr_desc(mr);
    r->card.rma_key = fi_mr_key(mr);
    return TERN_OK;
}

static void end_region(struct fabric_engine *f, struct fabric_region *region)
{
    int error = fi_close(&region->mr->fid);
    if (error != 0) {
        TERN_LOG(TERN_LOG_WARN, "%s keeps a registration: %s", f->base.name, f->its.lib->strerror(-error));
    }
    free(region);
}

static void fabric_remove(struct engine *e, struct own_region *r)
{
    struct fabric_engine *f = fabric_of(e);
    struct fabric_region **link = &f->regions;
    terni_letters_release(f, &r->card);
    while (*link != NULL && *link != r->handle) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        struct fabric_region *region = *link;
        *link = region->next;
        end_region(f, region);
    }
}

/* ---- Opening and closing ---- */

static enum tern_status fabric_card(struct engine *e, void *card)
{
    struct fabric_engine *f = fabric_of(e);
    struct fabric_card *c = (struct fabric_card *)card;
    size_t bytes = sizeof c->name;
    int error;
    memset(c, 0, sizeof *c);
    error = fi_getname(&f->its.ep->fid, c->name, &bytes);
    if (error != 0) {
        return failed(f, "the endpoint's name", error);
    }
    c->mr_mode = f->mr_mode;
    c->bytes = bytes;
    return TERN_OK;
}

static enum tern_status fabric_connect(struct engine *e, const unsigned char *cards)
{
    struct fabric_engine *f = fabric_of(e);
    TERN_TRY(terni_letters_open(f));
    for (int r = 0; r < e->num_ranks; r++) {
        struct fabric_card card;
        int n;
        memcpy(&card, cards + (size_t)r * ENGINE_CARD_BYTES, sizeof card);
        if (card.mr_mode != f->mr_mode || card.bytes > sizeof card.name) {
            return TERN_FAIL(TERN_MISMATCH, "rank %d's provider has memory mode 0x%llx, rank %d's 0x%llx", r,
                             (unsigned long long)card.mr_mode, e->rank, (unsigned long long)f->mr_mode);
        }
        f->peers[r].last_unsent = &f->peers[r].unsent;
        n = fi_av_insert(f->its.av, card.name, 1, &f->peers[r].addr, 0, NULL);
        if (n != 1) {
            return failed(f, "a peer's address", n < 0 ? n : -FI_EINVAL);
        }
    }
    for (int r = 0; r < e->num_ranks; r++) {
        f->peers[r].greeting = r != e->rank ? WIRE_HELLO : 0;
    }
    return TERN_OK;
}

static void fabric_close(struct engine *e)
{
    struct fabric_engine *f = fabric_of(e);
    terni_fabric_farewell(f);
    while (f->regions != NULL) {
        struct fabric_region *region = f->regions;
        f->regions = region->next;
        end_region(f, region);
    }
    terni_letters_close(f);
    terni_fabric_leave(f);
    terni_engine_fini(e);
    free(f->peers);
    free(f);
}

static int shares_memory(const char *provider) { return strncmp(provider, "shm", 3) == 0; }

/* The address alone, as text; NULL where the provider's addresses are none of the network's. */
static const char *node_text(const struct engine_config *config, char text[HOST_TEXT])
{
    char *end;
    if (shares_memory(config->provider)) {
        return NULL;
    }
    terni_address_print(config->own, text);
    end = strrchr(text, ':');
    if (end != NULL) {
        *end = '\0';
    }
    if (text[0] == '[' && end != NULL && end > text) {
        end[-1] = '\0';
        return text + 1;
    }
    return text;
}

/* Endpoints of shm are files of this machine, named after the process. What one that was killed has left
 * keeps the name from the next process of that number, so these are named after the communicator, which is
 * random. */
static enum tern_status name_memory(struct fabric_engine *f, const struct engine_config *config)
{
    struct fi_info *info = f->its.info;
    uint64_t cookie[2];
    char *name;
    if (!shares_memory(config->provider)) {
        return TERN_OK;
    }
    name = (char *)malloc(HOST_TEXT);
    if (name == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the name of an endpoint");
    }
    memcpy(cookie, config->cookie, sizeof cookie);
    snprintf(name, HOST_TEXT, "fi_shm://tern-%016llx%016llx-%d", (unsigned long long)cookie[0],
             (unsigned long long)cookie[1], config->rank);
    free(info->src_addr);
    info->src_addr = name;
    info->src_addrlen = strlen(name) + 1;
    return TERN_OK;
}

static enum tern_status find_provider(struct fabric_engine *f, const struct engine_config *config)
{
    struct fi_info *hints = f->its.lib->dupinfo(NULL);
    uint32_t version = f->its.lib->version() < FABRIC_VERSION ? f->its.lib->version() : FABRIC_VERSION;
    char text[HOST_TEXT];
    const char *node = node_text(config, text);
    int error;
    if (hints == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory to ask libfabric for a provider");
    }
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = strdup(config->provider);
    error = f->its.lib->getinfo(version, node, NULL, node != NULL ? FI_SOURCE : 0, hints, &f->its.info);
    if (error == -FI_ENODATA && node != NULL) {
        error = f->its.lib->getinfo(version, NULL, NULL, 0, hints, &f->its.info);
    }
    f->its.lib->freeinfo(hints);
    if (error != 0) {
        return TERN_FAIL(TERN_UNSUPPORTED, "libfabric has no provider %s with what a proxy needs here: %s",
                         config->provider, f->its.lib->strerror(-error));
    }
    f->mr_mode = (uint64_t)f->its.info->domain_attr->mr_mode;
    f->base.max_bytes = f->its.info->ep_attr->max_msg_size < FABRIC_MAX_BYTES
                            ? f->its.info->ep_attr->max_msg_size
                            : FABRIC_MAX_BYTES;
    f->base.max_staged_bytes = LETTER_BYTES;
    return name_memory(f, config);
}

static enum tern_status make_endpoint(struct fabric_engine *f)
{
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = (size_t)f->base.num_ranks};
    struct fi_cq_attr cq = {.size = (size_t)f->base.num_ranks * (ENGINE_WINDOW + LEAST_REQUESTS) +
                                    NUM_LETTERS_IN + NUM_REQUESTS + NUM_ANSWERS,
                            .format = FI_CQ_FORMAT_MSG,
                            .wait_obj = FI_WAIT_NONE};
    const char *what = "fabric";
    int error = f->its.lib->fabric(f->its.info->fabric_attr, &f->its.fabric, NULL);
    if (error == 0) {
        what = "domain";
        error = fi_domain(f->its.fabric, f->its.info, &f->its.domain, NULL);
    }
    if (error == 0) {
        what = "address vector";
        error = fi_av_open(f->its.domain, &av, &f->its.av, NULL);
    }
    if (error == 0) {
        what = "completion queue";
        error = fi_cq_open(f->its.domain, &cq, &f->its.cq, NULL);
    }
    if (error == 0) {
        what = "endpoint";
        error = fi_endpoint(f->its.domain, f->its.info, &f->its.ep, NULL);
    }
    if (error == 0) {
        error = fi_ep_bind(f->its.ep, &f->its.av->fid, 0);
    }
    if (error == 0) {
        /* Not with FI_SELECTIVE_COMPLETION: whatever forgot to ask for a completion would hang. */
        error = fi_ep_bind(f->its.ep, &f->its.cq->fid, FI_TRANSMIT | FI_RECV);
    }
    if (error == 0) {
        error = fi_enable(f->its.ep);
    }
    return error == 0 ? TERN_OK : failed(f, what, error);
}

static const struct engine_ops fabric_ops = {
    .close = fabric_close,
    .card = fabric_card,
    .connect = fabric_connect,
    .is_connected = fabric_is_connected,
    .add = fabric_add,
    .remove = fabric_remove,
    .post = fabric_post,
    .poll = fabric_poll,
    .rest = fabric_rest,
    .drop = fabric_drop,
};

enum tern_status terni_fabric_engine_open(const struct engine_config *config, struct engine **engine)
{
    const struct fabric_library *lib = terni_fabric_library();
    struct fabric_engine *f;
    enum tern_status status;
    if (lib == NULL) {
        return TERN_UNSUPPORTED;
    }
    f = (struct fabric_engine *)calloc(1, sizeof *f);
    if (f == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a libfabric engine");
    }
    f->its.lib = lib;
    f->last_ended = &f->ended;
    memcpy(f->cookie, config->cookie, sizeof f->cookie);
    status = terni_engine_init(&f->base, &fabric_ops, config->rank, config->num_ranks, config->provider);
    if (status == TERN_OK) {
        f->peers = (struct fabric_peer *)calloc((size_t)config->num_ranks, sizeof *f->peers);
        status = f->peers != NULL
                     ? find_provider(f, config)
                     : TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d peers", config->num_ranks);
    }
    if (status == TERN_OK) {
        status = make_endpoint(f);
    }
    if (status == TERN_OK) {
        status = terni_fabric_enter(f);
    }
    if (status != TERN_OK) {
        fabric_close(&f->base);
        return status;
    }
    *engine = &f->base;
    return TERN_OK;
}
