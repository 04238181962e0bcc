/* SPDX-License-Identifier: Apache-2.0
 *
 * Files and links of a tree that looks like /sys. Functions return 1, or 0 where a file cannot be made. */
#define _GNU_SOURCE /* nftw */
#include "nic_tree.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int nic_tree_open(char root[NIC_TREE_ROOT_BYTES])
{
    static int running;
    snprintf(root, NIC_TREE_ROOT_BYTES, "/tmp/tern_nics.%ld.%d", (long)getpid(), running++);
    return mkdir(root, 0700) == 0;
}

static int make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700); /* it may be there */
        *slash = '/';
    }
    return 1;
}

int nic_tree_file(const char *root, const char *path, const char *line)
{
    char whole[512];
    FILE *file;
    snprintf(whole, sizeof whole, "%s%s", root, path);
    make_folders(whole);
    file = fopen(whole, "we");
    if (file == NULL) {
        return 0;
    }
    fprintf(file, "%s\n", line);
    return fclose(file) == 0;
}

static int make_link(const char *root, const char *from, const char *to)
{
    char whole[512], target[512];
    snprintf(whole, sizeof whole, "%s%s", root, from);
    snprintf(target, sizeof target, "%s%s", root, to);
    make_folders(whole);
    return symlink(target, whole) == 0;
}

static const char *last_of(const char *path)
{
    return strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
}

int nic_tree_device(const char *root, const char *path, int numa)
{
    char at[256], to[256], line[16];
    snprintf(at, sizeof at, "/sys/devices/%s/numa_node", path);
    snprintf(line, sizeof line, "%d", numa);
    if (!nic_tree_file(root, at, line)) {
        return 0;
    }
    snprintf(at, sizeof at, "/sys/bus/pci/devices/%s", last_of(path));
    snprintf(to, sizeof to, "/sys/devices/%s", path);
    return make_link(root, at, to);
}

static int make_port(const char *root, const struct nic_tree_nic *nic, int port, const char *state)
{
    char at[256];
    int good;
    snprintf(at, sizeof at, "/sys/class/infiniband/%s/ports/%d/state", nic->name, port);
    good = nic_tree_file(root, at, state);
    snprintf(at, sizeof at, "/sys/class/infiniband/%s/ports/%d/link_layer", nic->name, port);
    good = good && nic_tree_file(root, at, nic->is_roce ? "Ethernet" : "InfiniBand");
    snprintf(at, sizeof at, "/sys/class/infiniband/%s/ports/%d/rate", nic->name, port);
    return good && nic_tree_file(root, at, "400 Gb/sec (4X NDR)");
}

int nic_tree_nic(const char *root, const struct nic_tree_nic *nic)
{
    char at[256], to[256];
    const char *driver = nic->driver != NULL ? nic->driver : "mlx5_core";
    if (!nic_tree_device(root, nic->path, nic->numa)) {
        return 0;
    }
    snprintf(to, sizeof to, "/sys/bus/pci/drivers/%s/uevent", driver);
    nic_tree_file(root, to, "");
    snprintf(to, sizeof to, "/sys/bus/pci/drivers/%s", driver);
    snprintf(at, sizeof at, "/sys/devices/%s/driver", nic->path);
    if (!make_link(root, at, to)) {
        return 0;
    }
    snprintf(at, sizeof at, "/sys/class/infiniband/%s/device", nic->name);
    snprintf(to, sizeof to, "/sys/devices/%s", nic->path);
    return make_link(root, at, to) && make_port(root, nic, 1, nic->state) &&
           (nic->second_state == NULL || make_port(root, nic, 2, nic->second_state));
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *where)
{
    (void)s;
    (void)kind;
    (void)where;
    return remove(path);
}

void nic_tree_close(const char *root) { nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

int nic_tree_mlx5(const char *root, int is_roce)
{
    static const struct nic_tree_nic nics[] = {
        {"mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0", 0, NULL, "4: ACTIVE", NULL, 0},
        {"mlx5_1", "pci0000:00/0000:00:02.0/0000:02:00.0", 0, NULL, "4: ACTIVE", NULL, 0},
        {"mlx5_2", "pci0000:80/0000:80:01.0/0000:81:00.0", 1, NULL, "4: ACTIVE", NULL, 0},
        {"mlx5_3", "pci0000:80/0000:80:02.0/0000:82:00.0", 1, NULL, "4: ACTIVE", NULL, 0}};
    int good = 1;
    for (int i = 0; good && i < (int)(sizeof nics / sizeof nics[0]); i++) {
        struct nic_tree_nic nic = nics[i];
        nic.is_roce = is_roce;
        good = nic_tree_nic(root, &nic);
    }
    return good;
}
