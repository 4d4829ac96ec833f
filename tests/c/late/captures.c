/* Tests two threads, one of which begins or ends a capture.  The driver's
 * functions are replaced with functions that capture nothing.
 *
 * A capture that begins on a stream while another thread ends an invalidated
 * capture of that stream must keep the list of its gates.
 *
 * While a gate is being queued on a stream, the stream must join no capture.
 * But a thread that waits for room in a stream's queue must not hinder threads
 * that capture other streams, and must not forever hinder a thread that
 * captures this stream. */
#include "../../../csrc/backends/cuda/driver.h"

#include "check.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdint.h>

/* The numbers of the two captures. */
enum { FIRST = 1, SECOND };

static atomic_bool is_second, is_ending;
static ps_handle stream;

static int
capture_info(CUstream captured, CUstreamCaptureStatus *state, cuuint64_t *id,
             CUgraph *graph, const CUgraphNode **nodes, size_t *nodes_count)
{
    (void)captured, (void)graph, (void)nodes;
    *state = is_second || !is_ending ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                     : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    *id = is_second ? SECOND : FIRST;
    if (nodes_count != NULL) {
        *nodes_count = 0;
    }
    return CUDA_SUCCESS;
}

/* Whether a thread is queueing a gate, and whether a thread has begun to queue
 * one. */
static atomic_bool is_queueing, has_queued;
static atomic_int joined_while_queueing;
/* Whether a thread that queues a gate waits for room until `has_room`. */
static atomic_bool is_full, has_room;

static int
wait_slowly(CUstream waiting, CUdeviceptr address, cuuint32_t value,
            unsigned flags)
{
    (void)waiting, (void)address, (void)value, (void)flags;
    is_queueing = true;
    has_queued = true;
    for (int i = 0; i < 5000 && is_full && !has_room; i++) {
        pause_ms(1);
    }
    CHECK(!is_full || has_room);
    pause_ms(20);
    is_queueing = false;
    return CUDA_SUCCESS;
}

static int
wait_event(CUstream waiting, CUevent event, unsigned flags)
{
    (void)event, (void)flags;
    joined_while_queueing += is_queueing && (ps_handle)waiting == stream;
    return CUDA_SUCCESS;
}

static int
write_value(CUstream captured, CUdeviceptr address, cuuint32_t value,
            unsigned flags)
{
    (void)captured, (void)address, (void)value, (void)flags;
    return CUDA_SUCCESS;
}

/* The second capture begins slowly, so that the thread that ends the first
 * capture would overtake it. */
cudaError_t
cudaStreamBeginCapture(cudaStream_t captured, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    joined_while_queueing += is_queueing && (ps_handle)captured == stream;
    if (is_ending) {
        pause_ms(200);
        is_second = true;
    }
    return cudaSuccess;
}

cudaError_t
cudaStreamEndCapture(cudaStream_t captured, cudaGraph_t *graph)
{
    (void)captured;
    if (is_ending) {
        pause_ms(100);
    }
    *graph = NULL;
    return cudaErrorStreamCaptureInvalidated;
}

static void *
end_first(void *unused)
{
    ps_handle graph;
    size_t operations;
    is_ending = true;
    CHECK(gpu->capture_end(gpu, 0, stream, &graph, &operations) ==
          PS_ERROR_CAPTURE_INVALIDATED);
    return unused;
}

static void
reached(void *argument, ps_handle gate, ps_status status)
{
    (void)argument, (void)gate, (void)status;
}

static void
ignore(void *argument, ps_status status)
{
    (void)argument, (void)status;
}

static void *
queue_gate(void *gate)
{
    OK(gpu->stream_gate(gpu, 0, stream, ignore, NULL, gate));
    return NULL;
}

static void
begin(ps_handle origin)
{
    OK(gpu->capture_begin(gpu, 0, origin, PS_CAPTURE_RELAXED));
}

static void
end(ps_handle origin)
{
    ps_handle graph;
    size_t operations;
    CHECK(gpu->capture_end(gpu, 0, origin, &graph, &operations) ==
          PS_ERROR_CAPTURE_INVALIDATED);
}

/* Begin to queue a gate on another thread. */
static pthread_t
gate_begin(ps_handle *gate)
{
    pthread_t thread;
    has_queued = false;
    CHECK(pthread_create(&thread, NULL, queue_gate, gate) == 0);
    while (!has_queued) {
        pause_ms(1);
    }
    return thread;
}

static void
test_gates(void)
{
    ps_handle gate = 0, other, event;
    pthread_t thread;
    OK(gpu->stream_create(gpu, 0, 0, &other));
    OK(gpu->event_create(gpu, 0, 0, &event));
    begin(other);
    thread = gate_begin(&gate);
    OK(gpu->stream_wait_event(gpu, 0, stream, event));
    CHECK(pthread_join(thread, NULL) == 0);
    end(other);
    thread = gate_begin(&gate);
    begin(stream);
    CHECK(pthread_join(thread, NULL) == 0);
    end(stream);
    CHECK(joined_while_queueing == 0);

    is_full = true;
    thread = gate_begin(&gate);
    begin(other);
    OK(gpu->stream_wait_event(gpu, 0, other, event));
    end(other);
    begin(stream); /* after 100 ms */
    end(stream);
    has_room = true;
    CHECK(pthread_join(thread, NULL) == 0);
}

int
main(void)
{
    pthread_t thread;
    int devices;
    gpu->device_count(gpu, &devices);
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    cuda_driver.capture_info = capture_info;
    cuda_driver.stream_write_value = write_value;
    cuda_driver.stream_wait_value = wait_slowly;
    cuda_driver.stream_wait_event = wait_event;
    test_gates();
    OK(gpu->capture_begin(gpu, 0, stream, PS_CAPTURE_RELAXED));
    CHECK(pthread_create(&thread, NULL, end_first, NULL) == 0);
    while (!is_ending) {
        pause_ms(1);
    }
    pause_ms(20);
    OK(gpu->capture_begin(gpu, 0, stream, PS_CAPTURE_RELAXED));
    CHECK(pthread_join(thread, NULL) == 0);
    OK(gpu->capture_gate(gpu, 0, stream, SECOND, reached, NULL));
    return report();
}
