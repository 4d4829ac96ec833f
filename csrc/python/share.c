/* Interprocess Buffers.  A Buffer's handle consists of the handle of its block
 * and the Buffer's range within the block.  Even if a handle consists of
 * arbitrary bytes, the range cannot exceed the block, because the backend
 * checks the size of the block, and this file checks the range against that
 * size. */
#include "share.h"

#include <stddef.h>
#include <string.h>

#include "../core/runtime.h"

#include "errors.h"
#include "ipc.h"
#include "races.h"

struct handle {
    unsigned char block[PS_IPC_HANDLE_BYTES];
    uint64_t size; /* the size of the block, in bytes */
    uint64_t offset;
    uint64_t nbytes;
    uint64_t checksum; /* of the members before it */
};

static const struct shared_kind shared_buffer = {
    .type = "Buffer",
    .noun = "memory block",
    .feature = "interprocess memory",
    .bytes = sizeof(struct handle),
};

/* Returns the FNV-1a checksum of the members before `checksum`.  It detects
 * every change of a single byte. */
static uint64_t
checksum(const struct handle *handle)
{
    const unsigned char *bytes = (const unsigned char *)handle;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < offsetof(struct handle, checksum); i++) {
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

/* Get the handle of an open interprocess Buffer.  On failure, returns -1 with
 * an exception.  If the Buffer is not an interprocess one, the exception is of
 * the type `refusal`. */
static int
handle_of(PyObject *self, PyObject *refusal, const char *doing,
          struct ps_device **device, struct handle *handle)
{
    struct span span;
    if (buffer_hold(self, &span) < 0) {
        return -1;
    }
    bool shared = span.block->share != NULL;
    if (shared) {
        const char *first = span.block->data;
        *device = span.block->device;
        *handle = (struct handle){
            .size = span.block->nbytes,
            .offset = (uint64_t)(span.data - first),
            .nbytes = (uint64_t)span.nbytes,
        };
        memcpy(handle->block, ps_block_handle(span.block),
               sizeof(handle->block));
        handle->checksum = checksum(handle);
    }
    span_release(&span);
    return shared ? 0
                  : refuse(refusal,
                           "%s: expected a Buffer made with "
                           "interprocess=True, which other processes can open",
                           doing);
}

PyObject *
Buffer_ipc_handle(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_device *device;
    struct handle handle;
    return handle_of(self, PyExc_RuntimeError,
                     "ipc_handle() needs interprocess memory", &device,
                     &handle) == 0
               ? PyBytes_FromStringAndSize((const char *)&handle,
                                           sizeof(handle))
               : NULL;
}

PyObject *
Buffer_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    struct ps_device *device;
    struct handle handle;
    return handle_of(self, PyExc_TypeError, "cannot pickle 'Buffer' object",
                     &device, &handle) == 0
               ? ipc_reduce(self,
                            (struct device_name){
                                device->runtime->backend->device_type, -1},
                            (const unsigned char *)&handle, sizeof(handle),
                            NULL)
               : NULL;
}

/* Open the handle's block on the device.  *span becomes the handle's range
 * within the block. */
static ps_status
open_part(struct ps_device *device, const struct handle *handle,
          struct span *span)
{
    struct ps_block *block;
    if (handle->checksum != checksum(handle) || handle->size == 0 ||
        handle->size > PY_SSIZE_T_MAX || handle->offset > handle->size ||
        handle->nbytes > handle->size - handle->offset) {
        return PS_ERROR_INVALID_VALUE;
    }
    ps_status status =
        ps_block_open(device, handle->block, handle->size, &block);
    if (status == PS_SUCCESS) {
        *span = (struct span){
            .block = block,
            .data = (char *)block->data + handle->offset,
            .nbytes = (Py_ssize_t)handle->nbytes,
        };
    }
    return status;
}

/* Open the handle on whichever of the runtime's devices has the memory; try
 * `device` first. */
static ps_status
open_anywhere(struct ps_device *device, const struct handle *handle,
              struct span *span)
{
    struct ps_runtime *runtime = device->runtime;
    int count = atomic_load(&runtime->device_count);
    ps_status status = open_part(device, handle, span);
    for (int i = 0; i < count && status == PS_ERROR_INVALID_DEVICE; i++) {
        status = ps_runtime_device(runtime, i, &device);
        if (status == PS_SUCCESS) {
            status = open_part(device, handle, span);
        }
    }
    return status;
}

PyObject *
Buffer_from_ipc_handle(PyObject *Py_UNUSED(type), PyObject *const *args,
                       Py_ssize_t nargs, PyObject *kwnames)
{
    struct ps_device *device;
    struct handle handle;
    struct span span;
    Py_buffer bytes;
    ps_status status;
    bool indexed;
    if (ipc_arguments(&shared_buffer, -1, args, nargs, kwnames, &device,
                      &indexed, &bytes) < 0) {
        return NULL;
    }
    memcpy(&handle, bytes.buf, sizeof(handle));
    PyBuffer_Release(&bytes);
    WITHOUT_GIL(status = indexed ? open_part(device, &handle, &span)
                                 : open_anywhere(device, &handle, &span));
    if (status == PS_ERROR_INVALID_DEVICE && !indexed) {
        return PyErr_Format(
            PyExc_ValueError,
            "from_ipc_handle: none of the %s devices that this process sees "
            "has the memory of this handle; expected one that both processes "
            "see",
            device->runtime->backend->name);
    }
    return status == PS_SUCCESS
               ? buffer_wrap(&span)
               : raise_not_opened(&shared_buffer, device, status);
}
