/* Activities, which CUPTI reports.  An activity is a kernel, a copy or a fill
 * on a GPU, or a wait of the host, with the times at which it began and ended.
 * CUPTI reports the activities of all libraries in the process.
 *
 * The rule: a CUPTI callback calls no CUDA function, because CUPTI holds its
 * own locks or the driver's during the callback. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "activity.h"
#include "clock.h"
#include "driver.h"
#include "table.h"

/* CUPTI's functions.  Each returns a CUptiResult, which is 0 for success. */
static struct cupti {
    CUPTI_FUNCTIONS(CUDA_FUNCTION_MEMBER)
} cupti;

enum { BUFFER_SIZE = 1 << 20, MOST_CALLBACKS = 4096 };

static const int kinds[] = {CUPTI_KERNEL, CUPTI_MEMCPY, CUPTI_MEMCPY_PEER,
                            CUPTI_MEMSET, CUPTI_SYNCHRONIZATION};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

/* Held while observing begins or ends. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *subscriber; /* NULL while no activities are observed */
/* The id of the process that first tried to start CUPTI; 0 if none did.  A
 * forked child inherits CUPTI's state, but not its threads, so it must not use
 * CUPTI. */
static pid_t owner;
/* For each device, 1 + the number of the first context that was seen, or 0 if
 * no context was seen. */
static _Atomic uint32_t first_contexts[CUDA_DEVICES];
static const struct ps_activity_functions *_Atomic functions;
static void *_Atomic functions_argument;

/* ---- Functions that CUPTI calls ---- */

static uint64_t
now(void)
{
    return (uint64_t)cuda_now_ns();
}

static void
called(void *argument, int domain, uint32_t id, const void *data)
{
    const struct ps_activity_functions *observer = atomic_load(&functions);
    const struct cupti_call *call = data;

    (void)argument, (void)domain, (void)id;
    if (observer != NULL && !call->is_exit) {
        observer->call(atomic_load(&functions_argument), call->correlation);
    }
}

static void
buffer_requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *buffer = malloc(BUFFER_SIZE);
    *size = *buffer != NULL ? BUFFER_SIZE : 0;
    *most = 0;
}

/* Returns the number by which activities identify a stream; see the member
 * stream_number.  CUPTI numbers the streams of each context separately, so the
 * upper 32 bits of the result are the number of the context.  For the first
 * context that was seen on a device, which usually is the device's only one,
 * these bits are 0. */
static uint64_t
number_of(uint32_t device, uint32_t context, uint32_t stream)
{
    uint32_t first = 0;

    if (device < CUDA_DEVICES &&
        (atomic_compare_exchange_strong(&first_contexts[device], &first,
                                        context + 1) ||
         first == context + 1)) {
        return stream;
    }
    return (uint64_t)context << 32 | stream;
}

static const char *
waiting_function(uint32_t type)
{
    switch (type) {
    case CUPTI_EVENT_SYNCHRONIZE:
        return "cuEventSynchronize";
    case CUPTI_STREAM_SYNCHRONIZE:
        return "cuStreamSynchronize";
    case CUPTI_CONTEXT_SYNCHRONIZE:
        return "cuCtxSynchronize";
    default:
        return NULL;
    }
}

static const char *
name_of_copy(uint8_t direction)
{
    switch (direction) {
    case CUPTI_HOST_TO_DEVICE:
    case CUPTI_HOST_TO_ARRAY:
        return "copy host to device";
    case CUPTI_DEVICE_TO_HOST:
    case CUPTI_ARRAY_TO_HOST:
        return "copy device to host";
    case CUPTI_ARRAY_TO_ARRAY:
    case CUPTI_ARRAY_TO_DEVICE:
    case CUPTI_DEVICE_TO_ARRAY:
    case CUPTI_DEVICE_TO_DEVICE:
        return "copy device to device";
    case CUPTI_HOST_TO_HOST:
        return "copy host to host";
    case CUPTI_PEER_TO_PEER:
        return "copy peer to peer";
    default:
        return NULL;
    }
}

static struct ps_times
times_of(uint64_t start, uint64_t end)
{
    return (struct ps_times){(int64_t)start, (int64_t)end};
}

/* Convert a CUPTI record to an activity.  Returns false if records of this
 * kind are not reported. */
