/* SPDX-License-Identifier: Apache-2.0
 *
 * The softnic provider as struct nic_provider; and the settings of both: this file is in every build. */
#include "core/core.h"
#include "net/nic_provider.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a NIC that is a kernel: 8 move what a link of 50 GB/s carries. */
enum { MOST_BLOCKS = 8, SHARED_BLOCKS = 16 };

struct nic_settings terni_nic_settings;

static_assert(sizeof(struct nic_region) >= sizeof(struct softnic_region_card), "a card fits");

static struct softnic_provider *of(const struct nic_provider *p)
{
    return (struct softnic_provider *)p->state;
}

static void close_it(struct nic_provider *p)
{
    terni_softnic_close(of(p));
    p->state = NULL;
}

static uint32_t card_bytes(const struct nic_provider *p) { return terni_softnic_card_bytes(of(p)); }
static void card(const struct nic_provider *p, void *bytes) { terni_softnic_card(of(p), bytes); }

static enum tern_status connect_all(struct nic_provider *p, const void *cards, void *const *links,
                                    void *const *wires)
{
    return terni_softnic_connect(of(p), cards, (struct softnic_link *const *)links, wires);
}

static enum tern_status add(struct nic_provider *p, void *memory, uint64_t bytes, struct nic_region *region)
{
    struct softnic_region_card c;
    TERN_TRY(terni_softnic_register(of(p), memory, bytes, &c));
    memset(region, 0, sizeof *region);
    memcpy(region, &c, sizeof c);
    return TERN_OK;
}

static enum tern_status import(struct nic_provider *p, int peer, const struct nic_region *region,
                               void *mapped)
{
    struct softnic_region_card c;
    memcpy(&c, region, sizeof c);
    return terni_softnic_import(of(p), peer, &c, mapped);
}

static void remove_own(struct nic_provider *p, const void *memory)
{
    terni_softnic_deregister(of(p), memory);
}
static void forget(struct nic_provider *p, int peer, uint64_t addr)
{
    terni_softnic_forget(of(p), peer, addr);
}
static enum tern_status refresh(struct nic_provider *p) { return terni_softnic_refresh(of(p)); }
static enum tern_status pause_it(struct nic_provider *p) { return terni_softnic_pause(of(p)); }
static enum tern_status resume(struct nic_provider *p) { return terni_softnic_resume(of(p)); }
static const struct net_queue *queues(const struct nic_provider *p) { return terni_softnic_queues(of(p)); }

static int explain(struct nic_provider *p, int peer, uint32_t index, char *text, size_t text_bytes)
{
    struct softnic_state s;
    text[0] = '\0';
    if (terni_softnic_inspect(of(p), peer, index, &s) == TERN_OK && s.is_error &&
        s.refusal.reason != REFUSED_NOTHING) {
        (void)terni_refusal_text(&s.refusal, text, text_bytes);
        return 1;
    }
    return 0;
}

static const struct nic_provider_ops ops = {close_it, card_bytes, card,   connect_all, add,
                                            import,   remove_own, forget, refresh,     pause_it,
                                            resume,   queues,     explain};

enum tern_status terni_nic_traffic(const struct nic_provider *p, struct softnic_traffic *traffic)
{
    memset(traffic, 0, sizeof *traffic);
    return p->ops == &ops && p->state != NULL ? terni_softnic_traffic(of(p), traffic) : TERN_OK;
}

/* Ranks that share a device have 16 processors for their NICs, as far as that goes. */
int terni_nic_blocks(int ranks_on_device)
{
    int share = SHARED_BLOCKS / ranks_on_device, asked = (int)terni_nic_settings.nic_blocks;
    return asked != 0 ? asked : share > MOST_BLOCKS ? MOST_BLOCKS : share > 1 ? share : 1;
}

