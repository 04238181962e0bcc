/* SPDX-License-Identifier: Apache-2.0
 *
 * Which NICs a rank uses. Without names: the nearest ones. Where several are equally near, they are divided
 * among the ranks of the host: each takes as many as its share, and starts where the rank before it ended, so
 * that four GPUs with two NICs at one switch load both.
 *
 * Names: NIC[:PORT] separated by commas, for every rank of the host; or lists for single ranks, by their
 * place in the host, separated by semicolons: "0=mlx5_0,mlx5_1;1=mlx5_2". A list that begins with ^ says
 * which NICs are not looked at when distance decides. "none": no NIC at all. */
#include "net/nic_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Up to the next separator; returns where the rest begins. */
static const char *cut(const char *at, const char *separator, char *part, size_t part_bytes)
{
    size_t n = strcspn(at, separator);
    snprintf(part, part_bytes, "%.*s", (int)n, at);
    return at[n] != '\0' ? at + n + 1 : at + n;
}

/* The list for this rank: the part behind "INDEX=", or all. "" if there are parts, but none for it. */
static enum tern_status own_list(const struct nic_wish *wish, char *list, size_t list_bytes)
{
    const char *at = wish->names;
    if (strlen(at) >= list_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_NICS has %zu characters; the most are %zu", strlen(at),
                         list_bytes - 1);
    }
    if (strchr(at, '=') == NULL) {
        snprintf(list, list_bytes, "%s", at);
        return TERN_OK;
    }
    while (*at != '\0') {
        char part[NIC_PATH_BYTES], *end;
        long index;
        at = cut(at, ";", part, sizeof part);
        index = strtol(part, &end, 10);
        if (end == part || *end != '=' || index < 0) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "TERN_NICS=%s: \"%s\" does not begin with a rank's place and =", wish->names,
                             part);
        }
        if (index == wish->local_index) {
            snprintf(list, list_bytes, "%s", end + 1);
            return TERN_OK;
        }
    }
    list[0] = '\0';
    return TERN_OK;
}

