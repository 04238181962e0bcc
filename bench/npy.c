/* SPDX-License-Identifier: Apache-2.0
 *
 * An .npy file is a magic string, a version, a header length, the header and the elements. The header is the
 * text of a Python dictionary with the keys descr, fortran_order and shape. A cursor walks that text and
 * never past its end; the element count is multiplied with overflow checks and compared with the bytes that
 * are there, so that no input can make a reader go outside the buffer. */
#include "npy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *code; /* without the byte order */
    const char *name;
    uint32_t bytes;
    int is_integer;
} types[] = {
    {"u1", "uint8", 1, 1},   /* NPY_UINT8 */
    {"i4", "int32", 4, 1},   /* NPY_INT32 */
    {"i8", "int64", 8, 1},   /* NPY_INT64 */
    {"f2", "float16", 2, 0}, /* NPY_FLOAT16 */
    {"f4", "float32", 4, 0}, /* NPY_FLOAT32 */
};

enum { NUM_TYPES = sizeof(types) / sizeof(types[0]), FOUND_DESCR = 1, FOUND_ORDER = 2, FOUND_SHAPE = 4 };

/* The header's text between `at` and `end`. */
struct cursor {
    const char *name; /* of the file */
    const char *begin, *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) {
        c->at++;
    }
}

/* Takes `ch` if it comes next. */
static int take(struct cursor *c, char ch)
{
    skip_space(c);
    if (c->at < c->end && *c->at == ch) {
        c->at++;
        return 1;
    }
    return 0;
}

static enum tern_status expect(struct cursor *c, char ch)
{
    if (take(c, ch)) {
        return TERN_OK;
    }
    if (c->at == c->end) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: the header ends where '%c' should be", c->name, ch);
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: header byte %td is 0x%02x where '%c' should be", c->name,
                     c->at - c->begin, (unsigned char)*c->at, ch);
}

/* A quoted string of at most size - 1 bytes. */
static enum tern_status take_string(struct cursor *c, char *text, size_t size)
{
    size_t n = 0;
    char quote = take(c, '"') ? '"' : '\'';
    if (quote == '\'') {
        TERN_TRY(expect(c, quote));
    }
    while (c->at < c->end && *c->at != quote) {
        if (n + 1 == size || *c->at < ' ' || *c->at > '~') {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "%s: the string at header byte %td is longer than %zu bytes or not plain text",
                             c->name, c->at - c->begin, size - 1);
        }
        text[n++] = *c->at++;
    }
    text[n] = 0;
    return expect(c, quote);
}

static enum tern_status take_type(struct cursor *c, struct npy *npy)
{
    char text[16];
    int i;
    TERN_TRY(take_string(c, text, sizeof(text)));
    for (i = 0; i < (int)NUM_TYPES; i++) {
        /* One byte has no order, which NumPy writes as a bar. */
        if (strcmp(text + (text[0] != 0), types[i].code) == 0 &&
            (text[0] == '<' || (i == 0 && text[0] == '|'))) {
            npy->type = (enum npy_type)i;
            return TERN_OK;
        }
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT,
                     "%s: type '%s' is not one of |u1, <i4, <i8, <f2, <f4 (little-endian)", c->name, text);
}

static enum tern_status take_order(struct cursor *c)
{
    size_t left;
    skip_space(c);
    left = (size_t)(c->end - c->at);
    if (left >= 5 && memcmp(c->at, "False", 5) == 0) {
        c->at += 5;
        return TERN_OK;
    }
    if (left >= 4 && memcmp(c->at, "True", 4) == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: fortran_order is True; only C order is read", c->name);
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: fortran_order at header byte %td is neither True nor False",
                     c->name, c->at - c->begin);
}

static enum tern_status take_extent(struct cursor *c, uint64_t *extent)
{
    const char *begin;
    uint64_t v = 0;
    skip_space(c);
    begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*c->at - '0'), &v)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: the extent at header byte %td does not fit 64 bits",
                             c->name, begin - c->begin);
        }
        c->at++;
    }
    if (c->at == begin) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: no number at header byte %td, where an extent should be",
                         c->name, begin - c->begin);
    }
    *extent = v;
    return TERN_OK;
}

static enum tern_status take_shape(struct cursor *c, struct npy *npy)
{
    TERN_TRY(expect(c, '('));
    npy->num_dims = 0;
    npy->count = 1;
    while (!take(c, ')')) {
        uint64_t *extent = &npy->dims[npy->num_dims];
        if (npy->num_dims == NPY_MAX_DIMS) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: more than %d dimensions", c->name, NPY_MAX_DIMS);
        }
        TERN_TRY(take_extent(c, extent));
        if (__builtin_mul_overflow(npy->count, *extent, &npy->count)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "%s: extent %llu of dimension %d makes the element count overflow 64 bits",
                             c->name, (unsigned long long)*extent, npy->num_dims);
        }
        npy->num_dims++;
        if (!take(c, ',')) {
            return expect(c, ')');
        }
    }
    return TERN_OK;
}

static enum tern_status take_item(struct cursor *c, struct npy *npy, unsigned *found)
{
    char key[16];
    unsigned bit;
    TERN_TRY(take_string(c, key, sizeof(key)));
    bit = strcmp(key, "descr") == 0           ? FOUND_DESCR
          : strcmp(key, "fortran_order") == 0 ? FOUND_ORDER
          : strcmp(key, "shape") == 0         ? FOUND_SHAPE
                                              : 0;
    if (bit == 0 || (*found & bit) != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: key '%s' is %s", c->name, key,
                         bit == 0 ? "none of descr, fortran_order, shape" : "there twice");
    }
    *found |= bit;
    TERN_TRY(expect(c, ':'));
    return bit == FOUND_DESCR ? take_type(c, npy) : bit == FOUND_ORDER ? take_order(c) : take_shape(c, npy);
}

