/* SPDX-License-Identifier: Apache-2.0
 *
 * Put, signal, wait: a kernel of the program's own gives a row to the next rank of a ring, waits for the row
 * of the one before, and adds the two (put_signal_kernel.c). No host is in between: the signal behind a put
 * says that the row is there.
 *
 *     ./06_put_signal                  one process drives all ranks
 *     tern-run -n 3 ./06_put_signal    three processes, one rank each
 *     ./06_put_signal softnic          the same by NICs, in software; or `proxy`, by a thread of the host
 *
 * Addresses are symmetric: inbox and flag are the first things that every rank takes from its window, so they
 * have the same places everywhere, and a pointer to one's own inbox names the next rank's as well. The row
 * lies in the window, too, as a NIC reads windows only. */
#include "example.h"
#include "put_signal.h"

enum { MAX_RANKS = 3, STEPS = 2 };

TERN_KERNEL_DECLARE(ring);
static const struct tern_kernel ring = TERN_KERNEL_INIT(ring);

struct rank {
    int me, num_ranks;
    struct tern_comm *comm;
    struct tern_network *network;
    struct tern_stream *stream;
    struct ring_args args;
};

static float number_at(int rank, int i) { return (float)(rank * 1000 + i % 7); }

/* On a stream of its own, as the default one may wait for software NICs; done on return. */
static void move(struct rank *r, void *to, const void *from, size_t bytes)
{
    must(tern_copy(r->comm, to, from, bytes, r->stream));
    must(tern_stream_synchronize(r->comm, r->stream));
}

static void prepare(struct rank *r)
{
    const uint64_t zero = 0;
    const struct tern_net view = TERN_NET_INIT;
    float row[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) {
        row[i] = number_at(r->me, i);
    }
    must(tern_stream_open(r->comm, &r->stream));
    r->args.net = view;
    must(tern_net_view(r->network, &r->args.net));
    r->args.inbox = (float *)take(r->comm, TERN_MEMORY_WINDOW, sizeof row);
    r->args.flag = (uint64_t *)take(r->comm, TERN_MEMORY_WINDOW, sizeof(uint64_t));
    r->args.row = (float *)take(r->comm, TERN_MEMORY_WINDOW, sizeof row);
    r->args.sum = (float *)take(r->comm, TERN_MEMORY_DEVICE, sizeof row);
    r->args.status = (int32_t *)take(r->comm, TERN_MEMORY_DEVICE, sizeof(int32_t));
    move(r, r->args.row, row, sizeof row);
    move(r, r->args.flag, &zero, sizeof zero);
}

static void issue(struct rank *r, uint64_t step)
{
    struct tern_launch_args launch = TERN_LAUNCH_ARGS_INIT;
    r->args.step = step;
    launch.num_blocks = 1;
    launch.num_threads = 128;
    launch.args = &r->args;
    launch.args_bytes = sizeof r->args;
    must(tern_launch(r->comm, &ring, &launch, r->stream));
}

static int check(struct rank *r)
{
    float sum[NUMBERS];
    int32_t status;
    int good, before = (r->me + r->num_ranks - 1) % r->num_ranks;
    must(tern_net_synchronize(r->network, r->stream)); /* TERN_TIMEOUT if a row did not come */
    move(r, sum, r->args.sum, sizeof sum);
    move(r, &status, r->args.status, sizeof status);
    good = status == TERN_OK;
    for (int i = 0; i < NUMBERS; i++) {
        good &= sum[i] == number_at(r->me, i) + number_at(before, i);
    }
    return good;
}

static int open_networks(const char *by, struct tern_comm **comms, struct tern_network **networks, int *first,
                         int *num_ranks)
{
    struct tern_net_config config = TERN_NET_CONFIG_INIT;
    struct tern_id id;
    if (strcmp(by, "") != 0 && strcmp(by, "softnic") != 0 && strcmp(by, "proxy") != 0) {
        fprintf(stderr, "06_put_signal: %s is no transport; softnic and proxy are, or none\n", by);
        exit(2);
    }
    config.transport = strcmp(by, "softnic") == 0 ? TERN_TRANSPORT_SOFTNIC
                       : strcmp(by, "proxy") == 0 ? TERN_TRANSPORT_PROXY
                                                  : TERN_TRANSPORT_AUTO;
    *first = 0;
    *num_ranks = MAX_RANKS;
    if (getenv("TERN_ID") == NULL) {
        must(tern_comm_open_all(MAX_RANKS, NULL, comms));
        must(tern_net_open_all(MAX_RANKS, comms, &config, networks));
        return MAX_RANKS;
    }
    must(tern_id_from_environment(&id, first, num_ranks));
    must(tern_comm_open(&id, *first, *num_ranks, NULL, comms));
    must(tern_net_open(comms[0], &config, networks));
    return 1;
}

int main(int argc, char **argv)
{
    struct tern_comm *comms[MAX_RANKS];
    struct tern_network *networks[MAX_RANKS];
    struct rank ranks[MAX_RANKS];
    int first, num_ranks, here, good = 1;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* later it could wait for software NICs (docs/pgas.md) */
    here = open_networks(argc > 1 ? argv[1] : "", comms, networks, &first, &num_ranks);
    for (int i = 0; i < here; i++) {
        memset(&ranks[i], 0, sizeof ranks[i]);
        ranks[i].me = first + i;
        ranks[i].num_ranks = num_ranks;
        ranks[i].comm = comms[i];
        ranks[i].network = networks[i];
        prepare(&ranks[i]);
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (here < num_ranks) { /* all flags are zero; all have read their inboxes */
            must(tern_comm_barrier(comms[0]));
        }
        for (int i = 0; i < here; i++) {
            issue(&ranks[i], step);
        }
        for (int i = 0; i < here; i++) {
            good &= check(&ranks[i]);
        }
    }
    if (here < num_ranks) { /* a peer may still put into this window */
        must(tern_comm_barrier(comms[0]));
    }
    for (int i = 0; i < here; i++) {
        tern_net_close(networks[i]);
        tern_stream_close(comms[i], ranks[i].stream);
        tern_comm_close(comms[i]);
    }
    if (first == 0) {
        printf("a ring of %d ranks: the rows %s\n", num_ranks, good ? "came" : "did not come");
    }
    return good ? 0 : 1;
}