static bool
read_record(const void *record, struct ps_activity *activity)
{
    const struct cupti_kernel *kernel = record;
    const struct cupti_transfer *transfer = record;
    const struct cupti_peer_transfer *peer = record;
    const struct cupti_synchronization *wait = record;

    switch (kernel->kind) {
    case CUPTI_KERNEL:
        *activity = (struct ps_activity){
            .kind = PS_ACTIVITY_KERNEL,
            .device = (int)kernel->device,
            .stream =
                number_of(kernel->device, kernel->context, kernel->stream),
            .call = kernel->correlation,
            .of_graph = kernel->graph_node != 0,
            .name = kernel->name,
            .times = times_of(kernel->start, kernel->end),
        };
        return true;
    case CUPTI_MEMCPY_PEER:
        *activity = (struct ps_activity){
            .kind = PS_ACTIVITY_COPY,
            .device = (int)peer->device,
            .stream = number_of(peer->device, peer->context, peer->stream),
            .call = peer->correlation,
            .of_graph = peer->graph_node != 0,
            .nbytes = peer->bytes,
            .name = name_of_copy(CUPTI_PEER_TO_PEER),
            .times = times_of(peer->start, peer->end),
        };
        return true;
    case CUPTI_MEMCPY:
    case CUPTI_MEMSET:
        *activity = (struct ps_activity){
            .kind = kernel->kind == CUPTI_MEMSET ? PS_ACTIVITY_FILL
                                                 : PS_ACTIVITY_COPY,
            .device = (int)transfer->device,
            .stream = number_of(transfer->device, transfer->context,
                                transfer->stream),
            .call = transfer->correlation,
            .of_graph = transfer->graph_node != 0,
            .nbytes = transfer->bytes,
            .name = kernel->kind == CUPTI_MEMCPY
                        ? name_of_copy(transfer->direction)
                        : NULL,
            .times = times_of(transfer->start, transfer->end),
        };
        return true;
    case CUPTI_SYNCHRONIZATION:
        *activity = (struct ps_activity){
            .kind = PS_ACTIVITY_SYNCHRONIZE,
            .call = wait->correlation,
            .name = waiting_function(wait->type),
            .times = times_of(wait->start, wait->end),
        };
        return activity->name != NULL;
    default:
        return false;
    }
}

static void
buffer_completed(CUcontext context, uint32_t stream, uint8_t *buffer,
                 size_t size, size_t valid)
{
    const struct ps_activity_functions *observer = atomic_load(&functions);
    struct ps_activity activity;
    void *record = NULL;

    (void)context, (void)stream, (void)size;
    while (cupti.next(buffer, valid, &record) == 0) {
        if (observer != NULL && read_record(record, &activity)) {
            observer->done(atomic_load(&functions_argument), &activity);
        }
    }
    free(buffer);
}

/* ---- The library ---- */

/* Returns a handle to CUPTI from dlopen, or NULL.  Prefers the version that
 * another library has loaded already, because a process must not load two
 * versions. */
static void *
find_library(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    static const int modes[] = {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW};

    for (int i = 0; i < 4; i++) {
        void *library = dlopen(names[i % 2], modes[i / 2]);
        if (library != NULL) {
            return library;
        }
    }
    return NULL;
}

static bool
look_up_locked(void)
{
    struct cupti found;
    bool complete = true;
    void *library;

    if (cupti.subscribe != NULL) {
        return true;
    }
    library = find_library();
    if (library == NULL) {
        return false;
    }
#define LOOK_UP(member, name, parameters)           \
    *(void **)&found.member = dlsym(library, name); \
    complete &= found.member != NULL;
    CUPTI_FUNCTIONS(LOOK_UP)
    if (complete) {
        cupti = found;
    }
    else {
        dlclose(library);
    }
    return complete;
}

/* ---- Members ---- */

/* Returns whether calls to the function with this name must be reported to the
 * observer.  Functions of cudart that queue work need not be listed, because
 * they call a driver function that is listed.  Functions of cudart that wait
 * are listed, because they may return without calling a listed driver
 * function. */
static bool
is_wanted(const char *name)
{
    static const char *const beginnings[] = {
        "cuLaunch",      "cuMemcpy",       "cuMemset",  "cuGraphLaunch",
        "cuStreamSync",  "cuEventSync",    "cuCtxSync", "cudaStreamSync",
        "cudaEventSync", "cudaDeviceSync",
    };

    for (size_t i = 0; i < sizeof(beginnings) / sizeof(*beginnings); i++) {
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0) {
            return strstr(name, "HostFunc") == NULL;
        }
    }
    return false;
}

