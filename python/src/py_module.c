/* SPDX-License-Identifier: Apache-2.0
 *
 * The module tern._tern: how statuses become exceptions, ids, and the three types. The exceptions' classes
 * are Python's (tern/errors.py), which is asked for one when a call has failed. */
#include "py_tern.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

PyTypeObject *terni_py_comm_type, *terni_py_ep_type, *terni_py_route_type;

/* ---- Errors -------------------------------------------------------------------------------------------- */

static PyObject *late_ranks(const uint64_t late[2])
{
    PyObject *ranks = PyList_New(0);
    for (int r = 0; ranks != NULL && r < TERN_MAX_RANKS; r++) {
        if ((late[r / 64] >> (r % 64) & 1) != 0) {
            PyObject *rank = PyLong_FromLong(r);
            if (rank == NULL || PyList_Append(ranks, rank) != 0) {
                Py_CLEAR(ranks);
            }
            Py_XDECREF(rank);
        }
    }
    return ranks;
}

PyObject *terni_py_fault(const struct tern_fault *fault)
{
    char text[512];
    PyObject *late = late_ranks(fault->late);
    if (late == NULL) {
        return NULL;
    }
    tern_fault_text(fault, text, sizeof(text));
    return Py_BuildValue(
        "{si si si si si si si si sK sK sK sK sN sI sI ss}", "status", (int)fault->status, "operation",
        (int)fault->operation, "awaited", (int)fault->awaited, "rank", (int)fault->rank, "peer",
        (int)fault->peer, "reporter", (int)fault->reporter, "block", (int)fault->block, "warp",
        (int)fault->warp, "epoch", (unsigned long long)fault->epoch, "expected",
        (unsigned long long)fault->expected, "seen", (unsigned long long)fault->seen, "elapsed_ns",
        (unsigned long long)fault->elapsed_ns, "late", late, "topk", (unsigned int)fault->topk, "num_experts",
        (unsigned int)fault->num_experts, "text", text);
}

/* The exception that tern.errors.make(status, sentence, fault) gives, or NULL and another one; takes the
 * references. */
static PyObject *make_error(enum tern_status status, PyObject *sentence, PyObject *fault)
{
    PyObject *errors = NULL, *error = NULL;
    if (sentence != NULL && fault != NULL) {
        errors = PyImport_ImportModule("tern.errors");
    }
    if (errors != NULL) {
        error = PyObject_CallMethod(errors, "make", "iOO", (int)status, sentence, fault);
    }
    Py_XDECREF(errors);
    Py_XDECREF(fault);
    Py_XDECREF(sentence);
    return error;
}

/* Takes the reference; returns NULL. */
static PyObject *raise_error(PyObject *error)
{
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    Py_XDECREF(error);
    return NULL;
}

/* Whether `record` is what the sentence speaks of. An id out of range stays on record when another
 * argument is wrong later, so there the sentence must be the record's own. */
static int is_of(const struct tern_fault *record, enum tern_status status, const char *sentence)
{
    char text[512];
    if (record->status != (int32_t)status || status != TERN_INVALID_ARGUMENT) {
        return record->status == (int32_t)status;
    }
    tern_fault_text(record, text, sizeof(text));
    return strstr(sentence, text) != NULL;
}

PyObject *terni_py_error(enum tern_status status, struct tern_ep *ep)
{
    struct tern_fault record = TERN_FAULT_INIT;
    char last[1024]; /* of the call that failed: tern_fault_get fails itself where there is no record */
    PyObject *fault = Py_None;
    snprintf(last, sizeof(last), "%s", tern_last_error());
    if (ep != NULL && tern_fault_get(ep, &record) == TERN_OK && is_of(&record, status, last)) {
        fault = terni_py_fault(&record);
    } else {
        Py_INCREF(fault);
    }
    return make_error(status, PyUnicode_DecodeUTF8(last, (Py_ssize_t)strlen(last), "replace"), fault);
}

PyObject *terni_py_fail(enum tern_status status, struct tern_ep *ep)
{
    return raise_error(terni_py_error(status, ep));
}

PyObject *terni_py_refuse(enum tern_status status, const char *format, ...)
{
    va_list args;
    PyObject *sentence;
    va_start(args, format);
    sentence = PyUnicode_FromFormatV(format, args);
    va_end(args);
    Py_INCREF(Py_None);
    return raise_error(make_error(status, sentence, Py_None));
}

/* Which process this is: getpid() asks the kernel, at every call of every operation. */
static pid_t process;

static void learn_process(void) { process = getpid(); }

pid_t terni_py_process(void) { return process; }

int terni_py_is_here(const struct py_comm *comm) { return comm->pid == process; }

int terni_py_enter(const struct py_comm *comm, int *busy, const char *what)
{
    if (!terni_py_is_here(comm)) {
        terni_py_refuse(TERN_BAD_STATE, "%s is of process %d, and this is its child %d", what, (int)comm->pid,
                        (int)process);
        return 0;
    }
    if (*busy) {
        terni_py_refuse(TERN_BAD_STATE, "another thread is in a call on %s", what);
        return 0;
    }
    *busy = 1;
    return 1;
}

void terni_py_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

