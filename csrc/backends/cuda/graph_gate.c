/* Gates in graphs.  A captured gate consists of three nodes, which run one
 * after another.  The nodes use the two words of a slot.  The gate keeps this
 * slot as long as its graph, an executable of the graph or one of their
 * launches exists.  The nodes do the following:
 *
 *   reached = number;  wait until opened >= number;  opened = number - 1
 *
 * At each launch, a poller sees that `reached` was written.  The poller then
 * subtracts 1 from `reached`, so that it can also see the write of the next
 * launch.  The host opens the gate by setting `opened` to number, and the
 * third node closes it for the next launch.  Launches of one graph run one
 * after another, in the order of the calls. */
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdlib.h>

#include "captures.h"
#include "driver.h"
#include "gate.h"
#include "graph_gate.h"
#include "poll.h"
#include "table.h"

struct captured_gate {
    struct cuda_slot *slot;
    ps_launched_gate_function reached;
    void *argument;
    bool failed; /* whether some of its nodes could not be captured */
    /* The gate's nodes in the captured graph; NULL if they are unknown. */
    CUgraphNode nodes[3];
    struct captured_gate *next;
};

/* The gates of a capture.  References to them are held by the capture, and
 * then by its graph, its executables and their launches. */
struct gates {
    atomic_int refs;
    struct captured_gate *first;
    struct captured_gate **tail;
};

/* A capture in progress that was begun by cuda_capture_begin. */
struct cuda_capture {
    int device;
    ps_handle origin;
    pthread_t thread; /* the thread on which it began */
    uint64_t number;
    struct gates *gates;
    struct cuda_capture *next;
};

/* A graph or an executable that has gates. */
struct owner {
    ps_handle handle;
    struct gates *gates;
    struct owner *next;
};

/* Guards the two lists below, and the lists of gates of captures.  It is taken
 * after cuda_captures_hold. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_capture *captures;
static struct owner *owners;
/* The number of owners.  While it is 0, launches need not look for gates. */
static atomic_int owner_count;

static void
gates_unref(struct gates *gates)
{
    if (gates == NULL || atomic_fetch_sub(&gates->refs, 1) > 1) {
        return;
    }
    while (gates->first != NULL) {
        struct captured_gate *gate = gates->first;
        gates->first = gate->next;
        cuda_slot_release(gate->slot);
        free(gate);
    }
    free(gates);
}

/* ---- Graphs ---- */

static struct owner **
find_locked(ps_handle handle)
{
    struct owner **link = &owners;

    while (*link != NULL && (*link)->handle != handle) {
        link = &(*link)->next;
    }
    return link;
}

/* Returns a new reference to the gates of a graph or an executable; NULL if it
 * has none. */
static struct gates *
gates_of(ps_handle handle)
{
    struct gates *gates = NULL;

    if (atomic_load_explicit(&owner_count, memory_order_relaxed) > 0) {
        pthread_mutex_lock(&lock);
        struct owner *owner = *find_locked(handle);
        if (owner != NULL) {
            gates = owner->gates;
            atomic_fetch_add(&gates->refs, 1);
        }
        pthread_mutex_unlock(&lock);
    }
    return gates;
}

/* Make the graph or executable with this handle an owner of the gates.  Takes
 * over the reference to the gates, even if this fails.  Returns false if out
 * of memory. */
static bool
own(ps_handle handle, struct gates *gates)
{
    struct owner *owner = malloc(sizeof(*owner));

    if (owner == NULL) {
        gates_unref(gates);
        return false;
    }
    pthread_mutex_lock(&lock);
    *owner = (struct owner){handle, gates, owners};
    owners = owner;
    atomic_fetch_add(&owner_count, 1);
    pthread_mutex_unlock(&lock);
    return true;
}

CUgraphNode
cuda_gates_first_node(ps_handle graph, CUgraphNode node, void **argument)
{
    struct gates *gates = gates_of(graph);
    struct captured_gate *gate = gates != NULL ? gates->first : NULL;
    CUgraphNode first = NULL;

    for (; gate != NULL && first == NULL; gate = gate->next) {
        for (int i = 0; i < 3; i++) {
            if (gate->nodes[i] == node) {
                first = gate->nodes[0];
                *argument = gate->argument;
            }
        }
    }
    gates_unref(gates);
    return first;
}

