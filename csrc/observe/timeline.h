/* The timeline: a log of the operations of streams and the waits of the host,
 * with the times at which each began and ended.  A log is a list of slices in
 * the order of the calls.  The slices' indices continue from one log to the
 * next.  A slice may end after the recording has stopped.  Then the code that
 * ends it still writes its end, and its memory is kept until then. */
#ifndef PYSTREAMS_OBSERVE_TIMELINE_H
#define PYSTREAMS_OBSERVE_TIMELINE_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

enum ps_slice_kind {
    PS_SLICE_NONE, /* an operation that failed, or is not reported yet */
    PS_SLICE_COPY,
    PS_SLICE_FILL,
    PS_SLICE_SLEEP,
    PS_SLICE_FUNCTION,
    PS_SLICE_GRAPH,
    PS_SLICE_CALLABLE,
    PS_SLICE_SPAN,     /* a span on a stream or of a thread */
    PS_SLICE_SPAN_END, /* the end of a span on a stream; source: the span */
    PS_SLICE_RECORD,   /* source: none */
    PS_SLICE_WAIT, /* of a stream; source: the record, or the latest slice of a
                      stream with which it serializes */
    PS_SLICE_SYNCHRONIZE, /* of a thread; source: the last slice that it waits
                             for */
    PS_SLICE_MEMORY,      /* nbytes: how much of a device's memory is in use */
    PS_SLICE_KERNEL,
    PS_SLICE_MARK, /* a point in time of a thread */
};

struct ps_slice {
    /* `end` is 0 while the slice is not over, and -1 if its end is not
     * known. */
    struct ps_times times;
    /* The time of queueing.  It is written last when a slice is added: while
     * it is 0, the slice must not be read. */
    int64_t queued;
    /* Bytes, of a copy, a fill or a device's memory.  For a range or mark of
     * another library, the number of its domain. */
    uint64_t nbytes;
    /* 1 + the index of another slice; or 0.  For a foreign slice of a thread
     * without an index, the thread's identifier, a pthread_t. */
    uint64_t source;
    /* 1 + an index each; or 0.  The hooks choose the indices of threads,
     * places and names. */
    uint32_t stream;
    uint32_t thread;
    uint32_t place;
    uint32_t name;
    uint32_t row; /* from the last ps_timeline_resolve, or PS_NO_ROW */
    uint8_t kind; /* an enum ps_slice_kind */
    bool timed;   /* a span of a stream that measured its own times */
    /* Whether activity reports find this slice by its index.  A report then
     * sets its times.  If the slice is foreign, the report also sets all other
     * fields, and its kind is PS_SLICE_NONE until then.  Also true for a
     * range. */
    bool reported;
    bool foreign; /* made by another library */
};

#define PS_NO_ROW UINT32_MAX

/* An operation within a launch of a graph, that is, a node of the graph. */
struct ps_node {
    struct ps_slice slice; /* the launch's, with the node's own data */
    uint64_t launch;       /* the index of the launch's slice */
};

/* A stream handle that means the device's memory instead of a stream. */
#define PS_TIMELINE_MEMORY UINTPTR_MAX

/* A stream handle with this bit set is a stream's number in activity reports:
 * the handle is not known. */
#define PS_TIMELINE_NUMBER (~(UINTPTR_MAX >> 1))

/* If this bit is set in a slice's name, the rest is a number of names.h. */
#define PS_TIMELINE_NAME (UINT32_C(1) << 31)

/* Functions that the timeline calls, with none of its locks held. */
struct ps_timeline_hooks {
    /* Returns whether the current call is the library's own. */
    bool (*is_internal)(void);
    /* Returns whether time is virtual. */
    bool (*is_virtual)(void);
    /* Sets the slice's thread and place, and the name if it is a copy. */
    void (*origin)(struct ps_slice *slice);
    /* Returns the calling thread's index, if the thread has one or holds the
     * GIL, else 0.  May be called with any lock held, so it must not wait for
     * the GIL. */
    uint32_t (*known_thread)(void);
    /* Called when a stream is first seen and gets its index. */
    void (*stream)(const struct ps_actor_name *stream, uint32_t index);
};

struct ps_timeline;

/* Begin a log.  Returns NULL if out of memory.  The hooks must stay valid
 * until the process ends.  by_events: time all operations by events, even if a
 * backend reports their times. */
struct ps_timeline *
ps_timeline_start(const struct ps_timeline_hooks *hooks, bool by_events);
void ps_timeline_stop(void);
bool ps_timeline_is_on(void);
void ps_timeline_free(struct ps_timeline *timeline);

/* The time in nanoseconds: of CLOCK_MONOTONIC, unless time is virtual. */
int64_t ps_timeline_now(void);

