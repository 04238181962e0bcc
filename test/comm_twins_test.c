/* SPDX-License-Identifier: Apache-2.0
 *
 * Two communicators of the same ranks from one agreed address, alive at once: each must keep to its own
 * windows, whether its ranks are threads, which find each other's windows by name, or processes, which pass
 * them through named sockets. */
#include "comm/id.h"
#include "comm_scene.h"
#include "procs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { num_twins = 2, part_bytes = 4096 };

static int word_of(int twin, int rank) { return 50 * twin + rank + 1; }

/* In every peer's part of every twin's heap, a word of this rank and this twin. */
static int check_heaps(struct tern_comm **comms, struct heap **heaps)
{
    int n = comms[0]->num_ranks, rank = comms[0]->rank;
    for (int i = 0; i < num_twins; i++) {
        for (int r = 0; r < n; r++) {
            heaps[i]->bases[r][rank] = (char)word_of(i, rank);
        }
    }
    OK(tern_comm_barrier(comms[0]));
    for (int i = 0; i < num_twins; i++) {
        for (int r = 0; r < n; r++) {
            CHECK(heaps[i]->bases[rank][r] == word_of(i, r), "twin %d, rank %d: rank %d wrote %d", i, rank, r,
                  heaps[i]->bases[rank][r]);
        }
    }
    return 0;
}

/* The second heap begins before the first ends, so that there are two parts of each rank to choose from. */
static int share_both(struct tern_comm **comms, struct heap **heaps)
{
    CHECK(memcmp(comms[0]->cookie, comms[1]->cookie, sizeof comms[0]->cookie) != 0,
          "the twins have one name");
    PASS(check_all(comms[0]));
    PASS(check_all(comms[1]));
    OK(terni_heap_begin(comms[0], part_bytes, &heaps[0]));
    OK(terni_heap_begin(comms[1], part_bytes, &heaps[1]));
    OK(terni_heap_end(comms[1], heaps[1]));
    OK(terni_heap_end(comms[0], heaps[0]));
    return check_heaps(comms, heaps);
}

static int twins(const struct tern_id *id, int rank, int num_ranks)
{
    struct tern_comm_config config = config_of(10000);
    struct tern_comm *comms[num_twins] = {NULL};
    struct heap *heaps[num_twins] = {NULL};
    int result;
    OK(tern_comm_open(id, rank, num_ranks, &config, &comms[0]));
    OK(tern_comm_open(id, rank, num_ranks, &config, &comms[1]));
    result = share_both(comms, heaps);
    for (int i = 0; i < num_twins; i++) {
        terni_heap_close(heaps[i]);
        tern_comm_close(comms[i]);
    }
    return result;
}

/* The id of an agreed address with the port of `fresh`; rank 0 lets go of the listener that `fresh` has. */
static int agree(const struct tern_id *fresh, int rank, struct tern_id *id)
{
    struct id_fields f;
    struct address a;
    char text[64];
    int fd;
    OK(terni_id_read(fresh, &f, &a));
    if (rank == 0) {
        OK(terni_id_take_listener(fresh, &fd));
        close(fd);
    }
    snprintf(text, sizeof text, "127.0.0.1:%u/twins", f.port);
    OK(tern_id_from_address(text, id));
    return 0;
}

static int twins_actor(struct actor *a) { return twins(&a->scene->id, a->rank, a->num_ranks); }

static int threads(struct test *t)
{
    struct actor actors[max_ranks];
    struct scene scene;
    struct tern_id fresh;
    (void)t;
    memset(&scene, 0, sizeof scene);
    OK(tern_id_create("127.0.0.1", &fresh));
    PASS(agree(&fresh, 0, &scene.id));
    return run_threads(&scene, actors, 3, twins_actor);
}

static int twins_body(int rank, struct procs_page *page, void *user)
{
    struct tern_id id;
    (void)user;
    PASS(agree(&page->id, rank, &id));
    return twins(&id, rank, 3);
}

static int processes(struct test *t)
{
    (void)t;
    return procs_run(3, -1, 60, twins_body, NULL);
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    /* Processes first: their parent must not have started a machine. */
    test_run(&t, "processes", processes);
    test_run(&t, "threads", threads);
    return test_end(&t);
}
