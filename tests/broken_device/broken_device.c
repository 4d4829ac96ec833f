/* The example's device with one fault, that the variable FAULT names: each is
 * a mistake of somebody's first backend, which the conformance suite must
 * find; or "none", with work that takes its time, in which it must find no
 * fault. */
#include "gated_device.c"

#include <string.h>
#include <time.h>

/* "query": yes, also while work runs. */
static ps_status
broken_stream_query(const struct ps_backend *self, int device,
                    ps_handle handle)
{
    ps_status status = fake_stream_query(self, device, handle);
    return status == PS_ERROR_NOT_READY ? PS_SUCCESS : status;
}

/* "flag": an event is one flag, which the first record to be done sets for
 * all. */
static ps_status
broken_event_record(const struct ps_backend *self, int device, ps_handle event,
                    ps_handle handle)
{
    pthread_mutex_lock(&mutex);
    struct stream *stream = find_locked(device, handle);
    if (stream != NULL) {
        struct point now = {stream, numbers};
        bool pending = status_of_locked(records[event]) == PS_ERROR_NOT_READY;
        if (!pending || status_of_locked(now) != PS_ERROR_NOT_READY) {
            records[event] = now;
        }
    }
    pthread_mutex_unlock(&mutex);
    return stream != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

/* "latest": a wait looks at the record in effect when its turn comes. */
enum { WAITS = 4096 };
static struct {
    uint64_t number;
    ps_handle event;
} waits[WAITS];
static int wait_count;

static ps_status
latest_stream_wait_event(const struct ps_backend *self, int device,
                         ps_handle handle, ps_handle event)
{
    struct operation wait = {0};
    pthread_mutex_lock(&mutex);
    wait.after = records[event];
    pthread_mutex_unlock(&mutex);
    ps_status status = enqueue(device, handle, &wait);
    pthread_mutex_lock(&mutex);
    waits[wait_count % WAITS].number = wait.number;
    waits[wait_count++ % WAITS].event = event;
    pthread_mutex_unlock(&mutex);
    return status;
}

static void
look_again_locked(struct operation *operation, ps_handle event)
{
    for (int i = 0; i < WAITS; i++) {
        if (waits[i].number == operation->number && waits[i].event == event) {
            operation->after = records[event];
        }
    }
}

static ps_status
latest_event_record(const struct ps_backend *self, int device, ps_handle event,
                    ps_handle handle)
{
    ps_status status = fake_event_record(self, device, event, handle);
    pthread_mutex_lock(&mutex);
    for (struct stream *s = streams; s < streams + stream_count; s++) {
        for (struct operation *o = s->first; o != NULL; o = o->next) {
            look_again_locked(o, event);
        }
    }
    run_locked();
    pthread_mutex_unlock(&mutex);
    return status;
}

/* "default": the default stream has another handle, and 0 is refused. */
static ps_status
nonzero_stream_query(const struct ps_backend *self, int device,
                     ps_handle handle)
{
    return handle != 0 ? fake_stream_query(self, device, handle)
                       : PS_ERROR_INVALID_HANDLE;
}

static ps_status
nonzero_stream_synchronize(const struct ps_backend *self, int device,
                           ps_handle handle, const struct ps_limit *limit)
{
    return handle != 0 ? fake_stream_synchronize(self, device, handle, limit)
                       : PS_ERROR_INVALID_HANDLE;
}

static ps_status
nonzero_stream_wait_event(const struct ps_backend *self, int device,
                          ps_handle handle, ps_handle event)
{
    return handle != 0 ? fake_stream_wait_event(self, device, handle, event)
                       : PS_ERROR_INVALID_HANDLE;
}

static ps_status
nonzero_event_record(const struct ps_backend *self, int device,
                     ps_handle event, ps_handle handle)
{
    return handle != 0 ? fake_event_record(self, device, event, handle)
                       : PS_ERROR_INVALID_HANDLE;
}

/* "lost": whatever fails, a wait succeeds. */
static ps_status
lose(ps_status status)
{
    return status == PS_ERROR_NOT_SUPPORTED ? status : PS_SUCCESS;
}

static ps_status
lost_stream_synchronize(const struct ps_backend *self, int device,
                        ps_handle handle, const struct ps_limit *limit)
{
    return lose(fake_stream_synchronize(self, device, handle, limit));
}

static ps_status
lost_event_synchronize(const struct ps_backend *self, int device,
                       ps_handle event, const struct ps_limit *limit)
{
    return lose(fake_event_synchronize(self, device, event, limit));
}

static ps_status
lost_device_synchronize(const struct ps_backend *self, int device,
                        const struct ps_limit *limit)
{
    return lose(fake_device_synchronize(self, device, limit));
}

/* "hasty": work is reported before it is done. */
static ps_status
hasty_stream_notify(const struct ps_backend *self, int device,
                    ps_handle handle, struct ps_notification *notification)
{
    notification->ring = NULL;
    notification->reached(notification->argument, PS_SUCCESS);
    return PS_SUCCESS;
}

/* "early": a gate is reached before its turn. */
static void
ignore(void *argument, ps_status status)
{
}

static ps_status
early_stream_gate(const struct ps_backend *self, int device, ps_handle handle,
                  ps_notification_function reached, void *argument,
                  ps_handle *gate)
{
    ps_status status =
        gated_stream_gate(self, device, handle, ignore, NULL, gate);
    if (status == PS_SUCCESS) {
        reached(argument, PS_SUCCESS);
    }
    return status;
}

/* "ajar": a gate holds nothing back. */
static ps_status
ajar_stream_gate(const struct ps_backend *self, int device, ps_handle handle,
                 ps_notification_function reached, void *argument,
                 ps_handle *gate)
{
    ps_status status =
        gated_stream_gate(self, device, handle, reached, argument, gate);
    if (status == PS_SUCCESS) {
        end_work(*gate);
    }
    return status;
}

/* "hang": a wait for an event never ends. */
static ps_status
hanging_event_synchronize(const struct ps_backend *self, int device,
                          ps_handle event, const struct ps_limit *limit)
{
    ps_status status = PS_ERROR_NOT_READY;
    if (limit != NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&mutex);
    while (status == PS_ERROR_NOT_READY) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

/* "unfinished": no stream can be made yet. */
static ps_status
unfinished_stream_create(const struct ps_backend *self, int device,
                         int priority, ps_handle *handle)
{
    return PS_ERROR_NOT_SUPPORTED;
}

/* "endless": the program does not end while work runs. */
static ps_status
endless_shutdown(const struct ps_backend *self, int64_t timeout_ns)
{
    return gated_shutdown(self, INT64_MAX);
}

/* "undead": all goes on after the end. */
static ps_status
undead_shutdown(const struct ps_backend *self, int64_t timeout_ns)
{
    return PS_SUCCESS;
}

/* "deaf": a timed wait asks nobody whether it is over. */
static ps_status
wait_for(struct ps_limit limit, ps_status (*query)(void *what), void *what)
{
    ps_status status = query(what);
    while (status == PS_ERROR_NOT_READY && limit.timeout_ns > 0) {
        usleep(1000);
        limit.timeout_ns -= 1000 * 1000;
        status = query(what);
    }
    return status == PS_ERROR_NOT_READY ? PS_ERROR_TIMED_OUT : status;
}

struct target {
    int device;
    ps_handle handle;
};

static ps_status
query_stream(void *what)
{
    struct target *target = what;
    return fake_stream_query(&table, target->device, target->handle);
}

static ps_status
query_event(void *what)
{
    struct target *target = what;
    return fake_event_query(&table, target->device, target->handle);
}

static ps_status
deaf_stream_synchronize(const struct ps_backend *self, int device,
                        ps_handle handle, const struct ps_limit *limit)
{
    if (limit == NULL) {
        return fake_stream_synchronize(self, device, handle, NULL);
    }
    return wait_for(*limit, query_stream, &(struct target){device, handle});
}

static ps_status
deaf_event_synchronize(const struct ps_backend *self, int device,
                       ps_handle event, const struct ps_limit *limit)
{
    if (limit == NULL) {
        return fake_event_synchronize(self, device, event, NULL);
    }
    return wait_for(*limit, query_event, &(struct target){device, event});
}

/* "none": what is queued on a stream takes some milliseconds, also once the
 * stream has failed. */
static int64_t busy_until[STREAMS], recorded_until[EVENTS];

static int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t *
end_of(int device, ps_handle handle)
{
    return &busy_until[handle == 0 ? (ps_handle)device : handle];
}

static ps_status
slow(int64_t *end, ps_status status)
{
    pthread_mutex_lock(&mutex);
    bool busy = now_ns() < *end;
    pthread_mutex_unlock(&mutex);
    return busy ? PS_ERROR_NOT_READY : status;
}

static void
take_time(int64_t *end)
{
    pthread_mutex_lock(&mutex);
    *end = now_ns() + 3000000;
    pthread_mutex_unlock(&mutex);
}

static ps_status
slow_stream_fail(const struct ps_backend *self, int device, ps_handle handle,
                 ps_status failure)
{
    take_time(end_of(device, handle));
    return fake_stream_fail(self, device, handle, failure);
}

static ps_status
slow_event_record(const struct ps_backend *self, int device, ps_handle event,
                  ps_handle handle)
{
    take_time(end_of(device, handle));
    take_time(&recorded_until[event]);
    return fake_event_record(self, device, event, handle);
}

static ps_status
slow_stream_query(const struct ps_backend *self, int device, ps_handle handle)
{
    ps_status status = fake_stream_query(self, device, handle);
    return slow(end_of(device, handle), status);
}

static ps_status
slow_event_query(const struct ps_backend *self, int device, ps_handle event)
{
    ps_status status = fake_event_query(self, device, event);
    return slow(&recorded_until[event], status);
}

static ps_status
slow_wait(ps_status status)
{
    if (status != PS_ERROR_NOT_SUPPORTED) {
        usleep(3000);
    }
    return status;
}

static ps_status
slow_stream_synchronize(const struct ps_backend *self, int device,
                        ps_handle handle, const struct ps_limit *limit)
{
    return slow_wait(fake_stream_synchronize(self, device, handle, limit));
}

static ps_status
slow_event_synchronize(const struct ps_backend *self, int device,
                       ps_handle event, const struct ps_limit *limit)
{
    return slow_wait(fake_event_synchronize(self, device, event, limit));
}

static ps_status
slow_device_synchronize(const struct ps_backend *self, int device,
                        const struct ps_limit *limit)
{
    return slow_wait(fake_device_synchronize(self, device, limit));
}

static bool
break_table(const char *fault)
{
    if (strcmp(fault, "query") == 0) {
        table.stream_query = broken_stream_query;
    }
    else if (strcmp(fault, "flag") == 0) {
        table.event_record = broken_event_record;
    }
    else if (strcmp(fault, "latest") == 0) {
        table.stream_wait_event = latest_stream_wait_event;
        table.event_record = latest_event_record;
    }
    else if (strcmp(fault, "default") == 0) {
        table.stream_query = nonzero_stream_query;
        table.stream_synchronize = nonzero_stream_synchronize;
        table.stream_wait_event = nonzero_stream_wait_event;
        table.event_record = nonzero_event_record;
    }
    else if (strcmp(fault, "lost") == 0) {
        table.stream_synchronize = lost_stream_synchronize;
        table.event_synchronize = lost_event_synchronize;
        table.device_synchronize = lost_device_synchronize;
    }
    else if (strcmp(fault, "hasty") == 0) {
        table.stream_notify = hasty_stream_notify;
        table.event_notify = gated_event_notify;
        table.notify_cancel = gated_notify_cancel;
    }
    else if (strcmp(fault, "early") == 0) {
        table.stream_gate = early_stream_gate;
        table.gate_open = gated_gate_open;
    }
    else if (strcmp(fault, "ajar") == 0) {
        table.stream_gate = ajar_stream_gate;
        table.gate_open = gated_gate_open;
    }
    else if (strcmp(fault, "endless") == 0) {
        table.shutdown = endless_shutdown;
    }
    else if (strcmp(fault, "undead") == 0) {
        table.shutdown = undead_shutdown;
        table.stream_notify = gated_stream_notify;
        table.event_notify = gated_event_notify;
        table.notify_cancel = gated_notify_cancel;
    }
    else if (strcmp(fault, "deaf") == 0) {
        table.stream_synchronize = deaf_stream_synchronize;
        table.event_synchronize = deaf_event_synchronize;
    }
    else if (strcmp(fault, "none") == 0) {
        faults.stream_fail = slow_stream_fail;
        table.event_record = slow_event_record;
        table.stream_query = slow_stream_query;
        table.event_query = slow_event_query;
        table.stream_synchronize = slow_stream_synchronize;
        table.event_synchronize = slow_event_synchronize;
        table.device_synchronize = slow_device_synchronize;
    }
    else if (strcmp(fault, "hang") == 0) {
        table.event_synchronize = hanging_event_synchronize;
    }
    else if (strcmp(fault, "unfinished") == 0) {
        table.stream_create = unfinished_stream_create;
    }
    else {
        return false;
    }
    return true;
}

PyMODINIT_FUNC
PyInit_broken_device(void)
{
    const char *fault = getenv("FAULT");
    if (fault == NULL || !break_table(fault)) {
        return PyErr_Format(PyExc_ImportError, "FAULT names no fault: %s",
                            fault != NULL ? fault : "it is not set");
    }
    return PyInit_fake_device();
}
