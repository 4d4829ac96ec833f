/* The timeline: a log of the operations of streams and the waits of the host,
 * with the times at which each began and ended.  A log is a list of slices,
 * one for each operation or wait, in the order of the calls.  The indices of
 * slices continue from one log to the next.  If an operation ends after the
 * recording has stopped, its end is still written, and the memory of its slice
 * is kept until then. */
#ifndef PYSTREAMS_OBSERVE_TIMELINE_H
#define PYSTREAMS_OBSERVE_TIMELINE_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

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
    PS_SLICE_SPAN_END, /* the end of a span on a stream; source: the span */
    PS_SLICE_RECORD,   /* source: none */
    /* A stream's wait; source: the record, or the latest slice of a stream
     * with which it serializes. */
    PS_SLICE_WAIT,
    /* A thread's wait; source: the last slice that it waits for. */
    PS_SLICE_SYNCHRONIZE,
    /* A change of the device memory in use; nbytes: the bytes in use. */
    PS_SLICE_MEMORY,
    PS_SLICE_KERNEL,
    PS_SLICE_MARK, /* a point in time of a thread */
};

struct ps_slice {
    /* `end` is 0 until the slice has ended, and -1 if the end is not known. */
    struct ps_times times;
    /* The time of queueing.  It is written last when a slice is added: while
     * it is 0, the slice must not be read. */
    int64_t queued;
    /* The bytes of a copy, a fill or a device's memory.  For a range or mark
     * of another library (NVTX), the number of its domain. */
    uint64_t nbytes;
    /* 1 + the index of the slice that this one waits for or ends (see enum
     * ps_slice_kind); or 0.  The exception: if the slice is foreign and its
     * thread has no index, the thread's pthread_t. */
    uint64_t source;
    /* Each is 0, or 1 + an index.  The hooks choose the indices of threads,
     * places and names. */
    uint32_t stream;
    uint32_t thread;
    uint32_t place;
    uint32_t name;
    /* The row in which to draw it, set by ps_timeline_resolve; or
     * PS_NO_ROW. */
    uint32_t row;
    uint8_t kind; /* an enum ps_slice_kind */
    /* It is a span on a stream whose begin and end were measured by events. */
    bool timed;
    /* Whether activity reports name this slice by its index, so that a report
     * sets the slice's times.  If the slice is foreign, the report also sets
     * all other fields, and the kind is PS_SLICE_NONE until then.  Also true
     * for a range. */
    bool reported;
    /* It stands for an operation, range or mark of another library. */
    bool foreign;
};

#define PS_NO_ROW UINT32_MAX

/* The execution of one node of a graph in one launch. */
struct ps_node {
    /* A copy of the launch's slice, with the data of the node. */
    struct ps_slice slice;
    uint64_t launch; /* the index of the launch's slice */
};

/* A value of ps_actor_name.stream that means the device's memory instead of a
 * stream. */
#define PS_TIMELINE_MEMORY UINTPTR_MAX

/* If this bit is set in ps_actor_name.stream, the rest is the stream's number
 * in activity reports, because its handle is not known. */
#define PS_TIMELINE_NUMBER (~(UINTPTR_MAX >> 1))

/* If this bit is set in ps_slice.name, the rest is a number of names.h. */
#define PS_TIMELINE_NAME (UINT32_C(1) << 31)