static enum tern_status take_header(struct cursor *c, struct npy *npy)
{
    unsigned found = 0;
    TERN_TRY(expect(c, '{'));
    while (!take(c, '}')) {
        TERN_TRY(take_item(c, npy, &found));
        if (!take(c, ',')) {
            TERN_TRY(expect(c, '}'));
            break;
        }
    }
    skip_space(c);
    if (c->at != c->end) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: header byte %td is 0x%02x after the dictionary's end",
                         c->name, c->at - c->begin, (unsigned char)*c->at);
    }
    if (found != (FOUND_DESCR | FOUND_ORDER | FOUND_SHAPE)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: the header lacks %s", c->name,
                         (found & FOUND_DESCR) == 0   ? "descr"
                         : (found & FOUND_ORDER) == 0 ? "fortran_order"
                                                      : "shape");
    }
    return TERN_OK;
}

enum tern_status npy_parse(const char *name, const void *bytes, size_t size, struct npy *npy)
{
    const unsigned char *b = (const unsigned char *)bytes;
    struct npy a = {NPY_UINT8, 0, {0}, 0, NULL, NULL};
    struct cursor c;
    uint64_t header_bytes, need;
    size_t prefix;
    if (size < 12) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: %zu bytes are too few for an .npy file", name, size);
    }
    if (memcmp(b, "\x93NUMPY", 6) != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%s: begins with %02x %02x %02x %02x %02x %02x, not with the magic of .npy", name,
                         b[0], b[1], b[2], b[3], b[4], b[5]);
    }
    if (b[6] != 1 && b[6] != 2) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: version %d.%d is neither 1 nor 2", name, b[6], b[7]);
    }
    prefix = b[6] == 1 ? 10 : 12;
    header_bytes = b[8] | (uint64_t)b[9] << 8;
    if (b[6] == 2) {
        header_bytes |= (uint64_t)b[10] << 16 | (uint64_t)b[11] << 24;
    }
    if (header_bytes > size - prefix) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: a header of %llu bytes does not fit a file of %zu", name,
                         (unsigned long long)header_bytes, size);
    }
    c.name = name;
    c.begin = c.at = (const char *)b + prefix;
    c.end = c.begin + header_bytes;
    TERN_TRY(take_header(&c, &a));
    a.data = b + prefix + header_bytes;
    size -= prefix + (size_t)header_bytes;
    if (__builtin_mul_overflow(a.count, types[a.type].bytes, &need) || need != size) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%s: the shape has %llu elements of %u bytes, but %zu bytes follow the header", name,
                         (unsigned long long)a.count, types[a.type].bytes, size);
    }
    *npy = a;
    return TERN_OK;
}

static enum tern_status read_file(const char *path, void **bytes, size_t *size)
{
    enum tern_status status = TERN_OK;
    FILE *f = fopen(path, "rb");
    void *buffer = NULL;
    struct stat s;
    if (f == NULL) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "cannot open %s: %s", path, strerror(errno));
    }
    if (fstat(fileno(f), &s) != 0 || !S_ISREG(s.st_mode)) {
        status = TERN_FAIL(TERN_SYSTEM_ERROR, "%s is not a plain file", path);
        goto close_file;
    }
    buffer = malloc((size_t)s.st_size + 1);
    if (buffer == NULL) {
        status =
            TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for the %lld bytes of %s", (long long)s.st_size, path);
        goto close_file;
    }
    if (fread(buffer, 1, (size_t)s.st_size, f) != (size_t)s.st_size) {
        status =
            TERN_FAIL(TERN_SYSTEM_ERROR, "reading the %lld bytes of %s failed", (long long)s.st_size, path);
        free(buffer);
        goto close_file;
    }
    *bytes = buffer;
    *size = (size_t)s.st_size;
close_file:
    fclose(f);
    return status;
}

enum tern_status npy_load(const char *path, struct npy *npy)
{
    enum tern_status status;
    void *bytes = NULL;
    size_t size = 0;
    TERN_TRY(read_file(path, &bytes, &size));
    status = npy_parse(path, bytes, size, npy);
    if (status != TERN_OK) {
        free(bytes);
        return status;
    }
    npy->file = bytes;
    return TERN_OK;
}

void npy_free(struct npy *npy)
{
    free(npy->file);
    npy->file = NULL;
    npy->data = NULL;
    npy->count = 0;
}

const char *npy_type_name(enum npy_type type) { return types[type].name; }

int npy_is_integer(const struct npy *npy) { return types[npy->type].is_integer; }

int64_t npy_get_int(const struct npy *npy, uint64_t i)
{
    int32_t v4;
    int64_t v8;
    switch (npy->type) {
    case NPY_UINT8:
        return npy->data[i];
    case NPY_INT32:
        memcpy(&v4, npy->data + i * 4, 4);
        return v4;
    case NPY_INT64:
        memcpy(&v8, npy->data + i * 8, 8);
        return v8;
    default:
        return 0;
    }
}

static float half_to_float(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float v = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
              : exponent == 0 ? ldexpf((float)fraction, -24)
                              : ldexpf((float)(fraction + 1024), exponent - 25);
    return (h & 0x8000) != 0 ? -v : v;
}

float npy_get_float(const struct npy *npy, uint64_t i)
{
    uint16_t h;
    float f;
    switch (npy->type) {
    case NPY_FLOAT16:
        memcpy(&h, npy->data + i * 2, 2);
        return half_to_float(h);
    case NPY_FLOAT32:
        memcpy(&f, npy->data + i * 4, 4);
        return f;
    default:
        return (float)npy_get_int(npy, i);
    }
}
