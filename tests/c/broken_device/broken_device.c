/* The example's fake device, with the fault that the environment variable
 * FAULT names.  Each fault is a likely mistake in a first backend, and the
 * conformance suite must find it.  With "none", the device is correct, but its
 * work takes time, and the suite must find no fault. */
#include "gated_device.c"

#include <stddef.h>
#include <string.h>
#include <time.h>

/* "query": a query returns success while work runs. */
static ps_status
broken_stream_query(const struct ps_backend *self, int device,
                    ps_handle handle)
{
    ps_status status = fake_stream_query(self, device, handle);
    return status == PS_ERROR_NOT_READY ? PS_SUCCESS : status;
}

/* "flag": an event has only one flag "done".  If it is recorded again while a
 * record is pending, the first record that completes sets the flag for both.
 */
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

/* "latest": a wait is for the event's latest record when the stream reaches
 * the wait, not for the latest record at the time of the call. */
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

/* "default": the default stream has a handle other than 0, and 0 is
 * refused. */
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

/* "first": a wait for any device waits for device 0. */
static ps_status
first_device_synchronize(const struct ps_backend *self, int device,
                         const struct ps_limit *limit)
{
    (void)device;
    return fake_device_synchronize(self, 0, limit);
}

/* "lost": a wait returns success even if the work has failed. */
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

/* "hasty": a notification comes before the work is done. */
static ps_status
hasty_stream_notify(const struct ps_backend *self, int device,
                    ps_handle handle, struct ps_notification *notification)
{
    notification->ring = NULL;
    notification->reached(notification->argument, PS_SUCCESS);
    return PS_SUCCESS;
}

/* "early": a gate is reported as reached before the work ahead of it is
 * done. */
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

/* "ajar": a gate does not hold anything back. */
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

/* "unfinished": stream_create is not implemented yet. */
static ps_status
unfinished_stream_create(const struct ps_backend *self, int device,
                         int priority, ps_handle *handle)
{
    return PS_ERROR_NOT_SUPPORTED;
}

/* "endless": shutdown ignores its timeout, so the program does not end while
 * work runs. */
static ps_status
endless_shutdown(const struct ps_backend *self, int64_t timeout_ns)
{
    return gated_shutdown(self, INT64_MAX);
}

/* "undead": work goes on after shutdown. */
static ps_status
undead_shutdown(const struct ps_backend *self, int64_t timeout_ns)
{
    return PS_SUCCESS;
}

/* "deaf": a timed wait does not call its limit's is_over. */
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

/* "none": each operation takes some milliseconds, even on a failed stream. */
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

/* The faults.  The members replace those of the example's tables. */
static const struct {
    const char *name;
    struct ps_backend members;
    struct ps_faults faults;
} faulty[] = {
    {.name = "query", .members = {.stream_query = broken_stream_query}},
    {.name = "flag", .members = {.event_record = broken_event_record}},
    {.name = "latest",
     .members = {.stream_wait_event = latest_stream_wait_event,
                 .event_record = latest_event_record}},
    {.name = "default",
     .members = {.stream_query = nonzero_stream_query,
                 .stream_synchronize = nonzero_stream_synchronize,
                 .stream_wait_event = nonzero_stream_wait_event,
                 .event_record = nonzero_event_record}},
    {.name = "first",
     .members = {.device_synchronize = first_device_synchronize}},
    {.name = "lost",
     .members = {.stream_synchronize = lost_stream_synchronize,
                 .event_synchronize = lost_event_synchronize,
                 .device_synchronize = lost_device_synchronize}},
    {.name = "hasty",
     .members = {.stream_notify = hasty_stream_notify,
                 .event_notify = gated_event_notify,
                 .notify_cancel = gated_notify_cancel}},
    {.name = "early",
     .members = {.stream_gate = early_stream_gate,
                 .gate_open = gated_gate_open}},
    {.name = "ajar",
     .members = {.stream_gate = ajar_stream_gate,
                 .gate_open = gated_gate_open}},
    {.name = "endless", .members = {.shutdown = endless_shutdown}},
    {.name = "undead",
     .members = {.shutdown = undead_shutdown,
                 .stream_notify = gated_stream_notify,
                 .event_notify = gated_event_notify,
                 .notify_cancel = gated_notify_cancel}},
    {.name = "deaf",
     .members = {.stream_synchronize = deaf_stream_synchronize,
                 .event_synchronize = deaf_event_synchronize}},
    {.name = "none",
     .members = {.event_record = slow_event_record,
                 .stream_query = slow_stream_query,
                 .event_query = slow_event_query,
                 .stream_synchronize = slow_stream_synchronize,
                 .event_synchronize = slow_event_synchronize,
                 .device_synchronize = slow_device_synchronize},
     .faults = {.stream_fail = slow_stream_fail}},
    {.name = "hang",
     .members = {.event_synchronize = hanging_event_synchronize}},
    {.name = "unfinished",
     .members = {.stream_create = unfinished_stream_create}},
};

/* Copy the members that are not NULL to the table.  `first` is the offset of
 * the first member, and `size` the size of the table; between the two, there
 * are only function pointers. */
static void
replace(void *table, const void *members, size_t first, size_t size)
{
    for (size_t i = first; i < size; i += sizeof(void *)) {
        void *member;
        memcpy(&member, (const char *)members + i, sizeof(member));
        if (member != NULL) {
            memcpy((char *)table + i, &member, sizeof(member));
        }
    }
}

PyMODINIT_FUNC
PyInit_broken_device(void)
{
    const char *name = getenv("FAULT");
    for (size_t i = 0; i < sizeof(faulty) / sizeof(faulty[0]); i++) {
        if (name != NULL && strcmp(name, faulty[i].name) == 0) {
            replace(&table, &faulty[i].members,
                    offsetof(struct ps_backend, status_name), sizeof(table));
            replace(&faults, &faulty[i].faults,
                    offsetof(struct ps_faults, stream_fail), sizeof(faults));
            return PyInit_fake_device();
        }
    }
    return PyErr_Format(PyExc_ImportError, "FAULT names no fault: %s",
                        name != NULL ? name : "it is not set");
}
