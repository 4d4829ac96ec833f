/* The type Stream, and the streams that arguments name. */
#ifndef PYSTREAMS_PYTHON_STREAM_H
#define PYSTREAMS_PYTHON_STREAM_H

#include <limits.h>

#include "../core/stream.h"

#include "module.h"

#define is_stream(object) is_instance((object), module_state.stream_type)

/* The number of uses of a Stream.  The GIL guards it; on a free-threaded
 * interpreter it is atomic. */
#ifdef Py_GIL_DISABLED
typedef atomic_uint use_count;
#else
typedef unsigned use_count;
#endif

typedef struct {
    PyObject ob_base;
    /* Valid during a use; see struct stream_use. */
    struct ps_stream *stream;
    /* Copies of the stream's device and handle.  The object may outlive the
     * stream. */
    struct ps_device *device;
    ps_handle handle;
    /* The number of calls that are using the stream, plus STREAM_CLOSED or
     * STREAM_CALLERS. */
    use_count uses;
    PyObject *weakrefs;
    PyObject *name; /* a str, or NULL */
} StreamObject;

/* Returns a new object of this type (NULL: the type for the device) for a
 * stream.  For a thread's default stream, the object means the default stream
 * of whichever thread uses it.  Takes over the caller's reference, also on
 * failure. */
PyObject *stream_wrap(PyTypeObject *type, struct ps_stream *stream);

/* Set in `uses` when the object is closed.  Then no use begins, and the end of
 * the last use releases the stream. */
#define STREAM_CLOSED (UINT_MAX / 2 + 1)

/* Set in `uses` if the object means the default stream of whichever thread
 * uses it.  Uses of such an object are not counted; each holds a reference. */
#define STREAM_CALLERS (STREAM_CLOSED / 2)

static inline bool
stream_is_closed(PyObject *stream)
{
    return ((StreamObject *)stream)->uses & STREAM_CLOSED;
}

/* Close the object.  Returns the stream, which the caller must release.
 * Returns NULL if a use is in progress, whose end then releases the stream, or
 * if the object was already closed. */
struct ps_stream *stream_take(PyObject *stream);

/* A use of a stream by a call.  It keeps the stream alive even if another
 * thread closes the object.  The object counts its uses: with the GIL, that
 * costs less than a reference, which takes two atomic operations. */
struct stream_use {
    struct ps_stream *stream;
    StreamObject *object; /* NULL: a reference is held */
};

/* Begin to use an open Stream, which the caller keeps alive.  Returns -1 with
 * ValueError if it is closed, or with the exception of thread_stream. */
int stream_use(PyObject *stream, struct stream_use *use);

/* As stream_use, but returns false without an exception if the Stream is
 * closed or memory runs out. */
bool stream_try_use(PyObject *stream, struct stream_use *use);

/* As stream_use, for the stream that a function's argument names: a Stream, or
 * another library's object with __cuda_stream__.  On failure, returns -1 with
 * an exception. */
int stream_use_named(const char *function, PyObject *argument,
                     struct stream_use *use);

/* As stream_use_named, for a method whose only parameter is `stream`.  If it
 * is None or was not given, uses the current stream of the current device of
 * this type. */
int
stream_use_parsed(const char *method, int type, PyObject *const *args,
                  Py_ssize_t nargs, PyObject *kwnames, struct stream_use *use);

void stream_use_end(struct stream_use *use);

/* Returns a new reference to the stream of an open Stream; NULL with
 * ValueError if it is closed. */
struct ps_stream *stream_share(PyObject *stream);

/* Returns a new reference to the stream that an argument names, as
 * stream_use_named; NULL with an exception. */
struct ps_stream *stream_named(const char *function, PyObject *argument);

/* Returns the name of the live stream with this handle, or None; NULL with an
 * exception. */
PyObject *stream_name_at(struct ps_device *device, ps_handle handle);

/* Drop a reference with the GIL held.  A failure is reported.  Accepts
 * NULL. */
void stream_release(struct ps_stream *stream);

/* The status of Stream.query(). */
ps_status stream_query(struct ps_stream *stream);

/* These are set in the derived types, too.  Python's default tp_dealloc for a
 * subtype is slower.  From Python 3.11 on, the interpreter calls a method
 * faster if the object's own type has it. */
void Stream_dealloc(PyObject *self);
extern PyMethodDef stream_methods[];

#endif
