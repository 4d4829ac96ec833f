/* Tests two threads of which one begins or ends a capture.  The driver's
 * functions are replaced with functions that capture nothing.
 *
 * A capture that begins on a stream while another thread ends an invalidated
 * capture of that stream must keep the list of its gates.
 *
 * No capture may end while another thread queues a gate on a stream, or makes
 * a stream wait for an event, because the driver would crash. */
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

/* Whether a thread queues an operation that the driver may capture. */
static atomic_bool is_queueing;
static atomic_int ended_while_queueing;

static void
queue_slowly(void)
{
    is_queueing = true;
    pause_ms(50);
    is_queueing = false;
}

static int
wait_slowly(CUstream waiting, CUdeviceptr address, cuuint32_t value,
            unsigned flags)
{
    (void)waiting, (void)address, (void)value, (void)flags;
    queue_slowly();
    return CUDA_SUCCESS;
}

static int
wait_event_slowly(CUstream waiting, CUevent event, unsigned flags)
{
    (void)waiting, (void)event, (void)flags;
    queue_slowly();
    return CUDA_SUCCESS;
}

static int
write_value(CUstream captured, CUdeviceptr address, cuuint32_t value,
            unsigned flags)
{
    (void)captured, (void)address, (void)value, (void)flags;
    return CUDA_SUCCESS;
}

/* The second capture begins slowly, so that the thread that ends the first one
 * would overtake it. */
cudaError_t
cudaStreamBeginCapture(cudaStream_t captured, enum cudaStreamCaptureMode mode)
{
    (void)captured, (void)mode;
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
    ended_while_queueing += is_queueing;
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

static void *
queue_wait(void *event)
{
    OK(gpu->stream_wait_event(gpu, 0, stream, *(ps_handle *)event));
    return NULL;
}

/* End a capture while another thread runs the function. */
static void
end_during(void *(*function)(void *), void *argument)
{
    ps_handle graph, origin;
    size_t operations;
    pthread_t thread;
    OK(gpu->stream_create(gpu, 0, 0, &origin));
    OK(gpu->capture_begin(gpu, 0, origin, PS_CAPTURE_RELAXED));
    CHECK(pthread_create(&thread, NULL, function, argument) == 0);
    while (!is_queueing) {
        pause_ms(1);
    }
    CHECK(gpu->capture_end(gpu, 0, origin, &graph, &operations) ==
          PS_ERROR_CAPTURE_INVALIDATED);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ended_while_queueing == 0);
}

int
main(void)
{
    ps_handle gate = 0, event;
    pthread_t thread;
    int devices;
    gpu->device_count(gpu, &devices);
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    OK(gpu->event_create(gpu, 0, 0, &event));
    cuda_driver.capture_info = capture_info;
    cuda_driver.stream_write_value = write_value;
    cuda_driver.stream_wait_value = wait_slowly;
    int (*wait_event)(CUstream, CUevent, unsigned) =
        cuda_driver.stream_wait_event;
    cuda_driver.stream_wait_event = wait_event_slowly;
    end_during(queue_gate, &gate);
    end_during(queue_wait, &event);
    cuda_driver.stream_wait_event = wait_event;
    cuda_driver.stream_write_value = write_value;
    cuda_driver.stream_wait_value = write_value;
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
