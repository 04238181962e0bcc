/* SPDX-License-Identifier: Apache-2.0
 *
 * tern-bench: how fast expert-parallel communication is here, next to what the wire can do, with correctness
 * as a column. Exit status 0: done and right; 1: an element is wrong; 2: something failed. */
#include "demo.h"
#include "bench_ep.h"
#include "options.h"
#include "report.h"
#include "wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_WRONG = 1, EXIT_FAILED = 2 };

static const struct subcommand {
    const char *name;
    enum command command;
    enum tern_status (*run)(const struct options *options, struct report *report, uint64_t *num_wrong);
} subcommands[] = {
    {"ep", COMMAND_EP, ep_run},
    {"wire", COMMAND_WIRE, wire_run},
    {"demo", COMMAND_DEMO, demo_run},
};
enum { NUM_SUBCOMMANDS = sizeof(subcommands) / sizeof(subcommands[0]) };

/* Deciding that something failed is the callee's; saying so is this file's alone. */
static int print_failure(void)
{
    fprintf(stderr, "tern-bench: %s\n", tern_last_error());
    return EXIT_FAILED;
}

static int run(const struct subcommand *sub, int num_words, char **words)
{
    struct options options;
    struct report *report;
    uint64_t num_wrong = 0;
    enum tern_status status = options_parse(sub->command, num_words, words, &options);
    if (status != TERN_OK) {
        return print_failure();
    }
    report = (struct report *)calloc(1, sizeof(*report));
    if (report == NULL) {
        fprintf(stderr, "tern-bench: no memory for the report\n");
        return EXIT_FAILED;
    }
    status = sub->run(&options, report, &num_wrong);
    if (status == TERN_OK && options.json != NULL && !report->quiet) {
        status = report_json(report, options.json);
    }
    free(report);
    if (status != TERN_OK) {
        return print_failure();
    }
    if (num_wrong != 0) {
        fprintf(stderr, "tern-bench: %llu wrong\n", (unsigned long long)num_wrong);
        return EXIT_WRONG;
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "help";
    int i;
    /* Ranks that share a GPU need a hardware queue for each stream: two streams in one queue would run one after
     * the other, and the first may wait for the second. Read by the driver when it starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    for (i = 0; i < (int)NUM_SUBCOMMANDS; i++) {
        if (strcmp(name, subcommands[i].name) == 0) {
            return run(&subcommands[i], argc - 2, argv + 2);
        }
    }
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        options_help();
        return argc > 1 ? EXIT_SUCCESS : EXIT_FAILED;
    }
    fprintf(stderr, "tern-bench: no subcommand '%s'; there are ep, wire, demo and help\n", name);
    return EXIT_FAILED;
}
