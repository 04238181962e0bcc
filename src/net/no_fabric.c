/* SPDX-License-Identifier: Apache-2.0
 *
 * In place of the libfabric engine, where the build found no headers of libfabric. */
#include "net/engine.h"

enum tern_status terni_fabric_engine_open(const struct engine_config *config, struct engine **engine)
{
    (void)engine;
    return TERN_FAIL(TERN_UNSUPPORTED, "provider %s: built without libfabric (its headers were not there)",
                     config->provider);
}

const char *terni_fabric_describe(void) { return "built without libfabric: its headers were not there"; }
