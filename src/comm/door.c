/* SPDX-License-Identifier: Apache-2.0
 *
 * Doors: where a rank listens for a roll call, from when its communicator opens. They are made as a team's
 * leader makes its meeting place, at the address by which the other ranks reach this one already. */
#include "comm/id.h"
#include "comm/listener.h"
#include "comm/roll_call.h"

#include <string.h>
#include <unistd.h>

static int is_none(const struct tern_id *id)
{
    const struct tern_id none = {{0}};
    return memcmp(id, &none, sizeof none) == 0;
}

enum tern_status terni_door_open(struct boot *boot, struct tern_id *id, int *fd)
{
    *fd = -1;
    memset(id, 0, sizeof *id);
    if (boot->num_ranks > 1) {
        TERN_TRY(boot->ops->invite(boot, id));
    }
    return is_none(id) ? TERN_OK : terni_id_take_listener(id, fd);
}

/* Shut down, not only closed: a child of this process may hold the same socket. */
void terni_door_close(int *fd)
{
    if (*fd >= 0) {
        shutdown(*fd, SHUT_RDWR);
        close(*fd);
        *fd = -1;
    }
}

void terni_roll_withdraw(const struct tern_id *own)
{
    struct id_fields fields;
    struct address address;
    int fd = -1;
    /* Reading none would fail, and put its sentence in the place of why there is none. */
    if (!is_none(own) && terni_id_read(own, &fields, &address) == TERN_OK) {
        fd = terni_listener_take(fields.cookie);
    }
    terni_door_close(&fd);
}