bool
cuda_gates_inherit(ps_handle graph, ps_handle executable)
{
    struct gates *gates = gates_of(graph);

    return gates == NULL || own(executable, gates);
}

void
cuda_gates_forget(ps_handle graph)
{
    struct owner *owner = NULL;

    if (atomic_load_explicit(&owner_count, memory_order_relaxed) > 0) {
        pthread_mutex_lock(&lock);
        struct owner **link = find_locked(graph);
        owner = *link;
        if (owner != NULL) {
            *link = owner->next;
            atomic_fetch_sub(&owner_count, 1);
        }
        pthread_mutex_unlock(&lock);
    }
    if (owner != NULL) {
        gates_unref(owner->gates);
        free(owner);
    }
}

/* ---- Captures ---- */

static ps_status
capture_info(ps_handle stream, uint64_t *number)
{
    CUstreamCaptureStatus state;
    cuuint64_t id = 0;
    ps_status status = (ps_status)cuda_driver.capture_info(
        (CUstream)stream, &state, &id, NULL, NULL, NULL);

    *number = 0;
    if (status == PS_SUCCESS && state == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        *number = id;
    }
    return status == PS_SUCCESS &&
                   state == CU_STREAM_CAPTURE_STATUS_INVALIDATED
               ? PS_ERROR_CAPTURE_INVALIDATED
               : status;
}

uint64_t
cuda_capture_number(int device, ps_handle stream)
{
    uint64_t number = 0;

    if (cuda_driver.capture_info != NULL) {
        (void)ON_DEVICE(device, capture_info(stream, &number));
    }
    return number;
}

