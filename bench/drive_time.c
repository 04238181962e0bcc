/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the drive kernels on all ranks and times them: bandwidth by events around launches in a row, as
 * `tern-bench wire` does, latency by the device's clock inside one launch. Samples before the first are for
 * warming up.
 *
 * What a sample holds is enough for a fast way; a slow one would take minutes for a row. So a part of it is
 * tried before, longer and longer until the clock can be believed, and the sample is cut to what is left of
 * --row-ms. */
#include "drive.h"
#include "kernels/kernels.h"

static int takes_part(const struct drive *d, const struct shot *shot, int i)
{
    return d->party->first + i < shot->num_ranks;
}

static enum tern_status launch(struct drive *d, const struct shot *shot, int i)
{
    struct machine *m = d->party->comms[i]->machine;
    struct drive_seat *seat = &d->seats[i];
    struct drive_args args = shot->args;
    struct launch l = {shot->kernel, shot->blocks, 32 * shot->warps, shot->shared_bytes, &args, sizeof(args)};
    args.net = seat->view;
    args.team = seat->members;
    args.from = d->wire.seats[i].from;
    args.to = d->wire.seats[i].to;
    args.words = seat->words;
    args.log = shot->wants_log ? seat->log : NULL;
    args.result = d->wire.seats[i].device_result;
    args.area = d->wire.bytes;
    args.shared_bytes = shot->shared_bytes;
    args.seed = d->options->seed;
    for (int k = 0; k < shot->repeats; k++) {
        TERN_TRY(m->ops->launch(m, &l, d->party->streams[i]));
    }
    return TERN_OK;
}

static enum tern_status issue(struct drive *d, const struct shot *shot)
{
    for (int i = 0; i < d->party->num_local; i++) {
        struct wire_seat *seat = &d->wire.seats[i];
        if (takes_part(d, shot, i)) {
            TERN_TRY(tern_event_record(d->party->comms[i], seat->begin, d->party->streams[i]));
            TERN_TRY(launch(d, shot, i));
            TERN_TRY(tern_event_record(d->party->comms[i], seat->end, d->party->streams[i]));
        }
    }
    return TERN_OK;
}

enum tern_status drive_once(struct drive *d, const struct shot *shot)
{
    for (int i = 0; i < d->party->num_local; i++) {
        d->wire.seats[i].result[0] = d->wire.seats[i].result[1] = 0;
    }
    TERN_TRY(party_barrier(d->party));
    TERN_TRY(issue(d, shot));
    for (int i = 0; i < d->party->num_local; i++) {
        TERN_TRY(tern_net_synchronize(d->seats[i].network, d->party->streams[i]));
    }
    for (int i = 0; i < d->party->num_local; i++) {
        if (d->wire.seats[i].result[0] != 0) {
            return TERN_FAIL(TERN_BAD_STATE, "a call of rank %d failed with status -%llu and left no record",
                             d->party->first + i, (unsigned long long)d->wire.seats[i].result[0]);
        }
    }
    return TERN_OK;
}

/* Local values of all ranks that take part become the greatest of them. */
static enum tern_status greatest(struct drive *d, const struct shot *shot, const double *local, double *most)
{
    double all[TERN_MAX_RANKS];
    TERN_TRY(party_gather(d->party, local, all, sizeof(double)));
    *most = 0;
    for (int r = 0; r < shot->num_ranks; r++) {
        *most = all[r] > *most ? all[r] : *most;
    }
    return TERN_OK;
}

enum tern_status drive_by_events(struct drive *d, const struct shot *shot, double *us)
{
    for (int k = -(int)d->options->warmup; k < (int)d->options->iters; k++) {
        double local[TERN_MAX_RANKS] = {0}, slowest;
        TERN_TRY(drive_once(d, shot));
        for (int i = 0; i < d->party->num_local; i++) {
            float ms = 0;
            TERN_TRY(
                tern_event_elapsed(d->party->comms[i], d->wire.seats[i].begin, d->wire.seats[i].end, &ms));
            local[i] = 1e3 * (double)ms / shot->repeats;
        }
        TERN_TRY(greatest(d, shot, local, &slowest));
        if (k >= 0) {
            us[k] = slowest;
        }
    }
    return TERN_OK;
}

