/* SPDX-License-Identifier: Apache-2.0
 *
 * tern._tern.Comm: a communicator. On the cpu machine it has one stream, on which all operations of this
 * rank run; on cuda callers bring their own. It has no close: it closes with its last reference, which an
 * EP object, a route or a tensor may hold longer than the program does. */
#include "py_tern.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct py_field config_fields[] = {
    PY_FIELD(PY_I32, tern_comm_config, machine),
    PY_FIELD(PY_I32, tern_comm_config, device),
    PY_FIELD(PY_U64, tern_comm_config, heap_bytes),
    PY_FIELD(PY_U32, tern_comm_config, timeout_ms),
    PY_FIELD(PY_U64, tern_comm_config, cpu_seed),
    PY_FIELD(PY_U64, tern_comm_config, heap_max_bytes),
    PY_FIELDS_END,
};

static struct py_field shrink_fields[] = {
    PY_FIELD(PY_U32, tern_shrink_args, timeout_ms),
    PY_FIELD(PY_U32, tern_shrink_args, min_ranks),
    PY_FIELD(PY_U32, tern_shrink_args, whole_domains),
    PY_FIELDS_END,
};

/* An object for `comm`, which it closes, also if it fails. */
static PyObject *wrap(PyTypeObject *type, struct tern_comm *comm)
{
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct py_comm *self = (struct py_comm *)make(type, 0); /* zeroed */
    enum tern_status status = TERN_OK;
    if (self == NULL) {
        tern_comm_close(comm);
        return NULL;
    }
    self->comm = comm;
    self->pid = terni_py_process();
    if (tern_comm_machine(comm) == TERN_MACHINE_CPU) {
        status = tern_stream_open(comm, &self->stream);
    }
    self->last = self->stream;
    if (status != TERN_OK) {
        terni_py_fail(status, NULL);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Comm(id, rank, num_ranks, **fields of struct tern_comm_config) */
static PyObject *comm_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    struct tern_comm *comm = NULL;
    struct tern_id id;
    const char *bytes;
    Py_ssize_t num_bytes;
    int rank, num_ranks;
    enum tern_status status;
    if (!PyArg_ParseTuple(args, "y#ii", &bytes, &num_bytes, &rank, &num_ranks) ||
        !terni_py_fields(&config, config_fields, keywords)) {
        return NULL;
    }
    if (num_bytes != (Py_ssize_t)sizeof(id.bytes)) {
        return terni_py_refuse(TERN_INVALID_ARGUMENT, "an id of %zd bytes: ids have %zd", num_bytes,
                               (Py_ssize_t)sizeof(id.bytes));
    }
    memcpy(id.bytes, bytes, sizeof(id.bytes));
    Py_BEGIN_ALLOW_THREADS status = tern_comm_open(&id, rank, num_ranks, &config, &comm);
    Py_END_ALLOW_THREADS return status == TERN_OK ? wrap(type, comm) : terni_py_fail(status, NULL);
}

/* The list belongs to who holds the GIL, an EP object taken from it to this thread, the caller having
 * entered. */
static void close_ended(struct py_comm *self)
{
    while (self->ended != NULL) {
        struct py_ended *ended = self->ended;
        self->ended = ended->next;
        Py_BEGIN_ALLOW_THREADS tern_ep_close(ended->ep);
        Py_END_ALLOW_THREADS free(ended);
    }
}

int terni_py_enter_comm(struct py_comm *comm)
{
    if (!terni_py_enter(comm, &comm->busy, "the communicator")) {
        return 0;
    }
    close_ended(comm);
    return 1;
}

static void comm_dealloc(PyObject *object)
{
    struct py_comm *self = (struct py_comm *)object;
    if (self->comm != NULL && terni_py_is_here(self)) {
        close_ended(self);
        terni_py_quiet(self);
        terni_py_sweep(self);
        Py_BEGIN_ALLOW_THREADS if (self->event != NULL) { tern_event_close(self->comm, self->event); }
        if (self->stream != NULL) {
            tern_stream_close(self->comm, self->stream);
        }
        tern_comm_close(self->comm);
        Py_END_ALLOW_THREADS
    }
    terni_py_free(object);
}

/* ---- Methods ------------------------------------------------------------------------------------------- */

static PyObject *describe(PyObject *object, PyObject *args)
{
    struct py_comm *self = (struct py_comm *)object;
    int length = tern_comm_describe(self->comm, NULL, 0);
    PyObject *text;
    char *room;
    (void)args;
    room = (char *)PyMem_Malloc((size_t)length + 1);
    if (room == NULL) {
        return PyErr_NoMemory();
    }
    tern_comm_describe(self->comm, room, (size_t)length + 1);
    text = PyUnicode_DecodeUTF8(room, length, "replace");
    PyMem_Free(room);
    return text;
}

static PyObject *barrier(PyObject *object, PyObject *args)
{
    struct py_comm *self = (struct py_comm *)object;
    enum tern_status status;
    (void)args;
    if (!terni_py_enter_comm(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = tern_comm_barrier(self->comm);
    Py_END_ALLOW_THREADS self->busy = 0;
    if (status != TERN_OK) {
        return terni_py_fail(status, NULL);
    }
    Py_RETURN_NONE;
}

/* bytes, the same number on all ranks -> every rank's, one after the other */
static PyObject *allgather(PyObject *object, PyObject *args)
{
    struct py_comm *self = (struct py_comm *)object;
    const char *send;
    Py_ssize_t num_bytes;
    PyObject *all;
    char *every;
    enum tern_status status;
    if (!PyArg_ParseTuple(args, "y#", &send, &num_bytes)) {
        return NULL;
    }
    all = PyBytes_FromStringAndSize(NULL, num_bytes * tern_comm_size(self->comm));
    if (all == NULL || !terni_py_enter_comm(self)) {
        Py_XDECREF(all);
        return NULL;
    }
    every = PyBytes_AsString(all);
    Py_BEGIN_ALLOW_THREADS status = tern_comm_allgather(self->comm, send, every, (size_t)num_bytes);
    Py_END_ALLOW_THREADS self->busy = 0;
    if (status != TERN_OK) {
        Py_DECREF(all);
        return terni_py_fail(status, NULL);
    }
    return all;
}

static PyObject *grow(PyObject *object, PyObject *args)
{
    struct py_comm *self = (struct py_comm *)object;
    unsigned long long num_bytes;
    enum tern_status status;
    if (!PyArg_ParseTuple(args, "K", &num_bytes) || !terni_py_enter_comm(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = tern_heap_grow(self->comm, num_bytes);
    Py_END_ALLOW_THREADS self->busy = 0;
    if (status != TERN_OK) {
        return terni_py_fail(status, NULL);
    }
    Py_RETURN_NONE;
}

/* The ranks' old numbers as a list, without the -1 behind the last. Takes comm, and the room, in any case. */
static PyObject *survivors(PyTypeObject *type, struct tern_comm *comm, int32_t *old, int num_old)
{
    PyObject *made = NULL, *ranks = PyList_New(0);
    for (int r = 0; ranks != NULL && r < num_old && old[r] >= 0; r++) {
        PyObject *rank = PyLong_FromLong(old[r]);
        if (rank == NULL || PyList_Append(ranks, rank) != 0) {
            Py_CLEAR(ranks);
        }
        Py_XDECREF(rank);
    }
    PyMem_Free(old);
    if (ranks == NULL) {
        tern_comm_close(comm);
        return NULL;
    }
    if (comm == NULL) {
        Py_INCREF(Py_None);
        made = Py_None;
    } else {
        made = wrap(type, comm);
    }
    if (made == NULL) {
        Py_DECREF(ranks);
        return NULL;
    }
    return Py_BuildValue("NN", made, ranks);
}

/* **fields of struct tern_shrink_args -> (Comm or None, old numbers of its ranks) */
static PyObject *shrink(PyObject *object, PyObject *args, PyObject *keywords)
{
    struct py_comm *self = (struct py_comm *)object;
    struct tern_shrink_args fields = TERN_SHRINK_ARGS_INIT;
    struct tern_comm *shrunk = NULL;
    int num_old = tern_comm_size(self->comm);
    enum tern_status status;
    int32_t *old;
    (void)args;
    if (!terni_py_fields(&fields, shrink_fields, keywords)) {
        return NULL;
    }
    old = (int32_t *)PyMem_Malloc((size_t)num_old * sizeof(*old));
    if (old == NULL) {
        return PyErr_NoMemory();
    }
    if (!terni_py_enter_comm(self)) {
        PyMem_Free(old);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = tern_comm_shrink(self->comm, &fields, old, &shrunk);
    Py_END_ALLOW_THREADS self->busy = 0;
    if (status != TERN_OK) {
        PyMem_Free(old);
        return terni_py_fail(status, NULL);
    }
    return survivors(Py_TYPE(object), shrunk, old, num_old);
}

/* ---- The type ------------------------------------------------------------------------------------------ */

static PyObject *get_rank(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(tern_comm_rank(((struct py_comm *)object)->comm));
}

static PyObject *get_size(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(tern_comm_size(((struct py_comm *)object)->comm));
}

static PyObject *get_machine(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(tern_comm_machine(((struct py_comm *)object)->comm));
}

static PyObject *get_num_sms(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(tern_comm_num_sms(((struct py_comm *)object)->comm));
}

static PyObject *get_stream(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((struct py_comm *)object)->stream);
}

static PyGetSetDef members[] = {
    {"rank", get_rank, NULL, NULL, NULL},
    {"size", get_size, NULL, NULL, NULL},
    {"machine", get_machine, NULL, "enum tern_machine", NULL},
    {"num_sms", get_num_sms, NULL, NULL, NULL},
    {"stream", get_stream, NULL, "cpu: the stream of all operations; cuda: 0", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"describe", describe, METH_NOARGS, "Machine, ranks, hosts and domains as text."},
    {"barrier", barrier, METH_NOARGS, "Collective."},
    {"allgather", allgather, METH_VARARGS, "Collective: bytes -> every rank's, one after the other."},
    {"grow", grow, METH_VARARGS, "Collective: adds bytes to every rank's window memory."},
    {"shrink", (PyCFunction)(void (*)(void))shrink, METH_VARARGS | METH_KEYWORDS,
     "Collective over the ranks that are left -> (Comm or None, old ranks)."},
    {"alloc", terni_py_alloc, METH_VARARGS, "Memory as a DLPack capsule."},
    {"row_shapes", terni_py_row_shapes, METH_VARARGS | METH_STATIC, "Shapes and types of outputs -> bytes."},
    {"alloc_rows", terni_py_alloc_rows, METH_VARARGS, "Outputs of so many rows as DLPack capsules."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)comm_new},
    {Py_tp_dealloc, (void *)comm_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

PyType_Spec terni_py_comm_spec = {
    "tern._tern.Comm", sizeof(struct py_comm), 0, Py_TPFLAGS_DEFAULT, slots,
};
