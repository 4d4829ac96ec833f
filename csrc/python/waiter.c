/* The type `_C.Waiter`: a mailbox that streams, events and devices tell of the
 * end of their work.  What the package's `wait`, `as_completed` and `await`
 * are built on; no thread of a backend's meets Python here. */
#include "module.h"

#include <structmember.h>

#include "../core/mailbox.h"
#include "../core/notify.h"

typedef struct {
    PyObject ob_base;
    struct ps_mailbox *mailbox;
    unsigned generation;
    PyObject *weakrefs;
} WaiterObject;

static WaiterObject *
as_waiter(PyObject *self)
{
    return (WaiterObject *)self;
}

static PyObject *
Waiter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Waiter", keywords)) {
        return NULL;
    }
    WaiterObject *self = (WaiterObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->generation = ps_generation();
    if (ps_mailbox_create(&self->mailbox) != PS_SUCCESS) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
Waiter_dealloc(PyObject *op)
{
    WaiterObject *self = as_waiter(op);
    PyTypeObject *type = Py_TYPE(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    /* A backend's thread may have held the lock at the fork. */
    if (self->mailbox != NULL && self->generation == ps_generation()) {
        ps_mailbox_close_fd(self->mailbox);
        ps_mailbox_unref(self->mailbox);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static int
check_generation(PyObject *self)
{
    if (as_waiter(self)->generation != ps_generation()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a Waiter made before a fork cannot be used in the "
                        "child");
        return -1;
    }
    return 0;
}

/* What an object's work is, which the caller holds: an Event's, a device's, or
 * a stream's, which is released by the caller. */
static int
work_of(struct module_state *state, PyObject *object, struct work *work)
{
    *work = (struct work){.operation = "waiting for an object"};
    if (is_event(object)) {
        work->event = ((EventObject *)object)->event;
        work->device = atomic_load(&work->event->device);
        return 0;
    }
    if (PyObject_TypeCheck(object, state->device_type)) {
        work->device = device_argument(state, -1, object);
        return work->device != NULL ? 0 : -1;
    }
    work->stream = required_stream_argument(state, -1, object);
    if (work->stream == NULL) {
        return -1;
    }
    work->device = work->stream->device;
    return 0;
}

static PyObject *
Waiter_watch(PyObject *self, PyObject *args)
{
    struct module_state *state = state_of(self);
    PyObject *object;
    unsigned long long token;
    struct ps_letter *letter;
    struct work work;
    if (!PyArg_ParseTuple(args, "OK:watch", &object, &token) ||
        check_generation(self) < 0 || work_of(state, object, &work) < 0) {
        return NULL;
    }
    if (check_may_wait(&work) < 0) {
        stream_release(state, work.stream);
        return NULL;
    }
    ps_status status =
        ps_letter_create(as_waiter(self)->mailbox, token, &letter);
    if (status == PS_SUCCESS) {
        WITHOUT_GIL(status = notify_of_work(&work, letter));
        if (status != PS_SUCCESS) {
            ps_letter_destroy(letter);
        }
    }
    struct ps_runtime *runtime =
        work.event != NULL ? work.event->runtime : work.device->runtime;
    stream_release(state, work.stream);
    if (status != PS_SUCCESS && status != PS_ERROR_NOT_READY) {
        return raise_status(state, runtime, "being told of the end of work",
                            status);
    }
    return PyBool_FromLong(status == PS_SUCCESS);
}

static PyObject *
Waiter_post(PyObject *self, PyObject *argument)
{
    struct ps_letter *letter;
    unsigned long long token = PyLong_AsUnsignedLongLong(argument);
    if ((token == (unsigned long long)-1 && PyErr_Occurred()) ||
        check_generation(self) < 0) {
        return NULL;
    }
    if (ps_letter_create(as_waiter(self)->mailbox, token, &letter) !=
        PS_SUCCESS) {
        return PyErr_NoMemory();
    }
    ps_letter_post(letter, PS_SUCCESS);
    Py_RETURN_NONE;
}

static PyObject *
take(PyObject *self)
{
    struct ps_letter *letter = ps_mailbox_take(as_waiter(self)->mailbox);
    PyObject *list = PyList_New(0);
    while (letter != NULL) {
        struct ps_letter *next = letter->next;
        PyObject *pair =
            list != NULL
                ? Py_BuildValue("(Ki)", (unsigned long long)letter->token,
                                letter->status)
                : NULL;
        if (list != NULL && (pair == NULL || PyList_Append(list, pair) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
        ps_letter_destroy(letter);
        letter = next;
    }
    return list;
}

static PyObject *
Waiter_take(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return check_generation(self) < 0 ? NULL : take(self);
}

static PyObject *
Waiter_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    PyObject *timeout;
    int64_t timeout_ns;
    if (parse_optional("wait", "timeout", args, nargs, kwnames, &timeout) <
            0 ||
        timeout_argument(timeout, &timeout_ns) < 0 ||
        check_generation(self) < 0 ||
        wait_for_mailbox(as_waiter(self)->mailbox, timeout_ns) == PS_RAISED) {
        return NULL;
    }
    return Waiter_take(self, NULL);
}

static PyObject *
Waiter_check(PyObject *self, PyObject *args)
{
    struct module_state *state = state_of(self);
    PyObject *object;
    int status;
    if (!PyArg_ParseTuple(args, "Oi:check", &object, &status)) {
        return NULL;
    }
    struct ps_runtime *runtime;
    if (is_event(object)) {
        runtime = ((EventObject *)object)->event->runtime;
    }
    else if (is_stream(object)) {
        runtime = ((StreamObject *)object)->device->runtime;
    }
    else {
        return PyErr_Format(PyExc_TypeError,
                            "check() expects a Stream or an Event, but got %s",
                            Py_TYPE(object)->tp_name);
    }
    return none_or_raise(state, runtime, "await", status);
}

static PyObject *
Waiter_fileno(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (check_generation(self) < 0) {
        return NULL;
    }
    int fd = ps_mailbox_fd(as_waiter(self)->mailbox);
    return fd >= 0 ? PyLong_FromLong(fd) : PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef waiter_methods[] = {
    {"watch", Waiter_watch, METH_VARARGS,
     PyDoc_STR("watch($self, obj, token, /)\n--\n\n"
               "Have (token, status) put into the box when the work is done "
               "that a Stream, an Event's\nlatest record or a device has "
               "now.\n\nReturns False, and has none put there, where a "
               "stream's queue is full.  Does not\nblock for work, nor for "
               "room.")},
    {"post", Waiter_post, METH_O,
     PyDoc_STR("post($self, token, /)\n--\n\n"
               "Put (token, 0) into the box.")},
    {"take", Waiter_take, METH_NOARGS,
     PyDoc_STR("take($self, /)\n--\n\n"
               "Return the (token, status) in the box as a list, the oldest "
               "first, and empty it.")},
    {"wait", (PyCFunction)(void (*)(void))Waiter_wait,
     METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("wait($self, /, timeout=None)\n--\n\n"
               "As take(), once the box is not empty or after timeout "
               "seconds.\n\nBlocks with the GIL released; Ctrl-C ends it.")},
    {"check", Waiter_check, METH_VARARGS,
     PyDoc_STR("check($self, obj, status, /)\n--\n\n"
               "Raise what the status means that came for a Stream or an "
               "Event.")},
    {"fileno", Waiter_fileno, METH_NOARGS,
     PyDoc_STR("fileno($self, /)\n--\n\n"
               "Return a file descriptor that is readable while the box is "
               "not empty.")},
    {NULL},
};

static PyMemberDef waiter_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(WaiterObject, weakrefs),
     READONLY, NULL},
    {NULL},
};

PyDoc_STRVAR(waiter_doc, "Waiter()\n--\n\n"
                         "A box that objects put a token into when their work "
                         "is done.");

static PyType_Slot waiter_slots[] = {
    {Py_tp_new, Waiter_new},         {Py_tp_dealloc, Waiter_dealloc},
    {Py_tp_methods, waiter_methods}, {Py_tp_members, waiter_members},
    {Py_tp_doc, (void *)waiter_doc}, {0, NULL},
};

PyType_Spec waiter_spec = {
    .name = "pystreams._C.Waiter",
    .basicsize = sizeof(WaiterObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = waiter_slots,
};

/* An iterator that is at its end where the work is done, else what the running
 * event loop is given. */
static PyObject *
await(struct module_state *state, PyObject *self, struct ps_runtime *runtime,
      ps_status status)
{
    if (status == PS_SUCCESS) {
        return PyObject_GetIter(state->empty_tuple);
    }
    if (status != PS_ERROR_NOT_READY) {
        return raise_status(state, runtime, "await", status);
    }
    PyObject *module = PyImport_ImportModule("pystreams._asyncio");
    PyObject *iterator =
        module != NULL ? PyObject_CallMethod(module, "pending", "(O)", self)
                       : NULL;
    Py_XDECREF(module);
    return iterator;
}

PyObject *
Event_await(PyObject *self)
{
    struct ps_event *event = ((EventObject *)self)->event;
    return await(state_of(self), self, event->runtime, ps_event_query(event));
}

PyObject *
Stream_await(PyObject *self)
{
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    ps_status status = stream_query(use.stream);
    stream_use_end(self, &use);
    return await(state_of(self), self, ((StreamObject *)self)->device->runtime,
                 status);
}
