/* Streams, events and memory: on one device, from several threads, across two
 * devices, and during a capture. */
#include "check.h"
#include "tests.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../csrc/backends/cuda/driver.h"

static void
exercise_streams(int device)
{
    int least = -9, greatest = 9, answer = -1;
    ps_handle streams[8], event;
    OK(gpu->stream_priority_range(gpu, device, &least, &greatest));
    CHECK(least == 0 && greatest <= 0);
    for (int i = 0; i < 8; i++) {
        OK(gpu->stream_create(gpu, device, i % 2 ? greatest : least,
                              &streams[i]));
    }
    OK(gpu->stream_device(gpu, streams[0], &answer));
    CHECK(answer == device);
    OK(gpu->stream_device(gpu, 2, &answer));
    CHECK(answer == device);
    OK(gpu->event_create(gpu, device, 0, &event));
    OK(gpu->event_query(gpu, device, event));
    OK(gpu->stream_wait_event(gpu, device, streams[0], event));
    OK(gpu->sleep(gpu, device, streams[0], A_WHILE));
    OK(gpu->event_record(gpu, device, event, streams[0]));
    CHECK_STATUS(gpu->event_query(gpu, device, event), PS_ERROR_NOT_READY);
    CHECK_STATUS(gpu->stream_query(gpu, device, streams[0]),
                 PS_ERROR_NOT_READY);
    OK(gpu->stream_query(gpu, device, streams[1]));
    OK(gpu->stream_wait_event(gpu, device, streams[1], event));
    CHECK_STATUS(gpu->stream_query(gpu, device, streams[1]),
                 PS_ERROR_NOT_READY);
    OK(gpu->event_synchronize(gpu, device, event, NULL));
    OK(gpu->event_query(gpu, device, event));
    OK(gpu->stream_synchronize(gpu, device, streams[1], NULL));
    /* Destroy a stream while work is queued; the work still runs. */
    OK(gpu->sleep(gpu, device, streams[2], A_WHILE));
    OK(gpu->event_record(gpu, device, event, streams[2]));
    for (int i = 0; i < 8; i++) {
        OK(gpu->stream_destroy(gpu, device, streams[i]));
    }
    CHECK_STATUS(gpu->event_query(gpu, device, event), PS_ERROR_NOT_READY);
    OK(gpu->device_synchronize(gpu, device, NULL));
    OK(gpu->event_query(gpu, device, event));
    OK(gpu->event_destroy(gpu, device, event));
    /* The default stream. */
    OK(gpu->stream_query(gpu, device, 0));
    OK(gpu->sleep(gpu, device, 0, A_WHILE));
    CHECK_STATUS(gpu->stream_query(gpu, device, 0), PS_ERROR_NOT_READY);
    OK(gpu->stream_synchronize(gpu, device, 0, NULL));
}

static void
exercise_events(int device)
{
    const unsigned never = PS_EVENT_TIMING | PS_EVENT_INTERPROCESS;
    ps_handle start, end, stream;
    float elapsed = -1;
    OK(gpu->stream_create(gpu, device, 0, &stream));
    for (unsigned flags = 0; flags < 8; flags++) {
        ps_handle event;
        if ((flags & never) == never) {
            continue;
        }
        OK(gpu->event_create(gpu, device, flags, &event));
        OK(gpu->event_record(gpu, device, event, stream));
        OK(gpu->event_synchronize(gpu, device, event, NULL));
        OK(gpu->event_destroy(gpu, device, event));
    }
    OK(gpu->event_create(gpu, device, PS_EVENT_TIMING, &start));
    OK(gpu->event_create(gpu, device, PS_EVENT_TIMING, &end));
    CHECK_STATUS(gpu->event_elapsed(gpu, device, start, end, &elapsed),
                 PS_ERROR_INVALID_HANDLE);
    OK(gpu->event_record(gpu, device, start, stream));
    OK(gpu->sleep(gpu, device, stream, A_WHILE));
    OK(gpu->event_record(gpu, device, end, stream));
    CHECK_STATUS(gpu->event_elapsed(gpu, device, start, end, &elapsed),
                 PS_ERROR_NOT_READY);
    CHECK(elapsed == -1);
    OK(gpu->event_synchronize(gpu, device, end, NULL));
    OK(gpu->event_elapsed(gpu, device, start, end, &elapsed));
    printf("  %.1f million cycles took %.3f ms\n", A_WHILE * 1e-6, elapsed);
    CHECK(elapsed > 20 && elapsed < 2000);
    OK(gpu->event_record(gpu, device, end, 0));
    OK(gpu->event_synchronize(gpu, device, end, NULL));
    OK(gpu->event_destroy(gpu, device, start));
    OK(gpu->event_destroy(gpu, device, end));
    OK(gpu->stream_destroy(gpu, device, stream));
}

