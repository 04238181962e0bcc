/* SPDX-License-Identifier: Apache-2.0
 *
 * tern._tern.EP: an EP object, with the low-latency operations, which have no object of their own. */
#include "py_tern.h"

#include <stdlib.h>

static struct py_field config_fields[] = {
    PY_FIELD(PY_U32, tern_ep_config, num_experts),
    PY_FIELD(PY_U32, tern_ep_config, max_topk),
    PY_FIELD(PY_U32, tern_ep_config, max_tokens),
    PY_FIELD(PY_U32, tern_ep_config, max_row_bytes),
    PY_FIELD(PY_U32, tern_ep_config, max_routes),
    PY_FIELD(PY_U32, tern_ep_config, num_sms),
    PY_FIELD(PY_U32, tern_ep_config, timeout_ms),
    PY_FIELD(PY_U32, tern_ep_config, transfer),
    PY_FIELD(PY_U64, tern_ep_config, staging_bytes),
    PY_FIELD(PY_U32, tern_ep_config, ll_tokens),
    PY_FIELD(PY_U32, tern_ep_config, ll_hidden),
    PY_FIELD(PY_U32, tern_ep_config, ll_lanes),
    PY_FIELD(PY_U32, tern_ep_config, ll_mask),
    PY_FIELD(PY_U32, tern_ep_config, domain_ranks),
    PY_FIELD(PY_U32, tern_ep_config, transport),
    PY_FIELD(PY_U32, tern_ep_config, net_queues),
    PY_FIELD(PY_U64, tern_ep_config, net_ring_bytes),
    PY_FIELD(PY_U32, tern_ep_config, ll_rail),
    PY_FIELD(PY_U32, tern_ep_config, combine_push),
    PY_FIELD(PY_U32, tern_ep_config, dispatch_drain),
    PY_FIELDS_END,
};

/* Of low-latency dispatch: what is the same in every call of a shape, and what is not, in the order in which
 * ll_dispatch takes it. */
static struct py_field shape_fields[] = {
    PY_FIELD(PY_U32, tern_ll_dispatch_args, idx_bytes),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, num_tokens),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, topk),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, max_tokens),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, hidden),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, cast),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, weights),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, layout),
    PY_FIELDS_END,
};

static const struct py_field dispatch_fields[] = {
    PY_FIELD(PY_U32, tern_ll_dispatch_args, lane),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, phase),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, in),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, topk_idx),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, topk_weights),
    PY_FIELD(PY_U32, tern_ll_dispatch_args, num_sms),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, sum_counts),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, wait_ns),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out_scales),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out_counts),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out_ranges),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out_source),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out_topk_idx),
    PY_FIELD(PY_POINTER, tern_ll_dispatch_args, out_topk_weights),
    PY_FIELDS_END,
};

static const struct py_field combine_fields[] = {
    PY_FIELD(PY_U32, tern_ll_combine_args, lane),
    PY_FIELD(PY_U32, tern_ll_combine_args, phase),
    PY_FIELD(PY_POINTER, tern_ll_combine_args, in),
    PY_FIELD(PY_POINTER, tern_ll_combine_args, topk_weights),
    PY_FIELD(PY_POINTER, tern_ll_combine_args, out),
    PY_FIELD(PY_U32, tern_ll_combine_args, num_sms),
    PY_FIELD(PY_U32, tern_ll_combine_args, compression),
    PY_FIELD(PY_POINTER, tern_ll_combine_args, wait_ns),
    PY_FIELDS_END,
};

