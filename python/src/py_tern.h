/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the extension module tern._tern share. The module is the public C interface in
 * Python's words and nothing more: pointers are integers, argument structures are keywords named as their
 * fields, statuses are exceptions. What a tensor is, and whether it fits, the package's Python decides
 * before it calls.
 *
 * It keeps to the limited API of Python 3.9, so one build serves all later versions.
 *
 * Lifetimes are references: an EP object holds its communicator, a route its EP object, a tensor in window
 * memory its communicator. A communicator closes when the last of them is gone, whatever was closed by
 * name before.
 *
 * Threads: tern.h allows an object one thread at a time, and the GIL does not see to it, because every
 * call that may wait lets go of it. A second thread is refused with BadState (terni_py_enter). What cannot
 * be refused, an EP object whose last reference goes while a call is on its communicator, waits on a list.
 *
 * Forks: a child has the parent's objects, but none of its threads, and shares its sockets. Calls on them are
 * refused with BadState there, and what ends there ends for Python alone. */
#ifndef TERN_PY_TERN_H
#define TERN_PY_TERN_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>
#include <sys/types.h>

#include "tern/tern.h"

struct py_block;

struct py_ended {
    struct tern_ep *ep;
    struct py_ended *next;
};

struct py_comm {
    PyObject_HEAD struct tern_comm *comm;
    struct tern_stream *stream; /* cpu: its own, on which all of its operations run; cuda: NULL */
    struct tern_stream *last;   /* the stream that window memory was last taken for */
    struct tern_event
        *event;             /* orders streams that take memory after one another; NULL: none was needed yet */
    struct py_block *limbo; /* memory whose tensors are gone; given back by whoever takes memory next */
    struct py_ended *ended; /* EP objects that are gone; closed by whoever enters next */
    pid_t pid;              /* the process that opened it */
    int busy;
};

struct py_ep {
    PyObject_HEAD struct py_comm *comm;
    struct tern_ep *ep;     /* NULL: closed, and all its routes with it */
    struct py_ended *ended; /* room to say so later */
    int busy;
};

struct py_route {
    PyObject_HEAD struct py_ep *ep;
    struct tern_route *route; /* NULL: closed */
};

extern PyTypeObject *terni_py_comm_type, *terni_py_ep_type, *terni_py_route_type;
extern PyType_Spec terni_py_comm_spec, terni_py_ep_spec, terni_py_route_spec;

/* ---- Errors (py_module.c) ----------------------------------------------------------------------------- */

/* The exception of `status`, with the thread's sentence, and the fault record of `ep` if it has one
 * and that is what the status speaks of; ep may be NULL. NULL and another exception if there is no memory. */
PyObject *terni_py_error(enum tern_status status, struct tern_ep *ep);
/* Sets it. Returns NULL. */
PyObject *terni_py_fail(enum tern_status status, struct tern_ep *ep);
/* The same with a sentence of the module's own, as PyErr_Format takes it. */
PyObject *terni_py_refuse(enum tern_status status, const char *format, ...);
/* The fields of struct tern_fault and its text, as a dictionary. */
PyObject *terni_py_fault(const struct tern_fault *fault);
/* 0 and BadState if another thread is in a call on the object, or this process is not the one that opened
 * its communicator; else *busy becomes 1. The caller holds the GIL. */
int terni_py_enter(const struct py_comm *comm, int *busy, const char *what);
/* The same for the communicator itself; closes the EP objects that are gone, for which it may let go of the
 * GIL. */
int terni_py_enter_comm(struct py_comm *comm);
/* This process, as fork() leaves it. */
pid_t terni_py_process(void);
/* Whether this process opened the communicator. */
int terni_py_is_here(const struct py_comm *comm);
/* Frees an object of one of the module's types. */
void terni_py_free(PyObject *self);

/* ---- Measuring (py_module.c) --------------------------------------------------------------------------- */

/* What tern._tern.measure() asked for, by tern/host_cost.py alone. */
enum py_measure {
    PY_MEASURE_NOTHING,
    PY_MEASURE_TIME, /* time in the library is counted: what a call takes beyond is the package's own */
    PY_MEASURE_ALONE /* operations are left out: what a call takes is the package's own */
};

/* Around calls of the library by which operations run: 0, and nothing, unless time is counted. */
uint64_t terni_py_clock(void);
void terni_py_spend(uint64_t begin);
int terni_py_is_left_out(void);

/* ---- Arguments as fields (py_fields.c) ----------------------------------------------------------------- */

enum py_field_kind { PY_U32, PY_I32, PY_U64, PY_I64, PY_POINTER };

struct py_field {
    const char *name; /* NULL ends a table */
    size_t offset;
    enum py_field_kind kind;
    PyObject *word; /* the name as the interpreter has it, from the table's first use on */
};
#define PY_FIELD(kind, type, name)                                                                           \
    {                                                                                                        \
#name, offsetof(struct type, name), kind, NULL                                                       \
    }
#define PY_FIELDS_END                                                                                        \
    {                                                                                                        \
        NULL, 0, PY_U32, NULL                                                                                \
    }

/* Writes every keyword into the field of its name; None leaves the field as it is. 0, and an exception
 * with the value, for an unknown name or a value out of the field's range. `keywords` may be NULL. Cheapest
 * where keywords come in the order of the table. The caller holds the GIL. */
int terni_py_fields(void *structure, struct py_field *fields, PyObject *keywords);
/* The same for the values of a tuple, from place `from` on, one for each field of the table in its order; the
 * place after them, or -1 and an exception. Whether the tuple ends where its values do says terni_py_ends. */
Py_ssize_t terni_py_values(void *structure, const struct py_field *fields, PyObject *args, Py_ssize_t from);
int terni_py_ends(PyObject *args, Py_ssize_t at);
/* What a call begins with: the stream, and after it the bytes of a structure that was prepared; 0 and an
 * exception if it does not. */
int terni_py_stream(PyObject *args, struct tern_stream **stream);
int terni_py_prepared(PyObject *args, void *structure, size_t num_bytes);
/* A tuple (data, row_bytes, elem_bytes, row_stride, elem_stride) as rows; 0 and an exception if it is
 * none. */
int terni_py_rows(PyObject *tuple, struct tern_rows *rows);
/* A stream or another pointer; 0 and an exception if `number` is none. */
int terni_py_pointer(PyObject *number, void **pointer);

/* ---- Memory (py_memory.c) ------------------------------------------------------------------------------ */

/* Method of a communicator: (kind, shape, type code, bits, device type, device, stream) -> a DLPack
 * capsule. */
PyObject *terni_py_alloc(PyObject *self, PyObject *args);
/* Likewise, for the outputs of a call: (a tuple (columns of a row, type code, bits, device type, device)
 * each) -> bytes; and (stream, rows, these bytes) -> a tuple of capsules of window memory. */
PyObject *terni_py_row_shapes(PyObject *self, PyObject *args);
PyObject *terni_py_alloc_rows(PyObject *self, PyObject *args);
/* Gives back the memory whose tensors are gone. The caller holds the GIL, and nobody is in a call on
 * `comm`. */
void terni_py_sweep(struct py_comm *comm);
/* Before the communicator closes: waits for the streams that its memory was taken for, whose work may still
 * read or write it. On cuda; nothing is left to wait for on cpu. */
void terni_py_quiet(struct py_comm *comm);

#endif
