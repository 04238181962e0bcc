/* SPDX-License-Identifier: Apache-2.0
 *
 * Which RDMA NICs a host has, how far each is from a device on PCIe, and which of them a rank uses.
 *
 * All of it is read from sysfs, where the path of a PCI device names every bridge above it:
 * .../devices/pci0000:5a/0000:5a:01.0/0000:5b:00.0/0000:5c:02.0/0000:60:00.0. The longer the beginning that
 * two paths share, the fewer links are between them. Nothing here opens a NIC, so that tern-info can print
 * them where no library is installed; `root` goes before "/sys" ("" for the host's own), so that a test can
 * bring a tree of files. */
#ifndef TERN_NIC_PLACE_H
#define TERN_NIC_PLACE_H

#include "core/core.h"

enum { NIC_MAX = 32, NIC_NAME_BYTES = 64, NIC_PATH_BYTES = 512 };

enum nic_distance {
    NIC_SAME_SWITCH, /* a bridge below the root complex is above both */
    NIC_SAME_ROOT,   /* they meet in the root complex */
    NIC_SAME_NODE,   /* of the memory, but not of PCIe */
    NIC_FAR,
    NIC_ANYWHERE, /* one of the two has no place on PCIe: the cpu machine's device */
};
const char *terni_nic_distance_text(enum nic_distance distance);

struct nic_place {
    char name[NIC_NAME_BYTES]; /* "mlx5_0" */
    char pci[16];              /* "0000:60:00.0", "" if it is no PCI device */
    char driver[32];           /* "mlx5_core" */
    char link[16];             /* "InfiniBand" or "Ethernet": of the port */
    char state[24];            /* "ACTIVE" */
    char rate[48];             /* "400 Gb/sec (4X NDR)" */
    int port;                  /* the first that is active, else 1 */
    int numa;                  /* -1: unknown */
    enum nic_distance distance;
    int shared; /* bridges above both; among NICs of one distance more are nearer */
};

/* "mlx5_0: 0000:60:00.0, InfiniBand, port 1 ACTIVE, 400 Gb/sec (4X NDR), at the same NUMA node"; returns the
 * characters needed, like snprintf. */
int terni_nic_print(const struct nic_place *nic, char *text, size_t text_bytes);

/* NICs in the order of their names, numbers as numbers: mlx5_2 is before mlx5_10. None is no error; more
 * than NIC_MAX are cut with a warning. `device`: the PCI address of the rank's device, "" if it has none. */
int terni_nic_scan(const char *root, const char *device, struct nic_place nics[NIC_MAX]);

/* What chooses. */
struct nic_wish {
    const char *names;          /* TERN_NICS; "" chooses by distance */
    int num_nics;               /* for each rank; 0: what is near, divided among the ranks of the host */
    int local_index, num_local; /* of the rank among the ranks of its host */
};

/* Indices of NICs for this rank, best first; at least one. TERN_INVALID_ARGUMENT: the names cannot be read or
 * a NIC is not here. TERN_UNSUPPORTED: there is none, with the reason. */
enum tern_status terni_nic_choose(struct nic_place nics[NIC_MAX], int num_nics, const struct nic_wish *wish,
                                  int chosen[NIC_MAX], int *num_chosen);

/* How many NICs the names are for this rank; 0: they name none. */
int terni_nic_num_named(const struct nic_wish *wish);

/* How GPU memory gets into a NIC without dma-buf: whether nvidia-peermem (or nv_peer_mem) is loaded. */
int terni_nic_has_peermem(const char *root);

#endif
