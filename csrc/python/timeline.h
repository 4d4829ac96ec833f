/* The timeline's Python side. */
#ifndef PYSTREAMS_PYTHON_TIMELINE_H
#define PYSTREAMS_PYTHON_TIMELINE_H

#include "../core/memory.h"
#include "../core/stream.h"
#include "../core/trace.h"
#include "../observe/timeline.h"

#include "module.h"
#include "wait.h"

/* Record a call that a trace point of core reports; see trace_timeline. */
void timeline_trace(enum ps_trace_kind kind, struct ps_device *device,
                    ps_handle first, ps_handle second);

/* Begin a slice for a wait of the calling thread.  The wait is for `work`.  If
 * `work` is NULL, it is for the callable whose future_source is `source` or,
 * if `source` is 0, for something else.  Returns NULL if the timeline does not
 * record the wait.  The caller ends the slice with ps_slice_end. */
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

/* Returns a slice for a callable that will be queued on the stream; NULL if
 * the timeline does not record it.  *source becomes the value for
 * future_set_source. */
struct ps_slice *timeline_callable(struct ps_stream *stream,
                                   PyObject *function, uint64_t *source);

/* Have the timeline name the calling thread's next copy after its direction,
 * such as "copy host to device".  Call this before a copy between these blocks
 * is queued.  Returns false if no timeline is recording or memory is short. */
bool
timeline_copy_begin(const struct ps_block *to, const struct ps_block *from);
/* Call this after the copy was queued, if timeline_copy_begin returned
 * true. */
void timeline_copy_end(void);

#endif
