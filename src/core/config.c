/* SPDX-License-Identifier: Apache-2.0
 *
 * All of Tern's environment in one table: what is not a row here is not read anywhere. Code asks for the
 * value in force, tern-info -c prints the table, the documentation is made from it. A variable that is set
 * but empty counts as unset, so that a launcher can switch one off without unsetting it.
 *
 * Where a configuration structure has a field for the same thing, a nonzero field wins. */
#include "core/core.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *name;
    const char *def;
    const char *help;
};

static const struct row table[TERN_ENV_COUNT] = {
    [TERN_ENV_MACHINE] = {"TERN_MACHINE", "auto", "machine that runs kernels: auto, cpu or cuda"},
    [TERN_ENV_TIMEOUT_MS] = {"TERN_TIMEOUT_MS", "30000", "deadline of every wait for a peer, milliseconds"},
    [TERN_ENV_CPU_SEED] = {"TERN_CPU_SEED", "0",
                           "cpu: nonzero fixes the schedule, for replay; 0: free running"},
    [TERN_ENV_CPU_SMS] = {"TERN_CPU_SMS", "16", "cpu: processors (SMs) the machine claims to have"},
    [TERN_ENV_TRANSFER] = {"TERN_TRANSFER", "auto", "how kernels move rows: auto, bulk or plain"},
    [TERN_ENV_EARLY_LAUNCH] = {"TERN_EARLY_LAUNCH", "1",
                               "cuda: 1: a kernel is made ready while the one before it in the stream ends, "
                               "where the device and driver can; 0: it is not"},
    [TERN_ENV_LOG] = {"TERN_LOG", "warn", "messages up to this level: error, warn, info or trace"},
    [TERN_ENV_TRACE] =
        {"TERN_TRACE", "",
         "folder for the time stamps of kernels, which tern-trace reads; for a library built by make "
         "VARIANT=trace; empty: none"},
    [TERN_ENV_TRACE_EVENTS] =
        {"TERN_TRACE_EVENTS", "65536",
         "latest events that a rank keeps for TERN_TRACE, up to 16777216; rounded up to a power of two"},
    [TERN_ENV_INTERFACE] = {"TERN_INTERFACE", "127.0.0.1",
                            "numeric address of this host on which tern_id_create listens"},
    [TERN_ENV_DOMAIN_SIZE] = {"TERN_DOMAIN_SIZE", "0",
                              "most ranks in one domain; larger domains are split; 0: as found"},
    [TERN_ENV_PROXY] = {"TERN_PROXY", "tcp",
                        "engine of the proxy: tcp, fabric: and a provider of libfabric, or none"},
    [TERN_ENV_NICS] =
        {"TERN_NICS", "",
         "RDMA NICs: NIC[:PORT],...; ^NIC,... leaves out; RANK=LIST;... by place in the host; none: "
         "the proxy comes in their place; empty: the nearest"},
    [TERN_ENV_NIC_GID_INDEX] = {"TERN_NIC_GID_INDEX", "",
                                "RDMA NICs: place of their address in the port's table of GIDs, 0 to 255; "
                                "empty: of RoCE v2 a routable one, on InfiniBand the first"},
    [TERN_ENV_NIC_TRAFFIC_CLASS] = {"TERN_NIC_TRAFFIC_CLASS", "0",
                                    "RDMA NICs: traffic class of packets, 0 to 255; of RoCE v2 its upper six "
                                    "bits are the DSCP"},
    [TERN_ENV_NIC_SERVICE_LEVEL] =
        {"TERN_NIC_SERVICE_LEVEL", "0",
         "RDMA NICs: service level of packets, 0 to 15; of RoCE v2 the priority, 0 "
         "to 7"},
    [TERN_ENV_NIC_RECORDS] =
        {"TERN_NIC_RECORDS", "0",
         "RDMA NICs, and those in software: 1: queue pairs have doorbell records always; "
         "0: none where the NIC can do without"},
    [TERN_ENV_SOFTNIC] = {"TERN_SOFTNIC", "",
                          "NICs in software: packets[:SEED] over a network that errs; adaptive[:SEED], which "
                          "reorders writes of a queue, too; empty: loads and stores"},
    [TERN_ENV_ID] = {"TERN_ID", "", "id of the communicator: 256 hex digits, or host:port/cookie"},
    [TERN_ENV_RANK] = {"TERN_RANK", "", "rank of this process, from 0"},
    [TERN_ENV_NUM_RANKS] = {"TERN_NUM_RANKS", "", "number of ranks"},
    [TERN_ENV_ID_FD] = {"TERN_ID_FD", "", "rank 0: inherited listening socket of TERN_ID"},
};

const char *terni_env_name(enum terni_variable variable)
{
    assert((unsigned)variable < TERN_ENV_COUNT);
    return table[variable].name;
}

const char *terni_env_default(enum terni_variable variable)
{
    assert((unsigned)variable < TERN_ENV_COUNT);
    return table[variable].def;
}

const char *terni_env_help(enum terni_variable variable)
{
    assert((unsigned)variable < TERN_ENV_COUNT);
    return table[variable].help;
}

const char *terni_env(enum terni_variable variable)
{
    const char *value = getenv(terni_env_name(variable));
    return value != NULL && value[0] != '\0' ? value : table[variable].def;
}

/* Decimal digits, or 0x and hex digits; no sign, no space, nothing after. */
enum tern_status terni_env_uint(enum terni_variable variable, uint64_t max, uint64_t *value)
{
    const char *name = terni_env_name(variable);
    const char *text = terni_env(variable);
    int is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *digits = is_hex ? text + 2 : text;
    size_t num_digits = strspn(digits, is_hex ? "0123456789abcdefABCDEF" : "0123456789");
    unsigned long long parsed;
    if (num_digits == 0 || digits[num_digits] != '\0') {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s=%s is not a whole number", name, text);
    }
    errno = 0;
    parsed = strtoull(digits, NULL, is_hex ? 16 : 10);
    if (errno == ERANGE || parsed > max) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s=%s is above the most allowed, %llu", name, text,
                         (unsigned long long)max);
    }
    *value = parsed;
    return TERN_OK;
}
