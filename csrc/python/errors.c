/* Exceptions for statuses.  Only this file chooses the type and the text of
 * the exception for a status. */
#include "errors.h"

#include <ctype.h>

#include "../core/capture.h"

#include "schedules.h"
#include "stream.h"

__attribute__((cold)) int
refuse(PyObject *type, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyErr_FormatV(type, format, values);
    va_end(values);
    return -1;
}

struct shouted_name
shout(struct ps_runtime *runtime)
{
    struct shouted_name name;
    size_t i = 0;
    for (; i < sizeof(name.chars) - 1 && runtime->backend->name[i]; i++) {
        name.chars[i] =
            (char)toupper((unsigned char)runtime->backend->name[i]);
    }
    name.chars[i] = '\0';
    return name;
}

static const char *
emulation_text(struct ps_runtime *runtime)
{
    return !runtime->emulation               ? "devices outside of emulations"
           : !atomic_load(&runtime->entered) ? "an emulation that has ended"
           : atomic_load(&runtime->hidden)   ? "an outer emulation"
                                             : "the present emulation";
}

__attribute__((cold)) int
check_emulations(const char *operation, const char *object,
                 struct ps_runtime *runtime, const char *other,
                 struct ps_runtime *its_runtime)
{
    const char *its = emulation_text(runtime);
    const char *others = emulation_text(its_runtime);
    if (runtime->backend->device_type != its_runtime->backend->device_type) {
        return 0;
    }
    return refuse(PyExc_RuntimeError,
                  "%s(): the %s belongs to %s, but the %s to %s; make both "
                  "in the emulated_cuda() block that uses them",
                  operation, object, its, other,
                  its == others ? "another one" : others);
}

static void
raise_forked(struct ps_runtime *runtime)
{
    struct shouted_name name = shout(runtime);
    if (runtime->backend->flags & PS_BACKEND_FORKABLE) {
        PyErr_Format(
            PyExc_RuntimeError,
            "a %s object made before a fork cannot be used in the child; make "
            "a new one there, or use the 'spawn' start method",
            name.chars);
    }
    else {
        PyErr_Format(
            PyExc_RuntimeError,
            "Cannot re-initialize %s in forked subprocess. To use %s with "
            "multiprocessing, you must use the 'spawn' start method",
            name.chars, name.chars);
    }
}

void
raise_unavailable(struct ps_runtime *runtime, ps_status status)
{
    const struct ps_backend *backend = runtime->backend;
    struct shouted_name name = shout(runtime);
    if (status == PS_ERROR_OUT_OF_MEMORY) {
        PyErr_NoMemory();
        return;
    }
    bool gpus = backend->device_type == PS_DEVICE_CUDA;
    PyErr_Format(
        PyExc_RuntimeError, "No %s %s are available: %s%s", name.chars,
        gpus ? "GPUs" : "devices", backend->status_text(backend, status),
        gpus && !(backend->flags & PS_BACKEND_EMULATED) ? EMULATE_CUDA : "");
}

/* The status of the latest GPU fault that an exception has reported; 0 if no
 * fault was reported. */
static atomic_int fault_reported;

/* Returns whether the status means that a GPU has faulted.  After a fault,
 * every later call in this process returns the same status. */
static bool
is_lost(struct ps_runtime *runtime, ps_status status)
{
    const struct ps_backend *backend = runtime->backend;
    if (backend->device_type != PS_DEVICE_CUDA ||
        backend->flags & PS_BACKEND_EMULATED) {
        return false;
    }
    switch (status) {
    case 214: /* cudaErrorECCUncorrectable */
    case 220: /* cudaErrorNvlinkUncorrectable */
    case 226: /* cudaErrorContained */
    case 700: /* cudaErrorIllegalAddress */
    case 702: /* cudaErrorLaunchTimeout */
    case 710: /* cudaErrorAssert */
    case 714: /* cudaErrorHardwareStackError */
    case 715: /* cudaErrorIllegalInstruction */
    case 716: /* cudaErrorMisalignedAddress */
    case 717: /* cudaErrorInvalidAddressSpace */
    case 718: /* cudaErrorInvalidPc */
    case 719: /* cudaErrorLaunchFailure */
    case 721: /* cudaErrorTensorMemoryLeak */
        return true;
    default:
        return false;
    }
}

static void
raise_device_error(PyObject *type, struct ps_runtime *runtime,
                   const char *operation, ps_status status)
{
    const struct ps_backend *backend = runtime->backend;
    struct shouted_name name = shout(runtime);
    bool lost = is_lost(runtime, status);
    PyObject *message = PyUnicode_FromFormat(
        "%s error: %s\n%s failed with %s (%d).%s", name.chars,
        backend->status_text(backend, status), operation,
        backend->status_name(backend, status), status,
        lost ? "\nWork queued before may have caused it. The device is lost "
               "to this process: only a new one can use it."
             : "");
    if (lost) {
        atomic_store(&fault_reported, status);
    }
    if (message == NULL) {
        return;
    }
    PyObject *exception = PyObject_CallOneArg(type, message);
    Py_DECREF(message);
    if (exception == NULL) {
        return;
    }
    PyObject *code = PyLong_FromLong(status);
    if (code != NULL &&
        PyObject_SetAttrString(exception, "error_code", code) == 0) {
        PyErr_SetObject(type, exception);
    }
    Py_XDECREF(code);
    Py_DECREF(exception);
}

