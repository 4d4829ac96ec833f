/* The example's fake device, with notifications and gates added.  Like streams
 * and events of the CUDA backend, it has no timed waits. */
#include "../../../examples/fake_device/fake_device.c"

#include <unistd.h>

/* Whether the program is ending; guarded by the mutex. */
static bool ended;

/* ---- Notifications: a ring that one thread polls ---- */

static struct ps_notification *pending;
static bool notifying;

/* Returns a notification whose point its stream has passed, or NULL if there
 * is none.  A notification stores the point in its own members.  `status` is
 * the index of the stream, and `number` is the number of the operation. */
static struct ps_notification *
find_due_locked(ps_status *status)
{
    struct ps_notification *last = pending, *n = last;
    while (n != NULL) {
        n = n->next;
        struct point point = {&streams[n->status], n->number};
        *status = status_of_locked(point);
        if (*status != PS_ERROR_NOT_READY) {
            return n;
        }
        if (n == last) {
            n = NULL;
        }
    }
    return NULL;
}

static void *
notify_main(void *unused)
{
    pthread_mutex_lock(&mutex);
    for (;;) {
        ps_status status;
        struct ps_notification *due = find_due_locked(&status);
        if (due == NULL || ended) {
            pthread_cond_wait(&changed, &mutex);
            continue;
        }
        ps_notification_function reached = due->reached;
        void *argument = due->argument;
        ps_notification_remove(due);
        pthread_mutex_unlock(&mutex);
        reached(argument, status);
        pthread_mutex_lock(&mutex);
    }
    return unused;
}

static ps_status
start_notifying_locked(void)
{
    pthread_t thread;
    if (!notifying) {
        notifying = pthread_create(&thread, NULL, notify_main, NULL) == 0;
    }
    return notifying ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
}

/* Add a notification that is due when the point's stream has passed the point.
 * If the point has no stream, there is nothing to wait for.  In this case,
 * store the number 0, which every stream has passed. */
static ps_status
notify_locked(struct point point, struct ps_notification *notification)
{
    ps_status status =
        ended ? PS_ERROR_SHUTTING_DOWN : start_notifying_locked();
    if (status == PS_SUCCESS) {
        bool none = point.stream == NULL;
        notification->status = none ? 0 : (int)(point.stream - streams);
        notification->number = none ? 0 : point.number;
        ps_notification_append(&pending, notification);
        pthread_cond_broadcast(&changed);
    }
    return status;
}

static ps_status
gated_stream_notify(const struct ps_backend *self, int device,
                    ps_handle handle, struct ps_notification *notification)
{
    ps_status status = PS_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&mutex);
    struct stream *stream = find_locked(device, handle);
    if (stream != NULL) {
        status = notify_locked((struct point){stream, numbers}, notification);
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static ps_status
gated_event_notify(const struct ps_backend *self, int device, ps_handle event,
                   struct ps_notification *notification)
{
    pthread_mutex_lock(&mutex);
    ps_status status = notify_locked(records[event], notification);
    pthread_mutex_unlock(&mutex);
    return status;
}

static ps_status
gated_notify_cancel(const struct ps_backend *self, int device,
                    struct ps_notification *notification)
{
    pthread_mutex_lock(&mutex);
    bool found = notification->ring != NULL;
    if (found) {
        ps_notification_remove(notification);
    }
    pthread_mutex_unlock(&mutex);
    return found ? PS_SUCCESS : PS_ERROR_TOO_LATE;
}

/* ---- Gates: each has a thread that waits for the work ahead of it ---- */

struct arrival {
    struct point before;
    ps_notification_function reached;
    void *argument;
};

static void *
wait_at_gate(void *memory)
{
    struct arrival arrival = *(struct arrival *)memory;
    free(memory);
    pthread_mutex_lock(&mutex);
    ps_status status = wait_locked(arrival.before);
    bool late = ended;
    pthread_mutex_unlock(&mutex);
    if (!late) {
        arrival.reached(arrival.argument, status);
    }
    return NULL;
}

static bool
is_ended(void)
{
    pthread_mutex_lock(&mutex);
    bool result = ended;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Returns whether the stream has no room for another gate, because 100
 * operations are pending. */
static bool
is_full(int device, ps_handle handle)
{
    int room = 100;
    pthread_mutex_lock(&mutex);
    const struct stream *stream = find_locked(device, handle);
    const struct operation *work = stream != NULL ? stream->first : NULL;
    for (; work != NULL && room > 0; work = work->next) {
        room--;
    }
    pthread_mutex_unlock(&mutex);
    return room == 0;
}

/* A gate is an operation that runs until the gate is opened.  The gate's
 * handle is the number of that operation. */
static ps_status
gated_gate_open(const struct ps_backend *self, int device, ps_handle gate)
{
    end_work(gate);
    return PS_SUCCESS;
}

static ps_status
gated_stream_gate(const struct ps_backend *self, int device, ps_handle handle,
                  ps_notification_function reached, void *argument,
                  ps_handle *gate)
{
    struct operation work = {.running = true};
    pthread_t thread;
    if (is_ended()) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (is_full(device, handle)) {
        return PS_ERROR_QUEUE_FULL;
    }
    struct arrival *arrival = malloc(sizeof(*arrival));
    if (arrival == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = enqueue(device, handle, &work);
    if (status != PS_SUCCESS) {
        free(arrival);
        return status;
    }
    *gate = work.number;
    pthread_mutex_lock(&mutex);
    *arrival = (struct arrival){
        {find_locked(device, handle), work.number - 1}, reached, argument};
    pthread_mutex_unlock(&mutex);
    if (pthread_create(&thread, NULL, wait_at_gate, arrival) != 0) {
        free(arrival);
        end_work(work.number);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    return PS_SUCCESS;
}

static ps_status
gated_stream_wait_room(const struct ps_backend *self, int device,
                       ps_handle handle, int64_t timeout_ns)
{
    int64_t waited = 0;
    while (is_full(device, handle) && waited < timeout_ns) {
        usleep(1000);
        waited += 1000 * 1000;
    }
    return is_full(device, handle) ? PS_ERROR_TIMED_OUT : PS_SUCCESS;
}

static bool
is_at_work(void)
{
    bool result = false;
    pthread_mutex_lock(&mutex);
    for (struct stream *s = streams; s < streams + stream_count; s++) {
        result = result || (s->first != NULL && s->first->running);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static ps_status
gated_shutdown(const struct ps_backend *self, int64_t timeout_ns)
{
    int64_t waited = 0;
    pthread_mutex_lock(&mutex);
    ended = true;
    pthread_mutex_unlock(&mutex);
    while (is_at_work() && waited < timeout_ns) {
        usleep(1000);
        waited += 1000 * 1000;
    }
    return is_at_work() ? PS_ERROR_NOT_READY : PS_SUCCESS;
}

PyMODINIT_FUNC
PyInit_gated_device(void)
{
    table.shutdown = gated_shutdown;
    table.stream_notify = gated_stream_notify;
    table.event_notify = gated_event_notify;
    table.notify_cancel = gated_notify_cancel;
    table.stream_gate = gated_stream_gate;
    table.gate_open = gated_gate_open;
    table.stream_wait_room = gated_stream_wait_room;
    return PyInit_fake_device();
}
