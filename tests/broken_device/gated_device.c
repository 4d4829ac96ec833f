/* The example's device with gates and without timed waits, as CUDA is: each
 * notification has a thread of its own that waits for the work before it. */
#include "../../examples/fake_device/fake_device.c"

#include <unistd.h>

/* The mutex guards it: the program is ending. */
static bool ended;

struct notice {
    struct point before;
    ps_notification reached;
    void *argument;
};

static void *
give_notice(void *memory)
{
    struct notice notice = *(struct notice *)memory;
    free(memory);
    pthread_mutex_lock(&mutex);
    ps_status status = wait_locked(notice.before);
    bool late = ended;
    pthread_mutex_unlock(&mutex);
    if (!late) {
        notice.reached(notice.argument, status);
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

/* Whether a stream has too much work for one more notification. */
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

/* A gate is an operation that runs until it is opened, and its number. */
static ps_status
gated_gate_open(const struct ps_backend *self, int device, ps_handle gate)
{
    end_work(gate);
    return PS_SUCCESS;
}

static ps_status
gated_stream_gate(const struct ps_backend *self, int device, ps_handle handle,
                  ps_notification reached, void *argument, ps_handle *gate)
{
    struct operation work = {.running = gate != NULL};
    pthread_t thread;
    if (is_ended()) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (gate == NULL && is_full(device, handle)) {
        return PS_ERROR_NOT_READY;
    }
    struct notice *notice = malloc(sizeof(*notice));
    if (notice == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = enqueue(device, handle, &work);
    if (status != PS_SUCCESS) {
        free(notice);
        return status;
    }
    if (gate != NULL) {
        *gate = work.number;
    }
    pthread_mutex_lock(&mutex);
    *notice = (struct notice){
        {find_locked(device, handle), work.number - 1}, reached, argument};
    pthread_mutex_unlock(&mutex);
    if (pthread_create(&thread, NULL, give_notice, notice) != 0) {
        free(notice);
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
    return is_full(device, handle) ? PS_ERROR_NOT_READY : PS_SUCCESS;
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
    table.stream_gate = gated_stream_gate;
    table.gate_open = gated_gate_open;
    table.stream_wait_room = gated_stream_wait_room;
    return PyInit_fake_device();
}
