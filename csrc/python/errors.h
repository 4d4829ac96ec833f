/* Exceptions for statuses, and reports of failures for which no call can raise
 * an exception. */
#ifndef PYSTREAMS_PYTHON_ERRORS_H
#define PYSTREAMS_PYTHON_ERRORS_H

#include "../core/stream.h"

#include "module.h"

/* The advice at the end of an error message if there is no GPU. */
#define EMULATE_CUDA "; set PYSTREAMS_EMULATE_CUDA=1 to emulate one"

/* A status in addition to those of core.  It means that a Python exception is
 * already set. */
enum { PS_RAISED = -1 };

/* A runtime's device type in upper case, as in torch's messages: "CUDA". */
struct shouted_name {
    char chars[32];
};
struct shouted_name shout(struct ps_runtime *runtime);

/* Raise the exception for the status of an operation, unless the status is
 * PS_SUCCESS or PS_RAISED.  Always returns NULL. */
PyObject *raise_status(struct ps_runtime *runtime, const char *operation,
                       ps_status status);

/* Returns the text that names an operation in messages.  It is `operation`,
 * followed by the stream's name if the stream has one.  The text may be stored
 * in *named. */
struct named_operation {
    char chars[320];
};
const char *
operation_on_stream(struct ps_stream *stream, const char *operation,
                    struct named_operation *named);

/* Like raise_status, but for an operation on a stream.  The message includes
 * the stream's name. */
PyObject *raise_on_stream(struct ps_stream *stream, const char *operation,
                          ps_status status);

/* Like raise_on_stream, but for a failed call that should have made the stream
 * wait for another stream.  `device` and `source` are the other stream's
 * device and ps_stream.identity.  If the other stream is not known, `device`
 * is NULL.  If a capture may be the reason for the failure, the message
 * explains it, and may name both streams.  Always returns -1. */
int raise_wait(struct ps_stream *stream, const char *operation,
               struct ps_device *device, ps_handle source, ps_status status);

/* Returns True for PS_SUCCESS, False for PS_ERROR_NOT_READY, else NULL with an
 * exception.  Before it returns False, it lets other threads take the GIL,
 * because the caller may be polling for something that these threads must
 * do. */
PyObject *bool_or_raise(struct ps_runtime *runtime, const char *operation,
                        ps_status status);

/* Returns 0 for PS_SUCCESS; otherwise raises as raise_on_stream and returns
 * -1. */
static inline int
zero_or_raise_on(struct ps_stream *stream, const char *operation,
                 ps_status status)
{
    if (status == PS_SUCCESS) {
        return 0;
    }
    raise_on_stream(stream, operation, status);
    return -1;
}

/* Returns 0 for PS_SUCCESS; otherwise raises as raise_status and returns
 * -1. */
static inline int
zero_or_raise(struct ps_runtime *runtime, const char *operation,
              ps_status status)
{
    if (status == PS_SUCCESS) {
        return 0;
    }
    raise_status(runtime, operation, status);
    return -1;
}

/* Returns None; NULL if `result` is negative, which means that a function has
 * raised an exception. */
static inline PyObject *
none_unless_raised(int result)
{
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

/* Returns None for PS_SUCCESS; otherwise raises as raise_status. */
PyObject *none_or_raise(struct ps_runtime *runtime, const char *operation,
                        ps_status status);

/* Raise an exception with a formatted message, as PyErr_Format does.  Always
 * returns -1. */
int refuse(PyObject *type, const char *format, ...);

/* Call this if two objects belong to different runtimes.  If the runtimes have
 * the same device type, raises a RuntimeError that says which of them are
 * emulations, and returns -1.  Otherwise returns 0. */
int check_emulations(const char *operation, const char *object,
                     struct ps_runtime *runtime, const char *other,
                     struct ps_runtime *its_runtime);

/* Raise RuntimeError for a runtime whose devices are not available.  The
 * status is the reason that ps_runtime_use gave.  If it is
 * PS_ERROR_OUT_OF_MEMORY, raise MemoryError instead. */
void raise_unavailable(struct ps_runtime *runtime, ps_status status);

/* Raise NotImplementedError, because the backend lacks a member that the
 * feature needs.  Always returns NULL. */
PyObject *raise_absent(struct ps_runtime *runtime, const char *feature);

/* Report a clean-up that failed.  `operation` is what failed, as in "dropping
 * an event"; device may be NULL.  Keeps the pending exception.  Reports
 * nothing if the device has faulted and an exception has already said so. */
__attribute__((cold)) void
report_failed_cleanup(struct ps_runtime *runtime, struct ps_device *device,
                      const char *operation, ps_status status);

static inline void
report_cleanup(struct ps_runtime *runtime, struct ps_device *device,
               const char *operation, ps_status status)
{
    if (status != PS_SUCCESS) {
        report_failed_cleanup(runtime, device, operation, status);
    }
}

/* Pass the pending exception to sys.unraisablehook.  `doing` describes the
 * operation in which it was raised. */
void report_ignored(const char *doing);

/* Pass the current exception, which the function raised, to
 * sys.unraisablehook.  A KeyboardInterrupt is raised again instead, when the
 * interpreter next checks for signals. */
void report_unless_interrupt(PyObject *function);

/* A saved exception.  exception_save removes the pending exception, so that
 * other code can run without it.  exception_restore makes it pending again.
 * If no exception was pending, the fields are NULL. */
struct saved_exception {
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
};

static inline struct saved_exception
exception_save(void)
{
    struct saved_exception saved;
    PyErr_Fetch(&saved.type, &saved.value, &saved.traceback);
    return saved;
}

static inline void
exception_restore(struct saved_exception saved)
{
    PyErr_Restore(saved.type, saved.value, saved.traceback);
}

/* Append the text, a str or NULL, to the message of the pending exception.
 * Does nothing if the text is NULL or no exception is pending.  Takes over the
 * reference to the text. */
void exception_add(PyObject *text);

/* Returns a tuple that describes the device's stream with this identity, in
 * the form that pystreams.cuda._captures expects (its type _Stream).  Returns
 * NULL with an exception on failure. */
PyObject *captured_stream(struct ps_device *device, ps_handle identity);

/* Call a function of pystreams.cuda._captures, and append the text that it
 * returns to the message of the pending exception.  If the function fails,
 * appends nothing.  `format` and the arguments are as in import_call.  If the
 * function is interrupted (see clear_unless_interrupt), the exception that
 * interrupted it becomes the pending one. */
void explain_capture(const char *function, const char *format, ...);

/* Call this after code that notes or explains captures.  If the code has
 * raised an Exception, passes it to sys.unraisablehook (unless it means that
 * memory has run out), clears it, and returns 0.  If the code was interrupted
 * by KeyboardInterrupt or another exception that is not an Exception, leaves
 * this exception pending, and returns -1. */
int clear_unless_interrupt(void);

#endif
