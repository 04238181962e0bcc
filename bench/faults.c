/* SPDX-License-Identifier: Apache-2.0
 *
 * What --nic-faults says is a list with commas:
 *
 *     packets, adaptive       first, if at all, with :SEED or without: what TERN_SOFTNIC of that name does
 *     drop=P, double=P        a packet is lost, or comes twice; P is a probability
 *     delay=US                one packet in twenty is late, by up to so many microseconds
 *     reorder=P               another packet that has arrived is taken first
 *     seed=N                  of all that; default --seed
 *
 * Without a first word the network has no faults but those named. */
#include "faults.h"

#include "ep/ep.h"
#include "pgas/pgas_nics.h"

#include <stdlib.h>
#include <string.h>

enum { DELAYED = RC_CERTAIN / 20 };

struct faults {
    struct softnic_wire wire;
    uint64_t seed;
};

/* What a key may be, and the most that it may be. */
static const struct key {
    const char *name;
    int has_point; /* 0.25, else a whole number */
    double most;
} keys[] = {
    {"drop", 1, 0.5}, {"double", 1, 0.5}, {"delay", 0, 10000}, {"reorder", 1, 1}, {"seed", 0, 4294967295.0}};
enum { KEY_DROP, KEY_DOUBLE, KEY_DELAY, KEY_REORDER, KEY_SEED, NUM_KEYS };

/* Digits, and a point among them if there may be one; no sign, no exponent. 0: it is no such number. */
static int read_number(const char *text, size_t length, int has_point, double *value)
{
    char copy[24];
    size_t digits = strspn(text, has_point ? "0123456789." : "0123456789");
    const char *point = (const char *)memchr(text, '.', length);
    if (length == 0 || digits < length || length >= sizeof copy || text[0] == '.' ||
        (point != NULL && memchr(point + 1, '.', length - (size_t)(point + 1 - text)) != NULL)) {
        return 0;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    *value = strtod(copy, NULL);
    return 1;
}

static void set(struct faults *f, int key, double value)
{
    struct rc_faults *to = &f->wire.requests;
    uint32_t share = (uint32_t)(value * RC_CERTAIN + 0.5);
    switch (key) {
    case KEY_DROP:
        to->drop = share;
        break;
    case KEY_DOUBLE:
        to->duplicate = share;
        break;
    case KEY_DELAY:
        to->delay = value != 0 ? DELAYED : 0;
        to->max_delay = (uint64_t)value * 1000;
        break;
    case KEY_REORDER:
        to->reorder = share;
        break;
    default:
        f->seed = (uint64_t)value;
        break;
    }
}

static enum tern_status read_value(struct faults *f, const char *spec, int key, const char *text,
                                   size_t length)
{
    double value;
    if (!read_number(text, length, keys[key].has_point, &value)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--nic-faults %s: '%.*s' of %s is not a %s of 0 to %.10g",
                         spec, (int)length, text, keys[key].name,
                         keys[key].has_point ? "number" : "whole number", keys[key].most);
    }
    if (value > keys[key].most) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--nic-faults %s: %s is %.*s, which is outside 0 to %.10g",
                         spec, keys[key].name, (int)length, text, keys[key].most);
    }
    set(f, key, value);
    return TERN_OK;
}

/* "packets" or "adaptive", with ":SEED" or not. *found: it was one of them. */
static enum tern_status read_word(struct faults *f, const char *spec, size_t length, int *found)
{
    static const char *const words[] = {"packets", "adaptive"};
    *found = 0;
    for (int i = 0; i < 2; i++) {
        size_t end = strlen(words[i]);
        if (length >= end && memcmp(spec, words[i], end) == 0 && (length == end || spec[end] == ':')) {
            terni_softnic_wire_err(&f->wire, i);
            *found = 1;
            return length == end ? TERN_OK : read_value(f, spec, KEY_SEED, spec + end + 1, length - end - 1);
        }
    }
    return TERN_OK;
}

