/* SPDX-License-Identifier: Apache-2.0
 *
 * What tern-bench makes of a mock NIC's complaints: a run after which it complains has failed, with the
 * complaint as its sentence; one that had failed before keeps its own.
 *
 * transport.c belongs to tern-bench and not to the library: this program compiles it in, with what it needs
 * of its neighbours. */
#include "../bench/utf8.c"
#include "../bench/json.c"
#include "../bench/table.c"
#include "../bench/options.c"
#define read_number read_spec_number
#define read_value  read_spec_value
#include "../bench/faults.c"
#include "../bench/party.c"
#include "../bench/transport.c"
#include "mlx5_mock.h"
#include "support.h"

enum { CLEAN, COMPLAINS };

/* 0: there is no mock. */
static int choose(struct test *t, struct carriage *c, int complains)
{
    struct options o;
    struct party p;
    memset(&o, 0, sizeof(o));
    memset(&p, 0, sizeof(p));
    o.net.transport = CARRIED_BY_MOCK_MLX5;
    p.in_process = 1;
    p.machine = TERN_MACHINE_CPU;
    if (transport_choose(&o, &p, c) != TERN_OK) {
        test_skip(t, "%s", tern_last_error());
        return 0;
    }
#if TERN_HAVE_VERBS
    if (complains) {
        mock_complain("a %s goes that is not there", "queue pair");
    }
#else
    (void)complains;
#endif
    return 1;
}

static int says(const char *sentence)
{
    CHECK(strcmp(tern_last_error(), sentence) == 0, "the sentence is \"%s\"", tern_last_error());
    return TEST_PASSED;
}

static int gives_up_carriages(struct test *t)
{
    struct carriage c;
    if (!choose(t, &c, CLEAN)) {
        return TEST_SKIPPED;
    }
    EXPECT(transport_drop(&c, TERN_OK), TERN_OK);
    EXPECT(transport_drop(&c, TERN_OK), TERN_OK); /* nothing is left to be dropped */
    choose(t, &c, COMPLAINS);
    EXPECT(transport_drop(&c, TERN_OK), TERN_INTERNAL_ERROR);
    if (says("the mock of mlx5 complains: a queue pair goes that is not there") != TEST_PASSED) {
        return TEST_FAILED;
    }
    EXPECT(transport_drop(&c, TERN_OK), TERN_OK);
    choose(t, &c, COMPLAINS);
    EXPECT(transport_drop(&c, TERN_FAIL(TERN_TIMEOUT, "rank 1 was late")), TERN_TIMEOUT);
    return says("rank 1 was late");
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "a carriage whose mock complains ends in a failure", gives_up_carriages);
    return test_end(&t);
}