/* Functions that the timeline calls, with none of its locks held. */
struct ps_timeline_hooks {
    /* Returns whether the call of the backend in progress is one of the
     * library's own. */
    bool (*is_internal)(void);
    /* Returns whether time is virtual. */
    bool (*is_virtual)(void);
    /* Sets the slice's thread and place, and its name if the slice is a
     * copy. */
    void (*origin)(struct ps_slice *slice);
    /* Returns 1 + the calling thread's index; 0 if the thread has no index yet
     * and does not hold the GIL.  May be called with any lock held, so it must
     * not wait for the GIL. */
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

/* Returns the time in nanoseconds: that of CLOCK_MONOTONIC, unless time is
 * virtual. */
int64_t ps_timeline_now(void);

/* Returns the timeline's table for a runtime; see ps_observed_table. */
const struct ps_backend *
ps_timeline_table(int runtime, const struct ps_backend *backend);

/* Make the runtime's backend report activities to the current log until the
 * log stops.  Statuses: those of activities_begin. */
ps_status ps_timeline_activities(int runtime, const struct ps_backend *backend,
                                 char *reason, size_t size);

/* Get the stream with this index.  Returns false if there is none. */
bool ps_timeline_stream(const struct ps_timeline *timeline, uint32_t index,
                        struct ps_actor_name *name);

/* Add a slice of this kind to the current log.  stream: the slice's stream, or
 * NULL.  Returns NULL if no log is active, the stream is being captured, the
 * call is the library's own, or memory is short.  The caller fills in the
 * slice, and then calls ps_slice_publish or ps_slice_drop. */
struct ps_slice *ps_timeline_add(const struct ps_actor_name *stream,
                                 enum ps_slice_kind kind, uint64_t *index);

/* A span that was begun and not ended.  A span on a stream covers the work
 * that is queued between its begin and its end, also work that other libraries
 * queue. */
struct ps_open_span {
    struct ps_slice *slice; /* NULL if no log recorded */
    uint64_t index;
    struct ps_stamps *stamps;
};
struct ps_open_span ps_timeline_span_begin(const struct ps_actor_name *stream);
void ps_timeline_span_end(const struct ps_actor_name *stream,
                          const struct ps_open_span *span);
/* Drop a span that will not be ended.  The span must belong to a thread, have
 * stamps, or have no slice. */
void ps_timeline_span_drop(const struct ps_open_span *span);

/* Returns the time since which the thread of the slice `index` was idle: it
 * made no call and ended no wait between that time and the slice.  `source` is
 * 1 + the index of an earlier slice, whose time is `since`: the result is not
 * before that time.  The slice `index` must be in the current log, and be its
 * thread's latest. */
int64_t ps_timeline_idle_since(uint64_t index, uint64_t source, int64_t since);

/* Another library reports (through NVTX) that the calling thread begins a
 * range, or makes a mark.  name and domain are numbers of names.h.  The thread
 * may hold any lock.  Returns 1 + the index of the new slice; 0 if no log
 * records or memory is short.  For a range, pass that to
 * ps_timeline_range_end, on any thread, even after the recording has
 * stopped. */
uint64_t
ps_timeline_range(enum ps_slice_kind kind, uint32_t name, uint32_t domain);
void ps_timeline_range_end(uint64_t source);

/* Register the fork handlers for the timeline's locks.  ps_timeline_start also
 * does this. */
void ps_timeline_prepare(void);

/* Returns the greatest known error, in nanoseconds, of the times that were
 * measured by events or reported by devices. */
int64_t ps_timeline_error(const struct ps_timeline *timeline);

/* Let other threads read the slice: sets the slice's time of queueing.  The
 * caller has written all other fields except `times`. */
void ps_slice_publish(struct ps_slice *slice, int64_t queued);

/* Set the time at which the slice begins, or ends, to now. */
void ps_slice_begin(struct ps_slice *slice);
void ps_slice_end(struct ps_slice *slice);
/* Drop a slice whose operation was not queued after all. */
void ps_slice_drop(struct ps_slice *slice);

/* ps_timeline_record: the event was recorded on the stream.  ps_timeline_wait:
 * the stream was made to wait for the event. */
void ps_timeline_record(const struct ps_actor_name *stream, ps_handle event);
void ps_timeline_wait(const struct ps_actor_name *stream, ps_handle event);

/* Add the stream to the log.  Then activity reports of work that other
 * libraries queue on the stream are recognized. */
void ps_timeline_know(const struct ps_actor_name *stream);

/* Return the value of ps_slice.source for a wait of a thread.
 * ps_timeline_latest: a wait for all work of the stream so far.
 * ps_timeline_recorded: a wait for the event's latest record.  A wait for a
 * device needs no such function: the slice of the wait has the stream
 * PS_TIMELINE_MEMORY, and ps_timeline_resolve sets its source. */
uint64_t ps_timeline_latest(const struct ps_actor_name *stream);
uint64_t ps_timeline_recorded(int runtime, ps_handle event);

/* A stream with this handle was created: forget a former stream with the same
 * handle. */
void ps_timeline_forget_stream(const struct ps_actor_name *stream);

/* Returns the index that the next slice will get. */
uint64_t ps_timeline_end(const struct ps_timeline *timeline);

/* Compute what follows from the data known so far: the times of records, waits
 * and spans on streams; the sources of waits for devices; and the rows.
 * Returns false if out of memory. */
bool ps_timeline_resolve(struct ps_timeline *timeline);

const struct ps_slice *
ps_timeline_slice(const struct ps_timeline *timeline, uint64_t index);
/* Get a node.  The nodes are numbered from 0 by the last ps_timeline_resolve.
 * Returns false if there is no node with this number. */
bool ps_timeline_node(const struct ps_timeline *timeline, uint64_t number,
                      struct ps_node *node);

/* Returns the slice that is the slice's source; NULL if there is none in this
 * log. */
const struct ps_slice *ps_timeline_source(const struct ps_timeline *timeline,
                                          const struct ps_slice *slice);

#endif