/* The stream for which a failed wait should have waited. */
struct awaited {
    struct ps_device *device; /* NULL if the stream is not known */
    ps_handle source;
};

/* Returns whether a call that failed with this status during a capture must be
 * passed to pystreams.cuda._captures.  This is necessary if the call may have
 * invalidated a capture, or failed because a capture is invalid.  It is also
 * necessary for every wait that failed: the wait may have been needed to join
 * a stream to a capture, and without this join, ending the capture may fail.
 * stream: the stream of the call, or NULL.  awaited: NULL unless the call is a
 * wait. */
static bool
concerns_captures(ps_status status, struct ps_stream *stream,
                  const struct awaited *awaited)
{
    switch (status) {
    case PS_ERROR_CAPTURE_INVALIDATED:
        /* Only the call's streams tell which capture is invalid. */
        return stream != NULL;
    case PS_ERROR_CAPTURE_UNSUPPORTED:
    case PS_ERROR_CAPTURE_MERGE:
    case PS_ERROR_CAPTURE_ISOLATION:
    case PS_ERROR_CAPTURE_IMPLICIT:
    case PS_ERROR_CAPTURED_EVENT:
        return true;
    default:
        return awaited != NULL;
    }
}

int
clear_unless_interrupt(void)
{
    if (PyErr_Occurred() != NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    /* CPython before 3.14 sometimes raises SystemError when memory runs out,
     * so SystemError counts as MemoryError. */
    if (PyErr_Occurred() != NULL &&
        !PyErr_ExceptionMatches(PyExc_MemoryError) &&
        !PyErr_ExceptionMatches(PyExc_SystemError)) {
        report_ignored("explaining a capture");
    }
    PyErr_Clear();
    return 0;
}

PyObject *
captured_stream(struct ps_device *device, ps_handle identity)
{
    char name[64];
    snprintf(name, sizeof(name), "%s:%d", device->runtime->backend->name,
             device->index);
    return Py_BuildValue("(sKN)", name, (unsigned long long)identity,
                         stream_name_at(device, identity));
}

/* Append to the pending exception's message an explanation why a device
 * refused a call during a capture.  stream, awaited: as in
 * concerns_captures. */
static void
explain_refusal(struct ps_runtime *runtime, struct ps_stream *stream,
                const struct awaited *awaited, const char *operation,
                ps_status status)
{
    const struct ps_backend *backend = runtime->backend;
    struct saved_exception saved = exception_save();
    PyObject *own = stream != NULL
                        ? captured_stream(stream->device, stream->identity)
                        : Py_NewRef(Py_None);
    PyObject *source = awaited != NULL && awaited->device != NULL
                           ? captured_stream(awaited->device, awaited->source)
                           : Py_NewRef(Py_None);
    exception_restore(saved);
    explain_capture("refused", "(issiNN)", backend->device_type, operation,
                    backend->status_text(backend, status), status, own,
                    source);
}

/* Make the saved exception the context of the pending one. */
static void
exception_chain(struct saved_exception saved)
{
    if (saved.type == NULL) {
        return;
    }
    struct saved_exception pending = exception_save();
    PyErr_NormalizeException(&saved.type, &saved.value, &saved.traceback);
    PyErr_NormalizeException(&pending.type, &pending.value,
                             &pending.traceback);
    PyException_SetContext(pending.value, saved.value);
    Py_XDECREF(saved.type);
    Py_XDECREF(saved.traceback);
    exception_restore(pending);
}

void
explain_capture(const char *function, const char *format, ...)
{
    struct saved_exception saved = exception_save();
    va_list values;
    va_start(values, format);
    PyObject *text =
        import_call_with("pystreams.cuda._captures", function, format, values);
    va_end(values);
    if (clear_unless_interrupt() < 0) {
        exception_chain(saved);
        return;
    }
    exception_restore(saved);
    exception_add(text);
}

void
exception_add(PyObject *text)
{
    struct saved_exception saved = exception_save();
    PyErr_NormalizeException(&saved.type, &saved.value, &saved.traceback);
    PyObject *message =
        text != NULL && saved.value != NULL && PyUnicode_GET_LENGTH(text) > 0
            ? PyObject_Str(saved.value)
            : NULL;
    PyObject *args =
        message != NULL ? Py_BuildValue("(N)", PyUnicode_Concat(message, text))
                        : NULL;
    if (args != NULL) {
        PyObject_SetAttrString(saved.value, "args", args);
    }
    Py_XDECREF(args);
    Py_XDECREF(message);
    Py_XDECREF(text);
    PyErr_Clear();
    exception_restore(saved);
}

/* The common part of raise_status, raise_on_stream and raise_wait.  `stream`
 * is NULL for raise_status.  `awaited` is NULL for raise_status and
 * raise_on_stream.  The function is cold, so that the compiler does not inline
 * it into callers. */
static __attribute__((cold)) PyObject *
raise_of(struct ps_runtime *runtime, struct ps_stream *stream,
         const struct awaited *awaited, const char *call, ps_status status)
{
    struct named_operation named;
    const char *operation =
        stream != NULL ? operation_on_stream(stream, call, &named) : call;
    switch (status) {
    case PS_SUCCESS:
    case PS_RAISED:
        break;
    case PS_ERROR_FOREIGN:
        raise_forked(runtime);
        break;
    case PS_ERROR_NOT_SUPPORTED:
        raise_absent(runtime, operation);
        break;
    case PS_ERROR_SCHEDULED:
        PyErr_Format(PyExc_RuntimeError,
                     "%s: events and memory of several processes cannot be "
                     "used while a schedule is explored, which orders the "
                     "work of this process alone",
                     operation);
        break;
    default:
        raise_device_error(status == PS_ERROR_OUT_OF_MEMORY
                               ? module_state.out_of_memory_error
                               : module_state.accelerator_error,
                           runtime, operation, status);
        if (concerns_captures(status, stream, awaited) &&
            atomic_load_explicit(&ps_captures, memory_order_relaxed) != 0) {
            explain_refusal(runtime, stream, awaited, call, status);
        }
    }
    return NULL;
}

PyObject *
raise_status(struct ps_runtime *runtime, const char *operation,
             ps_status status)
{
    return raise_of(runtime, NULL, NULL, operation, status);
}

const char *
operation_on_stream(struct ps_stream *stream, const char *operation,
                    struct named_operation *named)
{
    const char *name = ps_stream_name(stream);
    if (name == NULL) {
        return operation;
    }
    size_t length = strnlen(name, 80);
    /* Cut a long name between two characters, because some readers refuse
     * invalid UTF-8. */
    while (length > 0 && (name[length] & 0xc0) == 0x80) {
        length--;
    }
    snprintf(named->chars, sizeof(named->chars), "%s on '%.*s'", operation,
             (int)length, name);
    return named->chars;
}

PyObject *
raise_on_stream(struct ps_stream *stream, const char *operation,
                ps_status status)
{
    return raise_of(stream->device->runtime, stream, NULL, operation, status);
}

int
raise_wait(struct ps_stream *stream, const char *operation,
           struct ps_device *device, ps_handle source, ps_status status)
{
    const struct awaited awaited = {device, source};
    raise_of(stream->device->runtime, stream, &awaited, operation, status);
    return -1;
}

PyObject *
none_or_raise(struct ps_runtime *runtime, const char *operation,
              ps_status status)
{
    if (status != PS_SUCCESS) {
        return raise_status(runtime, operation, status);
    }
    Py_RETURN_NONE;
}

PyObject *
bool_or_raise(struct ps_runtime *runtime, const char *operation,
              ps_status status)
{
    if (status == PS_SUCCESS) {
        Py_RETURN_TRUE;
    }
    if (status != PS_ERROR_NOT_READY) {
        return raise_status(runtime, operation, status);
    }
    WITHOUT_GIL();
    poll_schedule();
    Py_RETURN_FALSE;
}

PyObject *
raise_absent(struct ps_runtime *runtime, const char *feature)
{
    return PyErr_Format(PyExc_NotImplementedError,
                        "the %s backend does not support %s",
                        runtime->backend->name, feature);
}

void
report_unless_interrupt(PyObject *function)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        PyErr_SetInterrupt();
    }
    else {
        PyErr_WriteUnraisable(function);
    }
}

void
report_ignored(const char *doing)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyErr_FormatUnraisable("Exception ignored while %s", doing);
#else
    char message[128];
    snprintf(message, sizeof(message), "while %s", doing);
    _PyErr_WriteUnraisableMsg(message, NULL);
#endif
}

void
report_failed_cleanup(struct ps_runtime *runtime, struct ps_device *device,
                      const char *operation, ps_status status)
{
    /* After a fault every clean-up fails, so one report is enough. */
    if (is_lost(runtime, status) && status == atomic_load(&fault_reported)) {
        return;
    }
    struct saved_exception saved = exception_save();
    char doing[96], index[16] = "";
    if (device != NULL) {
        snprintf(index, sizeof(index), ":%d", device->index);
    }
    snprintf(doing, sizeof(doing), "%s of %.32s%s", operation,
             runtime->backend->name, index);
    raise_status(runtime, operation, status);
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        /* Ctrl-C has interrupted the explanation of the failure. */
        PyErr_SetInterrupt();
    }
    report_ignored(doing);
    exception_restore(saved);
}
