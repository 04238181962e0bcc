/* SPDX-License-Identifier: Apache-2.0
 *
 * tern._tern.Route: a route, its counts, and dispatch and combine along it. */
#include "py_tern.h"

#include <string.h>

static struct py_field route_fields[] = {
    PY_FIELD(PY_POINTER, tern_route_args, topk_idx),
    PY_FIELD(PY_U32, tern_route_args, idx_bytes),
    PY_FIELD(PY_U32, tern_route_args, num_tokens),
    PY_FIELD(PY_U32, tern_route_args, topk),
    PY_FIELD(PY_U32, tern_route_args, layout),
    PY_FIELD(PY_U32, tern_route_args, expert_alignment),
    PY_FIELDS_END,
};

/* Of dispatch: what is the same in every call of a shape, and what is not, in the order in which dispatch
 * takes it. */
static struct py_field shape_fields[] = {
    PY_FIELD(PY_U32, tern_dispatch_args, cast),
    PY_FIELD(PY_U32, tern_dispatch_args, zero_padding),
    PY_FIELDS_END,
};

static const struct py_field dispatch_fields[] = {
    PY_FIELD(PY_U64, tern_dispatch_args, out_rows),
    PY_FIELD(PY_U32, tern_dispatch_args, num_sms),
    PY_FIELD(PY_POINTER, tern_dispatch_args, topk_weights),
    PY_FIELD(PY_POINTER, tern_dispatch_args, out_topk_idx),
    PY_FIELD(PY_POINTER, tern_dispatch_args, out_topk_weights),
    PY_FIELD(PY_POINTER, tern_dispatch_args, out_source),
    PY_FIELDS_END,
};

static const struct py_field combine_fields[] = {
    PY_FIELD(PY_U32, tern_combine_args, in.row_bytes), PY_FIELD(PY_POINTER, tern_combine_args, in.data),
    PY_FIELD(PY_U64, tern_combine_args, in_rows),      PY_FIELD(PY_POINTER, tern_combine_args, in_weights),
    PY_FIELD(PY_POINTER, tern_combine_args, out.data), PY_FIELD(PY_POINTER, tern_combine_args, out_weights),
    PY_FIELD(PY_POINTER, tern_combine_args, bias[0]),  PY_FIELD(PY_POINTER, tern_combine_args, bias[1]),
    PY_FIELD(PY_U32, tern_combine_args, num_sms),      PY_FIELDS_END,
};

/* A dispatch that is prepared: all but what changes from call to call, pointers above all. */
struct prepared {
    struct tern_dispatch_args args;
    uint32_t num_out;
    struct tern_rows in[TERN_MAX_PAYLOADS + 1], out[TERN_MAX_PAYLOADS + 1];
};

/* 0 and an exception if the route or its EP object is closed, or in use: routes are used as their object
 * is. */
static int enter(struct py_route *self)
{
    if (self->route == NULL || self->ep->ep == NULL) {
        terni_py_refuse(TERN_BAD_STATE, "the route is closed");
        return 0;
    }
    return terni_py_enter(self->ep->comm, &self->ep->busy, "the EP object");
}

static PyObject *leave(struct py_route *self, enum tern_status status)
{
    self->ep->busy = 0;
    if (status != TERN_OK) {
        return terni_py_fail(status, self->ep->ep);
    }
    Py_RETURN_NONE;
}

