/* The type Event. */
#ifndef PYSTREAMS_PYTHON_EVENT_H
#define PYSTREAMS_PYTHON_EVENT_H

#include "../core/event.h"

#include "module.h"

#define is_event(object) is_instance((object), module_state.event_type)

typedef struct {
    PyObject ob_base;
    struct ps_event *event;
    PyObject *weakrefs;
} EventObject;

/* Returns a new Event of this type for the runtime, not recorded yet; NULL
 * with an exception. */
PyObject *
event_new(PyTypeObject *type, struct ps_runtime *runtime, unsigned flags);

/* Do what Event.record and Event.wait do, for a stream that the caller keeps
 * alive.  operation: the call that the program made, for error messages.  On
 * failure, return -1 with an exception. */
int event_record_on(struct ps_event *event, struct ps_stream *stream);
int event_wait_on(struct ps_event *event, struct ps_stream *stream,
                  const char *operation);

#endif