/* ---- Measuring -------------------------------------------------------------------------------------- */

static enum py_measure measured;
static _Thread_local uint64_t spent_ns;

uint64_t terni_py_clock(void)
{
    struct timespec now;
    if (measured != PY_MEASURE_TIME) {
        return 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void terni_py_spend(uint64_t begin)
{
    uint64_t end = terni_py_clock();
    if (begin != 0 && end != 0) {
        spent_ns += end - begin;
    }
}

int terni_py_is_left_out(void) { return measured == PY_MEASURE_ALONE; }

static PyObject *measure(PyObject *module, PyObject *args)
{
    int wanted;
    (void)module;
    if (!PyArg_ParseTuple(args, "i", &wanted)) {
        return NULL;
    }
    measured = (enum py_measure)wanted;
    Py_RETURN_NONE;
}

static PyObject *spent(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyLong_FromUnsignedLongLong(spent_ns);
}

/* ---- Functions ----------------------------------------------------------------------------------------- */

static PyObject *id_bytes(const struct tern_id *id)
{
    return PyBytes_FromStringAndSize((const char *)id->bytes, sizeof(id->bytes));
}

static PyObject *id_create(PyObject *module, PyObject *args)
{
    const char *interface;
    struct tern_id id;
    enum tern_status status;
    (void)module;
    if (!PyArg_ParseTuple(args, "z", &interface)) {
        return NULL;
    }
    status = tern_id_create(interface, &id);
    return status == TERN_OK ? id_bytes(&id) : terni_py_fail(status, NULL);
}

static PyObject *id_from_address(PyObject *module, PyObject *args)
{
    const char *address;
    struct tern_id id;
    enum tern_status status;
    (void)module;
    if (!PyArg_ParseTuple(args, "s", &address)) {
        return NULL;
    }
    status = tern_id_from_address(address, &id);
    return status == TERN_OK ? id_bytes(&id) : terni_py_fail(status, NULL);
}

static PyObject *id_from_environment(PyObject *module, PyObject *args)
{
    struct tern_id id;
    int rank, num_ranks;
    enum tern_status status = tern_id_from_environment(&id, &rank, &num_ranks);
    (void)module;
    (void)args;
    return status == TERN_OK ? Py_BuildValue("Nii", id_bytes(&id), rank, num_ranks)
                             : terni_py_fail(status, NULL);
}

static PyObject *version(PyObject *module, PyObject *args)
{
    uint32_t bits = tern_version();
    (void)module;
    (void)args;
    return PyUnicode_FromFormat("%u.%u.%u", bits >> 16, bits >> 8 & 255, bits & 255);
}

static PyMethodDef functions[] = {
    {"id_create", id_create, METH_VARARGS, "id_create(interface or None) -> bytes"},
    {"id_from_address", id_from_address, METH_VARARGS, "id_from_address(address) -> bytes"},
    {"id_from_environment", id_from_environment, METH_NOARGS, "() -> (id, rank, number of ranks)"},
    {"measure", measure, METH_VARARGS, "0; 1: counts time in the library; 2: leaves operations out."},
    {"spent", spent, METH_NOARGS, "This thread's time in the library so far, in ns, while it was counted."},
    {"version", version, METH_NOARGS, "Version of libtern in use."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tern._tern", "The C interface of Tern.", -1, functions, NULL, NULL, NULL, NULL,
};

/* A type into the module and into *type; both have a reference. */
static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type)
{
    PyObject *made = PyType_FromSpec(spec);
    if (made == NULL) {
        return 0;
    }
    *type = (PyTypeObject *)made;
    Py_INCREF(made);
    if (PyModule_AddObject(module, name, made) != 0) {
        Py_DECREF(made);
        return 0;
    }
    return 1;
}

static int add_statuses(PyObject *module)
{
#define ADD_STATUS(name, value, recovery, text)                                                              \
    if (PyModule_AddIntConstant(module, #name, value) != 0) {                                                \
        return 0;                                                                                            \
    }
    TERN_STATUS_LIST(ADD_STATUS)
#undef ADD_STATUS
    return 1;
}

PyMODINIT_FUNC PyInit__tern(void)
{
    uint32_t built = TERN_VERSION_MAJOR << 16 | TERN_VERSION_MINOR << 8;
    PyObject *module;
    if (tern_version() >> 8 != built >> 8) { /* structures only grow within a minor release */
        PyErr_Format(PyExc_ImportError, "libtern has version %u.%u, and this module was built for %d.%d",
                     tern_version() >> 16, tern_version() >> 8 & 255, TERN_VERSION_MAJOR, TERN_VERSION_MINOR);
        return NULL;
    }
    if (process == 0) {
        learn_process();
        if (pthread_atfork(NULL, NULL, learn_process) != 0) {
            return PyErr_NoMemory();
        }
    }
    module = PyModule_Create(&definition);
    if (module == NULL || !add_statuses(module) ||
        !add_type(module, "Comm", &terni_py_comm_spec, &terni_py_comm_type) ||
        !add_type(module, "EP", &terni_py_ep_spec, &terni_py_ep_type) ||
        !add_type(module, "Route", &terni_py_route_spec, &terni_py_route_type)) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
