/* The contract between pystreams and a backend.  A backend gives pystreams
 * access to devices.  It is a table of functions, struct ps_backend, and the
 * comments here are the specification of these functions.  A backend includes
 * no pystreams header except this one and, for fault injection, faults.h.
 * pystreams calls a backend only through the table.
 *
 * These rules hold for every member of the table, unless the member's comment
 * says otherwise:
 *
 * - Caller.  pystreams calls members on any thread, and on several threads at
 *   once.  During a call it holds none of the locks that its callbacks, such
 *   as `reached`, take.  While a member marked "enqueues" or "answers" is
 *   called, the Python thread state may be attached (the GIL held).  While a
 *   member marked "may block" is called, the thread state is detached.  A
 *   backend never calls Python.
 * - Blocking.  A member marked "answers" returns within about a microsecond,
 *   and does not wait.  A member marked "enqueues" appends an operation to a
 *   stream and returns, without waiting for work; see stream_wait_room.  A
 *   member marked "may block" may take any time.
 * - The parameter `backend` is the table through which the member was called,
 *   so that one implementation can serve several device types.
 * - The parameter `device` is an index in [0, device_count).  Core (the part
 *   of pystreams that calls backends) has checked it.  A member leaves the
 *   calling thread's current device as it found it, on success and on failure,
 *   and touches no other device.
 * - Handles are integers that the backend chooses.  Stream 0 is the default
 *   stream of the device; no event, graph or executable has the handle 0.
 *   Core uses a handle from the call that creates it to the call that destroys
 *   it, and not afterwards.
 * - A member writes its results through its last parameters, which are
 *   pointers.  It writes them only on success.
 * - A member returns PS_SUCCESS, one of the statuses that its comment names,
 *   or any status from 1 to 999 for a failure of the device itself.  After a
 *   failure nothing has been queued, created or freed.
 * - Queued work may run before or after the call that queued it returns.  The
 *   work of a stream runs in the order in which it was queued; only events
 *   order it relative to the work of other streams. */
#ifndef PYSTREAMS_BACKEND_H
#define PYSTREAMS_BACKEND_H

#include <stddef.h>
#include <stdint.h>

/* How to register a table.  An extension module is compiled with the include
 * folder that pystreams.get_include() returns.  When the module is imported,
 * it passes the table's address in a capsule of this name:
 *
 *     PyObject *capsule =
 *         PyCapsule_New((void *)&table, PS_CAPSULE_NAME, NULL);
 *     PyObject *none =
 *         PyObject_CallMethod(pystreams, "register_backend", "N", capsule);
 *
 * The table must stay unchanged until the process ends. */
#define PS_CAPSULE_NAME "pystreams.backend"

/* Statuses below 1000 have the numbers of cudaError_t, on every backend.  Four
 * statuses mean the same for every member.  PS_ERROR_NOT_READY: work is
 * pending.  PS_ERROR_TIMED_OUT: a wait has reached its limit.
 * PS_ERROR_QUEUE_FULL: work was not queued, because the queue is full.
 * PS_ERROR_TOO_LATE: a notification can no longer be cancelled. */
typedef int ps_status;
enum {
    PS_SUCCESS = 0,
    PS_ERROR_INVALID_VALUE = 1,
    PS_ERROR_OUT_OF_MEMORY = 2,
    PS_ERROR_NOT_INITIALIZED = 3,
    PS_ERROR_SHUTTING_DOWN = 4,
    PS_ERROR_INSUFFICIENT_DRIVER = 35,
    PS_ERROR_NO_DEVICE = 100,
    PS_ERROR_INVALID_DEVICE = 101,
    PS_ERROR_OPERATING_SYSTEM = 304,
    PS_ERROR_INVALID_HANDLE = 400,
    PS_ERROR_NOT_READY = 600,
    PS_ERROR_CONTEXT_DESTROYED = 709,
    PS_ERROR_ALREADY_PINNED = 712,
    PS_ERROR_NOT_PERMITTED = 800,
    PS_ERROR_NOT_SUPPORTED = 801,
    /* A capture cannot record this call. */
    PS_ERROR_CAPTURE_UNSUPPORTED = 900,
    /* An earlier failure has made the capture invalid. */
    PS_ERROR_CAPTURE_INVALIDATED = 901,
    /* A wait would join two captures into one. */
    PS_ERROR_CAPTURE_MERGE = 902,
    /* The capture began on another stream. */
    PS_ERROR_CAPTURE_UNMATCHED = 903,
    /* A stream has joined the capture, but the stream on which the capture
     * began does not wait for the work of the stream that joined. */
    PS_ERROR_CAPTURE_UNJOINED = 904,
    /* The call would make captured work wait for work that is not captured. */
    PS_ERROR_CAPTURE_ISOLATION = 905,
    /* The call would make captured work depend on the default stream, with
     * which the captured stream serializes. */
    PS_ERROR_CAPTURE_IMPLICIT = 906,
    /* The event's latest record was captured, so it never completes. */
    PS_ERROR_CAPTURED_EVENT = 907,
    /* Another thread began the capture. */
    PS_ERROR_CAPTURE_WRONG_THREAD = 908,
    PS_ERROR_GRAPH_UPDATE = 910, /* the graphs differ too much */
    PS_ERROR_TIMED_OUT = 909,
    PS_ERROR_INVALID_RESOURCE = 915, /* not enough multiprocessors are left */
    PS_ERROR_UNKNOWN = 999,
    /* The statuses below are not in cudaError_t. */
    PS_ERROR_QUEUE_FULL = 1000,
    PS_ERROR_TOO_LATE = 1003,
};

/* Device types have torch's numbering (c10::DeviceType). */
enum {
    PS_DEVICE_CPU = 0,
    PS_DEVICE_CUDA = 1,
    PS_DEVICE_MTIA = 13,
    PS_DEVICE_PRIVATEUSEONE = 20,
};

typedef uintptr_t ps_handle;

/* PS_STREAM_PER_THREAD is the handle of the calling thread's default stream.
 * Such a stream also has a name, a number whose two upper bits are those of
 * PS_THREAD_STREAM_NAME; see thread_stream. */
#define PS_STREAM_PER_THREAD  ((ps_handle)2)
#define PS_THREAD_STREAM_NAME ((ps_handle)1 << 62)

static inline int
ps_is_thread_stream_name(ps_handle stream)
{
    return stream >> 62 == PS_THREAD_STREAM_NAME >> 62;
}

typedef void (*ps_host_function)(void *argument);

/* Called when a notification is due.  `status` is the failure of the work
 * before the notification, or PS_SUCCESS. */
typedef void (*ps_notification_function)(void *argument, ps_status status);