enum tern_status drive_reset(struct drive *d)
{
    uint64_t first = d->options->seed; /* drive_value of round -1, in 4 bytes as in 8 */
    for (int i = 0; i < d->party->num_local; i++) {
        TERN_TRY(
            tern_copy(d->party->comms[i], &d->seats[i].words[DRIVE_WORD], &first, 8, d->party->streams[i]));
    }
    return party_synchronize(d->party);
}

enum tern_status drive_by_clock(struct drive *d, const struct shot *shot, double *us)
{
    for (int k = -(int)d->options->warmup; k < (int)d->options->iters; k++) {
        double local[TERN_MAX_RANKS] = {0}, slowest;
        TERN_TRY(drive_reset(d));
        TERN_TRY(drive_once(d, shot));
        for (int i = 0; i < d->party->num_local; i++) {
            local[i] = (double)d->wire.seats[i].result[1] / 1e3 / shot->args.rounds;
        }
        TERN_TRY(greatest(d, shot, local, &slowest));
        if (k >= 0) {
            us[k] = slowest;
        }
    }
    return TERN_OK;
}

/* ---- Cutting a sample ---- */

enum { FIRST_TRY = 64, LONGER = 8, BELIEVED_US = 2000, FEWEST_OPS = 16, FEWEST_ROUNDS = 10 };

/* The slowest rank's microseconds of one launch. */
static enum tern_status try_once(struct drive *d, const struct shot *shot, int by_clock, double *us)
{
    double local[TERN_MAX_RANKS] = {0};
    TERN_TRY(drive_reset(d));
    TERN_TRY(drive_once(d, shot));
    for (int i = 0; i < d->party->num_local; i++) {
        float ms = 0;
        if (by_clock) {
            local[i] = (double)d->wire.seats[i].result[1] / 1e3;
        } else {
            TERN_TRY(
                tern_event_elapsed(d->party->comms[i], d->wire.seats[i].begin, d->wire.seats[i].end, &ms));
            local[i] = 1e3 * (double)ms;
        }
    }
    return greatest(d, shot, local, us);
}

/* What one of `num`, as many as a launch may have, takes. */
static enum tern_status measure_one(struct drive *d, const struct shot *shot, int by_clock, uint32_t num,
                                    double *us)
{
    struct shot s = *shot;
    uint32_t *tried = by_clock ? &s.args.rounds : &s.args.ops, part = num < FIRST_TRY ? num : FIRST_TRY;
    s.repeats = 1;
    *tried = part;
    TERN_TRY(try_once(d, &s, by_clock, us)); /* for warming up */
    for (;;) {
        *tried = part;
        TERN_TRY(try_once(d, &s, by_clock, us));
        if (part == num || *us >= BELIEVED_US) {
            *us /= part;
            return TERN_OK;
        }
        part = num / LONGER < part ? num : part * LONGER;
    }
}

static uint32_t cut(uint32_t num, uint32_t fewest, double most)
{
    return most >= num ? num : most > fewest ? (uint32_t)most : fewest < num ? fewest : num;
}

enum tern_status drive_fit(struct drive *d, struct shot *shot, int by_clock)
{
    const struct options *o = d->options;
    double one, most = 1e3 * o->net.row_ms / (o->iters + o->warmup);
    if (by_clock) {
        TERN_TRY(measure_one(d, shot, 1, shot->args.rounds, &one));
        shot->args.rounds = cut(shot->args.rounds, FEWEST_ROUNDS, most / one);
        return TERN_OK;
    }
    TERN_TRY(measure_one(d, shot, 0, shot->args.ops, &one));
    shot->args.ops = cut(shot->args.ops, FEWEST_OPS, most / one / shot->repeats);
    shot->repeats = (int)cut((uint32_t)shot->repeats, 1, most / one / shot->args.ops);
    return TERN_OK;
}
