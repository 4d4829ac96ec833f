/* Interprocess events, implemented with cudart.
 *
 * The rule: an event is reliable only while the process that created it and
 * the process that recorded it last both live and have not destroyed it.
 * Otherwise cudart guarantees nothing, and a wait may never return. */
#include <cuda_runtime_api.h>

#include <string.h>

#include "driver.h"
#include "table.h"

_Static_assert(sizeof(cudaIpcEventHandle_t) == PS_IPC_HANDLE_BYTES,
               "a handle is cudart's");

ps_status
cuda_event_export(const struct ps_backend *backend, int device,
                  ps_handle event, unsigned char handle[PS_IPC_HANDLE_BYTES])
{
    cudaIpcEventHandle_t exported;
    ps_status status = ON_DEVICE(
        device, cudaIpcGetEventHandle(&exported, (cudaEvent_t)event));

    if (status == PS_SUCCESS) {
        memcpy(handle, &exported, sizeof(exported));
    }
    return status;
}

/* Convert an error returned by cudaIpcOpenEventHandle to a status.  If the
 * handle's bytes identify no event, or if the event was destroyed, cudart
 * returns one of the errors below. */
static ps_status
open_status(cudaError_t error)
{
    switch (error) {
    case cudaErrorDeviceUninitialized:
    case cudaErrorMapBufferObjectFailed:
    case cudaErrorInvalidResourceHandle:
        return PS_ERROR_INVALID_VALUE;
    default:
        return (ps_status)error;
    }
}

ps_status
cuda_event_open(const struct ps_backend *backend, int device,
                const unsigned char handle[PS_IPC_HANDLE_BYTES],
                ps_handle *event)
{
    cudaIpcEventHandle_t exported;
    cudaEvent_t opened;

    memcpy(&exported, handle, sizeof(exported));
    ps_status status = ON_DEVICE(
        device, open_status(cudaIpcOpenEventHandle(&opened, exported)));
    if (status == PS_SUCCESS) {
        status = cuda_event_share((ps_handle)opened);
        if (status != PS_SUCCESS) {
            (void)ON_DEVICE(device, cudaEventDestroy(opened));
        }
    }
    if (status == PS_SUCCESS) {
        *event = (ps_handle)opened;
    }
    return status;
}