ps_status
cuda_stream_capture(const struct ps_backend *backend, int device,
                    ps_handle stream, uint64_t *capture)
{
    if (cuda_driver.capture_info == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    cuda_captures_hold();
    ps_status status = ON_DEVICE(device, capture_info(stream, capture));
    cuda_captures_release();
    return status;
}

struct cuda_capture *
cuda_gates_expect(int device, ps_handle origin)
{
    struct cuda_capture *capture = calloc(1, sizeof(*capture));
    struct gates *gates = calloc(1, sizeof(*gates));

    if (capture == NULL || gates == NULL) {
        free(capture);
        free(gates);
        return NULL;
    }
    atomic_init(&gates->refs, 1);
    gates->tail = &gates->first;
    capture->device = device;
    capture->origin = origin;
    capture->thread = pthread_self();
    capture->gates = gates;
    pthread_mutex_lock(&lock);
    capture->next = captures;
    captures = capture;
    pthread_mutex_unlock(&lock);
    cuda_captures_count();
    return capture;
}

void
cuda_gates_begin(struct cuda_capture *capture, uint64_t number)
{
    pthread_mutex_lock(&lock);
    capture->number = number;
    pthread_mutex_unlock(&lock);
}

/* Returns whether the capture began on this stream.  PS_STREAM_PER_THREAD is a
 * different stream on each thread, so for this handle the thread must be the
 * same, too. */
static bool
is_of(const struct cuda_capture *capture, int device, ps_handle origin)
{
    return capture->device == device && capture->origin == origin &&
           (origin != PS_STREAM_PER_THREAD ||
            pthread_equal(capture->thread, pthread_self()));
}

/* Remove a capture from the list, free it, and return its gates.  Returns NULL
 * if the capture is not in the list.  If `capture` is not NULL, takes this
 * capture.  Otherwise, if `number` is not 0, takes the capture with this
 * number.  Otherwise, takes the capture that began on `origin`. */
static struct gates *
capture_take(const struct cuda_capture *capture, int device, ps_handle origin,
             uint64_t number)
{
    struct gates *gates = NULL;

    pthread_mutex_lock(&lock);
    struct cuda_capture **link = &captures, *found;
    while ((found = *link) != NULL &&
           !(capture != NULL ? found == capture
             : number != 0   ? found->number == number
                             : is_of(found, device, origin))) {
        link = &found->next;
    }
    if (found != NULL) {
        *link = found->next;
        gates = found->gates;
        cuda_captures_uncount();
    }
    pthread_mutex_unlock(&lock);
    free(found);
    return gates;
}

void
cuda_gates_cancel(struct cuda_capture *capture)
{
    gates_unref(capture_take(capture, 0, 0, 0));
}

bool
cuda_gates_end(int device, ps_handle origin, uint64_t number, ps_handle graph)
{
    struct gates *gates = capture_take(NULL, device, origin, number);

    if (graph == 0 || gates == NULL || gates->first == NULL) {
        gates_unref(gates);
        return true;
    }
    return own(graph, gates);
}

/* Returns the node that was captured last on the stream; NULL if it is
 * unknown. */
static CUgraphNode
last_node(ps_handle stream)
{
    CUstreamCaptureStatus state;
    const CUgraphNode *nodes = NULL;
    size_t count = 0;
    cuuint64_t id;

    return cuda_driver.capture_info((CUstream)stream, &state, &id, NULL,
                                    &nodes, &count) == CUDA_SUCCESS &&
                   state == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1
               ? nodes[0]
               : NULL;
}

/* Capture the gate's three nodes on the stream.  After a failure, some of them
 * may be in the graph. */
static ps_status
nodes_capture(struct captured_gate *gate, ps_handle stream)
{
    struct cuda_slot *slot = gate->slot;
    ps_status status = cuda_slot_arrive(slot, stream);

    if (status == PS_SUCCESS) {
        gate->nodes[0] = last_node(stream);
        status = cuda_slot_wait(slot, stream);
        gate->nodes[1] = last_node(stream);
    }
    if (status == PS_SUCCESS) {
        status = (ps_status)cuda_driver.stream_write_value(
            (CUstream)stream, (CUdeviceptr)&slot->opened, slot->number - 1, 0);
        gate->nodes[2] = last_node(stream);
    }
    return status;
}

/* Add the gate to the capture with this number.  Returns false if the capture
 * is not in the list, because cuda_capture_begin did not begin it, or because
 * it has ended. */
static bool
append(uint64_t number, struct captured_gate *gate)
{
    pthread_mutex_lock(&lock);
    struct cuda_capture *capture = captures;
    while (capture != NULL && capture->number != number) {
        capture = capture->next;
    }
    if (capture != NULL) {
        *capture->gates->tail = gate;
        capture->gates->tail = &gate->next;
    }
    pthread_mutex_unlock(&lock);
    return capture != NULL;
}

/* Open a gate for ever, because some of its nodes could not be captured.  The
 * node that waits may be among those that were captured.  Launches do not
 * report such a gate, so nobody else would open it, and the node would block
 * every launch for ever. */
static void
gate_fail(struct captured_gate *gate)
{
    pthread_mutex_lock(&lock);
    gate->failed = true;
    pthread_mutex_unlock(&lock);
    /* This holder is never removed, so the slot is never used again. */
    cuda_slot_hold(gate->slot);
    atomic_store(&gate->slot->opened, INT32_MAX);
}

/* Create a gate, which is in no capture yet. */
static ps_status
gate_create(ps_launched_gate_function reached, void *argument,
            struct captured_gate **gate)
{
    struct captured_gate *made = calloc(1, sizeof(*made));
    ps_status status =
        made != NULL ? cuda_slot_take(&made->slot) : PS_ERROR_OUT_OF_MEMORY;

    if (status != PS_SUCCESS) {
        free(made);
        return status;
    }
    made->reached = reached;
    made->argument = argument;
    *gate = made;
    return PS_SUCCESS;
}

/* Capture the gate on the stream.  *added becomes true if the gate has been
 * added to the capture, which then owns it. */
static ps_status
gate_capture(struct captured_gate *gate, ps_handle stream, uint64_t capture,
             bool *added)
{
    uint64_t number;
    ps_status status = capture_info(stream, &number);

    if (status != PS_SUCCESS) {
        return status;
    }
    /* Add the gate to the capture before its nodes are captured, so that no
     * node exists without its gate. */
    *added = number != 0 && number == capture && append(number, gate);
    if (!*added) {
        return PS_ERROR_INVALID_VALUE;
    }
    status = nodes_capture(gate, stream);
    if (status != PS_SUCCESS) {
        gate_fail(gate);
    }
    return status;
}

ps_status
cuda_capture_gate(const struct ps_backend *backend, int device,
                  ps_handle stream, uint64_t capture,
                  ps_launched_gate_function reached, void *argument)
{
    struct captured_gate *gate = NULL;
    bool added = false;

    if (cuda_driver.stream_wait_value == NULL ||
        cuda_driver.stream_write_value == NULL ||
        cuda_driver.capture_info == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    /* Create the gate first.  This may wait for a lock of the driver that is
     * released only after a callable has returned, and the callable may be
     * about to look up a capture. */
    ps_status status =
        ON_DEVICE(device, gate_create(reached, argument, &gate));
    if (status != PS_SUCCESS) {
        return status;
    }
    cuda_captures_hold();
    status = ON_DEVICE(device, gate_capture(gate, stream, capture, &added));
    cuda_captures_release();
    if (!added) {
        cuda_slot_release(gate->slot);
        free(gate);
    }
    return status;
}

/* ---- Launches ---- */

struct launch;

/* The arrival of one launch at one gate. */
struct arrival {
    struct ps_notification notification;
    struct launch *launch;
    struct captured_gate *gate;
    /* Its completion; used only while the launch is being queued. */
    struct cuda_completion *word;
    bool reported;
};

/* A launch of an executable with gates.  It is freed when it has ended and the
 * poller has seen the words of all of its gates.  If its work fails, most of
 * these words are never written.  In that case the launch is never freed. */
struct launch {
    atomic_size_t refs;
    size_t count;
    struct gates *gates;
    struct ps_notification end;
    struct arrival arrivals[];
};

static void
launch_unref(struct launch *launch, size_t refs)
{
    if (atomic_fetch_sub(&launch->refs, refs) == refs) {
        gates_unref(launch->gates);
        free(launch);
    }
}

/* Report an arrival, unless it was reported already.  Both pollers may call
 * this.  One calls it when it sees the gate's word, and the other when it sees
 * the end of the launch.  If a launch has failed, the poller that sees the end
 * reports all arrivals of the launch at once, even those that the other poller
 * is about to report.  So they are reported before the arrivals of later
 * launches. */
static void
arrive(struct arrival *arrival, ps_status status)
{
    static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&reporting);
    if (!arrival->reported) {
        struct captured_gate *gate = arrival->gate;
        arrival->reported = true;
        gate->reached(gate->argument, (ps_handle)gate->slot, status);
    }
    pthread_mutex_unlock(&reporting);
}

static void
word_arrived(void *memory, ps_status status)
{
    struct arrival *arrival = memory;

    arrive(arrival, status);
    launch_unref(arrival->launch, 1);
}

/* Called when a launch has ended.  If it succeeded, the stream has passed all
 * gates of the launch, so nothing is left to report.  If it failed, reports
 * the failure to those gates that the launch had not reached. */
static void
launch_ended(void *memory, ps_status status)
{
    struct launch *launch = memory;

    for (size_t i = 0; status != PS_SUCCESS && i < launch->count; i++) {
        arrive(&launch->arrivals[i], status);
    }
    launch_unref(launch, 1);
}

/* Returns a new launch, which takes over the reference to the gates; NULL if
 * out of memory. */
static struct launch *
launch_create(struct gates *gates)
{
    struct captured_gate *gate;
    struct launch *launch;
    size_t count = 0;

    for (gate = gates->first; gate != NULL; gate = gate->next) {
        count++;
    }
    launch = calloc(1, sizeof(*launch) + count * sizeof(launch->arrivals[0]));
    if (launch == NULL) {
        gates_unref(gates);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    for (gate = gates->first; gate != NULL; gate = gate->next) {
        struct arrival *arrival = &launch->arrivals[launch->count];
        if (!gate->failed) {
            arrival->notification.reached = word_arrived;
            arrival->notification.argument = arrival;
            arrival->launch = launch;
            arrival->gate = gate;
            cuda_slot_hold(gate->slot);
            launch->count++;
        }
    }
    pthread_mutex_unlock(&lock);
    atomic_init(&launch->refs, launch->count + 1);
    launch->gates = gates;
    launch->end.reached = launch_ended;
    launch->end.argument = launch;
    return launch;
}

/* Free a launch that was not queued.  None of its arrivals will come, so this
 * also releases their slots. */
static void
launch_drop(struct launch *launch)
{
    for (size_t i = 0; i < launch->count; i++) {
        cuda_slot_release(launch->arrivals[i].gate->slot);
    }
    launch_unref(launch, launch->count + 1);
}

/* Call cuda_poll_enter for the word of each gate.  Returns the number of
 * completions that were entered, which is less than the number of gates if
 * *status is a failure. */
static size_t
enter_words(struct launch *launch, int device, ps_status *status)
{
    size_t entered = 0;

    while (*status == PS_SUCCESS && entered < launch->count) {
        struct arrival *arrival = &launch->arrivals[entered];
        struct cuda_slot *slot = arrival->gate->slot;
        /* The slot's address is passed as the stream, so that the arrivals at
         * one slot form a queue.  They come in order, as the completions of a
         * stream do. */
        *status = cuda_poll_enter(device, (ps_handle)slot, &slot->reached,
                                  &arrival->word);
        if (*status == PS_SUCCESS) {
            arrival->word->number = slot->number;
            arrival->word->takes = true;
            entered++;
        }
    }
    return entered;
}

/* Queue the launch.  The polling of its arrivals must have begun before this
 * call, because cudaGraphLaunch may block until the host has opened some of
 * the launch's gates.  If the launch cannot be queued, this ends the
 * polling. */
static ps_status
launch_queue(struct launch *launch, ps_handle executable, ps_handle stream)
{
    ps_status status = (ps_status)cudaGraphLaunch((cudaGraphExec_t)executable,
                                                  (cudaStream_t)stream);

    for (size_t i = 0; status != PS_SUCCESS && i < launch->count; i++) {
        cuda_poll_withdraw(&launch->arrivals[i].notification);
    }
    return status;
}

/* Queue the launch, and begin to poll its arrivals and its end.  Takes over
 * the launch *made, even if this fails, and sets *made to NULL. */
static ps_status
queue(struct launch **made, int device, ps_handle executable, ps_handle stream)
{
    struct launch *launch = *made;
    struct cuda_completion *end = NULL;
    ps_status status = PS_SUCCESS;
    size_t entered = enter_words(launch, device, &status);

    *made = NULL;
    if (status == PS_SUCCESS) {
        status = cuda_poll_enter(device, stream, NULL, &end);
    }
    if (status == PS_SUCCESS) {
        status = cuda_completion_event(end);
    }
    /* Hold one more reference until the end of this function.  Arrivals may
     * come as soon as they are polled, and would free the launch. */
    atomic_fetch_add(&launch->refs, 1);
    for (size_t i = 0; i < entered; i++) {
        struct arrival *arrival = &launch->arrivals[i];
        cuda_poll_leave(arrival->word,
                        status == PS_SUCCESS ? &arrival->notification : NULL);
    }
    if (status == PS_SUCCESS) {
        status = launch_queue(launch, executable, stream);
    }
    /* cuda_completion_record fails only if the driver has failed.  In that
     * case the launch keeps its gates for ever, because the device may still
     * use them. */
    bool ends = status == PS_SUCCESS &&
                cuda_completion_record(end, stream) == PS_SUCCESS;
    if (end != NULL) {
        cuda_poll_leave(end, ends ? &launch->end : NULL);
    }
    if (status != PS_SUCCESS) {
        launch_drop(launch);
    }
    launch_unref(launch, 1);
    return status;
}

ps_status
cuda_graph_launch(const struct ps_backend *backend, int device,
                  ps_handle executable, ps_handle stream)
{
    struct gates *gates = gates_of(executable);

    if (gates == NULL) {
        return ON_DEVICE(device, cudaGraphLaunch((cudaGraphExec_t)executable,
                                                 (cudaStream_t)stream));
    }
    struct launch *launch = launch_create(gates);
    if (launch == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status =
        ON_DEVICE(device, queue(&launch, device, executable, stream));
    if (launch != NULL) {
        launch_drop(launch);
    }
    return status;
}
