/* SPDX-License-Identifier: Apache-2.0
 *
 * NICs and distances, from sysfs. What cannot be read stays empty: a container may show less than a host. */
#include "net/nic_place.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *terni_nic_distance_text(enum nic_distance distance)
{
    switch (distance) {
    case NIC_SAME_SWITCH:
        return "behind the same PCIe switch";
    case NIC_SAME_ROOT:
        return "at the same PCIe root complex";
    case NIC_SAME_NODE:
        return "at the same NUMA node";
    case NIC_FAR:
        return "at another NUMA node";
    case NIC_ANYWHERE:
        break;
    }
    return "at no known distance";
}

int terni_nic_print(const struct nic_place *nic, char *text, size_t text_bytes)
{
    return snprintf(text, text_bytes, "%s: %s, %s, port %d %s, %s, %s", nic->name,
                    nic->pci[0] != '\0' ? nic->pci : "not on PCI",
                    nic->link[0] != '\0' ? nic->link : "no link", nic->port,
                    nic->state[0] != '\0' ? nic->state : "of unknown state",
                    nic->rate[0] != '\0' ? nic->rate : "no rate", terni_nic_distance_text(nic->distance));
}

/* The first line of a file, without its end; "" if there is none. */
static void read_line(const char *path, char *line, size_t line_bytes)
{
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (file != NULL) {
        if (fgets(line, (int)line_bytes, file) == NULL) {
            line[0] = '\0';
        }
        line[strcspn(line, "\n")] = '\0';
        fclose(file);
    }
}

/* The canonical path that a link of sysfs names; "" if there is none. */
static void follow(const char *path, char real[PATH_MAX])
{
    if (realpath(path, real) == NULL) {
        real[0] = '\0';
    }
}

static const char *last_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* "0000:60:00.0" */
static int is_pci_address(const char *s)
{
    unsigned domain, bus, device, function;
    int end = 0;
    return sscanf(s, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &end) == 4 && s[end] == '\0';
}

/* Where the part of a path begins that names PCI: after ".../devices/". */
static const char *bridges_of(const char *path)
{
    const char *at = strstr(path, "/devices/pci");
    return at != NULL ? at + strlen("/devices/") : NULL;
}

/* Components that both paths begin with; the last component of each is the device itself. */
static int count_shared(const char *a, const char *b)
{
    int shared = 0;
    for (; *a != '\0' && *a == *b; a++, b++) {
        shared += *a == '/';
    }
    return shared;
}

static void measure(struct nic_place *nic, const char *nic_path, const char *device_path, int device_numa)
{
    const char *a = bridges_of(nic_path), *b = bridges_of(device_path);
    nic->shared = 0;
    nic->distance = NIC_ANYWHERE;
    if (a == NULL || b == NULL) {
        return;
    }
    nic->shared = count_shared(a, b);
    nic->distance = nic->shared > 1                              ? NIC_SAME_SWITCH
                    : nic->shared == 1                           ? NIC_SAME_ROOT
                    : nic->numa >= 0 && nic->numa == device_numa ? NIC_SAME_NODE
                                                                 : NIC_FAR;
}

static int read_numa(const char *device_path)
{
    char path[PATH_MAX + 16], line[16];
    snprintf(path, sizeof path, "%s/numa_node", device_path);
    read_line(path, line, sizeof line);
    return line[0] != '\0' ? atoi(line) : -1;
}

/* State of a port: "4: ACTIVE". */
static void read_state(const char *ports, int port, char state[24])
{
    char path[PATH_MAX + 64], line[32];
    const char *colon;
    snprintf(path, sizeof path, "%s/%d/state", ports, port);
    read_line(path, line, sizeof line);
    colon = strchr(line, ':');
    snprintf(state, 24, "%.23s", colon != NULL ? colon + 1 + strspn(colon + 1, " ") : line);
}