static int
enable_callbacks_locked(int domain)
{
    int result = 0;

    for (uint32_t id = 1; id < MOST_CALLBACKS && result == 0; id++) {
        const char *name = NULL;
        if (cupti.callback_name(domain, id, &name) != 0 || name == NULL) {
            break;
        }
        if (is_wanted(name)) {
            result = cupti.callback_enable(1, subscriber, domain, id);
        }
    }
    return result;
}

static void
end_locked(void)
{
    for (int i = 0; i < KINDS; i++) {
        cupti.disable(kinds[i]);
    }
    cupti.unsubscribe(subscriber);
    subscriber = NULL;
}

static int
begin_locked(void)
{
    int result = cupti.clock(now);

    if (result == 0) {
        result = cupti.buffers(buffer_requested, buffer_completed);
    }
    for (int i = 0; i < KINDS && result == 0; i++) {
        result = cupti.enable(kinds[i]);
    }
    if (result == 0) {
        result = enable_callbacks_locked(CUPTI_DRIVER);
    }
    return result == 0 ? enable_callbacks_locked(CUPTI_RUNTIME) : result;
}

static ps_status
subscribe_locked(char *reason, size_t size)
{
    char holder[128] = "";
    struct cupti_subscription subscription = {
        sizeof(subscription),
        "pystreams",
        holder,
        sizeof(holder),
    };
    const char *text = "an unknown error";
    int result = cupti.subscribe(&subscriber, called, NULL, &subscription);

    if (result == CUPTI_TAKEN) {
        snprintf(reason, size, "another profiler has CUPTI (it says: %s)",
                 holder);
        return PS_ERROR_NOT_PERMITTED;
    }
    if (result == 0) {
        result = begin_locked();
        if (result == 0) {
            return PS_SUCCESS;
        }
        end_locked();
    }
    cupti.result_text(result, &text);
    snprintf(reason, size, "CUPTI reports %s", text);
    return PS_ERROR_NOT_PERMITTED;
}

ps_status
cuda_activities_begin(const struct ps_backend *backend,
                      const struct ps_activity_functions *called_back,
                      void *argument, char *reason, size_t size)
{
    ps_status status = PS_ERROR_NOT_SUPPORTED;

    (void)backend;
    if (cuda_driver_load() != PS_SUCCESS) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&mutex);
    owner = owner != 0 ? owner : getpid();
    if (owner == getpid() && subscriber == NULL && look_up_locked()) {
        atomic_store(&functions_argument, argument);
        atomic_store(&functions, called_back);
        status = subscribe_locked(reason, size);
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

ps_status
cuda_activities_flush(const struct ps_backend *backend)
{
    (void)backend;
    return cupti.flush(0) == 0 ? PS_SUCCESS : PS_ERROR_UNKNOWN;
}

ps_status
cuda_activities_end(const struct ps_backend *backend)
{
    (void)backend;
    pthread_mutex_lock(&mutex);
    if (subscriber != NULL) {
        end_locked();
    }
    pthread_mutex_unlock(&mutex);
    return PS_SUCCESS;
}

ps_status
cuda_stream_number(const struct ps_backend *backend, int device,
                   ps_handle stream, uint64_t *number)
{
    uint8_t of_thread = stream == (ps_handle)CU_STREAM_PER_THREAD;
    bool is_default = stream <= (ps_handle)CU_STREAM_PER_THREAD;
    CUcontext context;
    uint32_t id, context_id;
    ps_status status = cuda_stream_check_uncaptured(stream);

    (void)backend;
    /* For default streams, CUPTI needs the primary context. */
    if (status == PS_SUCCESS) {
        status = is_default ? cuda_context_retain(device, &context)
                            : (ps_status)cuda_driver.stream_context(
                                  (CUstream)stream, &context);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    if (cupti.stream_id(is_default ? context : NULL, (CUstream)stream,
                        of_thread, &id) != 0 ||
        cupti.context_id(context, &context_id) != 0) {
        return PS_ERROR_UNKNOWN;
    }
    *number = number_of((uint32_t)device, context_id, id);
    return PS_SUCCESS;
}