/* Called when a launch has reached a gate.  `status` is the failure of the
 * launch's work before the gate, or PS_SUCCESS. */
typedef void (*ps_launched_gate_function)(void *argument, ps_handle gate,
                                          ps_status status);

/* A pending call to reached(argument, status), in the caller's memory.  The
 * caller fills in the members `reached` and `argument`, and passes the
 * notification to stream_notify or event_notify.  If that call succeeds, the
 * memory belongs to the backend until the backend calls reached or
 * notify_cancel succeeds. */
struct ps_notification {
    ps_notification_function reached;
    void *argument;
    /* The following members are for the backend's use, and so are the two
     * functions after this struct. */
    struct ps_notification *next;
    struct ps_notification *previous;
    struct ps_notification **ring; /* the notification's ring, or NULL */
    uint64_t number;
    ps_status status;
};

/* A backend may keep notifications in rings, which are circular lists.  Append
 * the notification to a ring, or remove it from its ring.  *ring is the last
 * element of the ring, or NULL if the ring is empty. */
static inline void
ps_notification_append(struct ps_notification **ring,
                       struct ps_notification *notification)
{
    struct ps_notification *last = *ring != NULL ? *ring : notification;
    notification->ring = ring;
    notification->previous = last;
    notification->next = *ring != NULL ? last->next : notification;
    notification->next->previous = notification;
    last->next = notification;
    *ring = notification;
}

static inline void
ps_notification_remove(struct ps_notification *notification)
{
    struct ps_notification *previous = notification->previous;
    previous->next = notification->next;
    notification->next->previous = previous;
    if (*notification->ring == notification) {
        *notification->ring = previous != notification ? previous : NULL;
    }
    notification->ring = NULL;
}

/* Flags of event_create, which can be combined by |. */
enum {
    PS_EVENT_TIMING = 1,   /* event_elapsed accepts the event */
    PS_EVENT_BLOCKING = 2, /* event_synchronize sleeps instead of spinning */
    /* Other processes may open the event.  Never combined with
     * PS_EVENT_TIMING. */
    PS_EVENT_INTERPROCESS = 4,
};

/* The size of an interprocess handle. */
enum { PS_IPC_HANDLE_BYTES = 64 };

/* During a capture, some threads must not make calls that a capture cannot
 * record, such as allocations.  The mode says which threads: all of them, the
 * capturing one, or none.  The numbers are those of cudaStreamCaptureMode. */
enum ps_capture_mode {
    PS_CAPTURE_GLOBAL,
    PS_CAPTURE_THREAD_LOCAL,
    PS_CAPTURE_RELAXED,
};

/* Flags of a backend, which can be combined by |. */
enum {
    /* A forked child starts with idle devices and may use the backend.
     * Without this flag, a child may not use the backend if its parent did. */
    PS_BACKEND_FORKABLE = 1,
    /* The devices are emulated: they stand in for real devices of this
     * type. */
    PS_BACKEND_EMULATED = 2,
    /* Other libraries in the process use the devices too.  A call to the
     * backend may then block until a callback of another library has run, and
     * that callback may need the GIL.  So the thread state is detached during
     * calls to all members except status_name, status_text, device_current,
     * device_restore, event_query, event_elapsed, gate_open, stream_explain,
     * stream_number, thread_stream and time_now. */
    PS_BACKEND_SHARED = 4,
    /* Device memory is host memory: programs read and write it directly. */
    PS_BACKEND_HOST_MEMORY = 8,
    /* A thread must not end while work is pending on its default stream; see
     * thread_stream.  So core waits for the work first. */
    PS_BACKEND_THREADS_FINISH = 16,
};

/* The times at which an operation began and ended; see operation_times. */
struct ps_times {
    int64_t begin;
    int64_t end;
};

/* The kinds of activities.  An activity is a completed operation of a device,
 * which any library in the process may have queued, or a completed wait of the
 * host (PS_ACTIVITY_SYNCHRONIZE). */
enum ps_activity_kind {
    PS_ACTIVITY_KERNEL,
    PS_ACTIVITY_COPY,
    PS_ACTIVITY_FILL,
    PS_ACTIVITY_SYNCHRONIZE,
};

struct ps_activity {
    enum ps_activity_kind kind;
    int device;      /* not set for a wait, and neither is `stream` */
    uint64_t stream; /* the stream's number; see stream_number */
    uint64_t call;   /* the number of the call that queued or waited */
    int of_graph;    /* whether the call launched a graph */
    uint64_t nbytes; /* the bytes of a copy or fill */
    /* For a kernel, its name as compiled.  For a wait, the name of the
     * function that waited.  For a copy, a text like "copy host to device".
     * NULL if it is unknown.  Valid only during the call to done(). */
    const char *name;
    struct ps_times times; /* in nanoseconds of CLOCK_MONOTONIC */
};

/* Functions that a backend calls while it observes work.  The backend may hold
 * locks of its driver when it calls them.  So these functions neither call the
 * backend nor wait for a thread that calls it. */
struct ps_activity_functions {
    /* Called when the calling thread is about to queue work, or to wait for
     * work, by a call that has this number.  The calls of all libraries in the
     * process are numbered.  If a call has several numbers, this function is
     * called once for each. */
    void (*call)(void *argument, uint64_t number);
    /* Called on any thread when an operation or a wait has completed. */
    void (*done)(void *argument, const struct ps_activity *activity);
};

/* The limit of a wait. */
struct ps_limit {
    /* Nanoseconds from the call; INT64_MAX if there is no timeout. */
    int64_t timeout_ns;
    /* NULL, or a function that the backend calls about every 50 ms during the
     * wait, with the argument; a result other than 0 ends the wait with
     * PS_ERROR_TIMED_OUT.  It is called on the waiting thread, with none of
     * the backend's locks held.  Unlike the backend, it may call Python. */
    int (*is_over)(void *argument);
    void *argument;
};

/* What the first operation in a stream's queue waits for. */
enum ps_obstacle {
    /* Nothing: it runs or is about to run, or the queue is empty. */
    PS_OBSTACLE_NONE,
    /* A record on another stream.  The next ps_stream_state describes that
     * stream. */
    PS_OBSTACLE_STREAM,
    /* The opening of its gate. */
    PS_OBSTACLE_GATE,
    /* The end of its sleep. */
    PS_OBSTACLE_TIME,
    /* The backend does not know. */
    PS_OBSTACLE_UNKNOWN,
};

