/* The constructor of `Event`, and the switches that it shares with that of
 * `cuda.Event`. */
#include "module.h"

static int
check_flags(struct ps_runtime *runtime, unsigned flags)
{
    if ((flags & PS_EVENT_TIMING) && (flags & PS_EVENT_INTERPROCESS)) {
        PyErr_SetString(PyExc_ValueError,
                        "an interprocess event cannot be timed: expected "
                        "enable_timing=False with interprocess=True");
        return -1;
    }
    if ((flags & PS_EVENT_TIMING) && runtime->backend->event_elapsed == NULL) {
        raise_absent(runtime, "timing");
        return -1;
    }
    return 0;
}

PyObject *
event_new(struct module_state *state, PyTypeObject *type,
          struct ps_runtime *runtime, unsigned flags)
{
    struct ps_event *event;
    if (check_flags(runtime, flags) < 0) {
        return NULL;
    }
    ps_status status = ps_event_create(runtime, flags, &event);
    if (status != PS_SUCCESS) {
        return raise_status(state, runtime, "creating an event", status);
    }
    return event_wrap(type, event);
}

/* Of the constructor; all but the first are switches. */
static char *keywords[] = {"device",       "enable_timing", "blocking",
                           "interprocess", "external",      NULL};

int
event_flags(PyObject *const *switches, unsigned *flags)
{
    static const unsigned meant[] = {PS_EVENT_TIMING, PS_EVENT_BLOCKING,
                                     PS_EVENT_INTERPROCESS, PS_EVENT_EXTERNAL};
    *flags = 0;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(meant); i++) {
        if (switches[i] != NULL && !PyBool_Check(switches[i])) {
            PyErr_Format(PyExc_TypeError,
                         "Event(): argument '%s' must be bool, not %s",
                         keywords[i + 1], Py_TYPE(switches[i])->tp_name);
            return -1;
        }
        *flags |= switches[i] == Py_True ? meant[i] : 0;
    }
    return 0;
}

static PyObject *
construct(PyTypeObject *type, PyObject **values)
{
    struct module_state *state = state_of_type(type);
    struct device_name name;
    unsigned flags;

    bool decide = values[1] == NULL || values[1] == Py_None;
    if (decide) {
        values[1] = NULL;
    }
    if (event_flags(values + 1, &flags) < 0 ||
        device_name_argument(state, -1, values[0] ? values[0] : Py_None,
                             &name) < 0) {
        return NULL;
    }
    struct ps_runtime *runtime = use_runtime(state, name.type);
    struct ps_device *home = NULL;
    if (runtime == NULL ||
        (name.index >= 0 && (home = device_at(state, name)) == NULL)) {
        return NULL;
    }
    if (decide && runtime->backend->event_elapsed != NULL &&
        !(flags & PS_EVENT_INTERPROCESS)) {
        flags |= PS_EVENT_TIMING;
    }
    PyObject *self = event_new(state, type, runtime, flags);
    if (self != NULL) {
        ((EventObject *)self)->event->home = home;
    }
    return self;
}

PyObject *
Event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *v[Py_ARRAY_LENGTH(keywords)] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OOOO:Event", keywords,
                                       &v[0], &v[1], &v[2], &v[3], &v[4])
               ? construct(type, v)
               : NULL;
}

static PyObject *
call(PyObject *type, PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    static const struct constructor constructor = {
        Event_new,
        NULL,
        {"Event", 0, 1, (const char *const *)keywords},
        construct,
    };
    return call_constructor(&constructor, type, args, nargs, kwnames);
}

const vectorcallfunc event_call = call;