static int find(const struct nic_place *nics, int num_nics, const char *name)
{
    for (int i = 0; i < num_nics; i++) {
        if (strcmp(nics[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* NIC[:PORT] */
static enum tern_status find_named(struct nic_place *nics, int num_nics, char *item, int *index)
{
    char *colon = strchr(item, ':'), *end;
    long port = 0;
    if (colon != NULL) {
        *colon = '\0';
        port = strtol(colon + 1, &end, 10);
        if (end == colon + 1 || *end != '\0' || port < 1 || port > 254) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_NICS: \"%s\" is no port of %s", colon + 1, item);
        }
    }
    *index = find(nics, num_nics, item);
    if (*index < 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_NICS names \"%s\", but this host has no such RDMA NIC",
                         item);
    }
    nics[*index].port = port > 0 ? (int)port : nics[*index].port;
    return TERN_OK;
}

static enum tern_status take_named(struct nic_place *nics, int num_nics, const char *list, int *chosen,
                                   int *num_chosen)
{
    for (const char *at = list; *at != '\0';) {
        char item[NIC_NAME_BYTES + 8];
        int index;
        at = cut(at, ",", item, sizeof item);
        TERN_TRY(find_named(nics, num_nics, item, &index));
        for (int i = 0; i < *num_chosen; i++) {
            if (chosen[i] == index) {
                return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_NICS names %s twice", nics[index].name);
            }
        }
        chosen[(*num_chosen)++] = index;
    }
    return TERN_OK;
}

/* A NIC of another kind than mlx5, one that is left out, or one without a link, is no candidate. */
static enum tern_status mark_candidates(struct nic_place *nics, int num_nics, const char *left_out,
                                        int is_candidate[NIC_MAX])
{
    for (int i = 0; i < num_nics; i++) {
        is_candidate[i] = strncmp(nics[i].driver, "mlx5", 4) == 0 && strcmp(nics[i].state, "ACTIVE") == 0;
    }
    for (const char *at = left_out; *at != '\0';) {
        char item[NIC_NAME_BYTES + 8];
        int index;
        at = cut(at, ",", item, sizeof item);
        TERN_TRY(find_named(nics, num_nics, item, &index));
        is_candidate[index] = 0;
    }
    return TERN_OK;
}

static int is_nearer(const struct nic_place *a, const struct nic_place *b)
{
    return a->distance != b->distance ? a->distance < b->distance : a->shared > b->shared;
}

static int nearest(const struct nic_place *nics, int num_nics, const int is_candidate[NIC_MAX])
{
    int best = -1;
    for (int i = 0; i < num_nics; i++) {
        if (is_candidate[i] && (best < 0 || is_nearer(&nics[i], &nics[best]))) {
            best = i;
        }
    }
    return best;
}

/* The nearest candidates, as many as wanted; equally near ones in turn, from this rank's share on. */
static void take_nearest(const struct nic_place *nics, int num_nics, const struct nic_wish *wish,
                         int is_candidate[NIC_MAX], int *chosen, int *num_chosen)
{
    int wanted = wish->num_nics, best;
    while ((best = nearest(nics, num_nics, is_candidate)) >= 0) {
        int equal[NIC_MAX], num_equal = 0, share;
        for (int i = 0; i < num_nics; i++) {
            if (is_candidate[i] && !is_nearer(&nics[best], &nics[i])) {
                equal[num_equal++] = i;
                is_candidate[i] = 0;
            }
        }
        share = wish->num_local < num_equal ? num_equal / wish->num_local : 1;
        wanted = wanted > 0 ? wanted : share;
        for (int i = 0; i < num_equal && *num_chosen < wanted; i++) {
            chosen[(*num_chosen)++] = equal[(wish->local_index * share + i) % num_equal];
        }
        if (*num_chosen == wanted) {
            return;
        }
    }
}

/* Why none of them will do. */
static enum tern_status none_left(const struct nic_place *nics, int num_nics)
{
    if (num_nics == 0) {
        return TERN_FAIL(TERN_UNSUPPORTED, "this host has no RDMA NIC");
    }
    return TERN_FAIL(
        TERN_UNSUPPORTED,
        "none of %d RDMA NICs can be used; the first, %s, has driver \"%s\" and port %d is \"%s\"", num_nics,
        nics[0].name, nics[0].driver, nics[0].port, nics[0].state);
}

int terni_nic_num_named(const struct nic_wish *wish)
{
    char list[NIC_PATH_BYTES];
    int num = 1;
    /* A list that cannot be read is told of by who chooses. */
    if (own_list(wish, list, sizeof list) != TERN_OK || list[0] == '\0' || list[0] == '^' ||
        strcmp(list, "none") == 0) {
        return 0;
    }
    for (const char *at = list; *at != '\0'; at++) {
        num += *at == ',' && at[1] != '\0';
    }
    return num;
}

enum tern_status terni_nic_choose(struct nic_place nics[NIC_MAX], int num_nics, const struct nic_wish *wish,
                                  int chosen[NIC_MAX], int *num_chosen)
{
    int is_candidate[NIC_MAX];
    char list[NIC_PATH_BYTES];
    TERN_TRY(own_list(wish, list, sizeof list));
    *num_chosen = 0;
    if (strcmp(list, "none") == 0) {
        return TERN_FAIL(TERN_UNSUPPORTED, "TERN_NICS asks for no RDMA NIC");
    }
    if (list[0] != '\0' && list[0] != '^') {
        return take_named(nics, num_nics, list, chosen, num_chosen);
    }
    TERN_TRY(mark_candidates(nics, num_nics, list[0] == '^' ? list + 1 : "", is_candidate));
    take_nearest(nics, num_nics, wish, is_candidate, chosen, num_chosen);
    return *num_chosen > 0 ? TERN_OK : none_left(nics, num_nics);
}
