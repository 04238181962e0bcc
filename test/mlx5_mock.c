/* SPDX-License-Identifier: Apache-2.0
 *
 * The mock's devices, ports, protection domains, memory and registers, and the table of functions; see
 * mlx5_mock.h. Long, because it has one short function for each of 27 in two libraries. */
#define _GNU_SOURCE /* memfd_create */
#include "mlx5_mock.h"

#if TERN_HAVE_VERBS

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct mock *mock_now;

struct mock_context {
    struct ibv_context base;
    struct mock_object o;
};
struct mock_pd {
    struct ibv_pd base;
    struct mock_object o;
};
struct mock_ah {
    struct ibv_ah base;
    struct mock_object o;
    struct mlx5_wqe_av av;
};
struct mock_mr {
    struct ibv_mr base;
    struct mock_object o;
};

/* ---- The mock itself ---- */

void mock_complain(const char *format, ...)
{
    va_list args;
    if (mock_now->complaint[0] == '\0') {
        va_start(args, format);
        vsnprintf(mock_now->complaint, sizeof mock_now->complaint, format, args);
        va_end(args);
    }
}

int mock_fails(const char *function)
{
    if (++mock_now->calls == mock_now->fail_at) {
        mock_now->failed = function;
        errno = EIO;
        return 1;
    }
    return 0;
}

static void device_init(struct mock_device *d, int index, int is_roce)
{
    static const char *const names[MOCK_MAX_DEVICES] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"};
    const unsigned char link_local[16] = {0xfe, 0x80, [15] = (unsigned char)(index + 1)};
    const unsigned char v6[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = (unsigned char)(index + 1)};
    const unsigned char v4[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = (unsigned char)(index + 1)};
    memset(d, 0, sizeof *d);
    d->name = names[index];
    d->is_mlx5 = d->is_active = 1;
    d->num_ports = 1;
    d->is_roce = is_roce;
    d->lid = is_roce ? 0 : 0x40 + (uint32_t)index;
    d->mtu = IBV_MTU_4096;
    memcpy(d->gids[0].raw, link_local, 16);
    d->gids[0].type = is_roce ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
    if (is_roce) { /* 1 is empty */
        memcpy(d->gids[2].raw, v4, 16);
        d->gids[2].type = IBV_GID_TYPE_ROCE_V1;
        memcpy(d->gids[3].raw, v6, 16);
        d->gids[3].type = IBV_GID_TYPE_ROCE_V2;
        memcpy(d->gids[4].raw, v4, 16);
        d->gids[4].type = IBV_GID_TYPE_ROCE_V2;
    }
    memcpy(d->mac, (const unsigned char[6]){2, 0, 0x5e, 0x10, 0, (unsigned char)(index + 1)}, 6);
    d->cqe_version = d->atomic_endian = d->has_rc = d->has_atomic = d->has_overrun = 1;
    d->has_more = d->no_records = 1;
    d->atomic_cap = IBV_ATOMIC_HCA;
    d->clocks = d->roce_clocks = 2;
    d->atomic_operations = 15;
    d->atomic_sizes = 4 | 8;
    d->log_max_message = 30;
    d->max_reads_in = d->max_reads_out = 16;
    d->max_blocks = 32768;
    /* Every device counts for itself, so that numbers of two are the same, but not of connected pairs. */
    d->next_number = 0x100 + 2 * (uint32_t)index;
    snprintf(d->base.name, sizeof d->base.name, "%s", d->name);
    terni_key_table_init(&d->keys, d->key_entries, MOCK_MAX_KEYS);
}

void mock_open(struct mock *m, int num_devices, int is_roce)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; i < num_devices; i++) {
        device_init(&m->devices[i], i, is_roce);
    }
    m->num_devices = num_devices;
    m->has_list = m->peermem = 1;
    m->uar_kinds = 1u << 31 | 3;
    m->packets.gid_index = -1;
    m->next_id = 0x10;
    mock_now = m;
}

int mock_close(struct mock *m)
{
    static const char *const names[MOCK_KINDS] = {"context",          "protection domain", "address handle",
                                                  "memory region",    "register",          "umem",
                                                  "completion queue", "queue pair"};
    if (m->objects != NULL) {
        mock_complain("%d objects are left, the youngest a %s", m->num_live, names[m->objects->kind]);
    }
    while (m->objects != NULL) { /* youngest first: no object is older than one that refers to it */
        struct mock_object *o = m->objects;
        m->objects = o->next;
        free(o->memory);
    }
    for (int i = 0; i < MOCK_MAX_PAGES; i++) {
        free(m->pages[i].memory);
    }
    mock_now = NULL;
    return m->complaint[0] == '\0';
}