/* Route(EP, stream, **fields of struct tern_route_args) */
static PyObject *route_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct tern_route_args fields = TERN_ROUTE_ARGS_INIT;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    unsigned long long stream;
    enum tern_status status;
    struct py_route *self;
    struct py_ep *ep;
    if (!PyArg_ParseTuple(args, "O!K", terni_py_ep_type, &ep, &stream) ||
        !terni_py_fields(&fields, route_fields, keywords)) {
        return NULL;
    }
    if (ep->ep == NULL) {
        return terni_py_refuse(TERN_BAD_STATE, "the EP object is closed");
    }
    self = (struct py_route *)make(type, 0); /* zeroed */
    if (self == NULL || !terni_py_enter(ep->comm, &ep->busy, "the EP object")) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    Py_INCREF((PyObject *)ep);
    self->ep = ep;
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = tern_route_open(ep->ep, &fields, (struct tern_stream *)(uintptr_t)stream, &self->route);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS ep->busy = 0;
    if (status != TERN_OK) {
        terni_py_fail(status, ep->ep);
        self->route = NULL;
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* An EP object that was closed took its routes with it; one of the parent process has them there. */
static void end(struct py_route *self)
{
    if (self->route != NULL && self->ep->ep != NULL && terni_py_is_here(self->ep->comm)) {
        tern_route_close(self->route);
    }
    self->route = NULL;
}

static void route_dealloc(PyObject *object)
{
    struct py_route *self = (struct py_route *)object;
    end(self);
    Py_XDECREF((PyObject *)self->ep);
    terni_py_free(object);
}

static PyObject *route_close(PyObject *object, PyObject *args)
{
    struct py_route *self = (struct py_route *)object;
    (void)args;
    if (self->route != NULL && self->ep->ep != NULL && terni_py_is_here(self->ep->comm)) {
        if (!enter(self)) {
            return NULL;
        }
        end(self);
        self->ep->busy = 0;
    }
    Py_RETURN_NONE;
}

/* (stream, **fields of struct tern_route_args) */
static PyObject *update(PyObject *object, PyObject *args, PyObject *keywords)
{
    struct py_route *self = (struct py_route *)object;
    struct tern_route_args fields = TERN_ROUTE_ARGS_INIT;
    enum tern_status status;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "K", &stream) || !terni_py_fields(&fields, route_fields, keywords) ||
        !enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = tern_route_update(self->route, &fields, (struct tern_stream *)(uintptr_t)stream);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS return leave(self, status);
}

static PyObject *list(const int32_t *numbers, Py_ssize_t num)
{
    PyObject *made;
    if (numbers == NULL) {
        Py_RETURN_NONE;
    }
    made = PyList_New(num);
    for (Py_ssize_t i = 0; made != NULL && i < num; i++) {
        PyObject *number = PyLong_FromLong(numbers[i]);
        if (number == NULL || PyList_SetItem(made, i, number) != 0) {
            Py_CLEAR(made);
        }
    }
    return made;
}

/* (local experts) -> (rows, tokens, counts by rank, counts by expert, offsets of experts or None, the
 * exception of an id out of range, with which the counts hold, too, or None) */
