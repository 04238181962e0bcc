/* SPDX-License-Identifier: Apache-2.0
 *
 * The report as JSON:
 *     {"format": 1, "kind": "ep", "notes": {key: text}, "units": {column: unit}, "rows": [{column: value}]}
 * "format" is raised when a name changes its meaning. Numbers keep six significant digits; what was not
 * measured is null. */
#include "report.h"
#include "utf8.h"

#include <errno.h>
#include <math.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORMAT = 1 };

/* JSON is UTF-8; of what is not, each byte becomes the sign for that. */
static void put_text(FILE *f, const char *text)
{
    int bytes;
    fputc('"', f);
    for (; *text != 0; text += bytes > 0 ? bytes : 1) {
        unsigned char ch = (unsigned char)*text;
        bytes = utf8_letter(text);
        if (bytes == 0) {
            fprintf(f, "\\ufffd");
        } else if (ch == '"' || ch == '\\') {
            fprintf(f, "\\%c", ch);
        } else if (ch < ' ') {
            fprintf(f, "\\u%04x", ch);
        } else {
            fprintf(f, "%.*s", bytes, text);
        }
    }
    fputc('"', f);
}

static void put_pair(FILE *f, const char *key, const char *text, int last)
{
    fprintf(f, "    ");
    put_text(f, key);
    fprintf(f, ": ");
    put_text(f, text);
    fprintf(f, "%s\n", last ? "" : ",");
}

static void put_row(FILE *f, const struct report *r, const struct cell *row)
{
    int i;
    fprintf(f, "    {");
    for (i = 0; i < r->num_columns; i++) {
        fprintf(f, "%s", i == 0 ? "" : ", ");
        put_text(f, r->columns[i].name);
        fprintf(f, ": ");
        if (r->columns[i].decimals < 0) {
            put_text(f, row[i].text);
        } else if (!isfinite(row[i].number)) {
            fprintf(f, "null");
        } else if (r->columns[i].decimals == 0) {
            fprintf(f, "%.0f", row[i].number);
        } else {
            fprintf(f, "%.6g", row[i].number);
        }
    }
    fprintf(f, "}");
}

enum tern_status report_json_try(const char *path)
{
    int is_new = 0,
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK); /* of a pipe: only if somebody reads */
    struct stat file;
    if (fd < 0 && errno == ENOENT) {
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        is_new = fd >= 0;
    }
    if (fd < 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "--json: cannot write %s: %s", path, strerror(errno));
    }
    if (fstat(fd, &file) == 0 && S_ISFIFO(file.st_mode)) {
        return TERN_OK; /* left open until the end: who reads would take closing for it */
    }
    close(fd);
    if (is_new) {
        unlink(path);
    }
    return TERN_OK;
}

/* A pipe whose reader has gone meanwhile is none to wait for; what is open is written as usual. */
static FILE *create(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    FILE *f = NULL;
    if (fd >= 0 && fcntl(fd, F_SETFL, 0) == 0) {
        f = fdopen(fd, "w");
    }
    if (fd >= 0 && f == NULL) {
        close(fd);
    }
    return f;
}

enum tern_status report_json(const struct report *r, const char *path)
{
    FILE *f = create(path);
    int i, failed;
    if (f == NULL) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "cannot write %s: %s", path, strerror(errno));
    }
    fprintf(f, "{\n  \"format\": %d,\n  \"kind\": ", FORMAT);
    put_text(f, r->kind);
    fprintf(f, ",\n  \"notes\": {\n");
    for (i = 0; i < r->num_notes; i++) {
        put_pair(f, r->notes[i].key, r->notes[i].text, i + 1 == r->num_notes);
    }
    fprintf(f, "  },\n  \"units\": {\n");
    for (i = 0; i < r->num_columns; i++) {
        put_pair(f, r->columns[i].name, r->columns[i].unit, i + 1 == r->num_columns);
    }
    fprintf(f, "  },\n  \"rows\": [");
    for (i = 0; i < r->num_rows; i++) {
        fprintf(f, "%s\n", i == 0 ? "" : ",");
        put_row(f, r, r->rows[i]);
    }
    fprintf(f, "\n  ]\n}\n");
    failed = ferror(f);
    if (fclose(f) != 0 || failed) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "writing %s failed: %s", path, strerror(errno));
    }
    return TERN_OK;
}