/* ---- Objects ---- */

void mock_keep(struct mock_object *o, enum mock_kind kind, struct mock_device *device, uint32_t id)
{
    o->kind = kind;
    o->device = device;
    o->id = id;
    o->next = mock_now->objects;
    mock_now->objects = o;
    mock_now->num_made[kind]++;
    mock_now->num_live++;
}

void mock_refer(struct mock_object *o, struct mock_object *parent)
{
    for (int i = 0; i < MOCK_MAX_PARENTS; i++) {
        if (o->parents[i] == NULL) {
            o->parents[i] = parent;
            parent->refs++;
            return;
        }
    }
}

int mock_drop(struct mock_object *o, const char *what)
{
    struct mock_object **link = &mock_now->objects;
    if (o->refs != 0) {
        mock_complain("%s %u of %s goes while %d others refer to it", what, o->id, o->device->name, o->refs);
        return EBUSY;
    }
    while (*link != NULL && *link != o) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        mock_complain("a %s goes that is not there", what);
        return EINVAL;
    }
    *link = o->next;
    for (int i = 0; i < MOCK_MAX_PARENTS && o->parents[i] != NULL; i++) {
        o->parents[i]->refs--;
    }
    mock_now->num_live--;
    free(o->memory);
    return 0;
}

struct mock_object *mock_find(const struct mock_device *device, enum mock_kind kind, uint32_t id)
{
    struct mock_object *o = mock_now->objects;
    while (o != NULL && (o->device != device || o->kind != kind || o->id != id)) {
        o = o->next;
    }
    return o;
}

struct mock_object *mock_context_object(struct ibv_context *context)
{
    return &((struct mock_context *)context)->o;
}

/* Of a destruction that is to fail: the object goes all the same, so that nothing is left. */
static int drop(struct mock_object *o, const char *what)
{
    int fails = mock_fails(what), error = mock_drop(o, what);
    if (fails) {
        errno = EIO;
    }
    return fails ? EIO : error;
}

static void *make(size_t bytes) { return calloc(1, bytes); }

/* ---- Devices and ports ---- */

static struct ibv_device **get_device_list(int *count)
{
    struct ibv_device **list;
    if (mock_fails("get_device_list")) {
        return NULL;
    }
    *count = 0;
    if (!mock_now->has_list) {
        errno = ENOSYS;
        return NULL;
    }
    list = (struct ibv_device **)make(((size_t)mock_now->num_devices + 1) * sizeof *list);
    for (int i = 0; i < mock_now->num_devices; i++) {
        list[i] = &mock_now->devices[i].base;
    }
    *count = mock_now->num_devices;
    return list;
}

static void free_device_list(struct ibv_device **list) { free(list); }

static struct mock_device *device_of(const struct ibv_device *device)
{
    for (int i = 0; i < mock_now->num_devices; i++) {
        if (&mock_now->devices[i].base == device) {
            return &mock_now->devices[i];
        }
    }
    abort();
}

static bool is_supported(struct ibv_device *device) { return device_of(device)->is_mlx5; }

static struct ibv_context *open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr)
{
    struct mock_context *c;
    if (mock_fails("open_device")) {
        return NULL;
    }
    if (attr->flags != MLX5DV_CONTEXT_FLAGS_DEVX || attr->comp_mask != 0) {
        mock_complain("a device is opened without DevX: flags 0x%x", attr->flags);
    }
    c = (struct mock_context *)make(sizeof *c);
    c->o.memory = c;
    c->base.device = device;
    mock_keep(&c->o, MOCK_CONTEXT, device_of(device), 0);
    return &c->base;
}

static int close_device(struct ibv_context *context) { return drop(mock_context_object(context), "context"); }

static int query_device(struct ibv_context *context, struct ibv_device_attr *a)
{
    const struct mock_device *d = mock_context_object(context)->device;
    if (mock_fails("query_device")) {
        return EIO;
    }
    memset(a, 0, sizeof *a);
    a->max_qp_rd_atom = d->max_reads_in;
    a->max_qp_init_rd_atom = d->max_reads_out;
    a->max_qp_wr = d->max_blocks;
    a->max_cqe = 4194303;
    a->atomic_cap = d->atomic_cap;
    return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *a)
{
    const struct mock_device *d = mock_context_object(context)->device;
    if (mock_fails("query_port")) {
        return EIO;
    }
    if (port < 1 || port > d->num_ports) {
        return EINVAL;
    }
    a->state = d->is_active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    a->active_mtu = (enum ibv_mtu)d->mtu;
    a->lid = (uint16_t)d->lid;
    a->gid_tbl_len = MOCK_MAX_GIDS;
    a->link_layer = d->is_roce ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    return 0;
}

