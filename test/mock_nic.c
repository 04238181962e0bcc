/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread pauses while its list of queue pairs changes, which is when the mock hears of a queue pair that
 * is ready, or goes; see mock_nic.h. */
#include "mock_nic.h"

#include "core/core.h"
#include "mlx5_mock.h"
#include "net/nic_provider.h"
#include "net/softnic_thread.h"
#include "nic_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if TERN_HAVE_VERBS

enum { MAX_QPS = 1024 };

static struct mock_nic {
    struct mock mock;
    struct mlx5_verbs verbs;
    char root[NIC_TREE_ROOT_BYTES];
    struct softnic_qp qps[MAX_QPS];
    const struct mlx5dv_devx_obj *owners[MAX_QPS]; /* whose they are */
    int num_qps;
    uint64_t stop, seed;
    struct softnic_thread *thread;
} nic;

static void pause_it(void)
{
    /* Relaxed: what the NIC has done is waited for. */
    __atomic_store_n(&nic.stop, 1, __ATOMIC_RELAXED);
    terni_softnic_thread_join(nic.thread);
    nic.thread = NULL;
}

static void resume(void)
{
    struct softnic_args args;
    memset(&args, 0, sizeof args);
    args.qps = nic.qps;
    args.num_qps = (uint32_t)nic.num_qps;
    args.hold_one_in = 3;
    args.seed = nic.seed++;
    args.stop = &nic.stop;
    __atomic_store_n(&nic.stop, 0, __ATOMIC_RELAXED);
    if (nic.num_qps > 0 && terni_softnic_thread_open(&args, &nic.thread) != TERN_OK) {
        mock_complain("%s", tern_last_error());
    }
}

static int place_of(const struct mlx5dv_devx_obj *q)
{
    int i = 0;
    while (i < nic.num_qps && nic.owners[i] != q) {
        i++;
    }
    return i;
}

/* Those whose second end has become ready with this one, too. */
static void take_ready(void)
{
    for (struct mock_object *o = mock_now->objects; o != NULL; o = o->next) {
        struct mlx5dv_devx_obj *q = (struct mlx5dv_devx_obj *)o;
        if (o->kind == MOCK_QP && mock_is_ready(q) && place_of(q) == nic.num_qps && nic.num_qps < MAX_QPS &&
            mock_softnic_qp(q, &nic.qps[nic.num_qps])) {
            nic.owners[nic.num_qps++] = q;
        }
    }
}

static int modify(struct mlx5dv_devx_obj *q, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    int was_ready = mock_is_ready(q);
    int result = mock_obj_modify(q, in, in_bytes, out, out_bytes);
    if (mock_is_ready(q) != was_ready) {
        pause_it();
        take_ready();
        resume();
    }
    return result;
}

static int destroy(struct mlx5dv_devx_obj *q)
{
    int at = place_of(q), peer;
    if (at < nic.num_qps) {
        pause_it();
        peer = place_of(mock_peer_of(q));
        if (peer < nic.num_qps) {
            nic.qps[peer].is_cut = 1;
        }
        nic.num_qps--;
        nic.qps[at] = nic.qps[nic.num_qps];
        nic.owners[at] = nic.owners[nic.num_qps];
        resume();
    }
    return mock_obj_destroy(q);
}

int mock_nic_open(int is_roce, uint64_t seed)
{
    memset(&nic, 0, sizeof nic);
    if (!nic_tree_open(nic.root)) {
        return 0;
    }
    if (!nic_tree_mlx5(nic.root, is_roce)) {
        nic_tree_close(nic.root);
        return 0;
    }
    mock_open(&nic.mock, MOCK_MAX_DEVICES, is_roce);
    nic.seed = seed;
    nic.verbs = mock_verbs;
    nic.verbs.obj_modify = modify;
    nic.verbs.obj_destroy = destroy;
    terni_nic_settings.verbs = &nic.verbs;
    terni_nic_settings.root = nic.root;
    return 1;
}

int mock_nic_fail(int at)
{
    int calls = nic.mock.calls;
    nic.mock.calls = 0;
    nic.mock.fail_at = at;
    return calls;
}

void mock_nic_expect(int gid_index, uint32_t traffic_class, uint32_t service_level)
{
    nic.mock.packets.gid_index = gid_index;
    nic.mock.packets.traffic_class = traffic_class;
    nic.mock.packets.service_level = service_level;
}

uint64_t mock_nic_carried(const char *name)
{
    uint64_t carried = 0;
    pause_it();
    for (int i = 0; i < nic.num_qps; i++) {
        carried += strcmp(nic.owners[i]->o.device->name, name) == 0 ? nic.qps[i].fetched : 0;
    }
    resume();
    return carried;
}

int mock_nic_close(char complaint[256])
{
    int is_clean;
    pause_it();
    terni_nic_settings.verbs = NULL;
    terni_nic_settings.root = NULL;
    nic_tree_close(nic.root);
    is_clean = mock_close(&nic.mock);
    memcpy(complaint, nic.mock.complaint, 256);
    return is_clean;
}

#else

int mock_nic_open(int is_roce, uint64_t seed)
{
    (void)is_roce;
    (void)seed;
    return 0;
}

int mock_nic_fail(int at)
{
    (void)at;
    return 0;
}

void mock_nic_expect(int gid_index, uint32_t traffic_class, uint32_t service_level)
{
    (void)gid_index;
    (void)traffic_class;
    (void)service_level;
}

uint64_t mock_nic_carried(const char *name)
{
    (void)name;
    return 0;
}

int mock_nic_close(char complaint[256])
{
    complaint[0] = '\0';
    return 1;
}

#endif
