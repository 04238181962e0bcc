/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments become fields of the argument structures of tern.h, by tables of names and places. The names are
 * the structures' own, so the header is the reference for both languages. What is called once has keywords;
 * what is called again and again has values in the order of a table, half as costly. */
#include "py_tern.h"

#include <string.h>

/* Of a field of 4 bytes: its lowest and highest value. */
static int fits(enum py_field_kind kind, long long value)
{
    if (kind == PY_I32) {
        return value >= INT32_MIN && value <= INT32_MAX;
    }
    return value >= 0 && value <= (long long)UINT32_MAX;
}

/* `field` becomes `value`; 0 if it is not a number or out of range. */
static int put(char *field, enum py_field_kind kind, PyObject *value)
{
    if (kind == PY_U64 || kind == PY_POINTER) {
        unsigned long long wide = PyLong_AsUnsignedLongLong(value);
        uint64_t bits = wide;
        memcpy(field, &bits, sizeof(bits)); /* pointers have 8 bytes on every machine of Tern */
    } else {
        long long wide = PyLong_AsLongLong(value);
        int64_t bits = wide;
        int32_t narrow = (int32_t)wide;
        if (kind == PY_I64) {
            memcpy(field, &bits, sizeof(bits));
        } else if (PyErr_Occurred() == NULL && !fits(kind, wide)) {
            return 0;
        } else {
            memcpy(field, &narrow, sizeof(narrow));
        }
    }
    return PyErr_Occurred() == NULL;
}

/* The names of a table as objects, which identifiers in a program's text are, too: what is the same object
 * need not be compared. They stay until the process ends, as the module does. */
static int intern(struct py_field *fields)
{
    for (struct py_field *field = fields; field->name != NULL; field++) {
        if (field->word == NULL && (field->word = PyUnicode_InternFromString(field->name)) == NULL) {
            return 0;
        }
    }
    return 1;
}

/* The field of a name, looked for from `next` on; NULL: there is none. */
static struct py_field *find(struct py_field *fields, struct py_field *next, PyObject *name)
{
    struct py_field *field;
    for (field = next; field->name != NULL; field++) {
        if (field->word == name) {
            return field;
        }
    }
    for (field = fields; field->name != NULL; field++) {
        if (field->word == name || PyUnicode_CompareWithASCIIString(name, field->name) == 0) {
            return field;
        }
    }
    return NULL;
}

int terni_py_fields(void *structure, struct py_field *fields, PyObject *keywords)
{
    struct py_field *next = fields;
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (fields->word == NULL && !intern(fields)) {
        return 0;
    }
    while (keywords != NULL && PyDict_Next(keywords, &at, &name, &value)) {
        struct py_field *field = find(fields, next, name);
        if (field == NULL) {
            PyErr_Format(PyExc_TypeError, "there is no argument %R", name);
            return 0;
        }
        if (value != Py_None && !put((char *)structure + field->offset, field->kind, value)) {
            PyErr_Clear();
            terni_py_refuse(TERN_INVALID_ARGUMENT, "%U is %R, which is no number of the range that it has",
                            name, value);
            return 0;
        }
        next = field + 1;
    }
    return 1;
}

Py_ssize_t terni_py_values(void *structure, const struct py_field *fields, PyObject *args, Py_ssize_t from)
{
    Py_ssize_t at = from, num = PyTuple_Size(args);
    for (const struct py_field *field = fields; field->name != NULL; field++, at++) {
        PyObject *value = at < num ? PyTuple_GetItem(args, at) : Py_None;
        if (value != Py_None && !put((char *)structure + field->offset, field->kind, value)) {
            PyErr_Clear();
            terni_py_refuse(TERN_INVALID_ARGUMENT, "%s is %R, which is no number of the range that it has",
                            field->name, value);
            return -1;
        }
    }
    return at;
}

int terni_py_ends(PyObject *args, Py_ssize_t at)
{
    if (PyTuple_Size(args) != at) {
        PyErr_Format(PyExc_TypeError, "%zd values: the call has %zd", PyTuple_Size(args), at);
        return 0;
    }
    return 1;
}

int terni_py_rows(PyObject *tuple, struct tern_rows *rows)
{
    unsigned long long data;
    long long row_stride, elem_stride;
    if (!PyArg_ParseTuple(tuple, "KIILL", &data, &rows->row_bytes, &rows->elem_bytes, &row_stride,
                          &elem_stride)) {
        return 0;
    }
    rows->data = (void *)(uintptr_t)data;
    rows->row_stride = row_stride;
    rows->elem_stride = elem_stride;
    return 1;
}

int terni_py_pointer(PyObject *number, void **pointer)
{
    unsigned long long wide = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred() != NULL) {
        return 0;
    }
    *pointer = (void *)(uintptr_t)wide;
    return 1;
}

int terni_py_stream(PyObject *args, struct tern_stream **stream)
{
    void *pointer;
    if (PyTuple_Size(args) < 1) {
        PyErr_SetString(PyExc_TypeError, "a call begins with a stream");
        return 0;
    }
    if (!terni_py_pointer(PyTuple_GetItem(args, 0), &pointer)) {
        return 0;
    }
    *stream = (struct tern_stream *)pointer;
    return 1;
}

int terni_py_prepared(PyObject *args, void *structure, size_t num_bytes)
{
    Py_ssize_t have;
    char *bytes;
    if (PyTuple_Size(args) < 2) {
        PyErr_SetString(PyExc_TypeError, "a call begins with a stream and what is prepared");
        return 0;
    }
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(args, 1), &bytes, &have) != 0) {
        return 0;
    }
    if (have != (Py_ssize_t)num_bytes) {
        terni_py_refuse(TERN_INVALID_ARGUMENT, "what is prepared has %zd bytes: it must have %zd", have,
                        (Py_ssize_t)num_bytes);
        return 0;
    }
    memcpy(structure, bytes, num_bytes);
    return 1;
}
