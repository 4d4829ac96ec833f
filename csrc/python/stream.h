/* The type Stream, and the streams that arguments name. */
#ifndef PYSTREAMS_PYTHON_STREAM_H
#define PYSTREAMS_PYTHON_STREAM_H

#include <limits.h>

#include "../core/stream.h"

#include "module.h"

#define is_stream(object) is_instance((object), module_state.stream_type)

/* The GIL guards it, if there is a GIL. */
#ifdef Py_GIL_DISABLED
typedef atomic_uint use_count;
#else
typedef unsigned use_count;
#endif

typedef struct {
    PyObject ob_base;
    /* Valid within a use. */
    struct ps_stream *stream;
    /* The stream's device and handle; the object may outlive the stream. */
    struct ps_device *device;
    ps_handle handle;
    /* The number of calls that are using the stream, and STREAM_CLOSED. */
    use_count uses;
    PyObject *weakrefs;
    PyObject *name; /* a str, or NULL */
} StreamObject;

/* A new object of the type (NULL: the type for the device) for a stream.  For
 * a thread's default stream, it stands for that of whichever thread uses it.
 * Takes over the caller's reference, also on failure. */
PyObject *stream_wrap(PyTypeObject *type, struct ps_stream *stream);

/* Set in `uses` once the object is closed: then no use begins, and the end of
 * the last one releases the stream. */
#define STREAM_CLOSED (UINT_MAX / 2 + 1)

/* Set in `uses` of an object that stands for the default stream of the thread
 * that uses it.  Such uses are not counted; each has a reference. */
#define STREAM_CALLERS (STREAM_CLOSED / 2)

static inline bool
stream_is_closed(PyObject *stream)
{
    return ((StreamObject *)stream)->uses & STREAM_CLOSED;
}

/* Close the object.  Returns the stream, which the caller releases, or NULL if
 * the last use will release it, or if it was already closed. */
struct ps_stream *stream_take(PyObject *stream);

/* The use of a stream by a call, which keeps the stream if another thread
 * closes the object.  The object counts its uses: with the GIL that is cheaper
 * than a reference, which costs two atomic operations. */
struct stream_use {
    struct ps_stream *stream;
    StreamObject *object; /* NULL if the use has a reference */
};

/* Begin to use an open Stream that the caller keeps alive; -1 with ValueError
 * if it is closed, or the exception of thread_stream. */
int stream_use(PyObject *stream, struct stream_use *use);

/* Likewise; false without an exception if it is closed, or if out of
 * memory. */
bool stream_try_use(PyObject *stream, struct stream_use *use);

/* Likewise, the stream that a function's argument names: that of a Stream, or
 * of another library's object with __cuda_stream__; -1 with an exception. */
int stream_use_named(const char *function, PyObject *argument,
                     struct stream_use *use);

/* Likewise, for the only parameter of a method, `stream`: the current stream
 * of the type's current device if it is None or was not given. */
int
stream_use_parsed(const char *method, int type, PyObject *const *args,
                  Py_ssize_t nargs, PyObject *kwnames, struct stream_use *use);

void stream_use_end(struct stream_use *use);

/* A new reference to the stream of an open Stream; NULL with ValueError if it
 * is closed. */
struct ps_stream *stream_share(PyObject *stream);

/* A new reference to the stream that stream_use_named gives; NULL with an
 * exception. */
struct ps_stream *stream_named(const char *function, PyObject *argument);

/* The name of the live stream with the handle, or None; NULL with an
 * exception. */
PyObject *stream_name_at(struct ps_device *device, ps_handle handle);

/* Drop a reference, or none, from Python code, reporting a failure. */
void stream_release(struct ps_stream *stream);

/* The query of Stream.query. */
ps_status stream_query(struct ps_stream *stream);

/* Also set in the derived types: Python's default for a subtype is slower, and
 * from 3.11 on the interpreter calls a method faster if the object's own type
 * has it. */
void Stream_dealloc(PyObject *self);
extern PyMethodDef stream_methods[];

#endif