/* TERN_SOFTNIC: nothing, or "packets" or "adaptive" with ":SEED" or without. */
static enum tern_status wire_of(struct softnic_wire *wire, uint64_t *seed)
{
    static const char *const words[] = {"packets", "adaptive"};
    const char *text = terni_env(TERN_ENV_SOFTNIC), *rest = text;
    char *end;
    *wire = terni_nic_settings.wire;
    *seed = terni_nic_settings.seed;
    if (wire->config.mtu != 0 || text[0] == '\0') {
        return TERN_OK;
    }
    for (int i = 0; i < 2 && rest == text; i++) {
        size_t length = strlen(words[i]);
        if (strncmp(text, words[i], length) == 0) {
            terni_softnic_wire_err(wire, i);
            rest = text + length;
        }
    }
    if (rest != text && rest[0] == ':' && rest[1] >= '0' && rest[1] <= '9') {
        *seed = strtoull(rest + 1, &end, 10);
        rest = end;
    }
    return rest != text && rest[0] == '\0'
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "%s=%s is neither packets nor adaptive, with :SEED or not",
                           terni_env_name(TERN_ENV_SOFTNIC), text);
}

enum tern_status terni_nic_wants_records(int *wants)
{
    uint64_t value;
    TERN_TRY(terni_env_uint(TERN_ENV_NIC_RECORDS, 1, &value));
    *wants = terni_nic_settings.records || value != 0;
    return TERN_OK;
}

enum tern_status terni_nic_check_environment(void)
{
    struct softnic_wire wire;
    uint64_t seed;
    int records;
    TERN_TRY(terni_nic_wants_records(&records));
    return wire_of(&wire, &seed);
}

enum tern_status terni_nic_wire_bytes(int num_ranks, uint32_t num_nics, uint64_t *bytes)
{
    struct softnic_wire wire;
    uint64_t seed;
    TERN_TRY(wire_of(&wire, &seed));
    *bytes = terni_softnic_wire_bytes(&wire, num_ranks, num_nics != 0 ? num_nics : 1);
    return TERN_OK;
}

/* As many times as fit, each of which waits twice as long as the one before. */
static uint32_t retries_in(uint64_t silence_ns, uint64_t timeout_ns)
{
    uint32_t num = 0;
    for (uint64_t next = 2 * timeout_ns, sum = timeout_ns; sum + next <= silence_ns && num < 20; num++) {
        sum += next;
        next *= 2;
    }
    return num;
}

enum tern_status terni_nic_open_softnic(const struct nic_config *config, struct nic_provider *p)
{
    const struct nic_settings *s = &terni_nic_settings;
    struct softnic_provider *state = NULL;
    struct softnic_config c;
    terni_softnic_config_init(&c, config->machine, config->rank, config->num_ranks);
    TERN_TRY(wire_of(&c.wire, &c.seed));
    TERN_TRY(terni_nic_wants_records(&c.records));
    c.seed += (uint64_t)config->rank;
    c.wanted = config->wanted;
    c.num_nics = config->num_nics != 0 ? config->num_nics : 1;
    c.num_queues = config->num_queues;
    c.num_blocks = s->num_blocks != 0 ? s->num_blocks : c.num_blocks;
    c.runner = s->runner;
    c.nic_blocks = terni_nic_blocks(config->ranks_on_device);
    c.batch_blocks = s->batch_blocks != 0 ? s->batch_blocks : c.batch_blocks;
    c.cq_ring = s->cq_ring;
    c.dump = s->dump;
    c.relay = s->host_rings;
    c.abort = config->abort;
    c.lost = config->lost;
    c.copies = config->copies;
    c.timeout_ns = config->timeout_ns;
    c.rates = s->rates;
    c.link = (struct softnic_link *)config->link;
    c.wire.config.retry_count =
        retries_in(config->timeout_ns - config->timeout_ns / 4, c.wire.config.timeout);
    c.wire_memory = config->wire;
    c.hold_one_in = s->hold_one_in;
    TERN_TRY(terni_softnic_open(&c, &state));
    p->ops = &ops;
    p->state = state;
    return TERN_OK;
}