/* One that fails is an entry that cannot be read: no fault, so it is not counted. */
static int query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *e,
                        uint32_t flags, size_t bytes)
{
    const struct mock_device *d = mock_context_object(context)->device;
    static const unsigned char zero[16] = {0};
    if (port < 1 || (int)port > d->num_ports || index >= MOCK_MAX_GIDS || flags != 0 || bytes != sizeof *e) {
        return EINVAL;
    }
    if (memcmp(d->gids[index].raw, zero, 16) == 0) {
        return ENODATA;
    }
    memcpy(e->gid.raw, d->gids[index].raw, 16);
    e->gid_index = index;
    e->port_num = port;
    e->gid_type = (uint32_t)d->gids[index].type;
    return 0;
}

static int query_eqn(struct ibv_context *context, uint32_t vector, uint32_t *eqn)
{
    (void)context;
    if (mock_fails("query_eqn") || vector != 0) {
        return EIO;
    }
    *eqn = 0x17;
    return 0;
}

/* ---- Protection domains and address handles ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct mock_object *c = mock_context_object(context);
    struct mock_pd *pd;
    if (mock_fails("alloc_pd")) {
        return NULL;
    }
    pd = (struct mock_pd *)make(sizeof *pd);
    pd->o.memory = pd;
    pd->base.context = context;
    mock_keep(&pd->o, MOCK_PD, c->device, mock_now->next_id++);
    mock_refer(&pd->o, c);
    return &pd->base;
}

static int dealloc_pd(struct ibv_pd *pd) { return drop(&((struct mock_pd *)pd)->o, "protection domain"); }

static const struct mock_device *owner_of(const unsigned char gid[16])
{
    for (int i = 0; i < mock_now->num_devices; i++) {
        for (int g = 0; g < MOCK_MAX_GIDS; g++) {
            if (memcmp(mock_now->devices[i].gids[g].raw, gid, 16) == 0) {
                return &mock_now->devices[i];
            }
        }
    }
    return NULL;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct mock_pd *p = (struct mock_pd *)pd;
    const struct mock_device *to = owner_of(attr->grh.dgid.raw);
    const struct mock_gid *from = &p->o.device->gids[attr->grh.sgid_index % MOCK_MAX_GIDS];
    struct mock_ah *ah;
    if (mock_fails("create_ah")) {
        return NULL;
    }
    if (!attr->is_global || attr->port_num != 1 || from->type != IBV_GID_TYPE_ROCE_V2 ||
        attr->grh.hop_limit == 0 || attr->sl != mock_now->packets.service_level ||
        attr->grh.traffic_class != mock_now->packets.traffic_class) {
        errno = EINVAL;
        return NULL;
    }
    if (to == NULL) {
        errno = ENETUNREACH;
        return NULL;
    }
    ah = (struct mock_ah *)make(sizeof *ah);
    ah->o.memory = ah;
    memcpy(ah->av.rmac, to->mac, 6);
    mock_keep(&ah->o, MOCK_AH, p->o.device, mock_now->next_id++);
    mock_refer(&ah->o, &p->o);
    return &ah->base;
}

static int destroy_ah(struct ibv_ah *ah) { return drop(&((struct mock_ah *)ah)->o, "address handle"); }

static int init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
    if (mock_fails("init_obj")) {
        return EIO;
    }
    if (type == MLX5DV_OBJ_PD) {
        obj->pd.out->pdn = ((struct mock_pd *)obj->pd.in)->o.id;
        return 0;
    }
    if (type == MLX5DV_OBJ_AH) {
        obj->ah.out->av = &((struct mock_ah *)obj->ah.in)->av;
        return 0;
    }
    return EOPNOTSUPP;
}

/* ---- Memory ---- */

void mock_device_memory(char *memory, uint64_t bytes)
{
    if (mock_now->num_device_ranges < MOCK_MAX_RANGES) {
        mock_now->device_ranges[mock_now->num_device_ranges].memory = memory;
        mock_now->device_ranges[mock_now->num_device_ranges++].bytes = bytes;
    }
}