/* A stream's queue at one moment. */
struct ps_stream_state {
    int device;
    ps_handle stream; /* 0: the device's default stream */
    unsigned pending; /* the number of operations that are not done */
    enum ps_obstacle obstacle;
    /* These members describe the first operation in the queue. */
    const char *operation; /* its name, a static text, or NULL */
    size_t nbytes;         /* the number of bytes that it copies or fills */
    int64_t left_ns;       /* the time until its sleep ends */
};

struct ps_device_properties {
    char name[256];
    uint64_t total_memory; /* bytes */
    int major; /* compute capability; major and minor are 0 if there is none */
    int minor;
    int multi_processor_count;
    int warp_size;
    uint64_t l2_cache_size; /* bytes */
    uint8_t uuid[16];       /* zeros if none */
};

/* What a node of a graph does. */
enum ps_node_kind {
    PS_NODE_EMPTY, /* only orders other nodes */
    PS_NODE_KERNEL,
    PS_NODE_COPY,
    PS_NODE_FILL,
    PS_NODE_HOST,   /* calls a function on the host */
    PS_NODE_GATE,   /* see capture_gate */
    PS_NODE_RECORD, /* records an event at each launch */
    PS_NODE_WAIT,   /* waits for an event at each launch */
    PS_NODE_GRAPH,  /* another graph; see capture_graph */
    /* A node of any other kind, such as an allocation. */
    PS_NODE_OTHER,
};

struct ps_graph_node {
    enum ps_node_kind kind;
    /* The name of a kernel, or the kind of a PS_NODE_OTHER.  Valid as long as
     * the graph exists.  NULL if it is unknown. */
    const char *name;
    const void *function; /* of PS_NODE_HOST, else NULL */
    void *argument;       /* of PS_NODE_HOST or PS_NODE_GATE, else NULL */
    ps_handle event;      /* of PS_NODE_RECORD or PS_NODE_WAIT, else 0 */
    size_t nbytes;        /* of PS_NODE_COPY or PS_NODE_FILL, else 0 */
    /* For a kernel, the extents of its grid and of a block in x, y and z, if
     * they are known.  Else 0. */
    unsigned grid[3];
    unsigned block[3];
    /* A number that no other node of the graph has.  Tools of the device, such
     * as profilers, identify the node by this number, if they show nodes. */
    uint32_t number;
    /* For a kernel, the bytes of dynamic shared memory of each block, if
     * `grid` and `block` are known.  Else 0. */
    unsigned shared_nbytes;
};

/* Options of graph_instantiate_with, which can be combined by |. */
enum ps_instantiate_option {
    /* Each launch first frees memory that the previous launch allocated and
     * did not free. */
    PS_INSTANTIATE_AUTO_FREE = 1,
    /* A node has the priority of the stream on which it was captured.  Without
     * this option, a node has the priority of the stream on which the graph is
     * launched. */
    PS_INSTANTIATE_NODE_PRIORITY = 8,
};

/* Why graph_update cannot make an executable do the work of another graph. */
struct ps_graph_difference {
    const char *reason; /* static text; NULL if it is unknown */
    /* The index of a node of the other graph that differs; SIZE_MAX if no such
     * node is known. */
    size_t node;
};

/* The node `to` runs after the node `from`.  Both are indices of nodes. */
struct ps_graph_edge {
    size_t from;
    size_t to;
    /* The members of cudaGraphEdgeData.  All are 0 if `to` waits until `from`
     * has ended. */
    uint8_t from_port;
    uint8_t to_port;
    uint8_t type;
};

struct ps_backend {
    /* sizeof(struct ps_backend) in the header that the table was compiled
     * with.  Later headers add members at the end.  If the table is older than
     * core, its missing members count as NULL.  Core then makes a complete
     * copy of the table, and passes the copy to the members as `backend`.  If
     * the table is newer than core, core does not read the additional
     * members. */
    size_t struct_size;
    /* PS_BACKEND_FORKABLE and the other flags. */
    uint32_t flags;
    /* The device type as users write it: "cuda" in "cuda:1".  It consists of
     * at most 31 lower-case letters, digits and _, and begins with a
     * letter. */
    const char *name;
    /* torch's number for the device type, 0 or above. */
    int device_type;

    /* ---- Required: status text ---------------------------------------- */

    /* status_name returns the status as the backend's documentation spells it
     * ("cudaErrorInvalidDevice").  status_text returns a phrase for people
     * ("invalid device ordinal").  Both accept any int, and answer at once.
     * The strings are static. */
    const char *(*status_name)(const struct ps_backend *backend,
                               ps_status status);
    const char *(*status_text)(const struct ps_backend *backend,
                               ps_status status);

    /* ---- Required: devices -------------------------------------------- */

    /* Get the number of devices.  As long as the result is 0 or a failure,
     * core calls no member except status_name, status_text, versions,
     * activities_begin and shutdown.  Core calls this member again until a
     * device is used; after that the count is fixed.  May block.  Must not
     * initialize a device, and must leave the process able to fork.  Statuses:
     * PS_ERROR_NO_DEVICE, PS_ERROR_INSUFFICIENT_DRIVER. */
    ps_status (*device_count)(const struct ps_backend *backend, int *count);

    /* Get the calling thread's current device, which is 0 on a new thread.
     * Answers at once, and initializes nothing.  Other libraries in the
     * process may change the current device, so core asks each time. */
    ps_status (*device_current)(const struct ps_backend *backend, int *device);

    /* Make the device current on the calling thread, at the user's request.
     * May block, because this may initialize the device.  A failure leaves the
     * current device unchanged. */
    ps_status (*device_set)(const struct ps_backend *backend, int device);

    /* Make `previous`, the device that was current before a device_set,
     * current again.  Answers at once, and initializes nothing: an unused
     * device stays unused.  Optional.  If this member is NULL, core calls
     * device_set instead, and device_set must then follow these rules. */
    ps_status (*device_restore)(const struct ps_backend *backend,
                                int previous);

    /* Wait until all work that was queued on the device before the call is
     * done.  May block.  Statuses: the failure of any of that work.  If limit
     * is not NULL, returns PS_ERROR_TIMED_OUT when the limit is reached and
     * some of that work is not done.  A backend that cannot end a wait early
     * returns PS_ERROR_NOT_SUPPORTED at once if limit is not NULL, even if all
     * work is done. */
    ps_status (*device_synchronize)(const struct ps_backend *backend,
                                    int device, const struct ps_limit *limit);

    /* The device's human-readable name, and its properties.  A property that
     * the device lacks is 0.  May block.  Must not initialize the device. */
    ps_status (*device_properties)(const struct ps_backend *backend,
                                   int device,
                                   struct ps_device_properties *properties);

    /* ---- Required: streams -------------------------------------------- */

