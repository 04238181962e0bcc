/* SPDX-License-Identifier: Apache-2.0
 *
 * tern-trace: merges the stamps that ranks left (TERN_TRACE, docs/trace.md) into one trace in the Chrome
 * format, or into a table of who waited for whom. tern-trace/trace_parts.h says how. */
#include "tern-trace/trace_parts.h"
#include "output.h"

#include <stdio.h>
#include <string.h>

static const char manual[] =
    "tern-trace - who waited for whom\n"
    "\n"
    "  tern-trace [--summary] PATH...\n"
    "\n"
    "  PATH         a file that a rank left for TERN_TRACE, or a folder with such files\n"
    "  --summary    a table and a list of waits in place of the trace\n"
    "  --help       this text\n"
    "  --version    the version\n"
    "\n"
    "Writes a trace to standard output, for chrome://tracing or ui.perfetto.dev: a process is a rank, a "
    "thread\n"
    "one of its blocks, and below it what the block's threads waited for; arrows lead from the rank that "
    "was\n"
    "waited for to who waited. Programs leave such files if they run with TERN_TRACE=FOLDER and the library\n"
    "that make VARIANT=trace builds. The exit status is 1 if a file cannot be used, or what it prints not "
    "be\n"
    "written, 2 for a wrong option.\n";

/* What is printed is there, or the exit status says that it is not. */
static int finish(void) { return !output_is_whole("tern-trace"); }

static int convert(struct traces *t, int summary)
{
    if (trace_join_files(t)) {
        return 1;
    }
    for (size_t i = 0; i < t->num_files; i++) {
        trace_slice_file(&t->files[i]);
    }
    trace_align(t);
    if (summary) {
        trace_summarize(t);
    } else {
        trace_put(t);
    }
    return finish();
}

int main(int argc, char **argv)
{
    struct traces t;
    int summary = 0, refused = 0, num_paths = 0;
    memset(&t, 0, sizeof(t));
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(manual, stdout);
            return finish();
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("tern-trace %d.%d.%d\n", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
            return finish();
        }
        if (strcmp(argv[i], "--summary") == 0) {
            summary = 1;
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "tern-trace: unknown option %s; --help lists all\n", argv[i]);
            return 2;
        } else {
            argv[1 + num_paths++] = argv[i];
        }
    }
    if (num_paths == 0) {
        fprintf(stderr, "tern-trace: no file or folder is given; --help says more\n");
        return 2;
    }
    for (int i = 1; i <= num_paths; i++) {
        refused |= trace_read_path(&t, argv[i]);
    }
    refused = refused || convert(&t, summary);
    trace_drop(&t);
    return refused;
}
