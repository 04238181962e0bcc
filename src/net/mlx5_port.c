/* SPDX-License-Identifier: Apache-2.0
 *
 * The port of a NIC and its address. On InfiniBand that is a LID, with a GID for other subnets. On Ethernet
 * it is a GID of RoCE v2: one that stands for an IPv4 address if there is one, else a global one of IPv6;
 * link-local ones are passed over, for they are not routed. */
#include "net/mlx5_nic.h"

#include <errno.h>
#include <string.h>

static int is_zero(const unsigned char gid[16])
{
    static const unsigned char zero[16] = {0};
    return memcmp(gid, zero, sizeof zero) == 0;
}

static int is_link_local(const unsigned char gid[16]) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

static int is_ipv4(const unsigned char gid[16])
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(gid, mapped, sizeof mapped) == 0;
}

/* The more the better; 0: not to be used. */
static int rank_of(const struct ibv_gid_entry *e)
{
    if (e->gid_type != IBV_GID_TYPE_ROCE_V2 || is_zero(e->gid.raw) || is_link_local(e->gid.raw)) {
        return 0;
    }
    return is_ipv4(e->gid.raw) ? 2 : 1;
}

/* Entries of the table that are empty cannot be read. */
static int read_gid(struct mlx5_nic *nic, uint32_t index, struct ibv_gid_entry *e)
{
    memset(e, 0, sizeof *e);
    return nic->v->query_gid_ex(nic->context, (uint32_t)nic->port.number, index, e, 0, sizeof *e) == 0;
}

static void take_gid(struct mlx5_nic *nic, uint32_t index, const struct ibv_gid_entry *e)
{
    nic->port.gid_index = index;
    memcpy(nic->port.gid, e->gid.raw, sizeof nic->port.gid);
}

static enum tern_status choose_gid(struct mlx5_nic *nic, int table_length)
{
    struct ibv_gid_entry e;
    int best = 0;
    for (int i = 0; i < table_length; i++) {
        if (read_gid(nic, (uint32_t)i, &e) && rank_of(&e) > best) {
            best = rank_of(&e);
            take_gid(nic, (uint32_t)i, &e);
        }
    }
    if (best == 0) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "none of %d GIDs of %s, port %d, is a routable one of RoCE v2: give its interface an "
            "IP address",
            table_length, nic->name, nic->port.number);
    }
    return TERN_OK;
}

static enum tern_status take_wanted_gid(struct mlx5_nic *nic, int table_length, int index)
{
    struct ibv_gid_entry e;
    if (index >= table_length || !read_gid(nic, (uint32_t)index, &e) || is_zero(e.gid.raw)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s, port %d, has no GID %d; its table has %d places",
                         nic->name, nic->port.number, index, table_length);
    }
    if (nic->port.is_roce && e.gid_type != IBV_GID_TYPE_ROCE_V2) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "GID %d of %s, port %d, is not of RoCE v2", index, nic->name,
                         nic->port.number);
    }
    take_gid(nic, (uint32_t)index, &e);
    return TERN_OK;
}

enum tern_status terni_mlx5_port_open(struct mlx5_nic *nic, int port, int gid_index)
{
    struct ibv_port_attr a;
    int error;
    memset(&a, 0, sizeof a);
    nic->port.number = port;
    error = nic->v->query_port(nic->context, (uint8_t)port, &a);
    if (error == EINVAL) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s has no port %d: %s", nic->name, port, strerror(error));
    }
    if (error != 0) {
        return TERN_FAIL(TERN_DEVICE_ERROR, "%s does not tell of its port %d: %s", nic->name, port,
                         strerror(error));
    }
    if (a.state != IBV_PORT_ACTIVE) {
        return TERN_FAIL(TERN_UNSUPPORTED, "port %d of %s is not active (state %d)", port, nic->name,
                         a.state);
    }
    nic->port.is_roce = a.link_layer == IBV_LINK_LAYER_ETHERNET;
    nic->port.mtu = (uint32_t)a.active_mtu;
    nic->port.lid = a.lid;
    if (gid_index >= 0 || !nic->port.is_roce) {
        return take_wanted_gid(nic, a.gid_tbl_len, gid_index >= 0 ? gid_index : 0);
    }
    return choose_gid(nic, a.gid_tbl_len);
}
