/* The type Stream, and functions that get the stream that an argument
 * names. */
#ifndef PYSTREAMS_PYTHON_STREAM_H
#define PYSTREAMS_PYTHON_STREAM_H

#include <limits.h>

#include "../core/stream.h"

#include "module.h"

#define is_stream(object) is_instance((object), module_state.stream_type)

/* The type of a use count.  The GIL guards such a count.  On a free-threaded
 * interpreter, the count is atomic instead. */
#ifdef Py_GIL_DISABLED
typedef atomic_uint use_count;
#else
typedef unsigned use_count;
#endif

typedef struct {
    PyObject ob_base;
    /* Core's stream.  Accessed only during a use; see struct stream_use. */
    struct ps_stream *stream;
    /* Copies of the stream's device and handle, since the object may outlive
     * the stream. */
    struct ps_device *device;
    ps_handle handle;
    /* The number of calls that are using the stream.  The two highest bits are
     * the flags STREAM_CLOSED and STREAM_CALLERS. */
    use_count uses;
    PyObject *weakrefs;
    PyObject *name; /* a str, or NULL */
} StreamObject;

/* Returns a new Stream object for the stream.  type: the object's type, or
 * NULL for the type that fits the stream's device.  If the stream is a
 * thread's default stream, the object means the default stream of whichever
 * thread uses the object.  Takes over the caller's reference, even on
 * failure. */
PyObject *stream_wrap(PyTypeObject *type, struct ps_stream *stream);

/* A flag in `uses`: the object is closed.  Once the flag is set, no use can
 * begin, and the end of the last use releases the stream. */
#define STREAM_CLOSED (UINT_MAX / 2 + 1)

/* A flag in `uses`: the object means the default stream of whichever thread
 * uses the object.  Uses of such an object are not counted.  Instead, each use
 * holds a reference to the thread's stream. */
#define STREAM_CALLERS (STREAM_CLOSED / 2)

static inline bool
stream_is_closed(PyObject *stream)
{
    return ((StreamObject *)stream)->uses & STREAM_CLOSED;
}

/* Close the object.  Returns the stream, which the caller must release.
 * Returns NULL if the caller has nothing to release, because the object was
 * already closed or has STREAM_CALLERS set, or because a use is in progress
 * (the end of that use will release the stream). */
struct ps_stream *stream_take(PyObject *stream);

/* A use of a Stream object by a call.  A use keeps the stream alive even if
 * another thread closes the object during the call.  Uses are counted in the
 * object, and usually hold no reference to the stream.  With the GIL, such a
 * count costs less than the two atomic operations that take and drop a
 * reference. */
struct stream_use {
    struct ps_stream *stream;
    /* NULL if the use holds a reference to the stream instead. */
    StreamObject *object;
};

/* Begin to use the Stream, which the caller keeps alive.  On failure, returns
 * -1 with an exception, which is ValueError if the Stream is closed. */
int stream_use(PyObject *stream, struct stream_use *use);

/* Like stream_use, but on failure returns false without an exception.  It
 * fails if the Stream is closed or memory runs out. */
bool stream_try_use(PyObject *stream, struct stream_use *use);

/* Like stream_use, but for the stream that a function's argument names.  The
 * argument is a Stream, or another library's object that has __cuda_stream__.
 * On failure, returns -1 with an exception. */
int stream_use_named(const char *function, PyObject *argument,
                     struct stream_use *use);

/* Like stream_use_named, but for a method whose only parameter is `stream`.
 * If the argument is None or was not given, uses the current stream of the
 * current device of this type. */
int
stream_use_parsed(const char *method, int type, PyObject *const *args,
                  Py_ssize_t nargs, PyObject *kwnames, struct stream_use *use);

void stream_use_end(struct stream_use *use);

/* Returns a new reference to the Stream's stream.  On failure, returns NULL
 * with an exception, which is ValueError if the Stream is closed. */
struct ps_stream *stream_share(PyObject *stream);

/* Returns a new reference to the stream that the argument names; see
 * stream_use_named.  On failure, returns NULL with an exception. */
struct ps_stream *stream_named(const char *function, PyObject *argument);

/* Returns the name of the live stream whose `identity` is this handle.
 * Returns None if there is no such stream or it has no name; NULL with an
 * exception. */
PyObject *stream_name_at(struct ps_device *device, ps_handle handle);

/* Drop a reference to the stream.  Called with the GIL held.  A failure is
 * passed to sys.unraisablehook.  Accepts NULL. */
void stream_release(struct ps_stream *stream);

/* Query the stream, as Stream.query() does, and return the status. */
ps_status stream_query(struct ps_stream *stream);

/* Types derived from Stream have stream_methods in their own slots, because
 * from Python 3.11 on, the interpreter calls a method faster if the object's
 * own type has it.  cuda.Stream also has Stream_dealloc, because a type
 * without a tp_dealloc of its own gets Python's slower subtype_dealloc. */
void Stream_dealloc(PyObject *self);
extern PyMethodDef stream_methods[];

#endif
