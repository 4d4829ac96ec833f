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
    const struct ps_backend *backend = backend_of(stream);
    ps_status status = check(stream, backend->memory_copy != NULL);
    if (nbytes == 0) {
        return status;
    }
    return status != PS_SUCCESS
               ? status
               : backend->memory_copy(backend, stream->device->index,
                                      stream->handle, destination, source,
                                      nbytes);
}

ps_status
ps_stream_fill(struct ps_stream *stream, void *destination, uint8_t value,
               size_t nbytes)
{
    const struct ps_backend *backend = backend_of(stream);
    ps_status status = check(stream, backend->memory_fill != NULL);
    if (nbytes == 0) {
        return status;
    }
    return status != PS_SUCCESS
               ? status
               : backend->memory_fill(backend, stream->device->index,
                                      stream->handle, destination, value,
                                      nbytes);
}

ps_status
ps_stream_host_function(struct ps_stream *stream, ps_host_function function,
                        void *argument)
{
    const struct ps_backend *backend = backend_of(stream);
    ps_status status = check(stream, backend->host_function != NULL);
    return status != PS_SUCCESS
               ? status
               : backend->host_function(backend, stream->device->index,
                                        stream->handle, function, argument);
}

ps_status
ps_stream_sleep(struct ps_stream *stream, uint64_t cycles)
{
    const struct ps_backend *backend = backend_of(stream);
    ps_status status = check(stream, backend->sleep != NULL);
    return status != PS_SUCCESS
               ? status
               : backend->sleep(backend, stream->device->index, stream->handle,
                                cycles);
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
    const struct ps_backend *backend = backend_of(stream);
    ps_status status = check(stream, true);
    *capturing = 0;
    if (status != PS_SUCCESS || backend->stream_capturing == NULL) {
        return status;
    }
    return backend->stream_capturing(backend, stream->device->index,
                                     stream->handle, capturing);
}
