/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run has to say: notes, then rows of one table. The table (table.c) prints it as it comes, the JSON
 * (json.c) holds the same at the end. */
#ifndef TERN_BENCH_REPORT_H
#define TERN_BENCH_REPORT_H

#include "core/core.h"

enum { REPORT_MAX_NOTES = 40, REPORT_MAX_ROWS = 256, REPORT_MAX_COLUMNS = 24, REPORT_TEXT = 16 };

struct column {
    const char *name; /* table head and JSON key */
    const char *unit; /* second line of the head; "" if none */
    int width;
    int decimals; /* -1: a text column */
};

/* A cell of a text column holds text, of any other a number; NaN is "not measured". */
struct cell {
    double number;
    char text[REPORT_TEXT];
};

struct report {
    const char *kind; /* "ep", "wire", "demo" */
    int quiet;        /* keep everything, print nothing: ranks other than 0 */
    const struct column *columns;
    int num_columns;
    int num_notes, num_rows;
    struct {
        char key[24];
        char text[200];
    } notes[REPORT_MAX_NOTES];
    struct cell rows[REPORT_MAX_ROWS][REPORT_MAX_COLUMNS];
};

/* Prints "# key: text" and keeps it. */
enum tern_status report_note(struct report *r, const char *key, const char *format, ...) TERN_PRINTF(3, 4);
/* Prints the head of the table. */
void report_head(const struct report *r);
/* An empty row (NaN and "" everywhere) to fill by column number; NULL once REPORT_MAX_ROWS are taken. */
struct cell *report_row(struct report *r);
/* Prints the row made last. */
void report_print_row(const struct report *r);
/* Writes all notes and rows to a file as JSON. */
enum tern_status report_json(const struct report *r, const char *path);

#endif