    /* Get the least and the greatest priority of streams: *least is 0, and
     * *greatest is 0 or negative.  Streams with lower numbers are served
     * first.  May block. */
    ps_status (*stream_priority_range)(const struct ps_backend *backend,
                                       int device, int *least, int *greatest);

    /* Create a stream that serializes with no other stream, not even with the
     * default stream.  `priority` is in the range that stream_priority_range
     * returns.  May block.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*stream_create)(const struct ps_backend *backend, int device,
                               int priority, ps_handle *stream);

    /* Destroy the stream.  Core never calls this for stream 0.  Queued work
     * still runs; the call does not wait for it.  If the stream's work fails,
     * and no call to stream_synchronize or device_synchronize has returned the
     * failure, the next device_synchronize returns it.  May block. */
    ps_status (*stream_destroy)(const struct ps_backend *backend, int device,
                                ps_handle stream);

    /* Returns PS_SUCCESS when all work queued so far is done,
     * PS_ERROR_NOT_READY when some of it is not done, and the stream's failure
     * if its work has failed.  The failure stays with the stream, so later
     * calls return it again.  Answers at once. */
    ps_status (*stream_query)(const struct ps_backend *backend, int device,
                              ps_handle stream);

    /* Wait until all work queued before the call is done.  May block.  Core
     * may call stream_query first, and then calls this member only if
     * stream_query did not return PS_SUCCESS.  Statuses: the first failure of
     * the stream's work, at every call.  The limit is as in
     * device_synchronize. */
    ps_status (*stream_synchronize)(const struct ps_backend *backend,
                                    int device, ps_handle stream,
                                    const struct ps_limit *limit);

    /* Make all work that is queued on the stream after this call wait until
     * the event's latest record is done.  If the event was never recorded,
     * nothing waits.  A later record of the event changes nothing.  The event
     * may belong to another device.  If the work before that record fails,
     * this stream fails with the same status.  Enqueues. */
    ps_status (*stream_wait_event)(const struct ps_backend *backend,
                                   int device, ps_handle stream,
                                   ps_handle event);

    /* Optional; NULL if no stream's queue is ever full.  When the queue of the
     * stream is full, each member that queues an operation, except
     * memory_free, queues nothing and returns PS_ERROR_QUEUE_FULL. Core then
     * calls this member, which waits until the queue has room, and after that
     * repeats the call that failed.  Returns PS_ERROR_TIMED_OUT if the queue
     * has no room after timeout_ns.  May block.  Returns
     * PS_ERROR_NOT_PERMITTED if work of the stream itself calls this member,
     * because such a wait might never end. */
    ps_status (*stream_wait_room)(const struct ps_backend *backend, int device,
                                  ps_handle stream, int64_t timeout_ns);

    /* Optional; NULL if a handle does not identify its device.  Get the device
     * of a stream that another library has made; never called for stream 0.
     * Answers at once.  If the handle means a stream of whichever device is
     * current, *device is unchanged.  Statuses: PS_ERROR_INVALID_HANDLE if the
     * backend can tell that the handle is invalid. */
    ps_status (*stream_device)(const struct ps_backend *backend,
                               ps_handle stream, int *device);

    /* ---- Required: events --------------------------------------------- */

    /* Create an event, which counts as never recorded.  flags has
     * PS_EVENT_TIMING only if the backend has the timing group, and never
     * together with PS_EVENT_INTERPROCESS.  May block.  Statuses:
     * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_NOT_SUPPORTED. */
    ps_status (*event_create)(const struct ps_backend *backend, int device,
                              unsigned flags, ps_handle *event);

    /* Destroy the event.  Records and waits already queued are unaffected.
     * May block. */
    ps_status (*event_destroy)(const struct ps_backend *backend, int device,
                               ps_handle event);

    /* Record the stream's current position: the event completes when all work
     * queued on the stream before this call is done.  Replaces any earlier
     * record.  The stream belongs to the event's device.  Enqueues. */
    ps_status (*event_record)(const struct ps_backend *backend, int device,
                              ps_handle event, ps_handle stream);

    /* Returns PS_SUCCESS when the latest record is done or the event was never
     * recorded, PS_ERROR_NOT_READY when the record is not done, and otherwise
     * the failure of the work before it.  Answers at once.  After PS_SUCCESS,
     * core does not query the event until it is recorded again, unless other
     * processes or graphs may record it. */
    ps_status (*event_query)(const struct ps_backend *backend, int device,
                             ps_handle event);

    /* Wait until the event's latest record is done.  A record that is made
     * during the wait changes nothing.  May block.  Statuses: the failure of
     * the work before the latest record.  The limit is as in
     * device_synchronize. */
    ps_status (*event_synchronize)(const struct ps_backend *backend,
                                   int device, ps_handle event,
                                   const struct ps_limit *limit);

    /* ---- Optional: timing ---------------------------------------------- */

    /* Get the milliseconds between two events of one device.  Both were
     * created with PS_EVENT_TIMING, were recorded, and are done.  May be
     * negative if end was recorded on another stream and completed first.
     * Answers at once.  Statuses: PS_ERROR_NOT_READY,
     * PS_ERROR_INVALID_HANDLE. */
    ps_status (*event_elapsed)(const struct ps_backend *backend, int device,
                               ps_handle start, ps_handle end,
                               float *milliseconds);

    /* ---- Optional group: interprocess events (both or none) ------------- */

    /* Write a handle with which another process can open the event, as long as
     * this process lives and the event is not destroyed.  The event was
     * created with PS_EVENT_INTERPROCESS.  May block. */
    ps_status (*event_export)(const struct ps_backend *backend, int device,
                              ps_handle event,
                              unsigned char handle[PS_IPC_HANDLE_BYTES]);

    /* Open an event that another process exported; core refuses handles that
     * this process exported.  The bytes of the handle may be arbitrary.  Each
     * process may record the event.  Every member that takes the event refers
     * to its latest record, whichever process made it.  A backend may delay a
     * record until all earlier records of the event are done.  If a process
     * ends while the work before its record is not done, the record fails,
     * provided that the backend can tell.  event_destroy ends this process's
     * use of the event.  May block.  Statuses: PS_ERROR_INVALID_VALUE if the
     * handle was not written by event_export for this device type,
     * PS_ERROR_INVALID_DEVICE for an event of another device,
     * PS_ERROR_INVALID_HANDLE if the backend can tell that the event no longer
     * exists. */
    ps_status (*event_open)(const struct ps_backend *backend, int device,
                            const unsigned char handle[PS_IPC_HANDLE_BYTES],
                            ps_handle *event);

    /* ---- Optional group: memory (all or none, except the last two) ------ */

