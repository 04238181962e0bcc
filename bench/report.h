/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run has to say: notes, then rows of one table. The table (table.c) prints it as it comes, the JSON
 * (json.c) holds the same at the end. */
#ifndef TERN_BENCH_REPORT_H
#define TERN_BENCH_REPORT_H

#include "core/core.h"

enum { REPORT_MAX_NOTES = 40, REPORT_MAX_ROWS = 256, REPORT_MAX_COLUMNS = 32, REPORT_TEXT = 16 };

struct column {
    const char *name; /* table head and JSON key */
    const char *unit; /* second line of the head; "" if none */
    int width;        /* 0: in the JSON only */
    int decimals;     /* -1: a text column */
};

/* A cell of a text column holds text, of any other a number; NaN is "not measured". */
struct cell {
    double number;
    char text[REPORT_TEXT];
};

/* Elements that were compared with what they should be, and those that differ. */
struct tally {
    uint64_t wrong, compared;
};

struct report {
    const char *kind; /* "ep", "ll", "wire", "demo", "put", ... */
    int quiet;        /* keep everything, print nothing: ranks other than 0 */
    const struct column *columns;
    int num_columns;
    uint32_t left_out; /* bit c: this run has nothing in column c, which is then in the JSON only */
    int num_notes, num_rows;
    struct {
        char key[24];
        char text[200];
    } notes[REPORT_MAX_NOTES];
    struct cell rows[REPORT_MAX_ROWS][REPORT_MAX_COLUMNS];
};

/* Before anything that takes time: `quiet` as in the struct; a JSON file that could not be written at the end
 * (NULL: none is wanted) is refused now. */
enum tern_status report_begin(struct report *r, int quiet, const char *json_path);
/* Prints "# key: text" and keeps it. */
enum tern_status report_note(struct report *r, const char *key, const char *format, ...) TERN_PRINTF(3, 4);
/* Prints the head of the table. */
void report_head(const struct report *r);
/* An empty row (NaN and "" everywhere) to fill by column number; NULL once REPORT_MAX_ROWS are taken. */
struct cell *report_row(struct report *r);
/* Prints the row made last. */
void report_print_row(const struct report *r);
/* The closing note: "0 of 12 elements wrong: ok". */
enum tern_status report_result(struct report *r, const char *elements, const struct tally *tally);
/* TERN_SYSTEM_ERROR if the file cannot be written; leaves it, or its absence, as it is. */
enum tern_status report_json_try(const char *path);
/* Writes all notes and rows to a file as JSON. */
enum tern_status report_json(const struct report *r, const char *path);

#endif
