/* The timeline's use of Python. */
#ifndef PYSTREAMS_PYTHON_TIMELINE_H
#define PYSTREAMS_PYTHON_TIMELINE_H

#include "../core/memory.h"
#include "../core/stream.h"
#include "../core/trace.h"
#include "../observe/timeline.h"

#include "module.h"
#include "wait.h"

/* A traced call, of the kinds that trace_timeline asks for. */
void timeline_trace(enum ps_trace_kind kind, struct ps_device *device,
                    ps_handle first, ps_handle second);

/* Begin the slice of the calling thread's wait for the work or, if that is
 * NULL, for the source; NULL if nothing records.  End it with ps_slice_end. */
struct ps_slice *timeline_add_wait(const char *operation,
                                   const struct work *work, uint64_t source);

static inline struct ps_slice *
timeline_wait(const char *operation, const struct work *work, uint64_t source)
{
    return ps_timeline_is_on() ? timeline_add_wait(operation, work, source)
                               : NULL;
}

static inline void
timeline_waited(struct ps_slice *slice)
{
    if (slice != NULL) {
        ps_slice_end(slice);
    }
}

/* The slice of a callable that will be queued on the stream; NULL if nothing
 * records. */
struct ps_slice *timeline_callable(struct ps_stream *stream,
                                   PyObject *function, uint64_t *source);

/* The calling thread is about to queue a copy between these blocks, which
 * names its slice by the direction; false if nothing records. */
bool
timeline_copy_begin(const struct ps_block *to, const struct ps_block *from);
/* After a begin that returned true. */
void timeline_copy_end(void);

#endif