static enum tern_status read_pair(struct faults *f, const char *spec, const char *text, size_t length)
{
    const char *is = (const char *)memchr(text, '=', length);
    size_t name = is != NULL ? (size_t)(is - text) : length;
    for (int key = 0; is != NULL && key < NUM_KEYS; key++) {
        if (strlen(keys[key].name) == name && memcmp(text, keys[key].name, name) == 0) {
            return read_value(f, spec, key, is + 1, length - name - 1);
        }
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT,
                     "--nic-faults %s: '%.*s' is none of packets and adaptive, first, and drop=P, double=P, "
                     "delay=US, reorder=P, seed=N",
                     spec, (int)length, text);
}

/* The packets are those of a network that errs, whose numbers soon wrap; faults are as wished. */
static void begin(struct faults *f, const struct options *o)
{
    struct rc_faults none;
    memset(&none, 0, sizeof none);
    terni_softnic_wire_err(&f->wire, 0);
    f->wire.requests = none;
    f->seed = o->seed;
}

static enum tern_status parse(const struct options *o, struct faults *f)
{
    const char *spec = o->nic.faults, *at = spec;
    int is_first = 1;
    begin(f, o);
    for (;;) {
        size_t length = strcspn(at, ",");
        int found = 0;
        if (is_first) {
            TERN_TRY(read_word(f, spec, length, &found));
            is_first = 0;
        }
        if (!found) {
            TERN_TRY(read_pair(f, spec, at, length));
        }
        if (at[length] == '\0') {
            f->wire.answers = f->wire.requests;
            return TERN_OK;
        }
        at += length + 1;
    }
}

enum tern_status faults_check(const struct options *o, const struct party *party)
{
    struct faults f;
    if (o->nic.faults == NULL) {
        return TERN_OK;
    }
    TERN_TRY(parse(o, &f));
    if (o->net.transport != CARRIED_BY_SOFTNIC) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--nic-faults %s needs --transport softnic", o->nic.faults);
    }
    if (o->nic.gbps != 0 || o->nic.latency_us != 0 || o->nic.mops != 0) {
        return TERN_FAIL(
            TERN_INVALID_ARGUMENT,
            "--nic-faults %s with a wire of %u Gb/s, %u us and %u million messages a second: NICs "
            "that speak packets have no modelled time",
            o->nic.faults, o->nic.gbps, o->nic.latency_us, o->nic.mops);
    }
    if (party->machine != TERN_MACHINE_CPU) {
        return TERN_FAIL(TERN_UNSUPPORTED,
                         "--nic-faults %s: NICs that are kernels of a GPU speak no packets here; "
                         "--machine cpu has NICs that do",
                         o->nic.faults);
    }
    return TERN_OK;
}

void faults_apply(const struct options *o)
{
    struct faults f;
    if (o->nic.faults != NULL && parse(o, &f) == TERN_OK) {
        terni_nic_settings.wire = f.wire;
        terni_nic_settings.seed = f.seed;
    }
}

/* ---- What became of packets ---- */

static void add(struct softnic_traffic *sum, const struct softnic_traffic *t)
{
    sum->sent += t->sent;
    sum->lost += t->lost;
    sum->doubled += t->doubled;
    sum->delayed += t->delayed;
    sum->reordered += t->reordered;
    sum->resent += t->resent;
}

enum tern_status faults_count(struct softnic_traffic *sum, const struct tern_ep *ep)
{
    struct softnic_traffic t;
    TERN_TRY(terni_pgas_nics_traffic(ep->network, &t));
    add(sum, &t);
    return TERN_OK;
}

enum tern_status faults_note(struct report *report, const struct options *o, struct party *party,
                             const struct softnic_traffic *sum)
{
    struct softnic_traffic local[TERN_MAX_RANKS], all[TERN_MAX_RANKS], total;
    if (o->nic.faults == NULL) {
        return TERN_OK;
    }
    memset(local, 0, sizeof local);
    memset(&total, 0, sizeof total);
    local[0] = *sum;
    TERN_TRY(party_gather(party, local, all, sizeof local[0]));
    for (int r = 0; r < party->num_ranks; r++) {
        add(&total, &all[r]);
    }
    return report_note(
        report, "packets",
        "%llu sent, %llu lost, %llu doubled, %llu delayed, %llu reordered, %llu times repeated",
        (unsigned long long)total.sent, (unsigned long long)total.lost, (unsigned long long)total.doubled,
        (unsigned long long)total.delayed, (unsigned long long)total.reordered,
        (unsigned long long)total.resent);
}
