/* The timeline: a log of the operations of streams and the waits of the host,
 * with the times at which each began and ended.  The log is a list of slices
 * in the order of the calls; their numbers continue over all logs.  A slice
 * may end after the recording: the code that ends it writes its end, and its
 * memory is kept until then. */
#ifndef PYSTREAMS_OBSERVE_TIMELINE_H
#define PYSTREAMS_OBSERVE_TIMELINE_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "forward.h"

enum ps_slice_kind {
    PS_SLICE_NONE, /* it did not happen after all */
    PS_SLICE_COPY,
    PS_SLICE_FILL,
    PS_SLICE_SLEEP,
    PS_SLICE_FUNCTION,
    PS_SLICE_GRAPH,
    PS_SLICE_CALLABLE,
    PS_SLICE_SPAN,        /* of a stream, or of a thread */
    PS_SLICE_SPAN_END,    /* on a stream; source: the span */
    PS_SLICE_RECORD,      /* source: none */
    PS_SLICE_WAIT,        /* of a stream; source: the record, or the latest of
                             a stream that it serializes with */
    PS_SLICE_SYNCHRONIZE, /* of a thread; source: the last one waited for */
    PS_SLICE_MEMORY,      /* a device's memory in use; nbytes */
    PS_SLICE_KERNEL,
    PS_SLICE_MARK, /* a moment of a thread */
};

struct ps_slice {
    /* end: 0 while it is not over; -1 if it is not known. */
    struct ps_times times;
    /* Written last when a slice is added.  While it is 0, do not read the
     * slice. */
    int64_t queued;
    /* Of a range or mark of another library: the number of its domain. */
    uint64_t nbytes;
    /* An index, plus one; or 0.  In a foreign slice of a thread without an
     * index: the thread's identifier, a pthread_t. */
    uint64_t source;
    /* Indices, plus one; or 0.  The hooks number threads, places and names. */
    uint32_t stream;
    uint32_t thread;
    uint32_t place;
    uint32_t name;
    uint32_t row; /* as of the last ps_timeline_resolve, or PS_NO_ROW */
    uint8_t kind; /* enum ps_slice_kind */
    bool timed;   /* a span of a stream that has times of its own */
    /* Whether reports look it up by its index: the device reports its times
     * and, if it is foreign, all other fields (before, its kind is
     * PS_SLICE_NONE).  Also true of a range. */
    bool reported;
    bool foreign; /* made by another library */
};

#define PS_NO_ROW UINT32_MAX

/* An operation within a launch of a graph. */
struct ps_node {
    struct ps_slice slice; /* a copy of its launch's, with the operation's own
                            * data */
    uint64_t launch;       /* the index of that slice */
};

/* The handle that stands for a device's memory instead of a stream. */
#define PS_TIMELINE_MEMORY UINTPTR_MAX

/* A handle with this bit is the number of a stream whose handle is not
 * known. */
#define PS_TIMELINE_NUMBER (~(UINTPTR_MAX >> 1))

/* A slice's name with this bit is a number of names.h. */
#define PS_TIMELINE_NAME (UINT32_C(1) << 31)

/* Called with no lock of the timeline's held. */
struct ps_timeline_hooks {
    /* Whether the current call is the library's own. */
    bool (*is_internal)(void);
    /* Whether time is virtual. */
    bool (*is_virtual)(void);
    /* The calling thread, the place of the program's call and, of a copy, its
     * name. */
    void (*origin)(struct ps_slice *slice);
    /* The calling thread's index if it has one or has the GIL, else 0; may be
     * called with any lock held, so it may not wait for the GIL. */
    uint32_t (*known_thread)(void);
    /* A stream was first seen, and got the index. */
    void (*stream)(const struct ps_actor_name *stream, uint32_t index);
};

struct ps_timeline;

/* Begin a log; NULL if out of memory.  The hooks live as long as the process.
 * by_events: operations are timed by events even if their backend says their
 * times. */
struct ps_timeline *
ps_timeline_start(const struct ps_timeline_hooks *hooks, bool by_events);
void ps_timeline_stop(void);
bool ps_timeline_is_on(void);
void ps_timeline_free(struct ps_timeline *timeline);

/* The time in nanoseconds: CLOCK_MONOTONIC, unless it is virtual. */
int64_t ps_timeline_now(void);

