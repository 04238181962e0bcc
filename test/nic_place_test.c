/* SPDX-License-Identifier: Apache-2.0
 *
 * Which NICs there are, how far they are and which a rank takes, on trees of files in place of /sys. */
#include "net/nic_place.h"
#include "nic_tree.h"
#include "support.h"

#include <stdio.h>
#include <string.h>

static const char gpu[] = "pci0000:5a/0000:5a:01.0/0000:5b:00.0/0000:5c:00.0/0000:5d:00.0";
static const char gpu_address[] = "0000:5d:00.0";

/* A host with two sockets. mlx5_10 is at the GPU's switch, mlx5_2 behind the same port of the root but
 * another switch, mlx5_0 at the same root complex, mlx5_1 at the same socket, mlx5_3 at the other. */
static const struct nic_tree_nic nics[] = {
    {"mlx5_10", "pci0000:5a/0000:5a:01.0/0000:5b:00.0/0000:5c:01.0/0000:5e:00.0", 0, NULL, "4: ACTIVE", NULL,
     0},
    {"mlx5_2", "pci0000:5a/0000:5a:01.0/0000:60:00.0/0000:61:00.0", 0, NULL, "4: ACTIVE", NULL, 1},
    {"mlx5_0", "pci0000:5a/0000:5a:02.0/0000:62:00.0", 0, NULL, "1: DOWN", "4: ACTIVE", 1},
    {"mlx5_1", "pci0000:3a/0000:3a:01.0/0000:3b:00.0", 0, NULL, "4: ACTIVE", NULL, 1},
    {"mlx5_3", "pci0000:9a/0000:9a:01.0/0000:9b:00.0", 1, NULL, "4: ACTIVE", NULL, 1},
    {"irdma0", "pci0000:5a/0000:5a:01.0/0000:5b:00.0/0000:5c:02.0/0000:64:00.0", 0, "irdma", "4: ACTIVE",
     NULL, 1},
};
enum { NUM_NICS = sizeof nics / sizeof nics[0] };

static int build(const char *root)
{
    int good = nic_tree_device(root, gpu, 0);
    for (int i = 0; good && i < NUM_NICS; i++) {
        good = nic_tree_nic(root, &nics[i]);
    }
    return good;
}

/* A case on a tree, which is removed whatever comes out. */
static int on_tree(struct test *t, int (*body)(const char *root))
{
    char root[NIC_TREE_ROOT_BYTES];
    int result;
    if (!nic_tree_open(root)) {
        return test_skip(t, "there is no place for files under /tmp");
    }
    result = build(root) ? body(root) : TEST_FAILED;
    nic_tree_close(root);
    return result;
}

static int check_scan(const char *root)
{
    static const struct {
        const char *name;
        enum nic_distance distance;
        int port;
    } wanted[] = {{"irdma0", NIC_SAME_SWITCH, 1}, {"mlx5_0", NIC_SAME_ROOT, 2},
                  {"mlx5_1", NIC_SAME_NODE, 1},   {"mlx5_2", NIC_SAME_SWITCH, 1},
                  {"mlx5_3", NIC_FAR, 1},         {"mlx5_10", NIC_SAME_SWITCH, 1}};
    struct nic_place found[NIC_MAX];
    char text[256];
    int num = terni_nic_scan(root, gpu_address, found);
    CHECK(num == NUM_NICS, "%d NICs", num);
    terni_nic_print(&found[1], text, sizeof text);
    CHECK(strcmp(text,
                 "mlx5_0: 0000:62:00.0, Ethernet, port 2 ACTIVE, 400 Gb/sec (4X NDR), at the same PCIe root "
                 "complex") == 0,
          "%s", text);
    for (int i = 0; i < num; i++) {
        CHECK(strcmp(found[i].name, wanted[i].name) == 0, "place %d has %s", i, found[i].name);
        CHECK(found[i].distance == wanted[i].distance, "%s is %s", found[i].name,
              terni_nic_distance_text(found[i].distance));
        CHECK(found[i].port == wanted[i].port && strcmp(found[i].state, "ACTIVE") == 0, "%s: port %d, %s",
              found[i].name, found[i].port, found[i].state);
    }
    CHECK(strcmp(found[5].pci, "0000:5e:00.0") == 0 && strcmp(found[5].driver, "mlx5_core") == 0 &&
              strcmp(found[5].link, "InfiniBand") == 0 && strcmp(found[5].rate, "400 Gb/sec (4X NDR)") == 0 &&
              found[5].numa == 0,
          "mlx5_10: %s %s %s %s %d", found[5].pci, found[5].driver, found[5].link, found[5].rate,
          found[5].numa);
    CHECK(found[5].shared > found[3].shared, "mlx5_10 shares %d bridges, mlx5_2 %d", found[5].shared,
          found[3].shared);
    return TEST_PASSED;
}

static int scan(struct test *t) { return on_tree(t, check_scan); }