    /* Allocate nbytes (> 0) of device memory, aligned to 256 bytes, for use by
     * work that is queued on the stream after the call.  May block.  Statuses:
     * PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*memory_allocate)(const struct ps_backend *backend, int device,
                                 ps_handle stream, size_t nbytes, void **data);

    /* Free the memory once the work queued on the stream before this call is
     * done.  Succeeds in every state of the stream; it needs no room in the
     * queue.  May block, but does not wait for work. */
    ps_status (*memory_free)(const struct ps_backend *backend, int device,
                             ps_handle stream, void *data);

    /* Allocate nbytes (> 0) of host memory that every device of the backend
     * can access and copy asynchronously.  May block.  Statuses:
     * PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*pinned_allocate)(const struct ps_backend *backend, int device,
                                 size_t nbytes, void **data);

    /* Free memory that pinned_allocate returned.  No queued work uses it any
     * more.  May block. */
    ps_status (*pinned_free)(const struct ps_backend *backend, int device,
                             void *data);

    /* Queue a copy of nbytes (> 0).  Each side is device memory of any device
     * of this backend, pinned host memory or pageable host memory.  The caller
     * keeps both sides alive until the copy is done.  Enqueues, but may block
     * when a side is pageable.  If the stream is being captured, each launch
     * of the graph copies what the source contains when the launch reaches the
     * copy.  In a capture, a side is pageable only if the backend has
     * PS_BACKEND_HOST_MEMORY. */
    ps_status (*memory_copy)(const struct ps_backend *backend, int device,
                             ps_handle stream, void *destination,
                             const void *source, size_t nbytes);

    /* Queue a fill of nbytes (> 0) of device or pinned memory with value.  May
     * block. */
    ps_status (*memory_fill)(const struct ps_backend *backend, int device,
                             ps_handle stream, void *destination,
                             uint8_t value, size_t nbytes);

    /* Get the number of bytes that can still be allocated, and the size of the
     * whole memory in bytes.  May block. */
    ps_status (*memory_info)(const struct ps_backend *backend, int device,
                             uint64_t *free, uint64_t *total);

    /* Optional.  Set *accessible to 1 if `device` can access the memory of
     * `peer` without staging, else to 0.  May block. */
    ps_status (*peer_accessible)(const struct ps_backend *backend, int device,
                                 int peer, int *accessible);

    /* Optional; NULL if an address does not identify its device.  Get the
     * device that has the memory at the address.  `device` is any device that
     * the caller uses.  Answers at once.  Statuses: PS_ERROR_INVALID_VALUE if
     * no device has memory there. */
    ps_status (*memory_device)(const struct ps_backend *backend, int device,
                               const void *address, int *owner);

    /* ---- Optional: work ------------------------------------------------ */

    /* Queue a call to function(argument) on one of the backend's threads.  The
     * function is short, does not wait and does not call the backend.
     * Enqueues. */
    ps_status (*host_function)(const struct ps_backend *backend, int device,
                               ps_handle stream, ps_host_function function,
                               void *argument);

    /* Queue work that does nothing for a number of device clock cycles.
     * Enqueues; the first call on a device may block. */
    ps_status (*sleep)(const struct ps_backend *backend, int device,
                       ps_handle stream, uint64_t cycles);

    /* ---- Optional group: notifications (all or none) -------------------- */

    /* Call notification->reached once, when the work that the stream has now
     * is done or has failed.  Neither later work nor the stream's destruction
     * changes that.  The status is the first failure of the stream's work up
     * to that point.
     *
     * reached runs with no lock held: on a thread of the backend, on a thread
     * that calls the backend, or on this thread before stream_notify returns.
     * It must be short, must not wait, and must call no member except
     * gate_open.  It never runs once shutdown has begun.
     *
     * The notification takes no place in the stream's queue, so this call
     * succeeds even if the queue is full.  The call disturbs no capture on any
     * thread.  Enqueues.  Statuses: PS_ERROR_CAPTURE_UNSUPPORTED on a stream
     * that is being captured, PS_ERROR_OUT_OF_MEMORY,
     * PS_ERROR_SHUTTING_DOWN. */
    ps_status (*stream_notify)(const struct ps_backend *backend, int device,
                               ps_handle stream,
                               struct ps_notification *notification);

    /* Like stream_notify, but call reached when the event's latest record is
     * done, or at once if the event was never recorded.  Later records, the
     * event's destruction, and the state of streams other than the one of that
     * record do not affect when reached is called.  The status is the failure
     * of the work before that record.  May block.  Statuses:
     * PS_ERROR_CAPTURED_EVENT, PS_ERROR_OUT_OF_MEMORY,
     * PS_ERROR_SHUTTING_DOWN. */
    ps_status (*event_notify)(const struct ps_backend *backend, int device,
                              ps_handle event,
                              struct ps_notification *notification);

    /* Cancel the notification: after PS_SUCCESS, reached never runs, and the
     * backend does not use the memory any more.  The caller keeps the memory
     * alive during the call.  Called on any thread, even after shutdown; the
     * stream or the event may have been destroyed.  Answers at once.
     * Statuses: PS_ERROR_TOO_LATE if reached has run, runs, or is about to
     * run. */
    ps_status (*notify_cancel)(const struct ps_backend *backend, int device,
                               struct ps_notification *notification);

    /* ---- Optional group: gates (both or none) --------------------------- */

    /* Queue a gate: once the work before it is done or has failed,
     * reached(argument, status) is called exactly once.  Work that is queued
     * on the stream after the gate starts only after gate_open.
     *
     * The comment on stream_notify says how reached runs.  *gate is written
     * before reached can run, so that reached may open the gate.  If this call
     * fails, *gate has no meaning, and reached never runs.  reached also never
     * runs once shutdown has begun.
     *
     * Enqueues.  Statuses: PS_ERROR_CAPTURE_UNSUPPORTED on a stream that is
     * being captured, PS_ERROR_NOT_SUPPORTED if the driver has no gates. */
    ps_status (*stream_gate)(const struct ps_backend *backend, int device,
                             ps_handle stream,
                             ps_notification_function reached, void *argument,
                             ps_handle *gate);

    /* Open the gate, even if it was not reached yet, and destroy it.  Called
     * exactly once for each gate, on any thread.  It may be called even if the
     * gate's stream has failed, and even after shutdown.  Answers at once,
     * except that it may run notifications. */
    ps_status (*gate_open)(const struct ps_backend *backend, int device,
                           ps_handle gate);

    /* ---- Optional: capture --------------------------------------------- */

    /* Set *capturing to 1 if work on the stream is captured, and to 0 if it is
     * executed.  Answers at once, and disturbs no capture. */
    ps_status (*stream_capturing)(const struct ps_backend *backend, int device,
                                  ps_handle stream, int *capturing);

