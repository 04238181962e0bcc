/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a communicator as tensors of whoever takes DLPack capsules, torch above all, without a copy
 * and without a line compiled against it. A tensor holds its communicator. When it dies, on whatever
 * thread, its memory goes to a list (limbo), because a communicator is used by one thread at a time;
 * whoever takes memory next gives it back first.
 *
 * On cuda memory is reused in the order of streams, as torch's own allocator does it: what a tensor's
 * stream was given to do with it comes before the work of the stream that gets the memory next. Work that
 * reads the tensor on a third stream must be ordered by who issues it there. */
#include "py_tern.h"

#include <stdlib.h>
#include <string.h>

/* Version 0 of the DLPack interface, which every consumer takes. */
struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t num_dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* NULL: dense */
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

enum { MAX_DIMS = 4 };

struct py_block {
    struct dl_managed managed; /* first: a consumer's pointer to it is one to the block */
    struct py_comm *comm;      /* a reference, until the tensor is gone */
    struct tern_stream *stream;
    struct py_block *next; /* in limbo */
    int64_t shape[MAX_DIMS];
};

/* Called by the consumer, on any thread, with or without the GIL; at the end of the process perhaps after the
 * interpreter, when there is nothing left to give memory back to. */
static void bury(struct dl_managed *managed)
{
    struct py_block *block = (struct py_block *)managed;
    struct py_comm *comm = block->comm;
    PyGILState_STATE state;
    if (!Py_IsInitialized()) {
        return;
    }
    state = PyGILState_Ensure();
    block->next = comm->limbo;
    comm->limbo = block;
    Py_DECREF((PyObject *)comm);
    PyGILState_Release(state);
}

/* A capsule that nobody took. */
static void drop(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dl_managed *managed = (struct dl_managed *)PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    }
}

/* What is issued on `to` from now on comes after what was issued on `from`. */
static enum tern_status order(struct py_comm *comm, struct tern_stream *from, struct tern_stream *to)
{
    enum tern_status status = TERN_OK;
    if (from == to) {
        return TERN_OK;
    }
    if (comm->event == NULL) {
        status = tern_event_open(comm->comm, &comm->event);
    }
    if (status == TERN_OK) {
        status = tern_event_record(comm->comm, comm->event, from);
    }
    return status == TERN_OK ? tern_event_wait(comm->comm, comm->event, to) : status;
}

void terni_py_sweep(struct py_comm *comm)
{
    while (comm->limbo != NULL) {
        struct py_block *block = comm->limbo;
        comm->limbo = block->next;
        tern_free(comm->comm, block->managed.tensor.data);
        free(block);
    }
}

void terni_py_quiet(struct py_comm *comm)
{
    if (tern_comm_machine(comm->comm) == TERN_MACHINE_CPU) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS tern_stream_synchronize(comm->comm, comm->last);
    for (struct py_block *block = comm->limbo; block != NULL; block = block->next) {
        if (block->stream != comm->last) {
            tern_stream_synchronize(comm->comm, block->stream);
        }
    }
    Py_END_ALLOW_THREADS
}

/* Memory that was given back is behind the stream that took memory last: every change of that stream, and
 * every block of another one, adds an edge. */
static enum tern_status settle(struct py_comm *comm, struct tern_stream *stream)
{
    enum tern_status status = order(comm, comm->last, stream);
    for (struct py_block *block = comm->limbo; block != NULL && status == TERN_OK; block = block->next) {
        status = order(comm, block->stream, stream);
    }
    if (status == TERN_OK) {
        comm->last = stream;
        terni_py_sweep(comm);
    }
    return status;
}

/* Elements of `shape`, which is copied into the block; -1 and an exception if it is none. */
static int64_t measure(PyObject *shape, struct py_block *block)
{
    Py_ssize_t num = PyTuple_Size(shape);
    int64_t elements = 1;
    if (num < 0 || num > MAX_DIMS) {
        terni_py_refuse(TERN_INVALID_ARGUMENT, "%zd dimensions: memory has 0 to %d", num, MAX_DIMS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < num; i++) {
        int64_t length = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (PyErr_Occurred() != NULL) {
            return -1;
        }
        if (length < 0 || (length > 0 && elements > ((int64_t)1 << 48) / length)) {
            terni_py_refuse(TERN_INVALID_ARGUMENT, "%R is no shape of memory", shape);
            return -1;
        }
        block->shape[i] = length;
        elements *= length;
    }
    block->managed.tensor.num_dims = (int32_t)num;
    return elements;
}

/* Memory of a kind for a block whose tensor has its shape and type, and the capsule of it; frees the block if
 * there is none. The caller is in a call on `comm`, behind settle(). */
static PyObject *take(struct py_comm *comm, enum tern_memory kind, int64_t elements, struct py_block *block,
                      struct tern_stream *stream)
{
    struct dl_tensor *tensor = &block->managed.tensor;
    size_t bytes = (size_t)elements * tensor->bits / 8;
    /* Of window memory this waits for nobody, so the GIL is kept. */
    enum tern_status status = tern_alloc(comm->comm, kind, bytes != 0 ? bytes : 1, &tensor->data);
    PyObject *capsule;
    if (status != TERN_OK) {
        free(block);
        return terni_py_fail(status, NULL);
    }
    tensor->lanes = 1;
    tensor->shape = block->shape;
    block->managed.deleter = bury;
    block->comm = comm;
    block->stream = stream;
    capsule = PyCapsule_New(&block->managed, "dltensor", drop);
    if (capsule == NULL) {
        tern_free(comm->comm, tensor->data);
        free(block);
        return NULL;
    }
    Py_INCREF((PyObject *)comm);
    return capsule;
}

PyObject *terni_py_alloc(PyObject *self, PyObject *args)
{
    struct py_comm *comm = (struct py_comm *)self;
    struct py_block *block = (struct py_block *)calloc(1, sizeof(*block));
    struct dl_tensor *tensor = block != NULL ? &block->managed.tensor : NULL;
    enum tern_status status;
    PyObject *shape, *capsule = NULL;
    unsigned long long stream;
    int64_t elements;
    int kind;
    if (block == NULL) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "iO!bbiiK", &kind, &PyTuple_Type, &shape, &tensor->code, &tensor->bits,
                          &tensor->device_type, &tensor->device_id, &stream) ||
        (elements = measure(shape, block)) < 0 || !terni_py_enter_comm(comm)) {
        free(block);
        return NULL;
    }
    status = settle(comm, (struct tern_stream *)(uintptr_t)stream);
    if (status == TERN_OK) {
        capsule =
            take(comm, (enum tern_memory)kind, elements, block, (struct tern_stream *)(uintptr_t)stream);
    } else {
        terni_py_fail(status, NULL);
        free(block);
    }
    comm->busy = 0;
    return capsule;
}

