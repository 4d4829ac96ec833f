/* A backend for pystreams in one file, with the required members and fault
 * injection: two devices of the type "mtia", whose work runs until the program
 * completes it.
 *
 * Operations are numbered in the order in which they are queued.  So a stream
 * and a number identify a point in the stream's work.  An event's record is
 * such a point, and one comparison shows whether the stream has passed it. */
#include <Python.h>

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Every member gets the table and the device as arguments, but few members use
 * both. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { DEVICES = 2, STREAMS = 1 << 16, EVENTS = 1 << 20 };

/* All work of a stream up to the operation with this number.  If stream is
 * NULL, this is no work. */
struct point {
    struct stream *stream;
    uint64_t number;
};

struct operation {
    uint64_t number;
    bool running;       /* until the program completes it */
    struct point after; /* the work that it waits for */
    ps_status status;   /* its result */
    struct operation *next;
};

struct stream {
    int device;
    bool given_up;
    struct operation *first;
    /* The status and the number of the first operation that failed.  No
     * operation after it runs. */
    ps_status failure;
    uint64_t failed;
    bool reported; /* whether a synchronize has returned the failure */
};

/* Guards all variables that follow.  A handle is an index into `streams` or
 * `records`.  No index is used again, so a point stays valid after its stream
 * was destroyed. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Broadcast when operations have ended. */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* The number of the latest operation. */
static uint64_t numbers;
/* The first elements are the devices' default streams, whose handle is 0. */
static struct stream streams[STREAMS];
static ps_handle stream_count = DEVICES;
/* The latest record of each event; 0 is never a handle. */
static struct point records[EVENTS];
static ps_handle event_count = 1;

static _Thread_local int current_device;

/* ---- Points and operations ---- */

/* Returns the status of all work up to the point: PS_ERROR_NOT_READY,
 * PS_SUCCESS, or the failure of the work. */
static ps_status
status_of_locked(struct point point)
{
    const struct stream *stream = point.stream;
    if (stream == NULL) {
        return PS_SUCCESS;
    }
    if (stream->first != NULL && stream->first->number <= point.number) {
        return PS_ERROR_NOT_READY;
    }
    bool failed = stream->failed != 0 && stream->failed <= point.number;
    return failed ? stream->failure : PS_SUCCESS;
}

static ps_status
wait_locked(struct point point)
{
    ps_status status;
    while ((status = status_of_locked(point)) == PS_ERROR_NOT_READY) {
        pthread_cond_wait(&changed, &mutex);
    }
    return status;
}

/* Wait on behalf of a function that synchronizes.  If the work has failed,
 * that function returns the failure, so note in the stream that the failure is
 * reported. */
static ps_status
wait_and_report_locked(struct point point)
{
    ps_status status = wait_locked(point);
    if (status != PS_SUCCESS) {
        point.stream->reported = true;
    }
    return status;
}

/* End the stream's first operation, if there is one and it can end.  Returns
 * whether an operation ended. */
static bool
step_locked(struct stream *stream)
{
    struct operation *first = stream->first;
    if (first == NULL) {
        return false;
    }
    if (stream->failed == 0) {
        ps_status status = first->running ? PS_ERROR_NOT_READY
                                          : status_of_locked(first->after);
        if (status == PS_ERROR_NOT_READY) {
            return false;
        }
        stream->failure = status != PS_SUCCESS ? status : first->status;
        stream->failed = stream->failure != PS_SUCCESS ? first->number : 0;
    }
    stream->first = first->next;
    free(first);
    return true;
}

/* End all operations that can end.  Each one that ends may let operations of
 * other streams end, too. */
static void
run_locked(void)
{
    bool moved;
    do {
        moved = false;
        for (struct stream *s = streams; s < streams + stream_count; s++) {
            while (step_locked(s)) {
                moved = true;
            }
        }
    } while (moved);
    pthread_cond_broadcast(&changed);
}

/* ---- Helpers for several members ---- */

/* Returns the stream of the handle, or NULL if the device has no such stream.
 */
static struct stream *
find_locked(int device, ps_handle handle)
{
    if (handle == 0) {
        return &streams[device];
    }
    bool known = handle >= DEVICES && handle < stream_count &&
                 streams[handle].device == device && !streams[handle].given_up;
    return known ? &streams[handle] : NULL;
}

/* Query all work that the stream has now, or wait for it.  `ask` is the
 * function that does this. */
static ps_status
ask_stream(int device, ps_handle handle, ps_status (*ask)(struct point point))
{
    pthread_mutex_lock(&mutex);
    struct stream *stream = find_locked(device, handle);
    ps_status status = stream != NULL ? ask((struct point){stream, numbers})
                                      : PS_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&mutex);
    return status;
}

/* Query the event's latest record, or wait for it, with `ask`. */
static ps_status
ask_event(ps_handle event, ps_status (*ask)(struct point point))
{
    pthread_mutex_lock(&mutex);
    ps_status status = ask(records[event]);
    pthread_mutex_unlock(&mutex);
    return status;
}

