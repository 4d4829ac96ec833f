/* The type `_C.Waiter`: a mailbox for messages about completed work.  The
 * package's `wait`, `as_completed` and `await` use it, so that the threads of
 * backends only post messages and never run Python code.
 *
 * Deallocating a Waiter cancels everything that was registered with it.  So a
 * wait that ends early, for any reason, leaves nothing behind. */
#include "waiter.h"

#include "../core/mailbox.h"
#include "../core/notify.h"

#include "args.h"
#include "captured.h"
#include "device.h"
#include "errors.h"
#include "event.h"
#include "explain.h"
#include "races.h"
#include "stream.h"
#include "submit.h"
#include "wait.h"

typedef struct {
    PyObject ob_base;
    struct ps_mailbox *mailbox;
    unsigned generation;
    /* Whether the GIL must be released for calls to the backends whose work
     * was registered with this Waiter. */
    atomic_bool shared;
    PyObject *weakrefs;
    /* A dict with the objects to wait for, or NULL. */
    PyObject *objects;
} WaiterObject;

static WaiterObject *
as_waiter(PyObject *self)
{
    return (WaiterObject *)self;
}

static PyObject *
Waiter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {"Waiter", 0, 0, {NULL}};
    if (parse_tuple(&signature, args, kwargs, NULL) < 0) {
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
    clear_weakrefs(op, self->weakrefs);
    /* In a forked child, do not touch the mailbox: a backend's thread may have
     * held its lock at the fork. */
    if (self->generation == ps_generation() && !is_finalizing()) {
        CALL_WITH(self->shared, ps_mailbox_destroy(self->mailbox));
    }
    Py_XDECREF(self->objects);
    object_free(op);
}

static int
check_generation(PyObject *self)
{
    if (as_waiter(self)->generation != ps_generation()) {
        return refuse(
            PyExc_RuntimeError,
            "a Waiter made before a fork cannot be used in the child");
    }
    return 0;
}

int
work_of(PyObject *object, struct work *work)
{
    *work = (struct work){.operation = "await, wait() or as_completed()"};
    if (is_event(object)) {
        work->event = ((EventObject *)object)->event;
        work->device = atomic_load(&work->event->device);
        return 0;
    }
    if (PyObject_TypeCheck(object, module_state.device_type)) {
        work->device = device_argument("register", -1, object);
        return work->device != NULL ? 0 : -1;
    }
    work->stream = stream_named("register", object);
    if (work->stream == NULL) {
        return -1;
    }
    work->device = work->stream->device;
    return 0;
}

/* Register the message's notification for the work, so that the message is
 * posted when the work is done. */
static ps_status
notify(const struct work *work, struct ps_message *message)
{
    if (work->stream != NULL) {
        return ps_stream_notify(work->stream, &message->registration);
    }
    return work->event != NULL
               ? ps_event_notify(work->event, &message->registration)
               : ps_device_notify(work->device, &message->registration);
}

static void
release_moment(void *moment)
{
    ps_moment_unref(moment);
}

ps_status
register_work(struct ps_mailbox *mailbox, const struct work *work,
              uint64_t token)
{
    struct ps_message *message;
    ps_status status = ps_message_create(mailbox, token, &message);
    if (status != PS_SUCCESS) {
        return status;
    }
    message->attached = moment_of_work(work);
    message->release = release_moment;
    WITHOUT_GIL(status = notify(work, message));
    if (status == PS_SUCCESS) {
        ps_message_expect(message);
    }
    else {
        ps_message_drop(message);
    }
    return status;
}

static PyObject *
Waiter_register(PyObject *self, PyObject *args)
{
    PyObject *object;
    unsigned long long token;
    struct work work;
    if (!PyArg_ParseTuple(args, "OK:register", &object, &token) ||
        check_generation(self) < 0 || work_of(object, &work) < 0) {
        return NULL;
    }
    if (check_may_wait(&work) < 0) {
        stream_release(work.stream);
        return NULL;
    }
    struct ps_runtime *runtime =
        work.event != NULL ? work.event->runtime : work.device->runtime;
    if (runtime->backend->flags & PS_BACKEND_SHARED) {
        as_waiter(self)->shared = true;
    }
    ps_status status = register_work(as_waiter(self)->mailbox, &work, token);
    const char *operation = "await, wait() or as_completed()";
    int result = work.stream != NULL
                     ? zero_or_raise_on(work.stream, operation, status)
                     : zero_or_raise(runtime, operation, status);
    stream_release(work.stream);
    return none_unless_raised(result);
}

