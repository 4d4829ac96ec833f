/* Exceptions for statuses, and reports of failures that no call can raise. */
#ifndef PYSTREAMS_PYTHON_ERRORS_H
#define PYSTREAMS_PYTHON_ERRORS_H

#include "../core/stream.h"

#include "module.h"

/* The advice that ends an error's text if there is no GPU. */
#define EMULATE_CUDA "; set PYSTREAMS_EMULATE_CUDA=1 to emulate one"

/* One more status: a Python exception is already set. */
enum { PS_RAISED = -1 };

/* A runtime's device type in upper case, as in torch's messages: "CUDA". */
struct shouted_name {
    char chars[32];
};
struct shouted_name shout(struct ps_runtime *runtime);

/* Raise the exception for the status of an operation; none for PS_SUCCESS.
 * Always returns NULL. */
PyObject *raise_status(struct ps_runtime *runtime, const char *operation,
                       ps_status status);

/* Returns the text for an operation on a stream in messages.  It includes the
 * stream's name if the stream has one. */
struct named_operation {
    char chars[320];
};
const char *
operation_on_stream(struct ps_stream *stream, const char *operation,
                    struct named_operation *named);

/* As raise_status, for an operation on a stream, which the message names. */
PyObject *raise_on_stream(struct ps_stream *stream, const char *operation,
                          ps_status status);

/* Returns True for PS_SUCCESS, False for PS_ERROR_NOT_READY, else NULL with an
 * exception.  Before it returns False, other threads may take the GIL, because
 * a caller that polls may be waiting for what these threads do. */
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

/* Returns None, or NULL if `result` is negative: then a function has raised an
 * exception. */
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

/* Call if two objects belong to different runtimes.  If these have the same
 * device type, they are two emulations: raises RuntimeError and returns -1.
 * Otherwise returns 0. */
int check_emulations(const char *operation, const char *object,
                     struct ps_runtime *runtime, const char *other,
                     struct ps_runtime *its_runtime);

/* Raise RuntimeError for a runtime without devices.  The status is the
 * reason. */
void raise_unavailable(struct ps_runtime *runtime, ps_status status);

/* Raise NotImplementedError for a member that the backend lacks. */
PyObject *raise_absent(struct ps_runtime *runtime, const char *feature);

/* Report a clean-up that failed.  `operation` names it, as in "dropping an
 * event"; device may be NULL.  Keeps the pending exception.  If the device has
 * faulted and an exception has reported this, there is no second report. */
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

/* The pending exception, if any.  It is saved while other code runs, which
 * must not see it. */
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

/* Append the text, a str, to the message of the pending exception.  Does
 * nothing if there is no text or no exception.  Takes over the reference. */
void exception_add(PyObject *text);

/* Append the result of a function of pystreams.cuda._captures to the pending
 * exception's message.  If memory runs out, appends nothing.  The format is
 * that of import_call. */
void explain_capture(const char *function, const char *format, ...);

/* Clear the exception, if any, that code raised while it noted or explained a
 * capture.  Reports an Exception other than MemoryError. */
void report_unless_no_memory(void);

#endif
