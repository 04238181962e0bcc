/* SPDX-License-Identifier: Apache-2.0
 *
 * The public calls of tern_net.h: arguments checked as far as the network need not be asked, then one call
 * down, or the steps of a collective, each on every rank that this thread drives before the next. */
#include "pgas/pgas.h"

#include <stdlib.h>

/* ---- Networks and teams ---- */

enum tern_status tern_net_open_all(int num_ranks, struct tern_comm **comms,
                                   const struct tern_net_config *config, struct tern_network **networks)
{
    static const struct tern_net_config defaults = TERN_NET_CONFIG_INIT;
    struct first_failure first = {TERN_OK, ""};
    struct tern_network **made;
    config = config != NULL ? config : &defaults;
    TERN_TRY(terni_check_pointer("comms", comms));
    TERN_TRY(terni_check_pointer("networks", networks));
    TERN_TRY(terni_check_struct("config", config, sizeof *config));
    TERN_TRY(terni_comm_check_all(num_ranks, comms));
    made = (struct tern_network **)calloc((size_t)num_ranks, sizeof(struct tern_network *));
    if (made == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d pointers", num_ranks);
    }
    for (int step = 0; first.status == TERN_OK && step < NET_OPEN_STEPS; step++) {
        /* Every rank takes the step, also when one has failed: its peers' exchanges must stay in step. */
        for (int r = 0; r < num_ranks; r++) {
            enum tern_status one = terni_network_open_step(comms[r], config, 0, step, &made[r]);
            terni_first_add(&first, one);
        }
    }
    for (int r = 0; r < num_ranks; r++) {
        if (first.status == TERN_OK) {
            networks[r] = made[r];
        } else {
            terni_network_close(made[r]);
        }
    }
    free(made);
    return terni_first_end(&first); /* after all that closes */
}

enum tern_status tern_net_open(struct tern_comm *comm, const struct tern_net_config *config,
                               struct tern_network **network)
{
    TERN_TRY(terni_check_pointer("comm", comm));
    return tern_net_open_all(1, &comm, config, network);
}

void tern_net_close(struct tern_network *network) { terni_network_close(network); }

enum tern_status tern_net_view(struct tern_network *network, struct tern_net *view)
{
    TERN_TRY(terni_check_pointer("network", network));
    TERN_TRY(terni_check_struct("view", view, sizeof *view));
    return terni_network_view(network, view);
}

static enum tern_status check_joining(int num, struct tern_network **networks, struct tern_team **teams,
                                      struct tern_net_team *views)
{
    TERN_TRY(terni_check_pointer("networks", networks));
    TERN_TRY(terni_check_pointer("teams", teams));
    TERN_TRY(terni_check_range("num", (uint64_t)(int64_t)num, 1, TERN_MAX_BOOT_RANKS));
    for (int i = 0; i < num; i++) {
        TERN_TRY(terni_check_pointer("a network", networks[i]));
        TERN_TRY(terni_check_struct("a view", views != NULL ? &views[i] : NULL, sizeof *views));
    }
    return TERN_OK;
}

enum tern_status tern_net_team_open_all(int num, struct tern_network **networks, struct tern_team **teams,
                                        struct tern_net_team *views)
{
    struct first_failure first = {TERN_OK, ""};
    struct pgas_joining *joining;
    TERN_TRY(check_joining(num, networks, teams, views));
    joining = (struct pgas_joining *)calloc((size_t)num, sizeof *joining);
    if (joining == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for %d teams", num);
    }
    for (int step = 0; first.status == TERN_OK && step < NET_TEAM_STEPS; step++) {
        for (int i = 0; i < num; i++) {
            joining[i].network = networks[i];
            joining[i].team = teams[i];
            enum tern_status one = teams[i] != NULL ? terni_net_team_step(&joining[i], step) : TERN_OK;
            terni_first_add(&first, one);
        }
    }
    for (int i = 0; i < num; i++) {
        if (teams[i] != NULL) {
            terni_net_team_finish(&joining[i], first.status, &views[i]);
        }
    }
    free(joining);
    return terni_first_end(&first); /* after all that closes */
}

enum tern_status tern_net_team_open(struct tern_network *network, struct tern_team *team,
                                    struct tern_net_team *view)
{
    TERN_TRY(terni_check_pointer("network", network));
    TERN_TRY(terni_check_pointer("team", team));
    return tern_net_team_open_all(1, &network, &team, view);
}

