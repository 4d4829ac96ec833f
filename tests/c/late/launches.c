/* Tests two launches of a graph that has a gate.  The device fails while the
 * backend reports that the first launch has reached the gate.  The first
 * launch's arrival must still be reported as a success, and after it, the
 * second launch's arrival as a failure.  The driver's functions are replaced
 * with functions that capture and launch nothing. */
#include "../../../csrc/backends/cuda/driver.h"
#include "../../../csrc/backends/cuda/graph_gate.h"

#include "check.h"

#include <cuda_runtime_api.h>

#include <stdatomic.h>
#include <stdint.h>

enum { GRAPH = 16, EXECUTABLE = 32, NUMBER = 1, LAUNCHES = 2 };

/* The gate's word `reached`, to which the device writes `arrival`. */
static _Atomic uint32_t *arrived;
static uint32_t arrival;
static atomic_bool is_reached, has_failed;
static atomic_int count;
static ps_status statuses[LAUNCHES];

static int
capture_info(CUstream stream, CUstreamCaptureStatus *state, cuuint64_t *id,
             CUgraph *graph, const CUgraphNode **nodes, size_t *nodes_count)
{
    (void)stream, (void)graph, (void)nodes;
    *state = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = NUMBER;
    if (nodes_count != NULL) {
        *nodes_count = 0;
    }
    return CUDA_SUCCESS;
}

/* The first captured write is the one by which a launch reports that it has
 * reached the gate. */
static int
write_value(CUstream stream, CUdeviceptr address, cuuint32_t value,
            unsigned flags)
{
    (void)stream, (void)flags;
    if (arrived == NULL) {
        arrived = (_Atomic uint32_t *)address;
        arrival = value;
    }
    return CUDA_SUCCESS;
}

static int
wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value,
           unsigned flags)
{
    (void)stream, (void)address, (void)value, (void)flags;
    return CUDA_SUCCESS;
}

static int
event_query(CUevent event)
{
    (void)event;
    return has_failed ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_NOT_READY;
}

cudaError_t
cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    (void)executable, (void)stream;
    return cudaSuccess;
}

static void
reached(void *argument, ps_handle gate, ps_status status)
{
    (void)argument, (void)gate;
    if (status == PS_SUCCESS) {
        is_reached = true;
        pause_ms(300);
    }
    statuses[count++] = status;
}

int
main(void)
{
    ps_handle stream;
    int devices;
    gpu->device_count(gpu, &devices);
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    cuda_driver.capture_info = capture_info;
    cuda_driver.stream_write_value = write_value;
    cuda_driver.stream_wait_value = wait_value;
    cuda_driver.event_query = event_query;
    cuda_gates_begin(cuda_gates_expect(0, stream), NUMBER);
    CHECK(gpu->capture_gate(gpu, 0, stream, NUMBER + 1, reached, NULL) ==
          PS_ERROR_INVALID_VALUE);
    CHECK(arrived == NULL);
    OK(gpu->capture_gate(gpu, 0, stream, NUMBER, reached, NULL));
    CHECK(cuda_gates_end(0, stream, NUMBER, GRAPH));
    CHECK(cuda_gates_inherit(GRAPH, EXECUTABLE));
    for (int i = 0; i < LAUNCHES; i++) {
        OK(gpu->graph_launch(gpu, 0, EXECUTABLE, stream));
    }
    *arrived = arrival;
    while (!is_reached) {
        pause_ms(1);
    }
    has_failed = true;
    while (count < LAUNCHES) {
        pause_ms(1);
    }
    OK(statuses[0]);
    CHECK(statuses[1] == (ps_status)CUDA_ERROR_LAUNCH_FAILED);
    return report();
}
