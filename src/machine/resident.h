/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that stay on a device: they run until they are told to end. Calls that wait for all work of a
 * device (freeing memory, mapping it, loading a kernel) would wait for them for ever, so these calls hold
 * them: every resident of the process ends, and starts again when the last such call is done. Of all devices,
 * as such a call may wait for those, too, that map the memory.
 *
 * Whoever makes a machine call that may wait holds; whoever has a kernel that stays is a resident. Neither
 * knows of the other. */
#ifndef TERN_RESIDENT_H
#define TERN_RESIDENT_H

struct resident {
    void (*end)(struct resident *r);   /* returns when it has ended; called though it does not run */
    void (*start)(struct resident *r); /* failures are its own to tell */
    struct resident *next;
};

/* Called by whoever has the lock. */
void terni_resident_add(struct resident *r);
void terni_resident_remove(struct resident *r);
int terni_residents_are_held(void);

/* Around changes of what a resident is made of, which nothing ends or starts meanwhile. One for all; the same
 * thread may take it again, as calls in between may hold. */
void terni_residents_lock(void);
void terni_residents_unlock(void);

void terni_residents_hold(void);
void terni_residents_release(void);

#endif