void tern_net_team_close(struct tern_network *network, struct tern_net_team *view)
{
    if (network != NULL && view != NULL) {
        terni_net_team_close(network, view);
    }
}

/* ---- Operations ---- */

static struct pgas_call on_stream(struct tern_network *network, int peer, uint32_t queue,
                                  struct tern_stream *stream)
{
    struct pgas_call c = {network, peer, queue, stream, 0};
    return c;
}

static struct pgas_call blocking(struct tern_network *network, int peer, uint32_t queue)
{
    struct pgas_call c = {network, peer, queue, NULL, 1};
    return c;
}

static enum tern_status put(const struct pgas_call *c, void *remote, const void *local, size_t bytes)
{
    TERN_TRY(terni_check_pointer("network", c->network));
    TERN_TRY(bytes == 0 ? TERN_OK : terni_check_pointer("remote", remote));
    TERN_TRY(bytes == 0 ? TERN_OK : terni_check_pointer("local", local));
    return terni_pgas_put(c, remote, local, bytes);
}

static enum tern_status get(const struct pgas_call *c, void *local, const void *remote, size_t bytes)
{
    TERN_TRY(terni_check_pointer("network", c->network));
    TERN_TRY(bytes == 0 ? TERN_OK : terni_check_pointer("local", local));
    TERN_TRY(bytes == 0 ? TERN_OK : terni_check_pointer("remote", remote));
    return terni_pgas_get(c, local, remote, bytes);
}

static enum tern_status check_word(const struct pgas_call *c, const void *word)
{
    TERN_TRY(terni_check_pointer("network", c->network));
    return terni_check_pointer("the word", word);
}

enum tern_status tern_net_put_on_stream(struct tern_network *network, int peer, uint32_t queue, void *remote,
                                        const void *local, size_t bytes, struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, queue, stream);
    return put(&c, remote, local, bytes);
}

enum tern_status tern_net_put(struct tern_network *network, int peer, uint32_t queue, void *remote,
                              const void *local, size_t bytes)
{
    struct pgas_call c = blocking(network, peer, queue);
    return put(&c, remote, local, bytes);
}

enum tern_status tern_net_get_on_stream(struct tern_network *network, int peer, uint32_t queue, void *local,
                                        const void *remote, size_t bytes, struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, queue, stream);
    return get(&c, local, remote, bytes);
}

enum tern_status tern_net_get(struct tern_network *network, int peer, uint32_t queue, void *local,
                              const void *remote, size_t bytes)
{
    struct pgas_call c = blocking(network, peer, queue);
    return get(&c, local, remote, bytes);
}

enum tern_status tern_net_signal_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                           void *remote, int signal, uint32_t width, uint64_t value,
                                           struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, queue, stream);
    struct pgas_signal s = {remote, signal, width, value};
    TERN_TRY(check_word(&c, remote));
    return terni_pgas_signal(&c, &s);
}

enum tern_status tern_net_signal(struct tern_network *network, int peer, uint32_t queue, void *remote,
                                 int signal, uint32_t width, uint64_t value)
{
    struct pgas_call c = blocking(network, peer, queue);
    struct pgas_signal s = {remote, signal, width, value};
    TERN_TRY(check_word(&c, remote));
    return terni_pgas_signal(&c, &s);
}

static enum tern_status put_signal(const struct pgas_call *c, void *remote, const void *local, size_t bytes,
                                   const struct pgas_signal *s)
{
    TERN_TRY(check_word(c, s->word));
    TERN_TRY(bytes == 0 ? TERN_OK : terni_check_pointer("remote", remote));
    TERN_TRY(bytes == 0 ? TERN_OK : terni_check_pointer("local", local));
    return terni_pgas_put_signal(c, remote, local, bytes, s);
}

enum tern_status tern_net_put_signal_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                               void *remote, const void *local, size_t bytes, void *word,
                                               int signal, uint32_t width, uint64_t value,
                                               struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, queue, stream);
    struct pgas_signal s = {word, signal, width, value};
    return put_signal(&c, remote, local, bytes, &s);
}

enum tern_status tern_net_put_signal(struct tern_network *network, int peer, uint32_t queue, void *remote,
                                     const void *local, size_t bytes, void *word, int signal, uint32_t width,
                                     uint64_t value)
{
    struct pgas_call c = blocking(network, peer, queue);
    struct pgas_signal s = {word, signal, width, value};
    return put_signal(&c, remote, local, bytes, &s);
}

