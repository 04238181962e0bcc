/* SPDX-License-Identifier: Apache-2.0
 *
 * A tree of files that looks like /sys where net/nic_place.c reads it: PCI devices with their bridges, NICs
 * with their ports, in a folder of its own under /tmp. */
#ifndef TERN_TEST_NIC_TREE_H
#define TERN_TEST_NIC_TREE_H

enum { NIC_TREE_ROOT_BYTES = 64 };

struct nic_tree_nic {
    const char *name; /* "mlx5_0" */
    const char *path; /* below /sys/devices, "pci0000:00/0000:00:01.0/0000:01:00.0" */
    int numa;
    const char *driver; /* NULL: "mlx5_core" */
    /* One or two ports; NULL: no second one. */
    const char *state, *second_state; /* "4: ACTIVE" */
    int is_roce;
};

/* The folder's name, for `root` of terni_nic_scan. Leaves no tree if it cannot. */
int nic_tree_open(char root[NIC_TREE_ROOT_BYTES]);
int nic_tree_device(const char *root, const char *path, int numa);
int nic_tree_nic(const char *root, const struct nic_tree_nic *nic);
/* A file with one line; folders on the way are made. */
int nic_tree_file(const char *root, const char *path, const char *line);
/* NICs mlx5_0 to mlx5_3, two at each of two nodes: those that the mock has (mlx5_mock.h). */
int nic_tree_mlx5(const char *root, int is_roce);
void nic_tree_close(const char *root);

#endif
