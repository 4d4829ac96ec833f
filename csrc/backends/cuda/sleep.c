/* The member sleep of the backend's table.  It launches a kernel that reads
 * the device's clock until the given number of cycles has passed. */
#include <stdatomic.h>

#include "driver.h"
#include "table.h"

/* The source of the kernel, in PTX.  Its version and target are old enough for
 * every supported driver and device. */
static const char sleep_source[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry ps_sleep(.param .u64 cycles)\n"
    "{\n"
    "    .reg .pred %early;\n"
    "    .reg .u64 %cycles, %start, %spent;\n"
    "    ld.param.u64 %cycles, [cycles];\n"
    "    mov.u64 %start, %clock64;\n"
    "again:\n"
    "    mov.u64 %spent, %clock64;\n"
    "    sub.u64 %spent, %spent, %start;\n"
    "    setp.lt.u64 %early, %spent, %cycles;\n"
    "    @%early bra again;\n"
    "    ret;\n"
    "}\n";

static CUresult
sleep_queue(ps_handle stream, uint64_t cycles)
{
    static _Atomic(CUkernel) loaded;
    CUkernel kernel = atomic_load(&loaded);
    void *arguments[] = {&cycles};
    CUlibrary library;
    CUresult error = CUDA_SUCCESS;

    /* Several threads may each load the library; that is harmless. */
    if (kernel == NULL) {
        error = cuda_driver.library_load(&library, sleep_source, NULL, NULL, 0,
                                         NULL, NULL, 0);
        if (error == CUDA_SUCCESS) {
            error = cuda_driver.library_kernel(&kernel, library, "ps_sleep");
        }
        if (error == CUDA_SUCCESS) {
            atomic_store(&loaded, kernel);
        }
    }
    if (error == CUDA_SUCCESS) {
        error =
            cuda_driver.kernel_launch((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0,
                                      (CUstream)stream, arguments, NULL);
    }
    return error;
}

ps_status
cuda_sleep(const struct ps_backend *backend, int device, ps_handle stream,
           uint64_t cycles)
{
    return ON_DEVICE(device, sleep_queue(stream, cycles));
}