    /* ---- Optional group: graphs ----------------------------------------- */

    /* All or none, except capture_mode_exchange and graph_print. */

    /* Begin to capture the stream's work instead of running it.  If another
     * stream waits for an event that was recorded in the capture, that stream
     * joins the capture.  Core never calls this for stream 0.  A backend with
     * this group also has stream_capturing.  Answers at once, but with
     * PS_BACKEND_SHARED may wait while another thread queues a gate on the
     * stream, or begins or ends a capture. */
    ps_status (*capture_begin)(const struct ps_backend *backend, int device,
                               ps_handle stream, enum ps_capture_mode mode);

    /* End the capture that began on the stream.  Called on the thread that
     * began the capture, unless the mode was PS_CAPTURE_RELAXED or the program
     * has dropped the graph.  *operations is the number of captured
     * operations.  Returns PS_ERROR_CAPTURE_UNMATCHED if no capture began on
     * the stream.  After any status except PS_ERROR_CAPTURE_UNMATCHED, the
     * capture is over, and its streams run work again.  May block.  Other
     * statuses: PS_ERROR_CAPTURE_INVALIDATED, _UNJOINED, _WRONG_THREAD. */
    ps_status (*capture_end)(const struct ps_backend *backend, int device,
                             ps_handle stream, ps_handle *graph,
                             size_t *operations);

    /* Optional; NULL if no call disturbs another stream's capture.  Set the
     * calling thread's mode to *mode, and *mode to the thread's former mode.
     * While its mode is PS_CAPTURE_RELAXED, the thread's calls disturb no
     * capture, unless they name a captured stream or event.  Answers at
     * once. */
    ps_status (*capture_mode_exchange)(const struct ps_backend *backend,
                                       enum ps_capture_mode *mode);

    /* Capture a record of the event, or a wait for it, on a stream that is
     * being captured.  Each launch of the graph executes this record or wait
     * on the event itself, whereas other captured records and waits only order
     * the captured work.  So the event must live as long as the graph.
     * Enqueues.  Statuses: PS_ERROR_NOT_SUPPORTED for a PS_EVENT_INTERPROCESS
     * event. */
    ps_status (*event_record_external)(const struct ps_backend *backend,
                                       int device, ps_handle event,
                                       ps_handle stream);
    ps_status (*stream_wait_external)(const struct ps_backend *backend,
                                      int device, ps_handle stream,
                                      ps_handle event);

    /* Make an executable from the graph.  The executable may outlive the
     * graph.  May block.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*graph_instantiate)(const struct ps_backend *backend,
                                   int device, ps_handle graph,
                                   ps_handle *executable);

    /* Queue the graph's work as one operation of the stream, after its pending
     * work and after the executable's earlier launches.  Failures of earlier
     * launches stay with the streams of those launches.  Core never calls this
     * for a stream that is being captured.  May block. */
    ps_status (*graph_launch)(const struct ps_backend *backend, int device,
                              ps_handle executable, ps_handle stream);

    /* Destroy the executable, or the graph.  Launches that were queued still
     * run.  May block. */
    ps_status (*executable_destroy)(const struct ps_backend *backend,
                                    int device, ps_handle executable);
    ps_status (*graph_destroy)(const struct ps_backend *backend, int device,
                               ps_handle graph);

    /* Optional.  Write a description of the graph to a file, for people.  May
     * block.  Statuses: PS_ERROR_OPERATING_SYSTEM if the file cannot be
     * written, with the reason in errno if that is known. */
    ps_status (*graph_print)(const struct ps_backend *backend, int device,
                             ps_handle graph, const char *path);

    /* ---- Optional: the backend as a whole ------------------------------ */

    /* Versions of the runtime and of the driver, as 1000 * major +
     * 10 * minor; 0 if none.  May block. */
    ps_status (*versions)(const struct ps_backend *backend, int *runtime,
                          int *driver);

    /* The program is ending: start no more queued work, wait for running work
     * for at most timeout_ns, and end the backend's threads.  A later wait
     * returns PS_ERROR_SHUTTING_DOWN if work is left.  A wait that is already
     * in progress goes on, perhaps for ever.  Such a wait can only be on a
     * thread that the program does not join before it ends, such as a daemon
     * thread.  May block.  Returns PS_ERROR_NOT_READY if work was still
     * running at the end.  A backend with PS_BACKEND_SHARED waits only for its
     * own threads: queued work belongs to the driver, which does not wait for
     * it when the process ends. */
    ps_status (*shutdown)(const struct ps_backend *backend,
                          int64_t timeout_ns);

    /* ---- Optional group: interprocess memory (all or none) -------------- */

    /* Allocate nbytes (> 0) of the device's memory.  Work on any stream may
     * use it as soon as the call returns.  Write a handle with which other
     * processes of this user can open it, as long as this process lives and
     * the memory is not freed.  May block, but does not wait for work.
     * Statuses: PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*shared_allocate)(const struct ps_backend *backend, int device,
                                 size_t nbytes,
                                 unsigned char handle[PS_IPC_HANDLE_BYTES],
                                 void **data);

    /* Map memory of nbytes bytes that another process allocated; core refuses
     * handles that this process exported.  The bytes of the handle may be
     * arbitrary, and nbytes may be any number except 0.  The mapped memory
     * stays valid until shared_free, whatever happens to the other process.
     * May block, but does not wait for work.  Statuses: those of event_open,
     * PS_ERROR_INVALID_HANDLE if the memory has another size,
     * PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*shared_open)(const struct ps_backend *backend, int device,
                             const unsigned char handle[PS_IPC_HANDLE_BYTES],
                             size_t nbytes, void **data);

    /* Free memory that shared_allocate or shared_open returned.  No work of
     * this process uses it any more.  Processes that have opened it keep it.
     * May block, and may wait for work. */
    ps_status (*shared_free)(const struct ps_backend *backend, int device,
                             void *data);

    /* ---- Optional group: gates in graphs (both or none) ----------------- */

    /* Get the number of the capture that captures the stream's work; 0 if
     * there is none.  Each capture of a process has its own number, which is
     * above 0.  Disturbs no capture.  Answers at once, but with
     * PS_BACKEND_SHARED may wait while another thread begins, ends or looks up
     * a capture. */
    ps_status (*stream_capture)(const struct ps_backend *backend, int device,
                                ps_handle stream, uint64_t *capture);

