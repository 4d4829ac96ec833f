/* From statuses to exceptions, and reports of what cannot be raised. */
#ifndef PYSTREAMS_PYTHON_ERRORS_H
#define PYSTREAMS_PYTHON_ERRORS_H

#include "module.h"

/* A status of ours: a Python exception is set already. */
enum { PS_RAISED = -1 };

/* A runtime's device type as torch's messages have it: "CUDA". */
struct shouted_name {
    char chars[32];
};
struct shouted_name shout(struct ps_runtime *runtime);

/* Raise what the status of the operation means, nothing for PS_SUCCESS; always
 * returns NULL. */
PyObject *raise_status(struct module_state *state, struct ps_runtime *runtime,
                       const char *operation, ps_status status);

/* What a query gives, once those who wait for the GIL had their turn where the
 * answer is no: who asks again may be waiting for them. */
PyObject *bool_or_raise(PyObject *self, struct ps_runtime *runtime,
                        const char *operation, ps_status status);

/* None for PS_SUCCESS, else as raise_status. */
PyObject *none_or_raise(struct module_state *state, struct ps_runtime *runtime,
                        const char *operation, ps_status status);

/* Raise RuntimeError for a runtime that shows no devices, with the reason. */
void raise_unavailable(struct ps_runtime *runtime, ps_status status);

/* Raise NotImplementedError for a member the backend lacks. */
PyObject *raise_absent(struct ps_runtime *runtime, const char *feature);

/* Report a clean-up that failed, "dropping an event", keeping the pending
 * exception.  A fault that an exception reported is not reported again. */
void report_cleanup(struct module_state *state, struct ps_runtime *runtime,
                    const char *operation, ps_status status);
void report_cleanup_on(struct module_state *state, struct ps_device *device,
                       const char *operation, ps_status status);
/* Give the exception to sys.unraisablehook, with what was being done. */
void report_ignored(const char *doing);

/* The pending exception, if any, while other code runs that must not see it.
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

#endif