/* The table for a runtime, as ps_observed_table. */
const struct ps_backend *
ps_timeline_table(int runtime, const struct ps_backend *backend);

/* Make the backend of a runtime report activities, if it can, while this log
 * is the current one.  Statuses as of activities_begin. */
ps_status ps_timeline_activities(int runtime, const struct ps_backend *backend,
                                 char *reason, size_t size);

/* Which stream has the index; false if none has. */
bool ps_timeline_stream(const struct ps_timeline *timeline, uint32_t index,
                        struct ps_actor_name *name);

/* Add a slice of this kind, to the stream if it is not NULL; NULL if nothing
 * records, the stream is captured, the call is internal, or there is no
 * memory.  The caller fills it in, and publishes or drops it. */
struct ps_slice *ps_timeline_add(const struct ps_actor_name *stream,
                                 enum ps_slice_kind kind, uint64_t *index);

/* Between the two calls the span is on the stream, which may have work that
 * only its device knows of. */
struct ps_open_span {
    struct ps_slice *slice; /* NULL: nothing records */
    uint64_t index;
    struct ps_stamps *stamps;
};
struct ps_open_span ps_timeline_span_begin(const struct ps_actor_name *stream);
void ps_timeline_span_end(const struct ps_actor_name *stream,
                          const struct ps_open_span *span);
/* The span will not be ended.  It belongs to a thread or has stamps; it may be
 * none.
 */
void ps_timeline_span_drop(const struct ps_open_span *span);

/* When the thread of the slice at index last made a call or ended a wait
 * before that slice; at the earliest `since`, the time of the slice of the
 * source.  The slice is in the current log, and its thread's latest. */
int64_t ps_timeline_idle_since(uint64_t index, uint64_t source, int64_t since);

/* Another library says that the calling thread, which may hold any lock,
 * begins a range or is at a mark, with numbers of names.h.  Returns the source
 * of the slice, 0 if nothing records or there is no memory.  A range may end
 * on any thread, and after the recording. */
uint64_t
ps_timeline_range(enum ps_slice_kind kind, uint32_t name, uint32_t domain);
void ps_timeline_range_end(uint64_t source);

/* Prepare for forks, so that no lock stays taken; ps_timeline_start does so,
 * too. */
void ps_timeline_prepare(void);

/* The greatest known error of the times that are taken by events or reported
 * by devices, in nanoseconds. */
int64_t ps_timeline_error(const struct ps_timeline *timeline);

/* All fields but its times are written; publish the slice with the time of
 * queueing. */
void ps_slice_publish(struct ps_slice *slice, int64_t queued);

/* The slice begins, or ends, now. */
void ps_slice_begin(struct ps_slice *slice);
void ps_slice_end(struct ps_slice *slice);
/* The operation did not happen. */
void ps_slice_drop(struct ps_slice *slice);

/* The event was recorded on the stream; the stream waits for it. */
void ps_timeline_record(const struct ps_actor_name *stream, ps_handle event);
void ps_timeline_wait(const struct ps_actor_name *stream, ps_handle event);

/* Add the stream to the log; other libraries may use it, too. */
void ps_timeline_know(const struct ps_actor_name *stream);

/* The source of a slice whose thread waits for the stream's work, or for the
 * event; one that waits for a device has PS_TIMELINE_MEMORY as its stream. */
uint64_t ps_timeline_latest(const struct ps_actor_name *stream);
uint64_t ps_timeline_recorded(int runtime, ps_handle event);

/* A stream with this handle begins: forget an earlier one. */
void ps_timeline_forget_stream(const struct ps_actor_name *stream);

/* The index that the next slice gets. */
uint64_t ps_timeline_end(const struct ps_timeline *timeline);

/* Compute from the present data: times of records, waits and spans of streams,
 * sources of waits for devices, and rows.  False if out of memory. */
bool ps_timeline_resolve(struct ps_timeline *timeline);

const struct ps_slice *
ps_timeline_slice(const struct ps_timeline *timeline, uint64_t index);
/* The node of a number, from 0 on, as of the last ps_timeline_resolve; false
 * if there are no more. */
bool ps_timeline_node(const struct ps_timeline *timeline, uint64_t number,
                      struct ps_node *node);

/* NULL if it has none in this log. */
const struct ps_slice *ps_timeline_source(const struct ps_timeline *timeline,
                                          const struct ps_slice *slice);

#endif