void mock_device_memory_gone(const char *memory)
{
    for (int i = 0; i < mock_now->num_device_ranges; i++) {
        if (mock_now->device_ranges[i].memory == memory) {
            mock_now->device_ranges[i].bytes = 0;
        }
    }
}

static int is_device_memory(const char *memory)
{
    for (int i = 0; i < mock_now->num_device_ranges; i++) {
        if (memory >= mock_now->device_ranges[i].memory &&
            memory < mock_now->device_ranges[i].memory + mock_now->device_ranges[i].bytes) {
            return 1;
        }
    }
    return 0;
}

int mock_dmabuf(char *memory, uint64_t bytes, uint64_t *offset)
{
    struct stat s;
    int fd;
    if (!mock_now->dmabuf || !is_device_memory(memory) || mock_now->num_dmabufs == MOCK_MAX_RANGES) {
        return -1;
    }
    fd = memfd_create("dmabuf", MFD_CLOEXEC);
    if (fd >= 0 && fstat(fd, &s) == 0) {
        mock_now->dmabufs[mock_now->num_dmabufs].inode = (uint64_t)s.st_ino;
        *offset = (uintptr_t)memory % 4096;
        mock_now->dmabufs[mock_now->num_dmabufs].memory = memory - *offset;
        mock_now->dmabufs[mock_now->num_dmabufs++].bytes = bytes + *offset;
    }
    return fd;
}

/* The memory at `offset` of a dma-buf, NULL: it is none, or too short. */
static char *dmabuf_memory(int fd, uint64_t offset, uint64_t bytes)
{
    struct stat s;
    if (fstat(fd, &s) != 0) {
        return NULL;
    }
    for (int i = mock_now->num_dmabufs - 1; i >= 0; i--) {
        if (mock_now->dmabufs[i].inode == (uint64_t)s.st_ino &&
            offset + bytes <= mock_now->dmabufs[i].bytes) {
            return mock_now->dmabufs[i].memory + offset;
        }
    }
    return NULL;
}

static int is_reachable(char *memory)
{
    if (memory == NULL || (is_device_memory(memory) && !mock_now->peermem)) {
        errno = EFAULT;
        return 0;
    }
    return 1;
}

static struct mlx5dv_devx_umem *make_umem(struct ibv_context *context, char *addr, uint64_t bytes,
                                          uint32_t access)
{
    struct mock_object *c = mock_context_object(context);
    struct mock_umem *u;
    if (access != IBV_ACCESS_LOCAL_WRITE) {
        mock_complain("a umem with access 0x%x", access);
    }
    u = (struct mock_umem *)make(sizeof *u);
    u->o.memory = u;
    u->addr = addr;
    u->bytes = bytes;
    u->base.umem_id = mock_now->next_id++;
    mock_keep(&u->o, MOCK_UMEM, c->device, u->base.umem_id);
    mock_refer(&u->o, c);
    return &u->base;
}

static struct mlx5dv_devx_umem *umem_reg(struct ibv_context *context, void *addr, size_t bytes,
                                         uint32_t access)
{
    if (mock_fails("umem_reg") || !is_reachable((char *)addr)) {
        return NULL;
    }
    return make_umem(context, (char *)addr, bytes, access);
}

static struct mlx5dv_devx_umem *umem_reg_ex(struct ibv_context *context, struct mlx5dv_devx_umem_in *in)
{
    char *addr = dmabuf_memory(in->dmabuf_fd, (uint64_t)(uintptr_t)in->addr, in->size);
    if (mock_fails("umem_reg_ex")) {
        return NULL;
    }
    if (in->comp_mask != MLX5DV_UMEM_MASK_DMABUF || addr == NULL || (in->pgsz_bitmap & 4096) == 0) {
        errno = EINVAL;
        return NULL;
    }
    return make_umem(context, addr, in->size, in->access);
}

static int umem_dereg(struct mlx5dv_devx_umem *umem) { return drop(&((struct mock_umem *)umem)->o, "umem"); }

