/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits that kernels set to what is tuned: a warp of dispatch has a lane for each of its stages, and no
 * more. The table of measured devices is the library's own business: this program compiles it in. That any
 * device gets a geometry is in ep_sizes_test.c. */
#include "../src/ep/tuning.c"
#include "support.h"

/* A row that wants more than it gets would be a figure that nobody measured. */
static int listed(struct test *t)
{
    size_t i, num = sizeof(tuned_devices) / sizeof(tuned_devices[0]);

    for (i = 0; i < num; i++) {
        const struct tuned *d = &tuned_devices[i];
        CHECK(d->dispatch_stages == dispatch_stages(d, 0) && d->cast_stages == dispatch_stages(d, 1),
              "row %d of the table has %u stages of dispatch and %u with a cast; there may be 2 to %d",
              (int)i, d->dispatch_stages, d->cast_stages, DISPATCH_MAX_STAGES);
    }
    test_detail(t, "%d devices", (int)num);
    return 0;
}

static int bounded(struct test *t)
{
    static const uint32_t wanted[] = {0, 1, 2, 4, 31, 32, 33, 64, UINT32_MAX};
    struct tuned d = tuned_devices[0];
    size_t i;

    (void)t;
    for (i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        uint32_t stages = wanted[i] < 2 ? 2 : wanted[i] > 32 ? 32 : wanted[i];
        d.dispatch_stages = wanted[i];
        d.cast_stages = 3;
        CHECK(dispatch_stages(&d, 0) == stages && dispatch_stages(&d, 1) == 3, "%u stages become %u, not %u",
              wanted[i], dispatch_stages(&d, 0), stages);
        d.dispatch_stages = 3;
        d.cast_stages = wanted[i];
        CHECK(dispatch_stages(&d, 1) == stages && dispatch_stages(&d, 0) == 3,
              "%u stages with a cast become %u, not %u", wanted[i], dispatch_stages(&d, 1), stages);
    }
    return 0;
}

/* Shared memory that no device has, and rows of a few bytes, so that room is no limit. */
static int unlisted(struct test *t)
{
    struct machine_info info;
    struct geometry g;
    int count = 0;

    memset(&info, 0, sizeof info);
    info.kind = TERN_MACHINE_CUDA;
    for (info.max_shared_bytes = 16u << 10; info.max_shared_bytes < 1u << 31; info.max_shared_bytes *= 2) {
        for (info.compute_capability = 70; info.compute_capability <= 130; info.compute_capability += 10) {
            for (int cast = 0; cast < 2; cast++, count++) {
                OK(terni_tuning_dispatch(&info, 1, cast, 128, 1024, 1, &g));
                CHECK(g.num_stages >= 2 && g.num_stages <= 32, "capability %d with %u bytes: %u stages",
                      info.compute_capability, info.max_shared_bytes, g.num_stages);
            }
        }
    }
    test_detail(t, "%d devices and casts", count);
    return 0;
}

static int put_queues(struct test *t)
{
    /* Streams, queues, those for puts. */
    const uint32_t known[][3] = {{84, 42, 28}, {84, 28, 21}, {56, 8, 4}, {56, 16, 8}, {56, 1, 1}, {5, 5, 3}};
    (void)t;
    for (uint32_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t n = terni_tuning_put_queues(known[i][0], known[i][1]);
        CHECK(n == known[i][2], "%u streams, %u queues: %u for puts", known[i][0], known[i][1], n);
    }
    for (uint32_t queues = 1; queues <= 64; queues++) {
        for (uint32_t streams = queues; streams <= 96; streams++) {
            uint32_t n = terni_tuning_put_queues(streams, queues);
            CHECK(2 * n >= queues && n <= queues - queues / 4, "%u streams, %u queues: %u for puts", streams,
                  queues, n);
        }
    }
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;

    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "devices in the table have stages that a warp can keep in mind", listed);
    test_run(&t, "stages of dispatch are bounded, whatever is wanted", bounded);
    test_run(&t, "devices that are not in the table have as many at most", unlisted);
    test_run(&t, "puts share their queues evenly, and leave some to credits", put_queues);
    return test_end(&t);
}