static PyObject *wait_counts(PyObject *object, PyObject *args)
{
    struct py_route *self = (struct py_route *)object;
    struct tern_route_counts counts = TERN_ROUTE_COUNTS_INIT;
    PyObject *bad_id = NULL;
    enum tern_status status;
    int share;
    if (!PyArg_ParseTuple(args, "i", &share) || !enter(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = tern_route_wait(self->route, &counts);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS self->ep->busy = 0;
    if (status == TERN_INVALID_ARGUMENT && counts.rank_counts != NULL) { /* it counted as -1 */
        bad_id = terni_py_error(status, self->ep->ep);
        if (bad_id == NULL) {
            return NULL;
        }
    } else if (status != TERN_OK) {
        return terni_py_fail(status, self->ep->ep);
    } else {
        bad_id = Py_None;
        Py_INCREF(bad_id);
    }
    return Py_BuildValue("KKNNNN", (unsigned long long)counts.num_rows, (unsigned long long)counts.num_tokens,
                         list(counts.rank_counts, tern_comm_size(self->ep->comm->comm)),
                         list(counts.expert_counts, share), list(counts.expert_offsets, share + 1), bad_id);
}

/* A tuple of tuples as rows; their number, or -1 and an exception. */
static int payloads(PyObject *tuple, struct tern_rows *rows)
{
    Py_ssize_t num = PyTuple_Size(tuple);
    if (num > TERN_MAX_PAYLOADS + 1) {
        terni_py_refuse(TERN_INVALID_ARGUMENT, "%zd payloads: a dispatch takes %d", num, TERN_MAX_PAYLOADS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < num; i++) {
        if (!terni_py_rows(PyTuple_GetItem(tuple, i), &rows[i])) {
            return -1;
        }
    }
    return (int)num;
}

/* (rows in, rows out, **fields of struct tern_dispatch_args) -> bytes, to be given to dispatch. The rows'
 * pointers come later. */
static PyObject *dispatch_args(PyObject *unused, PyObject *args, PyObject *keywords)
{
    struct prepared made;
    PyObject *in, *out;
    int num_in, num_out;
    (void)unused;
    memset(&made, 0, sizeof(made));
    made.args = (struct tern_dispatch_args)TERN_DISPATCH_ARGS_INIT;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &in, &PyTuple_Type, &out) ||
        !terni_py_fields(&made.args, shape_fields, keywords) || (num_in = payloads(in, made.in)) < 0) {
        return NULL;
    }
    num_out = num_in + (made.args.cast != TERN_CAST_NONE);
    if (PyTuple_Size(out) != num_out) {
        return terni_py_refuse(TERN_INVALID_ARGUMENT, "%zd outputs for %d payloads, %s a cast",
                               PyTuple_Size(out), num_in,
                               made.args.cast != TERN_CAST_NONE ? "with" : "without");
    }
    if (payloads(out, made.out) < 0) {
        return NULL;
    }
    made.args.num_in = (uint32_t)num_in;
    made.num_out = (uint32_t)num_out;
    return PyBytes_FromStringAndSize((const char *)&made, sizeof(made));
}

/* Pointers of a tuple, from place `at` on, into rows; the place after them, or -1 and an exception. */
static Py_ssize_t place_rows(struct tern_rows *rows, uint32_t num, PyObject *args, Py_ssize_t at)
{
    for (uint32_t i = 0; i < num; i++, at++) {
        if (at >= PyTuple_Size(args)) {
            PyErr_SetString(PyExc_TypeError, "there are fewer pointers than rows");
            return -1;
        }
        if (!terni_py_pointer(PyTuple_GetItem(args, at), &rows[i].data)) {
            return -1;
        }
    }
    return at;
}

/* (stream, what dispatch_args gave, the values of dispatch_fields..., pointers of the rows in, and out...) */
static PyObject *dispatch(PyObject *object, PyObject *args)
{
    struct py_route *self = (struct py_route *)object;
    struct prepared call;
    struct tern_stream *stream;
    enum tern_status status;
    Py_ssize_t at;
    if (!terni_py_stream(args, &stream) || !terni_py_prepared(args, &call, sizeof(call)) ||
        (at = terni_py_values(&call.args, dispatch_fields, args, 2)) < 0 ||
        (at = place_rows(call.in, call.args.num_in, args, at)) < 0 ||
        (at = place_rows(call.out, call.num_out, args, at)) < 0 || !terni_py_ends(args, at) || !enter(self)) {
        return NULL;
    }
    call.args.in = call.in;
    call.args.out = call.out;
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = terni_py_is_left_out() ? TERN_OK : tern_dispatch(self->route, &call.args, stream);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS return leave(self, status);
}

/* (stream, the values of combine_fields...): rows in and out are dense, and of the same bytes */
static PyObject *combine(PyObject *object, PyObject *args)
{
    struct py_route *self = (struct py_route *)object;
    struct tern_combine_args fields = TERN_COMBINE_ARGS_INIT;
    struct tern_stream *stream;
    enum tern_status status;
    Py_ssize_t at;
    if (!terni_py_stream(args, &stream) || (at = terni_py_values(&fields, combine_fields, args, 1)) < 0 ||
        !terni_py_ends(args, at) || !enter(self)) {
        return NULL;
    }
    fields.in.elem_bytes = fields.in.row_bytes;
    fields.in.row_stride = fields.in.elem_stride = fields.in.row_bytes;
    fields.out.row_bytes = fields.out.elem_bytes = fields.in.row_bytes;
    fields.out.row_stride = fields.out.elem_stride = fields.in.row_bytes;
    Py_BEGIN_ALLOW_THREADS uint64_t begin = terni_py_clock();
    status = terni_py_is_left_out() ? TERN_OK : tern_combine(self->route, &fields, stream);
    terni_py_spend(begin);
    Py_END_ALLOW_THREADS return leave(self, status);
}

static PyMethodDef methods[] = {
    {"close", route_close, METH_NOARGS, NULL},
    {"update", (PyCFunction)(void (*)(void))update, METH_VARARGS | METH_KEYWORDS, NULL},
    {"wait", wait_counts, METH_VARARGS, "Waits until the counts of what this rank receives are known."},
    {"dispatch_args", (PyCFunction)(void (*)(void))dispatch_args, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "Rows and fields -> bytes, which dispatch takes."},
    {"dispatch", dispatch, METH_VARARGS, NULL},
    {"combine", combine, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)route_new},
    {Py_tp_dealloc, (void *)route_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec terni_py_route_spec = {
    "tern._tern.Route", sizeof(struct py_route), 0, Py_TPFLAGS_DEFAULT, slots,
};
