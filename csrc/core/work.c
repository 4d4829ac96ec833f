/* Work on streams.  Each function checks that the stream belongs to this
 * process and, usually, that the backend has the member that does the work.
 * If there is work to do, it then calls this member. */
#include "work.h"

#include "runtime.h"
#include "stream.h"

static ps_status
check(struct ps_stream *stream, bool supported)
{
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    return supported ? PS_SUCCESS : PS_ERROR_NOT_SUPPORTED;
}

#define HAS(stream, member) \
    ((stream)->device->runtime->backend->member != NULL)

/* Check the stream and the member, then call the member.  The macro's last
 * arguments are the member's arguments after the stream. */
#define CALL(stream, member, ...)                                       \
    ({                                                                  \
        ps_status status_ = check(stream, HAS(stream, member));         \
        status_ != PS_SUCCESS ? status_                                 \
                              : PS_CALL((stream)->device, member,       \
                                        (stream)->handle, __VA_ARGS__); \
    })

ps_status
ps_stream_copy(struct ps_stream *stream, void *destination, const void *source,
               size_t nbytes)
{
    return nbytes == 0
               ? check(stream, HAS(stream, memory_copy))
               : CALL(stream, memory_copy, destination, source, nbytes);
}

ps_status
ps_stream_fill(struct ps_stream *stream, void *destination, uint32_t value,
               size_t size, size_t nbytes)
{
    /* A value whose bytes are all equal is filled as single bytes, since every
     * backend with memory can do that. */
    uint32_t first = value & 0xff;
    bool same = size == 1 || value == first * (size == 2 ? 0x101 : 0x1010101);
    if (nbytes == 0) {
        return check(stream, same ? HAS(stream, memory_fill)
                                  : HAS(stream, memory_fill_items));
    }
    return same
               ? CALL(stream, memory_fill, destination, (uint8_t)first, nbytes)
               : CALL(stream, memory_fill_items, destination, value, size,
                      nbytes);
}

ps_status
ps_stream_host_function(struct ps_stream *stream, ps_host_function function,
                        void *argument)
{
    return CALL(stream, host_function, function, argument);
}

ps_status
ps_stream_sleep(struct ps_stream *stream, uint64_t cycles)
{
    return CALL(stream, sleep, cycles);
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
    *capturing = 0;
    return HAS(stream, stream_capturing)
               ? CALL(stream, stream_capturing, capturing)
               : check(stream, true);
}