    /* Capture a gate on a stream.  `capture` is the number of the capture to
     * which the gate must belong.  Each launch of an executable of the graph
     * makes a gate of its own, on the launch's device.  Once the launch's work
     * before the gate is done or has failed, reached(argument, gate, status)
     * is called exactly once.  The work that was captured after the gate
     * starts only after gate_open(gate).  The calls come in the order of the
     * launches.  The comment on stream_notify says how reached runs.  It may
     * run even during graph_launch, and may open the gate.  reached is never
     * called once shutdown has begun.  Core keeps the argument valid as long
     * as a launch may call reached.  A backend with this group also has the
     * groups for graphs and for gates.
     *
     * Enqueues.  Statuses: PS_ERROR_INVALID_VALUE if this capture does not
     * capture the stream's work, PS_ERROR_CAPTURE_INVALIDATED. */
    ps_status (*capture_gate)(const struct ps_backend *backend, int device,
                              ps_handle stream, uint64_t capture,
                              ps_launched_gate_function reached,
                              void *argument);

    /* ---- Optional group: pools (all or none) ---------------------------- */

    /* Get the number of bytes of device memory that the backend has reserved
     * for memory_allocate, and the peak of that number.  Reserved memory is in
     * use, or it was freed and is kept for later allocations.  May block. */
    ps_status (*pool_usage)(const struct ps_backend *backend, int device,
                            uint64_t *reserved, uint64_t *peak);

    /* Reset the peak to the bytes that are reserved now.  May block. */
    ps_status (*pool_reset_peak)(const struct ps_backend *backend, int device);

    /* Return freed memory to the device, until at most nbytes are reserved or
     * no freed memory is left.  Memory whose free is still queued may stay
     * reserved.  While other work is queued, any freed memory may stay
     * reserved.  May block. */
    ps_status (*pool_trim)(const struct ps_backend *backend, int device,
                           uint64_t nbytes);

    /* Limit how much freed memory is kept: while more than nbytes are
     * reserved, freed memory is returned to the device.  This happens when
     * memory is freed, or at a later call that waits for work to finish.  At
     * first there is no limit.  May block. */
    ps_status (*pool_set_threshold)(const struct ps_backend *backend,
                                    int device, uint64_t nbytes);

    /* ---- Optional group: pinning (both or none) ------------------------- */

    /* Pin nbytes (> 0) of host memory that the program has allocated: until
     * host_unregister, every device of the backend can access and copy it
     * asynchronously.  May block.  Statuses: PS_ERROR_ALREADY_PINNED if some
     * of it is pinned, PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*host_register)(const struct ps_backend *backend, int device,
                               void *data, size_t nbytes);

    /* Unpin memory that one call to host_register has pinned.  No queued work
     * uses it any more.  May block. */
    ps_status (*host_unregister)(const struct ps_backend *backend, int device,
                                 void *data);

    /* ---- Optional group: times of operations (both or none) ------------- */

    /* Get the present time in nanoseconds, on the clock with which operations
     * are timed: CLOCK_MONOTONIC, unless time is virtual.  Answers at once,
     * takes no lock and runs no notifications, so the caller may hold any
     * lock. */
    ps_status (*time_now)(const struct ps_backend *backend, int64_t *now);

    /* Request that the times at which an operation begins and ends be stored
     * in *times.  The operation is the one that the calling thread queues with
     * its next call to memory_copy, memory_fill, memory_fill_items,
     * host_function, sleep or graph_launch.  If the operation is captured,
     * *times stays unchanged.  Otherwise, before that call returns PS_SUCCESS,
     * the backend sets both members of *times to 0, and later to the times.
     * begin is written before end, each atomically, and *times belongs to the
     * backend until end is written.  begin stays 0 if only the end is known.
     * end becomes -1 if neither time is known.  If times is NULL, an earlier
     * request that no operation has used is cancelled.  Answers at once.
     * Statuses: PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*operation_times)(const struct ps_backend *backend,
                                 struct ps_times *times);

    /* ---- Optional: memory, further -------------------------------------- */

    /* Queue a fill of nbytes (> 0) of device or pinned memory with a value of
     * `size` bytes, 2 or 4, in the host's byte order.  The address and nbytes
     * are multiples of `size`.  May block. */
    ps_status (*memory_fill_items)(const struct ps_backend *backend,
                                   int device, ps_handle stream,
                                   void *destination, uint32_t value,
                                   size_t size, size_t nbytes);

    /* ---- Optional: devices, further ------------------------------------- */

    /* Get the device attribute whose number in cudaDeviceAttr is `attribute`.
     * May block.  Must not initialize the device.  Statuses:
     * PS_ERROR_INVALID_VALUE if the device lacks the attribute. */
    ps_status (*device_attribute)(const struct ps_backend *backend, int device,
                                  int attribute, int *value);

    /* ---- Optional: what work waits for ---------------------------------- */

    /* Describe for people what the stream waits for: first the state of the
     * stream, then the state of the stream for whose record its first
     * operation waits, and so on.  *count becomes the number of all states,
     * which may be more than room (> 0).  In that case the array has the first
     * room - 1 states, and then the last state.  Changes nothing and runs no
     * callbacks, so that it may be called while any other member waits.
     * Answers at once.  Statuses: PS_ERROR_INVALID_HANDLE. */
    ps_status (*stream_explain)(const struct ps_backend *backend, int device,
                                ps_handle stream,
                                struct ps_stream_state *states, int room,
                                int *count);

    /* ---- Optional: more about graphs ----------------------------------- */

    /* Describe the graph: its nodes, in an order in which they may run, and
     * its edges, each once.  On entry, *node_count and *edge_count are the
     * room in the arrays.  On return, they are the numbers of all nodes and
     * edges; those for which there is no room are left out.  May block. */
    ps_status (*graph_nodes)(const struct ps_backend *backend, int device,
                             ps_handle graph, struct ps_graph_node *nodes,
                             size_t *node_count, struct ps_graph_edge *edges,
                             size_t *edge_count);

    /* Queue on the stream an operation that makes the executable's next launch
     * fast, such as an upload to the device.  May block. */
    ps_status (*graph_upload)(const struct ps_backend *backend, int device,
                              ps_handle executable, ps_handle stream);

    /* Like graph_instantiate, but use only the given options of enum
     * ps_instantiate_option.  graph_instantiate uses all of these options.
     * May block.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*graph_instantiate_with)(const struct ps_backend *backend,
                                        int device, ps_handle graph,
                                        unsigned options,
                                        ps_handle *executable);

    /* Make later launches of the executable do the work of the graph, which
     * has no gates.  The graph must have the same nodes and edges as the
     * executable; only the parameters of nodes may differ.  Launches that were
     * queued still do the earlier work.  After a failure the executable is as
     * it was.  May block.  Statuses: PS_ERROR_GRAPH_UPDATE if the graph
     * differs too much.  With this status, *difference says how the graph
     * differs. */
    ps_status (*graph_update)(const struct ps_backend *backend, int device,
                              ps_handle executable, ps_handle graph,
                              struct ps_graph_difference *difference);

