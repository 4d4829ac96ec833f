/* The timeline is a log of the operations of streams and the waits of the
 * host, with the times at which each began and ended.  A log is a list of
 * slices in the order of the calls.  A slice stands for an operation, a wait
 * or something else (see enum ps_slice_kind).  The indices of slices continue
 * from one log to the next.  If an operation ends after the recording has
 * stopped, the time at which it ended is still stored in its slice, and the
 * memory of the slice is kept until then. */
#ifndef PYSTREAMS_OBSERVE_TIMELINE_H
#define PYSTREAMS_OBSERVE_TIMELINE_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

/* What a slice stands for.  If ps_slice.source refers to another slice, the
 * comment on the kind says to which one. */
enum ps_slice_kind {
    /* An operation that was not queued, or that is not reported yet. */
    PS_SLICE_NONE,
    PS_SLICE_COPY,
    PS_SLICE_FILL,
    PS_SLICE_SLEEP,
    PS_SLICE_FUNCTION,
    PS_SLICE_GRAPH,
    PS_SLICE_CALLABLE,
    /* A span that the program marked, on a stream or of a thread. */
    PS_SLICE_SPAN,
    /* The end of a span on a stream.  The source is the span. */
    PS_SLICE_SPAN_END,
    /* A record of an event. */
    PS_SLICE_RECORD,
    /* A wait of a stream.  The source is the record for which it waits or, if
     * the wait only serializes the stream with another one, the latest slice
     * of that stream. */
    PS_SLICE_WAIT,
    /* A wait of a thread.  The source is the last slice for which it waits. */
    PS_SLICE_SYNCHRONIZE,
    /* A change of the amount of device memory in use.  ps_slice.nbytes is the
     * new amount. */
    PS_SLICE_MEMORY,
    PS_SLICE_KERNEL,
    PS_SLICE_MARK, /* a point in time of a thread */
};

struct ps_slice {
    /* `end` is 0 until the slice has ended, and -1 if the end is not known. */
    struct ps_times times;
    /* The time at which the operation was queued.  While it is 0, other
     * threads must not read the slice; see ps_slice_publish. */
    int64_t queued;
    /* The number of bytes that are copied or filled, or that are in use on the
     * device.  For a range or mark that another library made (NVTX), the
     * number of its domain's name (see names.h). */
    uint64_t nbytes;
    /* 1 + the index of the slice that this one waits for or ends (see enum
     * ps_slice_kind), or 0 if there is none.  A foreign slice (see `foreign`)
     * has no source.  In a foreign slice whose thread has no index, this field
     * is the thread's pthread_t instead. */
    uint64_t source;
    /* Each of these four fields is 1 + an index, or 0 if the slice has no
     * stream, thread, place or name.  The place is the line in the program
     * where the call was made.  The hooks choose the indices of threads,
     * places and names. */
    uint32_t stream;
    uint32_t thread;
    uint32_t place;
    uint32_t name;
    /* The slice's number, from 0, among the slices that are shown to programs;
     * PS_NO_ROW if the slice is not shown.  Set by ps_timeline_resolve. */
    uint32_t row;
    uint8_t kind; /* an enum ps_slice_kind */
    /* Whether this is a span on a stream whose begin and end are measured by
     * events. */
    bool timed;
    /* Whether activity reports (see reports.h) refer to this slice, so that a
     * report sets the slice's times.  A report about a foreign slice also sets
     * the slice's kind, which is PS_SLICE_NONE until then, and its name.  If
     * the slice is an operation, the report also sets its stream and nbytes.
     * This field is also true for a range or mark, although no report refers
     * to it. */
    bool reported;
    /* Whether this is an operation, range or mark of another library. */
    bool foreign;
};

#define PS_NO_ROW UINT32_MAX

/* The execution of one graph node in one launch. */
struct ps_node {
    /* A copy of the launch's slice, with the data of the node. */
    struct ps_slice slice;
    uint64_t launch; /* the index of the launch's slice */
};

