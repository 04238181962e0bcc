/* SPDX-License-Identifier: Apache-2.0
 *
 * libfabric is looked for when somebody asks for it: Tern is built with its headers and linked with nothing.
 * The functions are asked for with the versions that the headers describe, as the linker would. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dlvsym */
#endif
#include "net/fabric.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fabric_library found; /* written once, like what follows */
static int is_found;
static char reason[160];

static void *find(void *library, const char *name, const char *version)
{
    void *function = dlvsym(library, name, version);
    if (function == NULL && reason[0] == '\0') {
        snprintf(reason, sizeof reason, "libfabric.so.1 has no %s of version %s", name, version);
    }
    return function;
}

static void look(void)
{
    static const char name[] = "libfabric.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(reason, sizeof reason, "%s is not here: %s", name, dlerror());
        return;
    }
    *(void **)&found.getinfo = find(library, "fi_getinfo", "FABRIC_1.3");
    *(void **)&found.freeinfo = find(library, "fi_freeinfo", "FABRIC_1.3");
    *(void **)&found.dupinfo = find(library, "fi_dupinfo", "FABRIC_1.3");
    *(void **)&found.fabric = find(library, "fi_fabric", "FABRIC_1.1");
    *(void **)&found.strerror = find(library, "fi_strerror", "FABRIC_1.0");
    *(void **)&found.version = find(library, "fi_version", "FABRIC_1.0");
    is_found = reason[0] == '\0';
    if (!is_found) {
        dlclose(library);
    }
}

const struct fabric_library *terni_fabric_library(void)
{
    pthread_once(&once, look);
    if (!is_found) {
        (void)TERN_FAIL(TERN_UNSUPPORTED, "%s", reason);
        return NULL;
    }
    return &found;
}

const char *terni_fabric_describe(void)
{
    static _Thread_local char text[192];
    const struct fabric_library *lib = terni_fabric_library();
    if (lib == NULL) {
        return reason;
    }
    snprintf(text, sizeof text, "libfabric %u.%u", FI_MAJOR(lib->version()), FI_MINOR(lib->version()));
    return text;
}
