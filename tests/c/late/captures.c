/* Tests a capture that begins on a stream while another thread ends an
 * invalidated capture of that stream.  The new capture must keep the list of
 * its gates.  The driver's functions are replaced with functions that capture
 * nothing. */
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
    pause_ms(100);
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

int
main(void)
{
    pthread_t thread;
    int devices;
    gpu->device_count(gpu, &devices);
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    cuda_driver.capture_info = capture_info;
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