/* A value of ps_actor_name.stream that means the device's memory instead of a
 * stream. */
#define PS_TIMELINE_MEMORY UINTPTR_MAX

/* If this bit is set in ps_actor_name.stream, the stream's handle is not
 * known, and the other bits are the stream's number in activity reports. */
#define PS_TIMELINE_NUMBER (~(UINTPTR_MAX >> 1))

/* If this bit is set in ps_slice.name, the other bits are the number of a name
 * (see names.h). */
#define PS_TIMELINE_NAME (UINT32_C(1) << 31)

/* Functions that the timeline calls, with none of its locks held. */
struct ps_timeline_hooks {
    /* Returns whether this thread is calling the backend for the library's own
     * purposes. */
    bool (*is_internal)(void);
    /* Returns whether time is virtual; see docs/schedules.md. */
    bool (*is_virtual)(void);
    /* Sets the slice's thread and place, and its name if the slice is a
     * copy. */
    void (*origin)(struct ps_slice *slice);
    /* Returns 1 + the calling thread's index.  Returns 0 if the thread has no
     * index yet and does not hold the GIL.  This hook may be called with any
     * lock held, so it must not wait for the GIL. */
    uint32_t (*known_thread)(void);
    /* Called when a stream is used for the first time and gets its index. */
    void (*stream)(const struct ps_actor_name *stream, uint32_t index);
};

struct ps_timeline;

/* Begin a log.  Returns NULL if out of memory.  The hooks must stay valid
 * until the process ends.  by_events: whether to measure the times of all
 * operations by events, even if a backend reports their times. */
struct ps_timeline *
ps_timeline_start(const struct ps_timeline_hooks *hooks, bool by_events);
void ps_timeline_stop(void);
bool ps_timeline_is_on(void);
void ps_timeline_free(struct ps_timeline *timeline);

/* Returns the present time in nanoseconds.  This is the time of
 * CLOCK_MONOTONIC, unless time is virtual. */
int64_t ps_timeline_now(void);

/* Returns the timeline's table for a runtime; see ps_observed_table in
 * table.h. */
const struct ps_backend *
ps_timeline_table(int runtime, const struct ps_backend *backend);

/* Make the runtime's backend report activities to the current log, until
 * ps_reports_end is called.  Statuses: those of activities_begin. */
ps_status ps_timeline_activities(int runtime, const struct ps_backend *backend,
                                 char *reason, size_t size);

/* Get the stream with this index.  Returns false if there is none. */
bool ps_timeline_stream(const struct ps_timeline *timeline, uint32_t index,
                        struct ps_actor_name *name);

/* Add a slice of this kind to the current log.  stream: the slice's stream, or
 * NULL.  *index becomes the slice's index, unless index is NULL.  Returns NULL
 * if no log is active, the stream is being captured, the hook is_internal
 * returns true, or memory is short.  The caller fills in the slice, and then
 * calls ps_slice_publish or ps_slice_drop. */
struct ps_slice *ps_timeline_add(const struct ps_actor_name *stream,
                                 enum ps_slice_kind kind, uint64_t *index);

/* A span that has begun and has not ended.  A span on a stream covers the work
 * that is queued between its begin and its end, including work that other
 * libraries queue. */
struct ps_open_span {
    struct ps_slice *slice; /* NULL if no slice was added */
    uint64_t index;
    struct ps_stamps *stamps;
};
struct ps_open_span ps_timeline_span_begin(const struct ps_actor_name *stream);
void ps_timeline_span_end(const struct ps_actor_name *stream,
                          const struct ps_open_span *span);
/* Drop a span that will not be ended.  Not needed for a span on a stream if
 * the span has no stamps: its slice then stays in the log without an end. */
void ps_timeline_span_drop(const struct ps_open_span *span);