static struct ibv_mr *make_mr(struct ibv_pd *pd, char *memory, uint64_t bytes, uint64_t iova, uint32_t access)
{
    struct mock_pd *p = (struct mock_pd *)pd;
    struct key_registration r = {iova, bytes, memory, p->o.id, access};
    struct mock_mr *mr;
    uint32_t key;
    if (terni_key_table_add(&p->o.device->keys, &r, &key) != TERN_OK) {
        errno = EINVAL;
        return NULL;
    }
    mr = (struct mock_mr *)make(sizeof *mr);
    mr->o.memory = mr;
    mr->base.lkey = mr->base.rkey = key;
    mock_keep(&mr->o, MOCK_MR, p->o.device, key);
    mock_refer(&mr->o, &p->o);
    return &mr->base;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova,
                                   unsigned access)
{
    if (mock_fails("reg_mr") || !is_reachable((char *)addr)) {
        return NULL;
    }
    return make_mr(pd, (char *)addr, bytes, iova, access);
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                                    int access)
{
    char *memory = dmabuf_memory(fd, offset, bytes);
    if (mock_fails("reg_dmabuf_mr")) {
        return NULL;
    }
    if (memory == NULL) {
        errno = EBADF;
        return NULL;
    }
    return make_mr(pd, memory, bytes, iova, (uint32_t)access);
}

static int dereg_mr(struct ibv_mr *mr)
{
    struct mock_mr *r = (struct mock_mr *)mr;
    if (terni_key_table_remove(&r->o.device->keys, mr->rkey) != TERN_OK) {
        mock_complain("key 0x%x is removed, which is not there", mr->rkey);
    }
    return drop(&r->o, "memory region");
}

/* ---- Registers: two in a page, at 0x800 and 0xa00 ---- */

/* The page of this device with one place left, else a new one. */
static struct mock_page *page_for(struct mock_object *context)
{
    for (int i = 0; i < MOCK_MAX_PAGES; i++) {
        struct mock_page *page = &mock_now->pages[i];
        if (page->memory != NULL && page->context == context && page->taken != 3) {
            return page;
        }
    }
    for (int i = 0; i < MOCK_MAX_PAGES; i++) {
        struct mock_page *page = &mock_now->pages[i];
        if (page->memory == NULL) {
            page->memory = (char *)aligned_alloc(4096, 4096);
            page->context = context;
            memset(page->memory, 0, 4096);
            return page;
        }
    }
    return NULL;
}

static struct mlx5dv_devx_uar *alloc_uar(struct ibv_context *context, uint32_t kind)
{
    struct mock_object *c = mock_context_object(context);
    uint32_t bit = kind == 1u << 31 ? kind : 1u << kind;
    struct mock_page *page;
    struct mock_uar *u;
    if (mock_fails("alloc_uar")) {
        return NULL;
    }
    page = (mock_now->uar_kinds & bit) != 0 ? page_for(c) : NULL;
    if (page == NULL) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    u = (struct mock_uar *)make(sizeof *u);
    u->o.memory = u;
    u->page = page;
    u->place = (page->taken & 1) != 0;
    page->taken |= 1 << u->place;
    u->base.base_addr = page->memory;
    u->base.reg_addr = page->memory + (u->place ? 0xa00 : 0x800);
    u->base.page_id = mock_now->next_id++;
    mock_keep(&u->o, MOCK_UAR, c->device, u->base.page_id);
    mock_refer(&u->o, c);
    return &u->base;
}

static void free_uar(struct mlx5dv_devx_uar *uar)
{
    struct mock_uar *u = (struct mock_uar *)uar;
    struct mock_page *page = u->page;
    int bit = 1 << u->place;
    if (mock_drop(&u->o, "register") == 0) {
        page->taken &= ~bit;
        if (page->taken == 0) {
            free(page->memory);
            page->memory = NULL;
        }
    }
}

/* ---- The table ---- */

const struct mlx5_verbs mock_verbs = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid_ex = query_gid_ex,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .create_ah = create_ah,
    .destroy_ah = destroy_ah,
    .reg_mr_iova2 = reg_mr_iova2,
    .reg_dmabuf_mr = reg_dmabuf_mr,
    .dereg_mr = dereg_mr,
    .is_supported = is_supported,
    .open_device = open_device,
    .init_obj = init_obj,
    .query_eqn = query_eqn,
    .alloc_uar = alloc_uar,
    .free_uar = free_uar,
    .umem_reg = umem_reg,
    .umem_reg_ex = umem_reg_ex,
    .umem_dereg = umem_dereg,
    .general_cmd = mock_general_cmd,
    .obj_create = mock_obj_create,
    .obj_query = mock_obj_query,
    .obj_modify = mock_obj_modify,
    .obj_destroy = mock_obj_destroy,
};

#endif