enum tern_status tern_net_put_inline_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                               void *remote, uint64_t value, uint32_t width,
                                               struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, queue, stream);
    TERN_TRY(check_word(&c, remote));
    return terni_pgas_put_inline(&c, remote, value, width);
}

enum tern_status tern_net_put_inline(struct tern_network *network, int peer, uint32_t queue, void *remote,
                                     uint64_t value, uint32_t width)
{
    struct pgas_call c = blocking(network, peer, queue);
    TERN_TRY(check_word(&c, remote));
    return terni_pgas_put_inline(&c, remote, value, width);
}

enum tern_status tern_net_atomic_on_stream(struct tern_network *network, int peer, uint32_t queue,
                                           void *remote, int amo, uint32_t width, uint64_t value,
                                           uint64_t compare, void *old, struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, queue, stream);
    struct pgas_atomic a = {amo, width, value, compare};
    TERN_TRY(check_word(&c, remote));
    return terni_pgas_atomic(&c, remote, &a, old);
}

enum tern_status tern_net_atomic(struct tern_network *network, int peer, uint32_t queue, void *remote,
                                 int amo, uint32_t width, uint64_t value, uint64_t compare, uint64_t *old)
{
    struct pgas_call c = blocking(network, peer, queue);
    struct pgas_atomic a = {amo, width, value, compare};
    TERN_TRY(check_word(&c, remote));
    return terni_pgas_atomic(&c, remote, &a, old);
}

enum tern_status tern_net_quiet_on_stream(struct tern_network *network, int peer, int queue,
                                          struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, peer, 0, stream);
    TERN_TRY(terni_check_pointer("network", network));
    return terni_pgas_quiet(&c, queue);
}

enum tern_status tern_net_quiet(struct tern_network *network, int peer, int queue)
{
    struct pgas_call c = blocking(network, peer, 0);
    TERN_TRY(terni_check_pointer("network", network));
    return terni_pgas_quiet(&c, queue);
}

enum tern_status tern_net_wait_on_stream(struct tern_network *network, const void *word, uint32_t width,
                                         int compare, uint64_t value, uint32_t timeout_ms,
                                         struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, 0, 0, stream);
    struct pgas_wait w = {word, width, compare, value, timeout_ms};
    TERN_TRY(check_word(&c, word));
    return terni_pgas_wait(&c, &w);
}

enum tern_status tern_net_wait(struct tern_network *network, const void *word, uint32_t width, int compare,
                               uint64_t value, uint32_t timeout_ms)
{
    struct pgas_call c = blocking(network, 0, 0);
    struct pgas_wait w = {word, width, compare, value, timeout_ms};
    TERN_TRY(check_word(&c, word));
    return terni_pgas_wait(&c, &w);
}

enum tern_status tern_net_test(struct tern_network *network, const void *word, uint32_t width, int compare,
                               uint64_t value, int *is_met)
{
    struct pgas_call c = blocking(network, 0, 0);
    struct pgas_wait w = {word, width, compare, value, 0};
    TERN_TRY(check_word(&c, word));
    TERN_TRY(terni_check_pointer("is_met", is_met));
    return terni_pgas_test(&c, &w, is_met);
}

static enum tern_status barrier(const struct pgas_call *c, const struct tern_net_team *team)
{
    TERN_TRY(terni_check_pointer("network", c->network));
    TERN_TRY(terni_check_struct("team", team, sizeof *team));
    TERN_TRY(terni_check_pointer("the words of the team", team->words));
    return terni_pgas_barrier(c, team);
}

enum tern_status tern_net_barrier_on_stream(struct tern_network *network, const struct tern_net_team *team,
                                            struct tern_stream *stream)
{
    struct pgas_call c = on_stream(network, 0, 0, stream);
    return barrier(&c, team);
}

enum tern_status tern_net_barrier(struct tern_network *network, const struct tern_net_team *team)
{
    struct pgas_call c = blocking(network, 0, 0);
    return barrier(&c, team);
}

enum tern_status tern_net_synchronize(struct tern_network *network, struct tern_stream *stream)
{
    TERN_TRY(terni_check_pointer("network", network));
    TERN_TRY(network->machine->ops->stream_synchronize(network->machine, stream));
    return terni_pgas_fault(network, PGAS_KERNELS);
}

enum tern_status tern_net_abort(struct tern_network *network)
{
    TERN_TRY(terni_check_pointer("network", network));
    return terni_pgas_abort(network);
}