/* Returns the time since which a thread had been idle when it added the slice
 * `index`.  This is the time of the thread's previous call, or of the end of
 * its previous wait, but at least `since`, which must be the time of the slice
 * with the index source - 1.  The slice `index` must be the latest slice of
 * its thread.  Returns `since` if the slices are not in the current log. */
int64_t ps_timeline_idle_since(uint64_t index, uint64_t source, int64_t since);

/* Add a slice for a range that begins now, or for a mark.  Called when another
 * library reports it (through NVTX) on this thread, which may hold any lock.
 * name and domain are numbers of names (see names.h).  Returns 1 + the index
 * of the new slice.  Returns 0 if no log is active, the hook is_internal
 * returns true, or memory is short.  To end a range, pass the result to
 * ps_timeline_range_end.  Any thread may end a range, even after the recording
 * has stopped. */
uint64_t
ps_timeline_range(enum ps_slice_kind kind, uint32_t name, uint32_t domain);
void ps_timeline_range_end(uint64_t source);

/* Register the fork handlers for the timeline's locks.  ps_timeline_start also
 * does this. */
void ps_timeline_prepare(void);

/* Returns the greatest known error, in nanoseconds, of the times that were
 * measured by events or reported by devices. */
int64_t ps_timeline_error(const struct ps_timeline *timeline);

/* Set the time at which the slice was queued.  This lets other threads read
 * the slice.  The caller has written all other fields except `times`. */
void ps_slice_publish(struct ps_slice *slice, int64_t queued);

/* Set the time at which the slice begins, or ends, to now. */
void ps_slice_begin(struct ps_slice *slice);
void ps_slice_end(struct ps_slice *slice);
/* Drop a slice whose operation was not queued after all. */
void ps_slice_drop(struct ps_slice *slice);

/* Call ps_timeline_record when the event was recorded on the stream, and
 * ps_timeline_wait when the stream was made to wait for the event.  Each adds
 * a slice. */
void ps_timeline_record(const struct ps_actor_name *stream, ps_handle event);
void ps_timeline_wait(const struct ps_actor_name *stream, ps_handle event);

/* Add the stream to the log, so that activity reports about work that other
 * libraries queue on the stream can be matched to it. */
void ps_timeline_know(const struct ps_actor_name *stream);

/* Return the value of ps_slice.source for a wait by a thread.  Use
 * ps_timeline_latest if the thread waits for all work on the stream so far,
 * and ps_timeline_recorded if it waits for the event's latest record.  A wait
 * for a device needs no such function: its slice has the stream
 * PS_TIMELINE_MEMORY, and ps_timeline_resolve sets the source. */
uint64_t ps_timeline_latest(const struct ps_actor_name *stream);
uint64_t ps_timeline_recorded(int runtime, ps_handle event);

/* Call this when a stream with this handle was created or destroyed.  From
 * then on, work on the handle is not attributed to the former stream. */
void ps_timeline_forget_stream(const struct ps_actor_name *stream);

/* Returns the index that the next slice will get. */
uint64_t ps_timeline_end(const struct ps_timeline *timeline);

/* Add to the log the reports that have arrived, and compute what follows from
 * the data known so far: the times of records, waits and spans on streams, the
 * sources of waits for streams and devices, and the rows.  Returns false if
 * out of memory. */
bool ps_timeline_resolve(struct ps_timeline *timeline);

const struct ps_slice *
ps_timeline_slice(const struct ps_timeline *timeline, uint64_t index);
/* Get the node with this number.  Nodes are numbered from 0, in the order in
 * which ps_timeline_resolve adds them.  Returns false if there is no node with
 * this number. */
bool ps_timeline_node(const struct ps_timeline *timeline, uint64_t number,
                      struct ps_node *node);

/* Returns the slice to which slice->source refers.  If that slice has the kind
 * PS_SLICE_NONE, follows its source in turn.  Returns NULL if there is no such
 * slice in this log. */
const struct ps_slice *ps_timeline_source(const struct ps_timeline *timeline,
                                          const struct ps_slice *slice);

#endif
