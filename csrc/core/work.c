/* Work on streams: each function checks the stream and the member, and calls
 * it. */
#include "work.h"

#include "runtime.h"
#include "stream.h"

static const struct ps_backend *
backend_of(struct ps_stream *stream)
{
    return stream->device->runtime->backend;
}

static ps_status
check(struct ps_stream *stream, bool supported)
{
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    return supported ? PS_SUCCESS : PS_ERROR_NOT_SUPPORTED;
}

ps_status
ps_stream_copy(struct ps_stream *stream, void *destination, const void *source,
               size_t nbytes)
{
    ps_status status = check(stream, backend_of(stream)->memory_copy != NULL);
    return status != PS_SUCCESS || nbytes == 0
               ? status
               : PS_CALL(stream->device, memory_copy, stream->handle,
                         destination, source, nbytes);
}

ps_status
ps_stream_fill(struct ps_stream *stream, void *destination, uint32_t value,
               size_t size, size_t nbytes)
{
    const struct ps_backend *backend = backend_of(stream);
    /* Any backend fills with bytes that are all the same. */
    uint32_t first = value & 0xff;
    bool same = size == 1 || value == first * (size == 2 ? 0x101 : 0x1010101);
    ps_status status =
        check(stream, same ? backend->memory_fill != NULL
                           : backend->memory_fill_items != NULL);
    if (status != PS_SUCCESS || nbytes == 0) {
        return status;
    }
    return same ? PS_CALL(stream->device, memory_fill, stream->handle,
                          destination, (uint8_t)first, nbytes)
                : PS_CALL(stream->device, memory_fill_items, stream->handle,
                          destination, value, size, nbytes);
}

ps_status
ps_stream_host_function(struct ps_stream *stream, ps_host_function function,
                        void *argument)
{
    ps_status status =
        check(stream, backend_of(stream)->host_function != NULL);
    return status != PS_SUCCESS ? status
                                : PS_CALL(stream->device, host_function,
                                          stream->handle, function, argument);
}

ps_status
ps_stream_sleep(struct ps_stream *stream, uint64_t cycles)
{
    ps_status status = check(stream, backend_of(stream)->sleep != NULL);
    return status != PS_SUCCESS
               ? status
               : PS_CALL(stream->device, sleep, stream->handle, cycles);
}

ps_status
ps_stream_fail(struct ps_stream *stream, ps_status failure)
{
    const struct ps_faults *faults = stream->device->runtime->faults;
    ps_status status = check(stream, faults != NULL);
    return status != PS_SUCCESS
               ? status
               : faults->stream_fail(stream->device->runtime->registered,
                                     stream->device->index, stream->handle,
                                     failure);
}

ps_status
ps_stream_capturing(struct ps_stream *stream, int *capturing)
{
    ps_status status = check(stream, true);
    *capturing = 0;
    return status != PS_SUCCESS || backend_of(stream)->stream_capturing == NULL
               ? status
               : PS_CALL(stream->device, stream_capturing, stream->handle,
                         capturing);
}
