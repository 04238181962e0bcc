/* SPDX-License-Identifier: Apache-2.0
 *
 * tern-bench: how fast expert-parallel communication is here, next to what the wire can do, with correctness
 * as a column. Exit status 0: done and right; 1: an element is wrong; 2: something failed. */
#include "demo.h"
#include "bench_ep.h"
#include "bench_ll.h"
#include "bench_nic.h"
#include "drive.h"
#include "options.h"
#include "report.h"
#include "wire.h"
#include "../tools/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_WRONG = 1, EXIT_FAILED = 2 };

static const struct subcommand {
    const char *name;
    enum command command;
    enum tern_status (*run)(const struct options *options, struct report *report, struct tally *tally);
} subcommands[] = {
    {"ep", COMMAND_EP, ep_run},
    {"ll", COMMAND_LL, ll_run_command},
    {"wire", COMMAND_WIRE, wire_run},
    {"put", COMMAND_PUT, drive_run},
    {"get", COMMAND_GET, drive_run},
    {"atomic", COMMAND_ATOMIC, drive_run},
    {"signal", COMMAND_SIGNAL, drive_run},
    {"pingpong", COMMAND_PINGPONG, drive_run},
    {"barrier", COMMAND_BARRIER, drive_run},
    {"nic", COMMAND_NIC, nic_run},
    {"demo", COMMAND_DEMO, demo_run},
};
enum { NUM_SUBCOMMANDS = sizeof(subcommands) / sizeof(subcommands[0]) };

/* Deciding that something failed is the callee's; saying so is this file's alone. */
static int print_failure(void)
{
    fprintf(stderr, "tern-bench: %s\n", tern_last_error());
    return EXIT_FAILED;
}

static int print_version(void)
{
    printf("tern-bench %d.%d.%d\n", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
    return EXIT_SUCCESS;
}

static int is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Where an option is expected, a question counts before anything else is read. Returns whether it was one. */
static int answer(const struct subcommand *sub, int num_words, char **words)
{
    int i;
    for (i = 0; i < num_words; i += options_num_words(sub->command, words[i])) {
        if (is_help(words[i])) {
            options_help(sub->command);
            return 1;
        }
        if (strcmp(words[i], "--version") == 0) {
            print_version();
            return 1;
        }
    }
    return 0;
}

static int run(const struct subcommand *sub, int num_words, char **words)
{
    struct options options;
    struct report *report;
    struct tally tally = {0, 0};
    enum tern_status status = options_parse(sub->command, num_words, words, &options);
    if (status != TERN_OK) {
        return print_failure();
    }
    report = (struct report *)calloc(1, sizeof(*report));
    if (report == NULL) {
        fprintf(stderr, "tern-bench: no memory for the report\n");
        return EXIT_FAILED;
    }
    status = sub->run(&options, report, &tally);
    if (status == TERN_OK && options.json != NULL && !report->quiet) {
        status = report_json(report, options.json);
    }
    free(report);
    if (status != TERN_OK) {
        return print_failure();
    }
    if (tally.wrong != 0) {
        fprintf(stderr, "tern-bench: %llu wrong\n", (unsigned long long)tally.wrong);
        return EXIT_WRONG;
    }
    return EXIT_SUCCESS;
}

/* Of the subcommand that is named, or of all. Returns whether there are such, and somebody asked. */
static int help(int num_words, char **words)
{
    int found = 0;
    for (int i = 0; i < (int)NUM_SUBCOMMANDS; i++) {
        if (num_words > 0 && strcmp(words[0], subcommands[i].name) == 0) {
            options_help(subcommands[i].command);
            found = 1;
        }
    }
    if (num_words <= 0) {
        options_help(COMMAND_ALL);
    } else if (!found) {
        fprintf(stderr, "tern-bench: no subcommand '%s'; tern-bench help has all\n", words[0]);
    }
    return num_words <= 0 ? num_words == 0 : found;
}

static int answer_or_run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "help";
    int i;
    for (i = 0; i < (int)NUM_SUBCOMMANDS; i++) {
        if (strcmp(name, subcommands[i].name) == 0) {
            return answer(&subcommands[i], argc - 2, argv + 2) ? EXIT_SUCCESS
                                                               : run(&subcommands[i], argc - 2, argv + 2);
        }
    }
    if (is_help(name)) {
        return help(argc - 2, argv + 2) ? EXIT_SUCCESS : EXIT_FAILED;
    }
    if (strcmp(name, "--version") == 0) {
        return print_version();
    }
    fprintf(stderr, "tern-bench: no subcommand '%s'; there are", name);
    for (i = 0; i < (int)NUM_SUBCOMMANDS; i++) {
        fprintf(stderr, " %s,", subcommands[i].name);
    }
    fprintf(stderr, " and help\n");
    return EXIT_FAILED;
}

int main(int argc, char **argv)
{
    int status;
    /* Ranks that share a GPU need a hardware queue for each stream: two streams in one queue would run one
     * after the other, and the first may wait for the second. Read by the driver when it starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    status = answer_or_run(argc, argv);
    return output_is_whole("tern-bench") || status != EXIT_SUCCESS ? status : EXIT_FAILED;
}