/* ---- Outputs of a call --------------------------------------------------------------------------------- */

/* One output: its shape but for the rows, and its type. */
struct row_shape {
    int64_t columns[MAX_DIMS]; /* the first is the rows' place */
    int64_t elements;          /* of a row */
    int32_t num_dims;
    int32_t device_type, device_id;
    uint8_t code, bits;
};

PyObject *terni_py_row_shapes(PyObject *unused, PyObject *args)
{
    Py_ssize_t num = PyTuple_Size(args);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, num * (Py_ssize_t)sizeof(struct row_shape));
    struct row_shape *shapes = bytes != NULL ? (struct row_shape *)PyBytes_AsString(bytes) : NULL;
    (void)unused;
    for (Py_ssize_t i = 0; shapes != NULL && i < num; i++) {
        struct row_shape *shape = &shapes[i];
        struct py_block block;
        PyObject *columns;
        memset(shape, 0, sizeof(*shape));
        if (!PyArg_ParseTuple(PyTuple_GetItem(args, i), "O!bbii", &PyTuple_Type, &columns, &shape->code,
                              &shape->bits, &shape->device_type, &shape->device_id) ||
            (shape->elements = measure(columns, &block)) < 0) {
            Py_DECREF(bytes);
            return NULL;
        }
        shape->num_dims = block.managed.tensor.num_dims + 1;
        if (shape->num_dims > MAX_DIMS) {
            Py_DECREF(bytes);
            return terni_py_refuse(TERN_INVALID_ARGUMENT, "%R are too many columns", columns);
        }
        memcpy(&shape->columns[1], block.shape, sizeof(block.shape[0]) * (size_t)(shape->num_dims - 1));
    }
    return bytes;
}

static PyObject *take_rows(struct py_comm *comm, const struct row_shape *shape, int64_t rows,
                           struct tern_stream *stream)
{
    struct py_block *block;
    struct dl_tensor *tensor;
    if (rows < 0 || (shape->elements > 0 && rows > ((int64_t)1 << 48) / shape->elements)) {
        return terni_py_refuse(TERN_INVALID_ARGUMENT, "%lld rows are no number of rows", (long long)rows);
    }
    block = (struct py_block *)calloc(1, sizeof(*block));
    if (block == NULL) {
        return PyErr_NoMemory();
    }
    memcpy(block->shape, shape->columns, sizeof(block->shape));
    block->shape[0] = rows;
    tensor = &block->managed.tensor;
    tensor->num_dims = shape->num_dims;
    tensor->code = shape->code;
    tensor->bits = shape->bits;
    tensor->device_type = shape->device_type;
    tensor->device_id = shape->device_id;
    return take(comm, TERN_MEMORY_WINDOW, rows * shape->elements, block, stream);
}

PyObject *terni_py_alloc_rows(PyObject *self, PyObject *args)
{
    struct py_comm *comm = (struct py_comm *)self;
    const char *shapes;
    unsigned long long number;
    struct tern_stream *stream;
    enum tern_status status;
    Py_ssize_t num_bytes, num;
    long long rows;
    PyObject *made;
    if (!PyArg_ParseTuple(args, "KLy#", &number, &rows, &shapes, &num_bytes) || !terni_py_enter_comm(comm)) {
        return NULL;
    }
    stream = (struct tern_stream *)(uintptr_t)number;
    num = num_bytes / (Py_ssize_t)sizeof(struct row_shape);
    made = PyTuple_New(num);
    status = settle(comm, stream);
    if (status != TERN_OK) {
        terni_py_fail(status, NULL);
        Py_CLEAR(made);
    }
    for (Py_ssize_t i = 0; made != NULL && i < num; i++) {
        PyObject *capsule;
        struct row_shape shape;
        memcpy(&shape, shapes + (size_t)i * sizeof(shape), sizeof(shape));
        capsule = take_rows(comm, &shape, rows, stream);
        if (capsule == NULL || PyTuple_SetItem(made, i, capsule) != 0) {
            Py_CLEAR(made);
        }
    }
    comm->busy = 0;
    return made;
}