static int check_anywhere(const char *root)
{
    struct nic_place found[NIC_MAX];
    int num = terni_nic_scan(root, "", found);
    CHECK(num == NUM_NICS && found[1].distance == NIC_ANYWHERE && found[5].distance == NIC_ANYWHERE,
          "%d NICs, the first %s", num, terni_nic_distance_text(found[1].distance));
    CHECK(terni_nic_scan("/nowhere", "", found) == 0, "there are NICs nowhere");
    CHECK(!terni_nic_has_peermem(root), "peermem is loaded");
    CHECK(nic_tree_file(root, "/sys/module/nvidia_peermem/version", "580.1"), "no file");
    CHECK(terni_nic_has_peermem(root), "peermem is not seen");
    return TEST_PASSED;
}

static int anywhere(struct test *t) { return on_tree(t, check_anywhere); }

/* ---- Choices ---- */

/* The names of what is chosen, with ports, as one text. */
static enum tern_status choose(const char *root, const char *device, const struct nic_wish *wish, char *text,
                               size_t text_bytes)
{
    struct nic_place found[NIC_MAX];
    int chosen[NIC_MAX], num, num_found = terni_nic_scan(root, device, found);
    size_t used = 0;
    text[0] = '\0';
    TERN_TRY(terni_nic_choose(found, num_found, wish, chosen, &num));
    for (int i = 0; i < num; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s:%d", i > 0 ? " " : "",
                                 found[chosen[i]].name, found[chosen[i]].port);
    }
    return TERN_OK;
}

static int check_choices(const char *root)
{
    static const struct {
        struct nic_wish wish;
        const char *device, *chosen;
    } cases[] = {
        {{"", 0, 0, 1}, gpu_address, "mlx5_10:1"},
        {{"", 3, 0, 1}, gpu_address, "mlx5_10:1 mlx5_2:1 mlx5_0:2"},
        {{"", 8, 0, 1}, gpu_address, "mlx5_10:1 mlx5_2:1 mlx5_0:2 mlx5_1:1 mlx5_3:1"},
        {{"^mlx5_10,mlx5_2", 0, 0, 1}, gpu_address, "mlx5_0:2"},
        /* Without a place all are equally near: one rank takes all, two share, ten take turns. */
        {{"", 0, 0, 1}, "", "mlx5_0:2 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_10:1"},
        {{"", 0, 0, 2}, "", "mlx5_0:2 mlx5_1:1"},
        {{"", 0, 1, 2}, "", "mlx5_2:1 mlx5_3:1"},
        {{"", 0, 7, 10}, "", "mlx5_2:1"},
        {{"", 2, 4, 8}, "", "mlx5_10:1 mlx5_0:2"},
        /* Names. */
        {{"mlx5_3,mlx5_0:1", 0, 0, 1}, gpu_address, "mlx5_3:1 mlx5_0:1"},
        {{"0=mlx5_3;1=mlx5_1,mlx5_2", 0, 1, 2}, gpu_address, "mlx5_1:1 mlx5_2:1"},
        {{"0=mlx5_3;1=^mlx5_10", 0, 1, 2}, gpu_address, "mlx5_2:1"},
        {{"0=mlx5_3", 0, 1, 2}, gpu_address, "mlx5_10:1"}, /* none is named for rank 1 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        OK(choose(root, cases[i].device, &cases[i].wish, text, sizeof text));
        CHECK(strcmp(text, cases[i].chosen) == 0, "case %zu: %s, wanted %s", i, text, cases[i].chosen);
    }
    return TEST_PASSED;
}

static int choices(struct test *t) { return on_tree(t, check_choices); }

static int check_refusals(const char *root)
{
    static const struct {
        struct nic_wish wish;
        enum tern_status status;
        const char *sentence;
    } cases[] = {
        {{"none", 0, 0, 1}, TERN_UNSUPPORTED, "asks for no RDMA NIC"},
        {{"mlx5_7", 0, 0, 1}, TERN_INVALID_ARGUMENT, "\"mlx5_7\""},
        {{"mlx5_1:x", 0, 0, 1}, TERN_INVALID_ARGUMENT, "\"x\" is no port of mlx5_1"},
        {{"mlx5_1:0", 0, 0, 1}, TERN_INVALID_ARGUMENT, "\"0\" is no port of mlx5_1"},
        {{"mlx5_1,mlx5_1", 0, 0, 1}, TERN_INVALID_ARGUMENT, "mlx5_1 twice"},
        {{"mlx5_1;0=mlx5_2", 0, 0, 1}, TERN_INVALID_ARGUMENT, "\"mlx5_1\" does not begin"},
        {{"^mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_10", 0, 0, 1},
         TERN_UNSUPPORTED,
         "the first, irdma0, has driver \"irdma\""},
    };
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        REFUSES(choose(root, gpu_address, &cases[i].wish, text, sizeof text), cases[i].status,
                cases[i].sentence);
    }
    REFUSES(choose("/nowhere", "", &cases[6].wish, text, sizeof text), TERN_INVALID_ARGUMENT, "\"mlx5_0\"");
    REFUSES(choose("/nowhere", "", &(struct nic_wish){"", 0, 0, 1}, text, sizeof text), TERN_UNSUPPORTED,
            "this host has no RDMA NIC");
    return TEST_PASSED;
}

static int refusals(struct test *t) { return on_tree(t, check_refusals); }

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "NICs, ports and distances", scan);
    test_run(&t, "no place, no tree, peermem", anywhere);
    test_run(&t, "near ones, shares of a host, names", choices);
    test_run(&t, "names that are no NICs, and no NIC at all", refusals);
    return test_end(&t);
}
