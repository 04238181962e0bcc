/* SPDX-License-Identifier: Apache-2.0
 *
 * The report as text, in the manner of nccl-tests: everything that is not a row begins with '#', columns are
 * right-aligned, so that the same output can be read, plotted and diffed. */
#include "report.h"
#include "utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum tern_status report_begin(struct report *r, int quiet, const char *json_path)
{
    r->quiet = quiet;
    return json_path != NULL && !quiet ? report_json_try(json_path) : TERN_OK;
}

enum tern_status report_result(struct report *r, const char *elements, const struct tally *tally)
{
    if (tally->compared == 0) {
        return report_note(r, "result", "no %s compared", elements);
    }
    return report_note(r, "result", "%llu of %llu %s wrong: %s", (unsigned long long)tally->wrong,
                       (unsigned long long)tally->compared, elements, tally->wrong == 0 ? "ok" : "FAILED");
}

enum tern_status report_note(struct report *r, const char *key, const char *format, ...)
{
    va_list list;
    int i = r->num_notes;
    if (i == REPORT_MAX_NOTES) {
        return TERN_FAIL(TERN_NO_SPACE, "the report has room for %d notes; no room for %s", REPORT_MAX_NOTES,
                         key);
    }
    snprintf(r->notes[i].key, sizeof(r->notes[i].key), "%s", key);
    va_start(list, format);
    utf8_vprint(r->notes[i].text, sizeof(r->notes[i].text), format, list);
    va_end(list);
    r->num_notes++;
    if (!r->quiet) {
        printf("# %-13s %s\n", r->notes[i].key, r->notes[i].text);
        fflush(stdout); /* what is measured next may take long */
    }
    return TERN_OK;
}

static int is_shown(const struct report *r, int column)
{
    return r->columns[column].width > 0 && (r->left_out >> column & 1) == 0;
}

/* One line of the head; the '#' takes the place of the first column's blank. */
static void print_head(const struct report *r, int units)
{
    const char *before = "\n#";
    int i;
    for (i = 0; i < r->num_columns; i++) {
        const struct column *c = &r->columns[i];
        if (is_shown(r, i)) {
            printf("%s%*s", before, c->width, units ? c->unit : c->name);
            before = " ";
        }
    }
}

void report_head(const struct report *r)
{
    if (!r->quiet) {
        print_head(r, 0);
        print_head(r, 1);
        printf("\n");
    }
}

struct cell *report_row(struct report *r)
{
    struct cell *row;
    int i;
    if (r->num_rows == REPORT_MAX_ROWS) {
        return NULL;
    }
    row = r->rows[r->num_rows++];
    for (i = 0; i < r->num_columns; i++) {
        row[i].number = NAN;
        memset(row[i].text, 0, sizeof(row[i].text));
    }
    return row;
}

void report_print_row(const struct report *r)
{
    const struct cell *row = r->rows[r->num_rows - 1];
    int i;
    if (r->quiet) {
        return;
    }
    for (i = 0; i < r->num_columns; i++) {
        const struct column *c = &r->columns[i];
        if (!is_shown(r, i)) {
            continue;
        }
        if (c->decimals < 0 || isnan(row[i].number)) {
            printf(" %*s", c->width, row[i].text[0] != 0 ? row[i].text : "-");
        } else {
            printf(" %*.*f", c->width, c->decimals, row[i].number);
        }
    }
    printf("\n");
    fflush(stdout);
}