/* EP(Comm, **fields of struct tern_ep_config) */
static PyObject *ep_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct tern_ep_config config = TERN_EP_CONFIG_INIT;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    enum tern_status status;
    struct py_comm *comm;
    struct py_ep *self;
    if (!PyArg_ParseTuple(args, "O!", terni_py_comm_type, &comm) ||
        !terni_py_fields(&config, config_fields, keywords)) {
        return NULL;
    }
    self = (struct py_ep *)make(type, 0); /* zeroed */
    if (self == NULL || !terni_py_enter_comm(comm)) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    Py_INCREF((PyObject *)comm);
    self->comm = comm;
    self->ended = (struct py_ended *)calloc(1, sizeof(*self->ended));
    if (self->ended == NULL) {
        comm->busy = 0;
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS status = tern_ep_open(comm->comm, &config, &self->ep);
    Py_END_ALLOW_THREADS comm->busy = 0;
    if (status != TERN_OK) {
        terni_py_fail(status, NULL);
        self->ep = NULL;
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Closing gives memory of the communicator back: the caller has entered that, too. */
static void end(struct py_ep *self)
{
    struct tern_ep *ep = self->ep;
    self->ep = NULL;
    Py_BEGIN_ALLOW_THREADS tern_ep_close(ep);
    Py_END_ALLOW_THREADS
}

static void ep_dealloc(PyObject *object)
{
    struct py_ep *self = (struct py_ep *)object;
    struct py_comm *comm = self->comm;
    if (self->ep != NULL && terni_py_is_here(comm)) {
        if (comm->busy) {
            self->ended->ep = self->ep;
            self->ended->next = comm->ended;
            comm->ended = self->ended;
            self->ended = NULL;
        } else {
            comm->busy = 1;
            end(self);
            comm->busy = 0;
        }
    }
    free(self->ended);
    Py_XDECREF((PyObject *)self->comm);
    terni_py_free(object);
}

/* 0 and an exception if the object is closed or in use. */
static int enter(struct py_ep *self)
{
    if (self->ep == NULL) {
        terni_py_refuse(TERN_BAD_STATE, "the EP object is closed");
        return 0;
    }
    return terni_py_enter(self->comm, &self->busy, "the EP object");
}

static PyObject *leave(struct py_ep *self, enum tern_status status)
{
    self->busy = 0;
    if (status != TERN_OK) {
        return terni_py_fail(status, self->ep);
    }
    Py_RETURN_NONE;
}

static PyObject *ep_close(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    (void)args;
    if (self->ep != NULL && terni_py_is_here(self->comm)) {
        if (!enter(self)) {
            return NULL;
        }
        if (!terni_py_enter_comm(self->comm)) {
            self->busy = 0;
            return NULL;
        }
        end(self);
        self->comm->busy = 0;
        self->busy = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *synchronize(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    enum tern_status status;
    (void)args;
    if (!enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = terni_py_is_left_out() ? TERN_OK : tern_ep_synchronize(self->ep);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS return leave(self, status);
}

static PyObject *reset(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    enum tern_status status;
    (void)args;
    if (!enter(self)) {
        return NULL;
    }
    if (!terni_py_enter_comm(self->comm)) {
        self->busy = 0;
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = tern_ep_reset(self->ep);
    Py_END_ALLOW_THREADS self->comm->busy = 0;
    return leave(self, status);
}

static PyObject *fault(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    struct tern_fault record = TERN_FAULT_INIT;
    (void)args;
    if (self->ep == NULL || tern_fault_get(self->ep, &record) != TERN_OK) {
        Py_RETURN_NONE;
    }
    return terni_py_fault(&record);
}

/* Fields of struct tern_ll_dispatch_args -> the structure with them, to be given to ll_dispatch */
static PyObject *ll_dispatch_args(PyObject *unused, PyObject *args, PyObject *keywords)
{
    struct tern_ll_dispatch_args fields = TERN_LL_DISPATCH_ARGS_INIT;
    (void)unused;
    if (!PyArg_ParseTuple(args, "") || !terni_py_fields(&fields, shape_fields, keywords)) {
        return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)&fields, sizeof(fields));
}

/* (stream, what ll_dispatch_args gave, the values of dispatch_fields...) */
static PyObject *ll_dispatch(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    struct tern_ll_dispatch_args fields;
    enum tern_status status;
    struct tern_stream *stream;
    Py_ssize_t at;
    if (!terni_py_stream(args, &stream) || !terni_py_prepared(args, &fields, sizeof(fields)) ||
        (at = terni_py_values(&fields, dispatch_fields, args, 2)) < 0 || !terni_py_ends(args, at) ||
        !enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = terni_py_is_left_out() ? TERN_OK : tern_ll_dispatch(self->ep, &fields, stream);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS return leave(self, status);
}

/* (stream, the values of combine_fields...) */
static PyObject *ll_combine(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    struct tern_ll_combine_args fields = TERN_LL_COMBINE_ARGS_INIT;
    enum tern_status status;
    struct tern_stream *stream;
    Py_ssize_t at;
    if (!terni_py_stream(args, &stream) || (at = terni_py_values(&fields, combine_fields, args, 1)) < 0 ||
        !terni_py_ends(args, at) || !enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = terni_py_is_left_out() ? TERN_OK : tern_ll_combine(self->ep, &fields, stream);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS return leave(self, status);
}

/* (stream, rank, masked) */
static PyObject *ll_mask_set(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    enum tern_status status;
    unsigned long long stream;
    int rank, masked;
    if (!PyArg_ParseTuple(args, "Kii", &stream, &rank, &masked) || !enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status =
        tern_ll_mask_set(self->ep, rank, masked, (struct tern_stream *)(uintptr_t)stream);
    Py_END_ALLOW_THREADS return leave(self, status);
}

/* (stream, int32 [ranks] on the device) */
static PyObject *ll_mask_get(PyObject *object, PyObject *args)
{
    struct py_ep *self = (struct py_ep *)object;
    enum tern_status status;
    unsigned long long stream, out;
    if (!PyArg_ParseTuple(args, "KK", &stream, &out) || !enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status =
        tern_ll_mask_get(self->ep, (int32_t *)(uintptr_t)out, (struct tern_stream *)(uintptr_t)stream);
    Py_END_ALLOW_THREADS return leave(self, status);
}

static PyMethodDef methods[] = {
    {"close", ep_close, METH_NOARGS, NULL},
    {"synchronize", synchronize, METH_NOARGS, "Waits for all that was issued; raises its fault."},
    {"reset", reset, METH_NOARGS, "Collective: after a fault, makes the object as new."},
    {"fault", fault, METH_NOARGS, "The first fault as a dictionary, or None."},
    {"ll_dispatch_args", (PyCFunction)(void (*)(void))ll_dispatch_args,
     METH_VARARGS | METH_KEYWORDS | METH_STATIC, "Fields -> bytes, which ll_dispatch takes."},
    {"ll_dispatch", ll_dispatch, METH_VARARGS, NULL},
    {"ll_combine", ll_combine, METH_VARARGS, NULL},
    {"ll_mask_set", ll_mask_set, METH_VARARGS, NULL},
    {"ll_mask_get", ll_mask_get, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)ep_new},
    {Py_tp_dealloc, (void *)ep_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec terni_py_ep_spec = {
    "tern._tern.EP", sizeof(struct py_ep), 0, Py_TPFLAGS_DEFAULT, slots,
};