static int
token_argument(PyObject *argument, unsigned long long *token)
{
    *token = PyLong_AsUnsignedLongLong(argument);
    return *token == (unsigned long long)-1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *
Waiter_expect(PyObject *self, PyObject *argument)
{
    struct ps_message *message;
    unsigned long long token;
    if (token_argument(argument, &token) < 0 || check_generation(self) < 0) {
        return NULL;
    }
    if (ps_message_create(as_waiter(self)->mailbox, token, &message) !=
        PS_SUCCESS) {
        return PyErr_NoMemory();
    }
    ps_message_expect(message);
    Py_RETURN_NONE;
}

static PyObject *
Waiter_post(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct ps_mailbox *mailbox = as_waiter(self)->mailbox;
    unsigned long long token;
    if (nargs < 1 || nargs > 2) {
        return PyErr_Format(PyExc_TypeError,
                            "post() takes 1 or 2 arguments (%zd given)",
                            nargs);
    }
    if (token_argument(args[0], &token) < 0 || check_generation(self) < 0) {
        return NULL;
    }
    if (!ps_mailbox_post(mailbox, token)) {
        if (drop_result(Waiter_expect(self, args[0])) < 0) {
            return NULL;
        }
        ps_mailbox_post(mailbox, token);
    }
    Py_RETURN_NONE;
}

static PyObject *
Waiter_cancel(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    WaiterObject *waiter = as_waiter(self);
    unsigned long long token;
    if (nargs > 1) {
        return PyErr_Format(PyExc_TypeError,
                            "cancel() takes at most 1 argument (%zd given)",
                            nargs);
    }
    if ((nargs == 1 && token_argument(args[0], &token) < 0) ||
        check_generation(self) < 0) {
        return NULL;
    }
    if (nargs == 1) {
        CALL_WITH(waiter->shared, ps_mailbox_cancel(waiter->mailbox, token));
    }
    else {
        CALL_WITH(waiter->shared, ps_mailbox_cancel_all(waiter->mailbox));
    }
    Py_RETURN_NONE;
}

/* Returns a list of the messages as (token, status); NULL with an
 * exception. */
static PyObject *
list_of(const struct ps_message *message)
{
    PyObject *list = PyList_New(0);
    for (; list != NULL && message != NULL; message = message->next) {
        list = list_with(
            list, Py_BuildValue("(Ki)", (unsigned long long)message->token,
                                message->status));
    }
    return list;
}

static void
reached(void *moment)
{
    ps_races_reached(moment);
}

static PyObject *
Waiter_first(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    uint64_t token;
    ps_status status;
    if (check_generation(self) < 0) {
        return NULL;
    }
    if (!ps_mailbox_first(as_waiter(self)->mailbox, &token, &status,
                          reached)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(Ki)", (unsigned long long)token, status);
}

static PyObject *
Waiter_take(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_mailbox *mailbox = as_waiter(self)->mailbox;
    if (check_generation(self) < 0) {
        return NULL;
    }
    struct ps_message *message = ps_mailbox_take(mailbox), *next;
    PyObject *list = list_of(message);
    if (list == NULL) {
        ps_mailbox_put_back(mailbox, message);
        return NULL;
    }
    for (; message != NULL; message = next) {
        next = message->next;
        ps_races_reached(message->attached);
        ps_message_free(message);
    }
    return list;
}

static PyObject *
Waiter_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    PyObject *timeout;
    int64_t timeout_ns;
    if (parse_optional("wait", "timeout", args, nargs, kwnames, &timeout) <
            0 ||
        timeout_argument("wait", timeout, &timeout_ns) < 0 ||
        check_generation(self) < 0) {
        return NULL;
    }
    struct blocked blocked;
    blocked_begin(&blocked, "pystreams.wait", NULL, self);
    ps_status status = wait_for_mailbox(as_waiter(self)->mailbox, timeout_ns);
    blocked_end(&blocked);
    return status != PS_RAISED ? Waiter_take(self, NULL) : NULL;
}

/* Called when an await of a stream has ended with this status.  If the status
 * is a failure, raises its exception and returns -1.  If a captured callable
 * in a replay on the stream has raised an exception, raises that exception and
 * returns -1.  Otherwise returns 0. */
static int
check_stream(PyObject *object, ps_status status)
{
    struct stream_use use;
    if (!stream_try_use(object, &use)) {
        return zero_or_raise(((StreamObject *)object)->device->runtime,
                             "await", status);
    }
    const struct work work = {.device = use.stream->device,
                              .stream = use.stream};
    int result = zero_or_raise_on(use.stream, "await", status);
    if (result == 0) {
        result = check_captured(&work);
    }
    stream_use_end(&use);
    return result;
}

static PyObject *
Waiter_check(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *object;
    int status;
    if (!PyArg_ParseTuple(args, "Oi:check", &object, &status)) {
        return NULL;
    }
    if (is_stream(object)) {
        return none_unless_raised(check_stream(object, status));
    }
    if (!is_event(object)) {
        return raise_expected("check", "a Stream or an Event", "obj", object);
    }
    return none_or_raise(((EventObject *)object)->event->runtime, "await",
                         status);
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
    METHOD("register", Waiter_register, METH_VARARGS, ", obj, token, /",
           "Have (token, status) sent when the current work of a Stream or a "
           "device, or an Event's\nlatest record, has completed.\n\n"
           "Does not block for work."),
    METHOD("expect", Waiter_expect, METH_O, ", token, /",
           "Make room for (token, 0), so that post(token) cannot fail."),
    METHOD("post", Waiter_post, METH_FASTCALL, ", token, future=None, /",
           "Send (token, 0).\n\n"
           "future is ignored, so that this may be a Future's callback."),
    METHOD("cancel", Waiter_cancel, METH_FASTCALL, ", token=..., /",
           "Cancel the messages with the token, or all of them without one: "
           "those received and\nthose pending."),
    METHOD("first", Waiter_first, METH_NOARGS, ", /",
           "Return the oldest message without removing it, or None."),
    METHOD("take", Waiter_take, METH_NOARGS, ", /",
           "Remove and return all messages as a list, the oldest first.\n\n"
           "After a MemoryError all messages are still there."),
    METHOD("wait", Waiter_wait, METH_FASTCALL | METH_KEYWORDS,
           ", /, timeout=None",
           "Wait for a message, for timeout seconds at most; then return the "
           "messages, as take()\ndoes.\n\n"
           "Blocks with the GIL released; Ctrl-C ends the wait."),
    METHOD("check", Waiter_check, METH_VARARGS, ", obj, status, /",
           "Raise the exception that a message's status means for a Stream or "
           "an Event."),
    METHOD(
        "fileno", Waiter_fileno, METH_NOARGS, ", /",
        "Return a file descriptor that is readable while there are messages."),
    {NULL},
};

static PyMemberDef waiter_members[] = {
    WEAKREFS(WaiterObject),
    {"_objects", T_OBJECT, offsetof(WaiterObject, objects), 0,
     PyDoc_STR("A dict with the objects that are waited for, or None.")},
    {NULL},
};

PyDoc_STRVAR(waiter_doc,
             "Waiter()\n--\n\n"
             "A mailbox for (token, status) messages about completed work.\n\n"
             "Pending messages are cancelled when the Waiter is deallocated.");

static PyType_Slot waiter_slots[] = {
    {Py_tp_new, Waiter_new},         {Py_tp_dealloc, Waiter_dealloc},
    {Py_tp_methods, waiter_methods}, {Py_tp_members, waiter_members},
    {Py_tp_doc, (void *)waiter_doc}, {0, NULL},
};

PyType_Spec waiter_spec =
    TYPE_SPEC("pystreams._C.Waiter", WaiterObject, 0, waiter_slots);

/* Returns the iterator of an await.  If the work is done, the iterator is
 * empty.  Otherwise it suspends the running task. */
static PyObject *
await(PyObject *self, struct ps_runtime *runtime, ps_status status)
{
    if (status == PS_SUCCESS) {
        return PyObject_GetIter(module_state.empty_tuple);
    }
    if (status != PS_ERROR_NOT_READY) {
        return raise_status(runtime, "await", status);
    }
    return import_call("pystreams._asyncio", "pending", "(O)", self);
}

PyObject *
Event_await(PyObject *self)
{
    struct ps_event *event = ((EventObject *)self)->event;
    ps_status status = ps_event_query(event);
    if (status == PS_SUCCESS) {
        event_reached(event);
    }
    return await(self, event->runtime, status);
}

PyObject *
Stream_await(PyObject *self)
{
    struct stream_use use;
    if (stream_use(self, &use) < 0) {
        return NULL;
    }
    ps_status status = stream_query(use.stream);
    stream_use_end(&use);
    if (status != PS_ERROR_NOT_READY && check_stream(self, status) < 0) {
        return NULL;
    }
    return await(self, ((StreamObject *)self)->device->runtime, status);
}
