/* SPDX-License-Identifier: Apache-2.0
 *
 * See softnic_fleet.h. The stream belongs to the machine of one member, the leader, which outlives it: when
 * the leader is discharged, another member opens one. Everything here happens under the lock of residents. */
#include "net/softnic_fleet.h"

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

struct softnic_fleet {
    struct resident resident; /* first: a fleet is its resident */
    struct softnic_fleet *next;
    unsigned char device[16];       /* info.uuid */
    struct softnic_member *members; /* in no order */
    int num_members;
    struct softnic_member *leader; /* NULL: between two, or the next could not open a stream */
    struct tern_stream *stream;
    int is_running;
};

static struct softnic_fleet *fleets;

/* ---- The kernel ---- */

static enum tern_status end(struct softnic_fleet *f)
{
    struct machine *m = f->leader != NULL ? f->leader->machine : NULL;
    if (!f->is_running) {
        return TERN_OK;
    }
    f->is_running = 0;
    for (struct softnic_member *s = f->members; s != NULL; s = s->next) {
        if (s->is_running) { /* Relaxed: what the NIC has done is waited for. */
            __atomic_store_n(s->stop, 1, __ATOMIC_RELAXED);
        }
    }
    return m->ops->stream_synchronize(m, f->stream);
}

static enum tern_status start(struct softnic_fleet *f)
{
    struct softnic_crew crew;
    struct launch l = {TERN_KERNEL_softnic, 0, 0, 0, &crew, sizeof crew};
    memset(&crew, 0, sizeof crew);
    for (struct softnic_member *s = f->members; s != NULL; s = s->next) {
        if (s->is_running) {
            __atomic_store_n(s->stop, 0, __ATOMIC_RELAXED); /* the launch comes after it */
            softnic_crew_add(&crew, &s->args, s->num_blocks, s->machine->info.max_shared_bytes);
            l.num_threads = 32 * s->num_warps > l.num_threads ? 32 * s->num_warps : l.num_threads;
        }
    }
    if (crew.num == 0 || f->leader == NULL || terni_residents_are_held()) {
        return TERN_OK;
    }
    l.num_blocks = (int)crew.ends[crew.num - 1];
    l.shared_bytes = softnic_crew_bytes(&crew);
    TERN_TRY(f->leader->machine->ops->launch(f->leader->machine, &l, f->stream));
    f->is_running = 1;
    return TERN_OK;
}

static void say(enum tern_status status)
{
    if (status != TERN_OK) {
        TERN_LOG(TERN_LOG_ERROR, "software NICs: %s", tern_last_error());
    }
}

static void end_resident(struct resident *r) { say(end((struct softnic_fleet *)(void *)r)); }
static void start_resident(struct resident *r) { say(start((struct softnic_fleet *)(void *)r)); }

/* ---- Members ---- */

static enum tern_status fleet_of(const struct machine *m, struct softnic_fleet **fleet)
{
    struct softnic_fleet *f = fleets;
    while (f != NULL && memcmp(f->device, m->info.uuid, sizeof f->device) != 0) {
        f = f->next;
    }
    if (f == NULL) {
        f = (struct softnic_fleet *)calloc(1, sizeof *f);
        if (f == NULL) {
            return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for the software NICs of a device");
        }
        memcpy(f->device, m->info.uuid, sizeof f->device);
        f->resident.end = end_resident;
        f->resident.start = start_resident;
        f->next = fleets;
        fleets = f;
        terni_resident_add(&f->resident);
    }
    *fleet = f;
    return TERN_OK;
}

static void dissolve(struct softnic_fleet *f)
{
    struct softnic_fleet **at = &fleets;
    while (*at != f) {
        at = &(*at)->next;
    }
    *at = f->next;
    terni_resident_remove(&f->resident);
    free(f);
}

static enum tern_status lead(struct softnic_fleet *f, struct softnic_member *m)
{
    TERN_TRY(m->machine->ops->stream_open(m->machine, &f->stream));
    f->leader = m;
    return TERN_OK;
}

static enum tern_status enlist(struct softnic_fleet *f, struct softnic_member *m)
{
    if (f->num_members == SOFTNIC_MAX_FLEET) {
        return TERN_FAIL(TERN_NO_SPACE, "device %d has %d software NICs, the most that one kernel can be",
                         m->machine->info.device, f->num_members);
    }
    if (f->leader == NULL) {
        TERN_TRY(lead(f, m));
    }
    m->fleet = f;
    m->next = f->members;
    f->members = m;
    f->num_members++;
    return TERN_OK;
}

enum tern_status terni_softnic_enlist(struct softnic_member *m)
{
    struct softnic_fleet *f = NULL;
    enum tern_status status;
    terni_residents_lock();
    status = fleet_of(m->machine, &f);
    if (status == TERN_OK) {
        status = enlist(f, m);
        if (f->num_members == 0) {
            dissolve(f);
        }
    }
    terni_residents_unlock();
    return status;
}

static void take_out(struct softnic_fleet *f, struct softnic_member *m)
{
    struct softnic_member **at = &f->members;
    while (*at != m) {
        at = &(*at)->next;
    }
    *at = m->next;
    f->num_members--;
    m->fleet = NULL;
}

void terni_softnic_discharge(struct softnic_member *m)
{
    struct softnic_fleet *f = m->fleet;
    if (f == NULL) {
        return;
    }
    terni_residents_lock();
    if (f->leader == m) {
        say(end(f));
        m->machine->ops->stream_close(m->machine, f->stream);
        f->leader = NULL;
    }
    take_out(f, m);
    if (f->leader == NULL && f->members != NULL) {
        say(lead(f, f->members));
        say(start(f));
    }
    if (f->members == NULL) {
        dissolve(f);
    }
    terni_residents_unlock();
}

enum tern_status terni_softnic_join(struct softnic_member *m)
{
    struct softnic_fleet *f = m->fleet;
    enum tern_status status;
    terni_residents_lock();
    status = end(f);
    m->is_running = 1;
    status = status == TERN_OK && f->leader == NULL ? lead(f, m) : status;
    status = status == TERN_OK ? start(f) : status;
    m->is_running = status == TERN_OK;
    terni_residents_unlock();
    return status;
}

enum tern_status terni_softnic_leave(struct softnic_member *m)
{
    struct softnic_fleet *f = m->fleet;
    struct first_failure first = {TERN_OK, ""};
    terni_residents_lock();
    terni_first_add(&first, end(f));
    m->is_running = 0;
    terni_first_add(&first, start(f));
    terni_residents_unlock();
    return terni_first_end(&first);
}