/* Returns the timeline's table for a runtime; see ps_observed_table. */
const struct ps_backend *
ps_timeline_table(int runtime, const struct ps_backend *backend);

/* Make the backend of a runtime report activities, if it can, as long as this
 * log records.  Statuses: those of activities_begin. */
ps_status ps_timeline_activities(int runtime, const struct ps_backend *backend,
                                 char *reason, size_t size);

/* Get the name of the stream with this index.  Returns false if there is
 * none. */
bool ps_timeline_stream(const struct ps_timeline *timeline, uint32_t index,
                        struct ps_actor_name *name);

/* Add a slice of this kind, on the stream unless that is NULL.  Returns NULL
 * if nothing records, the stream is captured, the call is the library's own,
 * or there is no memory.  The caller fills in the slice, and then publishes or
 * drops it. */
struct ps_slice *ps_timeline_add(const struct ps_actor_name *stream,
                                 enum ps_slice_kind kind, uint64_t *index);

/* A span that was begun and not ended.  On a stream, it covers the work in
 * between, including work that only the device knows of. */
struct ps_open_span {
    struct ps_slice *slice; /* NULL: nothing recorded */
    uint64_t index;
    struct ps_stamps *stamps;
};
struct ps_open_span ps_timeline_span_begin(const struct ps_actor_name *stream);
void ps_timeline_span_end(const struct ps_actor_name *stream,
                          const struct ps_open_span *span);
/* Drop a span that will not be ended.  It belongs to a thread, or has stamps,
 * or is empty. */
void ps_timeline_span_drop(const struct ps_open_span *span);

/* Returns since when the thread of a slice had made no call and ended no wait
 * before that slice.  The result is not earlier than `since`, the time of the
 * source's slice.  The slice is in the current log, and is the latest of its
 * thread. */
int64_t ps_timeline_idle_since(uint64_t index, uint64_t source, int64_t since);

/* Another library reports that the calling thread begins a range, or makes a
 * mark.  name and domain are numbers of names.h.  The thread may hold any
 * lock.  Returns the source of the new slice; 0 if nothing records or there is
 * no memory.  A range may end on any thread, and after the recording. */
uint64_t
ps_timeline_range(enum ps_slice_kind kind, uint32_t name, uint32_t domain);
void ps_timeline_range_end(uint64_t source);

/* Make the timeline's locks safe for forks.  ps_timeline_start also does
 * this. */
void ps_timeline_prepare(void);

/* The greatest known error in nanoseconds of times that were measured by
 * events or reported by devices. */
int64_t ps_timeline_error(const struct ps_timeline *timeline);

/* Publish a slice, with the time of queueing.  All of its other fields but
 * `times` have been written. */
void ps_slice_publish(struct ps_slice *slice, int64_t queued);

/* The slice begins now, or ends now. */
void ps_slice_begin(struct ps_slice *slice);
void ps_slice_end(struct ps_slice *slice);
/* Drop a slice whose operation did not happen. */
void ps_slice_drop(struct ps_slice *slice);

/* The event was recorded on the stream.  The stream waits for the event. */
void ps_timeline_record(const struct ps_actor_name *stream, ps_handle event);
void ps_timeline_wait(const struct ps_actor_name *stream, ps_handle event);

/* Add the stream to the log, so that activity reports of other libraries' work
 * on it are recognized. */
void ps_timeline_know(const struct ps_actor_name *stream);

/* Return the source for a slice of a thread that waits for the stream's work,
 * or for the event.  For a wait for a device, the slice's stream is
 * PS_TIMELINE_MEMORY. */
uint64_t ps_timeline_latest(const struct ps_actor_name *stream);
uint64_t ps_timeline_recorded(int runtime, ps_handle event);

/* A stream with this handle was created, so forget an earlier one. */
void ps_timeline_forget_stream(const struct ps_actor_name *stream);

/* Returns the index that the next slice will get. */
uint64_t ps_timeline_end(const struct ps_timeline *timeline);

/* Compute, from the data known so far: the times of records, waits and spans
 * on streams; the sources of waits for devices; and the rows.  Returns false
 * if out of memory. */
bool ps_timeline_resolve(struct ps_timeline *timeline);

const struct ps_slice *
ps_timeline_slice(const struct ps_timeline *timeline, uint64_t index);
/* Get a node by its number, from 0 on, as of the last ps_timeline_resolve.
 * Returns false if there are no more. */
bool ps_timeline_node(const struct ps_timeline *timeline, uint64_t number,
                      struct ps_node *node);

/* Returns the source of a slice; NULL if it has none in this log. */
const struct ps_slice *ps_timeline_source(const struct ps_timeline *timeline,
                                          const struct ps_slice *slice);

#endif