/* Number the operation and put a copy of it at the end of the stream. */
static ps_status
enqueue(int device, ps_handle handle, struct operation *operation)
{
    struct operation *copy = malloc(sizeof(*copy));
    if (copy == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&mutex);
    struct stream *stream = find_locked(device, handle);
    if (stream != NULL) {
        struct operation **end = &stream->first;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        operation->number = ++numbers;
        *copy = *operation;
        *end = copy;
        run_locked();
    }
    pthread_mutex_unlock(&mutex);
    if (stream == NULL) {
        free(copy);
        return PS_ERROR_INVALID_HANDLE;
    }
    return PS_SUCCESS;
}

/* Complete the operation with this number.  It ends when all operations before
 * it on its stream have ended. */
static void
end_work(uint64_t number)
{
    pthread_mutex_lock(&mutex);
    for (struct stream *s = streams; s < streams + stream_count; s++) {
        for (struct operation *o = s->first; o != NULL; o = o->next) {
            o->running = o->running && o->number != number;
        }
    }
    run_locked();
    pthread_mutex_unlock(&mutex);
}

/* ---- The members: status text ---- */

static const char *const statuses[][2] = {
    [PS_SUCCESS] = {"FAKE_SUCCESS", "no error"},
    [PS_ERROR_OUT_OF_MEMORY] = {"FAKE_OUT_OF_MEMORY", "out of memory"},
    [PS_ERROR_INVALID_HANDLE] = {"FAKE_INVALID_HANDLE", "no such object"},
    [PS_ERROR_NOT_READY] = {"FAKE_NOT_READY", "not ready"},
    [PS_ERROR_NOT_SUPPORTED] = {"FAKE_NOT_SUPPORTED", "not supported"},
    [PS_ERROR_UNKNOWN] = {"FAKE_UNKNOWN", "unknown error"},
};

static const char *
describe(ps_status status, int column)
{
    bool known = status >= 0 && status < PS_ERROR_UNKNOWN &&
                 statuses[status][column] != NULL;
    return statuses[known ? status : PS_ERROR_UNKNOWN][column];
}

static const char *
fake_status_name(const struct ps_backend *self, ps_status status)
{
    return describe(status, 0);
}

static const char *
fake_status_text(const struct ps_backend *self, ps_status status)
{
    return describe(status, 1);
}

/* ---- Devices ---- */

static ps_status
fake_device_count(const struct ps_backend *self, int *count)
{
    *count = DEVICES;
    return PS_SUCCESS;
}

static ps_status
fake_device_current(const struct ps_backend *self, int *device)
{
    *device = current_device;
    return PS_SUCCESS;
}

static ps_status
fake_device_set(const struct ps_backend *self, int device)
{
    current_device = device;
    return PS_SUCCESS;
}

