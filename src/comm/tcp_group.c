/* SPDX-License-Identifier: Apache-2.0
 *
 * A star of their own for some ranks of a TCP boot. The group's leader listens at the address by which it is
 * connected already: the others have reached that network. A group of one rank needs no socket. Ranks of rank
 * 0's host may have come by its loopback, which is nowhere for others: they take what rank 0 tells of itself,
 * and it takes one by which ranks of other hosts came. */
#include "comm/listener.h"
#include "comm/tcp.h"

#include <string.h>
#include <unistd.h>

enum tern_status terni_tcp_locate(struct boot *boot, struct address *own)
{
    const struct tcp *t = (const struct tcp *)boot;
    int num_links = boot->rank == 0 ? boot->num_ranks : 1;
    int is_found = 0;
    terni_address_loopback(own); /* of a boot of one rank */
    for (int i = 0; i < num_links && boot->num_ranks > 1 && !is_found; i++) {
        if (t->links[i].fd < 0) {
            continue;
        }
        memset(own, 0, sizeof *own);
        own->bytes = sizeof own->storage;
        if (getsockname(t->links[i].fd, (struct sockaddr *)&own->storage, &own->bytes) != 0) {
            return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d cannot learn its own address: %m",
                             terni_boot_name(boot, boot->rank));
        }
        terni_address_unmap(own);
        is_found = !terni_address_is_loopback(own);
    }
    if (boot->rank != 0 && !is_found && boot->root.bytes != 0) {
        *own = boot->root;
    }
    terni_address_clear_port(own);
    return TERN_OK;
}

enum tern_status terni_tcp_invite(struct boot *boot, struct tern_id *id)
{
    struct address own;
    TERN_TRY(terni_tcp_locate(boot, &own));
    return terni_id_create_at(&own, id);
}

void terni_tcp_withdraw(struct boot *boot, const struct tern_id *id)
{
    struct id_fields fields;
    struct address address;
    int fd = terni_id_read(id, &fields, &address) == TERN_OK ? terni_listener_take(fields.cookie) : -1;
    (void)boot;
    if (fd >= 0) {
        close(fd);
    }
}

enum tern_status terni_tcp_join(struct boot *boot, const struct boot_group *group, const struct tern_id *id,
                                uint32_t timeout_ms, struct boot **joined)
{
    (void)boot;
    return terni_tcp_open(id, group->rank, group->num_ranks, group->names, timeout_ms, joined);
}
