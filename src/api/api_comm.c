/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls of tern.h on ids, communicators and their memory: arguments checked, one call down. */
#include "comm/comm.h"
#include "comm/id.h"

#include <string.h>

enum { max_allgather_bytes = 1 << 20 };

/* The caller's configuration as this library knows it. */
static enum tern_status read_config(const struct tern_comm_config *config, struct tern_comm_config *known)
{
    static const struct tern_comm_config defaults = TERN_COMM_CONFIG_INIT;
    if (config == NULL) {
        *known = defaults;
        return TERN_OK;
    }
    TERN_TRY(terni_check_struct("config", config, sizeof *known));
    memcpy(known, config, sizeof *known);
    if (known->reserved != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "config->reserved is %u, not 0", known->reserved);
    }
    return TERN_OK;
}

/* ---- Ids ---- */

enum tern_status tern_id_create(const char *interface, struct tern_id *id)
{
    TERN_TRY(terni_check_pointer("id", id));
    return terni_id_create(interface, id);
}

enum tern_status tern_id_from_address(const char *address, struct tern_id *id)
{
    TERN_TRY(terni_check_pointer("address", address));
    TERN_TRY(terni_check_pointer("id", id));
    return terni_id_from_address(address, id);
}

enum tern_status tern_id_from_environment(struct tern_id *id, int *rank, int *num_ranks)
{
    TERN_TRY(terni_check_pointer("id", id));
    TERN_TRY(terni_check_pointer("rank", rank));
    TERN_TRY(terni_check_pointer("num_ranks", num_ranks));
    return terni_id_from_environment(id, rank, num_ranks);
}

/* ---- Communicators ---- */

enum tern_status tern_comm_open(const struct tern_id *id, int rank, int num_ranks,
                                const struct tern_comm_config *config, struct tern_comm **comm)
{
    struct tern_comm_config known;
    TERN_TRY(terni_check_pointer("id", id));
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(read_config(config, &known));
    return terni_comm_open(id, rank, num_ranks, &known, comm);
}

enum tern_status tern_comm_open_all(int num_ranks, const struct tern_comm_config *config,
                                    struct tern_comm **comms)
{
    struct tern_comm_config known;
    TERN_TRY(terni_check_pointer("comms", comms));
    TERN_TRY(read_config(config, &known));
    return terni_comm_open_all(num_ranks, &known, comms);
}

enum tern_status tern_comm_shrink(struct tern_comm *comm, const struct tern_shrink_args *args,
                                  int32_t *old_ranks, struct tern_comm **shrunk)
{
    struct tern_shrink_args known = TERN_SHRINK_ARGS_INIT;
    struct tern_comm_config config;
    struct shrink shrink = {NULL, 0, 0, 0};
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("shrunk", shrunk));
    if (args != NULL) {
        TERN_TRY(terni_check_struct("args", args, sizeof known));
        memcpy(&known, args, sizeof known);
    }
    if (known.config != NULL) {
        TERN_TRY(read_config(known.config, &config));
        shrink.config = &config;
    }
    if (known.reserved != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "args->reserved is %u, not 0", known.reserved);
    }
    if (known.whole_domains > 1 || known.min_ranks > (uint32_t)comm->num_ranks) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "whole_domains is %u, to be 0 or 1; min_ranks is %u, of %d ranks",
                         known.whole_domains, known.min_ranks, comm->num_ranks);
    }
    shrink.timeout_ms = known.timeout_ms;
    shrink.min_ranks = known.min_ranks;
    shrink.whole_domains = known.whole_domains;
    return terni_comm_shrink(comm, &shrink, old_ranks, shrunk);
}

void tern_comm_close(struct tern_comm *comm) { terni_comm_close(comm); }

int tern_comm_rank(const struct tern_comm *comm) { return comm != NULL ? comm->rank : -1; }

int tern_comm_size(const struct tern_comm *comm) { return comm != NULL ? comm->num_ranks : 0; }

enum tern_machine tern_comm_machine(const struct tern_comm *comm)
{
    return comm != NULL ? comm->machine->info.kind : TERN_MACHINE_AUTO;
}

int tern_comm_num_sms(const struct tern_comm *comm)
{
    int share = comm != NULL ? comm->machine->info.num_sms / comm->ranks_on_device : 0;
    return comm != NULL && share < 1 ? 1 : share;
}

int tern_comm_describe(const struct tern_comm *comm, char *text, size_t text_bytes)
{
    if (comm == NULL) {
        if (text_bytes > 0) {
            text[0] = '\0';
        }
        return 0;
    }
    return terni_topology_describe(comm, text, text_bytes);
}

enum tern_status tern_comm_barrier(struct tern_comm *comm)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return terni_comm_allgather(comm, NULL, NULL, 0);
}

enum tern_status tern_comm_allgather(struct tern_comm *comm, const void *send, void *recv, size_t bytes)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    if (bytes > max_allgather_bytes) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "an allgather of %zu bytes a rank; at most %d", bytes,
                         (int)max_allgather_bytes);
    }
    if (bytes > 0) {
        TERN_TRY(terni_check_pointer("send", send));
        TERN_TRY(terni_check_pointer("recv", recv));
    }
    return terni_comm_allgather(comm, send, recv, bytes);
}

/* ---- Memory ---- */

enum tern_status tern_alloc(struct tern_comm *comm, enum tern_memory kind, size_t bytes, void **memory)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    TERN_TRY(terni_check_pointer("memory", memory));
    if (kind != TERN_MEMORY_WINDOW && kind != TERN_MEMORY_DEVICE && kind != TERN_MEMORY_HOST) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "kind %d is no enum tern_memory", (int)kind);
    }
    return terni_alloc(comm, kind, bytes, memory);
}

void tern_free(struct tern_comm *comm, void *memory)
{
    if (comm != NULL && memory != NULL) {
        terni_free(comm, memory);
    }
}

enum tern_status tern_copy(struct tern_comm *comm, void *dst, const void *src, size_t bytes,
                           struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    if (bytes == 0) {
        return TERN_OK;
    }
    TERN_TRY(terni_check_pointer("dst", dst));
    TERN_TRY(terni_check_pointer("src", src));
    return comm->machine->ops->copy(comm->machine, dst, src, bytes, stream);
}

enum tern_status tern_fill(struct tern_comm *comm, void *dst, int byte, size_t bytes,
                           struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    if (bytes == 0) {
        return TERN_OK;
    }
    TERN_TRY(terni_check_pointer("dst", dst));
    return comm->machine->ops->fill(comm->machine, dst, byte, bytes, stream);
}
