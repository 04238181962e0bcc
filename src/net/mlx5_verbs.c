/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds libibverbs and libmlx5, and in them every function of the table, by name and version. */
#define _GNU_SOURCE /* dlvsym */
#include "net/mlx5_verbs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum library { LIBRARY_VERBS, LIBRARY_MLX5, LIBRARY_COUNT };

static const char *const library_names[LIBRARY_COUNT] = {"libibverbs.so.1", "libmlx5.so.1"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Written once. */
static struct mlx5_verbs table;
static char missing[192]; /* "" once all is there */

static int find(void *library, const char *symbol, const char *version, const char *name, void *function)
{
    void *found = dlvsym(library, symbol, version);
    if (found == NULL) {
        snprintf(missing, sizeof missing, "%s has no %s of version %s; rdma-core 44 or later has", name,
                 symbol, version);
        return 0;
    }
    memcpy(function, &found, sizeof found); /* C has no cast from object to function pointers */
    return 1;
}

static void load(void)
{
    void *libraries[LIBRARY_COUNT];
    for (int i = 0; i < LIBRARY_COUNT; i++) {
        libraries[i] = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL);
        if (libraries[i] == NULL) {
            snprintf(missing, sizeof missing, "%s", dlerror());
            return;
        }
    }
#define FIND(member, result, arguments, library, symbol, version)                                            \
    if (!find(libraries[LIBRARY_##library], symbol, version, library_names[LIBRARY_##library],               \
              &table.member)) {                                                                              \
        return;                                                                                              \
    }
    MLX5_VERBS(FIND)
#undef FIND
}

enum tern_status terni_mlx5_verbs(const struct mlx5_verbs **verbs)
{
    pthread_once(&once, load);
    if (missing[0] != '\0') {
        return TERN_FAIL(TERN_UNSUPPORTED, "RDMA NICs cannot be used: %s", missing);
    }
    *verbs = &table;
    return TERN_OK;
}