static void
exercise_memory(int device)
{
    size_t nbytes = 3 * MIB + 5;
    unsigned char *pinned = NULL, *pageable = calloc(1, nbytes);
    uint64_t unused = 0, total = 0;
    int ran = 0;
    void *memory = NULL, *none = pageable;
    ps_handle stream;
    OK(gpu->stream_create(gpu, device, 0, &stream));
    OK(gpu->pinned_allocate(gpu, device, nbytes, (void **)&pinned));
    OK(gpu->memory_allocate(gpu, device, stream, nbytes, &memory));
    CHECK((uintptr_t)memory % 256 == 0);
    for (size_t i = 0; i < nbytes; i++) {
        pinned[i] = (unsigned char)(i * 31 >> 3);
    }
    OK(gpu->memory_copy(gpu, device, stream, memory, pinned, nbytes));
    OK(gpu->memory_copy(gpu, device, stream, pageable, memory, nbytes));
    OK(gpu->memory_fill(gpu, device, stream, memory, 0xa5, MIB));
    OK(gpu->host_function(gpu, device, stream, count, &ran));
    OK(gpu->memory_fill(gpu, device, stream, pinned, 0x5a, 7));
    OK(gpu->stream_synchronize(gpu, device, stream, NULL));
    CHECK(ran == 1);
    CHECK(memcmp(pinned, "ZZZZZZZ", 7) == 0);
    CHECK(memcmp(pinned + 7, pageable + 7, nbytes - 7) == 0);
    OK(gpu->memory_copy(gpu, device, stream, pageable, memory, nbytes));
    OK(gpu->stream_synchronize(gpu, device, stream, NULL));
    CHECK(pageable[0] == 0xa5 && pageable[MIB - 1] == 0xa5);
    CHECK(pageable[MIB] == pinned[MIB]);
    OK(gpu->memory_free(gpu, device, stream, memory));
    OK(gpu->pinned_free(gpu, device, pinned));
    OK(gpu->memory_info(gpu, device, &unused, &total));
    CHECK(0 < unused && unused < total);
    CHECK_STATUS(
        gpu->memory_allocate(gpu, device, stream, (size_t)1 << 50, &none),
        PS_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(gpu->pinned_allocate(gpu, device, (size_t)1 << 50, &none),
                 PS_ERROR_OUT_OF_MEMORY);
    CHECK(none == pageable);
    OK(gpu->memory_allocate(gpu, device, 0, 1, &memory));
    OK(gpu->memory_free(gpu, device, 0, memory));
    OK(gpu->stream_destroy(gpu, device, stream));
    OK(gpu->device_synchronize(gpu, device, NULL));
    free(pageable);
}

void *
exercise(void *argument)
{
    int device = *(int *)argument, current = current_device();
    CUcontext before = NULL, after = NULL;
    cuda_driver.context_get(&before);
    exercise_streams(device);
    exercise_events(device);
    exercise_memory(device);
    CHECK(current_device() == current);
    /* On a thread without a context, device 0 is current.  So the calls may
     * have made the context of device 0 current. */
    cuda_driver.context_get(&after);
    CHECK(before == after || (before == NULL && device == 0));
    return NULL;
}

/* Several threads run this at once.  Their first calls create the contexts and
 * the memory pools. */
static void *
first_use(void *argument)
{
    ps_handle stream;
    void *memory;
    (void)argument;
    for (int device = 0; device < devices; device++) {
        OK(gpu->stream_create(gpu, device, 0, &stream));
        OK(gpu->memory_allocate(gpu, device, stream, MIB, &memory));
        OK(gpu->sleep(gpu, device, stream, 1000));
        OK(gpu->memory_free(gpu, device, stream, memory));
        OK(gpu->stream_synchronize(gpu, device, stream, NULL));
        OK(gpu->stream_destroy(gpu, device, stream));
    }
    return NULL;
}

void
test_threads(void)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        pthread_create(&threads[i], NULL, first_use, NULL);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
    }
}

