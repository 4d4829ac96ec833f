/* Measures the driver's functions in a loop, to show what the calls cost one
 * level below cudart.  They take the handles that cudart makes. */
#include <cuda.h>

#include <dlfcn.h>

#include "handles.h"
#include "rows.h"

static CUresult (*event_record_)(CUevent, CUstream);
static CUresult (*event_query_)(CUevent);
static CUresult (*event_synchronize_)(CUevent);
static CUresult (*event_elapsed_)(float *, CUevent, CUevent);
static CUresult (*stream_query_)(CUstream);
static CUresult (*stream_synchronize_)(CUstream);
static CUresult (*stream_wait_)(CUstream, CUevent, unsigned);

static int
look_up(void *function, void *library, const char *name)
{
    return (*(void **)function = dlsym(library, name)) == NULL;
}

int
prepare(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver == NULL ||
           look_up(&event_record_, driver, "cuEventRecord") ||
           look_up(&event_query_, driver, "cuEventQuery") ||
           look_up(&event_synchronize_, driver, "cuEventSynchronize") ||
           look_up(&event_elapsed_, driver, "cuEventElapsedTime_v2") ||
           look_up(&stream_query_, driver, "cuStreamQuery") ||
           look_up(&stream_synchronize_, driver, "cuStreamSynchronize") ||
           look_up(&stream_wait_, driver, "cuStreamWaitEvent") ||
           handles_make();
}

ROW(record, failed |= event_record_(plain, first))
ROW(record_current, failed |= event_record_(plain, NULL))
ROW(record_timed, failed |= event_record_(timed, first))
ROW(record_query, failed |= event_record_(plain, first);
    CUresult status = event_query_(plain);
    failed |= status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY)
ROW(event_query, failed |= event_query_(done))
ROW(event_synchronize, failed |= event_synchronize_(done))
ROW(stream_query, failed |= stream_query_(first))
ROW(stream_synchronize, failed |= stream_synchronize_(first))
ROW(record_wait, failed |= event_record_(plain, first);
    failed |= stream_wait_(second, plain, 0))
ROW(wait_stream, failed |= event_record_(plain, first);
    failed |= stream_wait_(second, plain, 0))
ROW(elapsed, float milliseconds;
    failed |= event_elapsed_(&milliseconds, start_, end_))
