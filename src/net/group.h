/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads that do one operation together: one, a warp, or a block. All of them call; constants for a
 * group make what is not needed disappear. */
#ifndef TERN_GROUP_H
#define TERN_GROUP_H

#include "simt/simt.h"

enum { GROUP_THREAD = 0, GROUP_WARP = 1, GROUP_BLOCK = 2 };

struct net_group {
    uint32_t index, count; /* of the calling thread, of all */
    int kind;
};

TERN_DEVICE struct net_group group_of(int kind)
{
    struct net_group g;
    g.kind = kind;
    g.index = kind == GROUP_WARP ? (uint32_t)lane() : kind == GROUP_BLOCK ? (uint32_t)tid() : 0;
    g.count = kind == GROUP_WARP ? 32 : kind == GROUP_BLOCK ? (uint32_t)nthr() : 1;
    return g;
}

/* What any of them wrote before is visible to all of them afterwards. */
TERN_DEVICE void group_sync(struct net_group g)
{
    if (g.kind == GROUP_WARP) {
        sync_warp();
    } else if (g.kind == GROUP_BLOCK) {
        sync_block();
    } else {
        fence_compiler();
    }
}

/* Likewise; nonzero for all if `v` is for any. */
TERN_DEVICE int group_or(struct net_group g, int v)
{
    if (g.kind == GROUP_WARP) {
        v = warp_any(v);
        sync_warp(); /* a vote orders nothing */
        return v;
    }
    return g.kind == GROUP_BLOCK ? sync_block_or(v) : v;
}

#endif