    /* Capture the work of the graph, which has no gates, on a stream that is
     * being captured.  The graph's work comes after the work that was captured
     * on the stream before this call, and before work that is captured on it
     * later.  The graph may be destroyed afterwards.  May block.  Statuses:
     * PS_ERROR_INVALID_VALUE on a stream that is not being captured,
     * PS_ERROR_CAPTURE_INVALIDATED, PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*capture_graph)(const struct ps_backend *backend, int device,
                               ps_handle stream, ps_handle graph);

    /* ---- Optional group: partitions (all or none) ----------------------- */

    /* Make a partition of at least count (> 0) of the device's
     * multiprocessors.  No multiprocessor is in two partitions.  *granted
     * becomes the number of the partition's multiprocessors.  May block.
     * Statuses: PS_ERROR_INVALID_RESOURCE if fewer than count are left,
     * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_NOT_SUPPORTED if the driver has no
     * partitions. */
    ps_status (*partition_create)(const struct ps_backend *backend, int device,
                                  int count, ps_handle *partition,
                                  int *granted);

    /* Destroy the partition.  Core has already destroyed all of its streams.
     * Other partitions can then get its multiprocessors.  May block. */
    ps_status (*partition_destroy)(const struct ps_backend *backend,
                                   int device, ps_handle partition);

    /* Like stream_create, but create a stream whose work runs only on the
     * partition's multiprocessors.  The work of streams without a partition
     * runs on all multiprocessors of the device, including those of
     * partitions. */
    ps_status (*partition_stream_create)(const struct ps_backend *backend,
                                         int device, ps_handle partition,
                                         int priority, ps_handle *stream);

    /* ---- Optional group: blocking streams (both or none) ---------------- */

    /* Like stream_create, but create a blocking stream, which serializes with
     * the default stream of its device.  Work that is queued on the default
     * stream starts when all earlier work of the device's blocking streams is
     * done.  Work that is queued on a blocking stream starts when all earlier
     * work of the default stream is done.  It is as if the one stream waited
     * for an event recorded on the other.  A record, a wait, a query, a
     * synchronization and a notification of the default stream count as work
     * of the default stream.  While a blocking stream is being captured,
     * members that use the default stream return PS_ERROR_CAPTURE_IMPLICIT,
     * and all of them except stream_query and stream_capturing invalidate the
     * capture.  May block.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*blocking_create)(const struct ps_backend *backend, int device,
                                 int priority, ps_handle *stream);

    /* Set *blocking to 1 if the stream serializes with the default stream,
     * else to 0.  For stream 0 it is 1.  Another library may have created the
     * stream.  Answers at once, and runs no notifications.  Statuses:
     * PS_ERROR_INVALID_HANDLE if the backend can tell that the handle is
     * invalid. */
    ps_status (*stream_blocking)(const struct ps_backend *backend, int device,
                                 ps_handle stream, int *blocking);

    /* ---- Optional group: activities of devices (all or none) ------------ */

    /* Observe the work that any library in the process queues on the devices,
     * until activities_end.  The backend calls the members of *functions, with
     * the argument, as struct ps_activity_functions says.  *functions lives as
     * long as the process.  May block.  Must not create a context.  Statuses:
     * PS_ERROR_NOT_SUPPORTED if the backend cannot observe in this process,
     * for example because a library is missing; PS_ERROR_NOT_PERMITTED if the
     * driver refuses, for example because another tool observes already.  With
     * PS_ERROR_NOT_PERMITTED, reason receives a text for people, of at most
     * size bytes, that says why. */
    ps_status (*activities_begin)(
        const struct ps_backend *backend,
        const struct ps_activity_functions *functions, void *argument,
        char *reason, size_t size);

    /* Report, before returning, the work that has ended.  While other work is
     * still running, some of the ended work may be left out.  May be called
     * after activities_end, too.  May block, but does not wait for work. */
    ps_status (*activities_flush)(const struct ps_backend *backend);

    /* Stop observing; work that was queued before may be reported later.  May
     * block. */
    ps_status (*activities_end)(const struct ps_backend *backend);

    /* Get the number that identifies the stream in activities; no two streams
     * of a device have the same number.  A number is less than 2^63; the upper
     * 32 bits may identify the context of the stream.  Called only after an
     * activities_begin that succeeded.  Answers at once. */
    ps_status (*stream_number)(const struct ps_backend *backend, int device,
                               ps_handle stream, uint64_t *number);

    /* ---- Optional ------------------------------------------------------- */

    /* If access is 1, give the work of the device access to the memory of
     * another device, peer.  If access is 0, take this access away.  This
     * applies to all memory that memory_allocate has returned and will return.
     * Until this member is first called for the two devices, a copy between
     * them gives the access too, if they support it.  Copies work with and
     * without access, but are staged without access.  May block.  Not called
     * while work uses the access.  If the two devices do not support the
     * access, returns any failure and changes nothing. */
    ps_status (*peer_access)(const struct ps_backend *backend, int device,
                             int peer, int access);

    /* Optional.  If this member is present, each thread has its own default
     * stream on each device: in every member, the handle PS_STREAM_PER_THREAD
     * means the default stream of the calling thread.  Such a stream
     * serializes with stream 0, as the streams of blocking_create do.  It
     * begins idle when its thread first uses it, and is never destroyed: when
     * the thread ends, work that is queued still runs.  Core uses a thread's
     * default stream only on that thread.  When the thread ends, core waits
     * for the stream only if the backend has PS_BACKEND_THREADS_FINISH.
     *
     * Write a name for the calling thread's stream.  The name is a number that
     * no other stream of the device ever has, and ps_is_thread_stream_name
     * returns 1 for it.  stream_explain accepts and returns the name instead
     * of the handle, on any thread.  On each thread, core calls this member
     * before any member with the handle.  Answers at once.  Statuses:
     * PS_ERROR_OUT_OF_MEMORY. */
    ps_status (*thread_stream)(const struct ps_backend *backend, int device,
                               ps_handle *name);

    /* Get the number by which tools of the device, such as profilers, identify
     * the executable.  It is above 0.  The numbers of executables that exist
     * at the same time differ.  Optional.  If this member is NULL, an
     * executable's number is its handle.  Answers at once.  Statuses:
     * PS_ERROR_NOT_SUPPORTED if the driver does not report it. */
    ps_status (*executable_number)(const struct ps_backend *backend,
                                   int device, ps_handle executable,
                                   uint64_t *number);
};

#endif