static ps_status
fake_device_synchronize(const struct ps_backend *self, int device,
                        const struct ps_limit *limit)
{
    if (limit != NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = PS_SUCCESS;
    pthread_mutex_lock(&mutex);
    uint64_t number = numbers;
    for (struct stream *s = streams; s < streams + stream_count; s++) {
        struct point point = {s, number};
        if (s->device != device) {
            continue;
        }
        wait_locked(point);
        if (status == PS_SUCCESS && !(s->given_up && s->reported)) {
            status = wait_and_report_locked(point);
        }
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static ps_status
fake_device_properties(const struct ps_backend *self, int device,
                       struct ps_device_properties *properties)
{
    *properties = (struct ps_device_properties){.multi_processor_count = 1};
    snprintf(properties->name, sizeof(properties->name), "fake device %d",
             device);
    return PS_SUCCESS;
}

/* ---- Streams ---- */

static ps_status
fake_stream_priority_range(const struct ps_backend *self, int device,
                           int *least, int *greatest)
{
    *least = *greatest = 0;
    return PS_SUCCESS;
}

static ps_status
fake_stream_create(const struct ps_backend *self, int device, int priority,
                   ps_handle *handle)
{
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    if (stream_count < STREAMS) {
        streams[stream_count].device = device;
        *handle = stream_count++;
        status = PS_SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static ps_status
fake_stream_destroy(const struct ps_backend *self, int device,
                    ps_handle handle)
{
    pthread_mutex_lock(&mutex);
    streams[handle].given_up = true;
    pthread_mutex_unlock(&mutex);
    return PS_SUCCESS;
}

static ps_status
fake_stream_query(const struct ps_backend *self, int device, ps_handle handle)
{
    return ask_stream(device, handle, status_of_locked);
}

static ps_status
fake_stream_synchronize(const struct ps_backend *self, int device,
                        ps_handle handle, const struct ps_limit *limit)
{
    return limit != NULL ? PS_ERROR_NOT_SUPPORTED
                         : ask_stream(device, handle, wait_and_report_locked);
}

/* The operation has a copy of the event's latest record.  So a later record,
 * or the event's destruction, does not change what the operation waits for. */
static ps_status
fake_stream_wait_event(const struct ps_backend *self, int device,
                       ps_handle handle, ps_handle event)
{
    struct operation wait = {0};
    pthread_mutex_lock(&mutex);
    wait.after = records[event];
    pthread_mutex_unlock(&mutex);
    return enqueue(device, handle, &wait);
}

/* ---- Events ---- */

static ps_status
fake_event_create(const struct ps_backend *self, int device, unsigned flags,
                  ps_handle *event)
{
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    if (flags & PS_EVENT_INTERPROCESS) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&mutex);
    if (event_count < EVENTS) {
        *event = event_count++;
        status = PS_SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static ps_status
fake_event_destroy(const struct ps_backend *self, int device, ps_handle event)
{
    return PS_SUCCESS;
}

static ps_status
fake_event_record(const struct ps_backend *self, int device, ps_handle event,
                  ps_handle handle)
{
    pthread_mutex_lock(&mutex);
    struct stream *stream = find_locked(device, handle);
    if (stream != NULL) {
        records[event] = (struct point){stream, numbers};
    }
    pthread_mutex_unlock(&mutex);
    return stream != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

static ps_status
fake_event_query(const struct ps_backend *self, int device, ps_handle event)
{
    return ask_event(event, status_of_locked);
}

static ps_status
fake_event_synchronize(const struct ps_backend *self, int device,
                       ps_handle event, const struct ps_limit *limit)
{
    return limit != NULL ? PS_ERROR_NOT_SUPPORTED
                         : ask_event(event, wait_and_report_locked);
}

/* ---- Fault injection ---- */

static ps_status
fake_stream_fail(const struct ps_backend *self, int device, ps_handle handle,
                 ps_status failure)
{
    return enqueue(device, handle, &(struct operation){.status = failure});
}

static struct ps_faults faults = {
    .struct_size = sizeof(faults),
    .stream_fail = fake_stream_fail,
};

/* ---- The table: optional members that it does not name are NULL ---- */

static struct ps_backend table = {
    .struct_size = sizeof(table),
    .name = "mtia",
    .device_type = PS_DEVICE_MTIA,
    .status_name = fake_status_name,
    .status_text = fake_status_text,
    .device_count = fake_device_count,
    .device_current = fake_device_current,
    .device_set = fake_device_set,
    .device_synchronize = fake_device_synchronize,
    .device_properties = fake_device_properties,
    .stream_priority_range = fake_stream_priority_range,
    .stream_create = fake_stream_create,
    .stream_destroy = fake_stream_destroy,
    .stream_query = fake_stream_query,
    .stream_synchronize = fake_stream_synchronize,
    .stream_wait_event = fake_stream_wait_event,
    .event_create = fake_event_create,
    .event_destroy = fake_event_destroy,
    .event_record = fake_event_record,
    .event_query = fake_event_query,
    .event_synchronize = fake_event_synchronize,
};

/* ---- The module: registers the table, and lets a program launch and complete
 * work ---- */

static PyObject *
launch(PyObject *module, PyObject *stream)
{
    static const char *const names[] = {"device_type", "device_index",
                                        "native_handle"};
    struct operation work = {.running = true};
    unsigned long long values[3];
    for (int i = 0; i < 3; i++) {
        PyObject *value = PyObject_GetAttrString(stream, names[i]);
        if (value == NULL) {
            return NULL;
        }
        values[i] = PyLong_AsUnsignedLongLong(value);
        Py_DECREF(value);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    if ((int)values[0] != table.device_type ||
        enqueue((int)values[1], values[2], &work) != PS_SUCCESS) {
        return PyErr_Format(PyExc_ValueError,
                            "launch() expects a stream of a fake device, "
                            "got %R",
                            stream);
    }
    return PyLong_FromUnsignedLongLong(work.number);
}

static PyObject *
complete(PyObject *module, PyObject *argument)
{
    unsigned long long id = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    end_work(id);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"launch", launch, METH_O,
     "launch(stream)\n\n"
     "Queue work that runs until it is completed, and return its id."},
    {"complete", complete, METH_O,
     "complete(id)\n\n"
     "Complete the work with this id: it ends when its turn comes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fake_device",
    .m_doc = "Two devices whose work runs until the program completes it.",
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_fake_device(void)
{
    for (int i = 0; i < DEVICES; i++) {
        streams[i].device = i;
    }
    PyObject *pystreams = PyImport_ImportModule("pystreams");
    if (pystreams == NULL) {
        return NULL;
    }
    PyObject *none = PyObject_CallMethod(
        pystreams, "register_backend", "NN",
        PyCapsule_New(&table, PS_CAPSULE_NAME, NULL),
        PyCapsule_New(&faults, PS_FAULTS_CAPSULE_NAME, NULL));
    Py_DECREF(pystreams);
    if (none == NULL) {
        return NULL;
    }
    Py_DECREF(none);
    PyObject *module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    /* The module does not need the GIL.  Any thread may call a backend at any
     * time, so the backend has locks of its own. */
    if (module != NULL) {
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
    }
#endif
    return module;
}
