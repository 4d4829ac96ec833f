/* Statuses to exceptions, and reports of failures that no call can raise. */
#ifndef PYSTREAMS_PYTHON_ERRORS_H
#define PYSTREAMS_PYTHON_ERRORS_H

#include "../core/stream.h"

#include "module.h"

/* What to do if there is no GPU; ends an error's text. */
#define EMULATE_CUDA "; set PYSTREAMS_EMULATE_CUDA=1 to emulate one"

/* An additional status: a Python exception is already set. */
enum { PS_RAISED = -1 };

/* A runtime's device type in upper case, as in torch's messages: "CUDA". */
struct shouted_name {
    char chars[32];
};
struct shouted_name shout(struct ps_runtime *runtime);

/* Raise the exception for the operation's status, none for PS_SUCCESS; always
 * returns NULL. */
PyObject *raise_status(struct ps_runtime *runtime, const char *operation,
                       ps_status status);

/* The text for an operation on a stream in messages: with the stream's name,
 * if it has one. */
struct named_operation {
    char chars[320];
};
const char *
operation_on_stream(struct ps_stream *stream, const char *operation,
                    struct named_operation *named);

/* Likewise, for an operation on a stream. */
PyObject *raise_on_stream(struct ps_stream *stream, const char *operation,
                          ps_status status);

/* The result of a query.  Before False, other threads may take the GIL: a
 * caller that polls may be waiting for them. */
PyObject *bool_or_raise(struct ps_runtime *runtime, const char *operation,
                        ps_status status);

/* 0 for PS_SUCCESS, otherwise -1 as raise_on_stream. */
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

/* 0 for PS_SUCCESS, otherwise -1 as raise_status. */
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

/* None; NULL for the result of a function that returns -1 with an
 * exception. */
static inline PyObject *
none_unless_raised(int result)
{
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

/* None for PS_SUCCESS, otherwise as raise_status. */
PyObject *none_or_raise(struct ps_runtime *runtime, const char *operation,
                        ps_status status);

/* Raise an exception as PyErr_Format does; always returns -1. */
int refuse(PyObject *type, const char *format, ...);

/* For two objects of different runtimes: -1 with RuntimeError if both are of
 * one device type, which means that they are of different emulations; else
 * 0. */
int check_emulations(const char *operation, const char *object,
                     struct ps_runtime *runtime, const char *other,
                     struct ps_runtime *its_runtime);

/* Raise RuntimeError for a runtime that shows no devices, with the reason. */
void raise_unavailable(struct ps_runtime *runtime, ps_status status);

/* Raise NotImplementedError for a member the backend lacks. */
PyObject *raise_absent(struct ps_runtime *runtime, const char *feature);

/* Report a clean-up that failed, such as "dropping an event" (of a device, if
 * it is not NULL), keeping the pending exception.  A fault of the device that
 * an exception has reported is not reported again. */
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

/* Pass the pending exception to sys.unraisablehook, with a description of the
 * operation. */
void report_ignored(const char *doing);

/* The pending exception, if any, saved while code runs that must not see it.
 */
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

/* Add the text, a str, to the message of the pending exception, unless one of
 * them is missing; takes over the reference. */
void exception_add(PyObject *text);

/* Likewise, what a function of pystreams.cuda._captures returns; without
 * memory an exception says less.  The format as for import_call. */
void explain_capture(const char *function, const char *format, ...);

/* Clear the pending exception, if any, of what notes or explains a capture; an
 * Exception that is no lack of memory is reported. */
void report_unless_no_memory(void);

#endif