static void read_port(struct nic_place *nic, const char *ports)
{
    char path[PATH_MAX + 64], state[24];
    nic->port = 1;
    read_state(ports, 1, nic->state);
    for (int port = 2; strcmp(nic->state, "ACTIVE") != 0; port++) {
        read_state(ports, port, state);
        if (state[0] == '\0') {
            break;
        }
        if (strcmp(state, "ACTIVE") == 0) {
            nic->port = port;
            memcpy(nic->state, state, sizeof state);
        }
    }
    snprintf(path, sizeof path, "%s/%d/link_layer", ports, nic->port);
    read_line(path, nic->link, sizeof nic->link);
    snprintf(path, sizeof path, "%s/%d/rate", ports, nic->port);
    read_line(path, nic->rate, sizeof nic->rate);
}

static void read_nic(const char *root, const char *name, struct nic_place *nic, char real[PATH_MAX])
{
    char path[PATH_MAX + 16], driver[PATH_MAX];
    memset(nic, 0, sizeof *nic);
    snprintf(nic->name, sizeof nic->name, "%s", name);
    snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/device", root, name);
    follow(path, real);
    if (is_pci_address(last_of(real))) {
        snprintf(nic->pci, sizeof nic->pci, "%.15s", last_of(real));
    }
    nic->numa = read_numa(real);
    snprintf(path, sizeof path, "%s/driver", real);
    follow(path, driver);
    snprintf(nic->driver, sizeof nic->driver, "%.31s", last_of(driver));
    snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/ports", root, name);
    read_port(nic, path);
}

/* Digits compare by their value, everything else by its bytes. */
static int compare_names(const void *a, const void *b)
{
    const char *s = *(char *const *)a, *t = *(char *const *)b;
    while (*s != '\0' && *t != '\0') {
        if (isdigit((unsigned char)*s) && isdigit((unsigned char)*t)) {
            char *s_end, *t_end;
            unsigned long x = strtoul(s, &s_end, 10), y = strtoul(t, &t_end, 10);
            if (x != y) {
                return x < y ? -1 : 1;
            }
            s = s_end;
            t = t_end;
        } else if (*s != *t) {
            return (unsigned char)*s - (unsigned char)*t;
        } else {
            s++;
            t++;
        }
    }
    return (unsigned char)*s - (unsigned char)*t;
}

/* Names of all NICs, sorted; the caller's to free. */
static int list_names(const char *root, char *names[NIC_MAX])
{
    char path[PATH_MAX];
    struct dirent *entry;
    int num = 0, left_out = 0;
    DIR *dir;
    snprintf(path, sizeof path, "%s/sys/class/infiniband", root);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= NIC_NAME_BYTES) {
            continue;
        }
        if (num == NIC_MAX) {
            left_out++;
        } else if ((names[num] = strdup(entry->d_name)) != NULL) {
            num++;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    if (left_out > 0) {
        TERN_LOG(TERN_LOG_WARN, "%d RDMA NICs are left out: Tern looks at %d", left_out, NIC_MAX);
    }
    qsort(names, (size_t)num, sizeof *names, compare_names);
    return num;
}

int terni_nic_scan(const char *root, const char *device, struct nic_place nics[NIC_MAX])
{
    char path[PATH_MAX], device_path[PATH_MAX] = "", nic_path[PATH_MAX];
    char *names[NIC_MAX];
    int num = list_names(root, names), device_numa;

    if (device[0] != '\0') {
        snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s", root, device);
        follow(path, device_path);
    }
    device_numa = read_numa(device_path);
    for (int i = 0; i < num; i++) {
        read_nic(root, names[i], &nics[i], nic_path);
        measure(&nics[i], nic_path, device_path, device_numa);
        free(names[i]);
    }
    return num;
}

int terni_nic_has_peermem(const char *root)
{
    static const char *const signs[] = {"/sys/module/nvidia_peermem/version", "/sys/module/nvidia_peermem",
                                        "/sys/kernel/mm/memory_peers/nv_mem",
                                        "/sys/kernel/mm/memory_peers/nvidia-peermem"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        snprintf(path, sizeof path, "%s%s", root, signs[i]);
        if (access(path, F_OK) == 0) {
            return 1;
        }
    }
    return 0;
}