void
test_across(void)
{
    int last = devices - 1;
    size_t nbytes = 512 * MIB;
    unsigned char *host = NULL;
    void *here, *there;
    ps_handle streams[2], ends[2], event;
    OK(gpu->stream_create(gpu, 0, 0, &streams[0]));
    OK(gpu->stream_create(gpu, last, 0, &streams[1]));
    OK(gpu->event_create(gpu, 0, 0, &event));
    OK(gpu->memory_allocate(gpu, 0, streams[0], nbytes, &here));
    OK(gpu->memory_allocate(gpu, last, streams[1], nbytes, &there));
    OK(gpu->pinned_allocate(gpu, 0, nbytes, (void **)&host));
    OK(gpu->memory_fill(gpu, last, streams[1], there, 1, nbytes));
    OK(gpu->stream_synchronize(gpu, last, streams[1], NULL));
    OK(gpu->sleep(gpu, 0, streams[0], A_WHILE));
    OK(gpu->memory_fill(gpu, 0, streams[0], here, 77, nbytes));
    OK(gpu->event_record(gpu, 0, event, streams[0]));
    OK(gpu->stream_wait_event(gpu, last, streams[1], event));
    OK(gpu->memory_copy(gpu, last, streams[1], there, here, nbytes));
    OK(gpu->memory_copy(gpu, last, streams[1], host, there, nbytes));
    OK(gpu->stream_synchronize(gpu, last, streams[1], NULL));
    CHECK(host[0] == 77 && memcmp(host, host + 1, nbytes - 1) == 0);
    for (int i = 0; i < 2; i++) {
        int device = i ? last : 0;
        float elapsed = 0;
        for (int n = 0; n < 2; n++) {
            OK(gpu->event_create(gpu, device, PS_EVENT_TIMING, &ends[n]));
            OK(gpu->event_record(gpu, device, ends[n], streams[i]));
            OK(gpu->memory_copy(gpu, device, streams[i], there, here, nbytes));
        }
        OK(gpu->stream_synchronize(gpu, device, streams[i], NULL));
        OK(gpu->event_elapsed(gpu, device, ends[0], ends[1], &elapsed));
        printf("  0 to %d, on a stream of %d: %.1f GB/s\n", last, device,
               (double)nbytes / elapsed * 1e-6);
    }
    OK(gpu->memory_free(gpu, 0, streams[0], here));
    OK(gpu->memory_free(gpu, last, streams[1], there));
    OK(gpu->device_synchronize(gpu, 0, NULL));
    OK(gpu->device_synchronize(gpu, last, NULL));
    OK(gpu->pinned_free(gpu, 0, host));
}

void
test_capture(void)
{
    ps_handle stream;
    cudaGraph_t graph;
    int capturing = -1;
    OK(gpu->stream_create(gpu, 0, 0, &stream));
    OK(gpu->sleep(gpu, 0, stream, 1));
    CHECK(cudaStreamBeginCapture((cudaStream_t)stream,
                                 cudaStreamCaptureModeGlobal) == cudaSuccess);
    OK(gpu->stream_capturing(gpu, 0, stream, &capturing));
    CHECK(capturing == 1);
    OK(gpu->sleep(gpu, 0, stream, 1));
    CHECK(cudaStreamEndCapture((cudaStream_t)stream, &graph) == cudaSuccess);
    OK(gpu->stream_capturing(gpu, 0, stream, &capturing));
    CHECK(capturing == 0);
    OK(gpu->stream_capturing(gpu, 0, 0, &capturing));
    CHECK(capturing == 0);
}
