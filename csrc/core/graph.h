/* Graphs: work that was captured once and is launched as a whole, any number
 * of times.  A native graph is a graph of the backend.  An executable is made
 * from a native graph, and launches run the executable.  References to a graph
 * are not counted, because it has one owner.  But several threads may call its
 * functions at once.
 *
 * A graph holds references to the memory and the external events that its work
 * uses, until the graph is reset and its last launch is done. */
#ifndef PYSTREAMS_CORE_GRAPH_H
#define PYSTREAMS_CORE_GRAPH_H

#include <pystreams/backend.h>

#include <pthread.h>
#include <stdbool.h>

#include "capture.h"
#include "current.h"
#include "status.h"

struct ps_graph {
    unsigned generation;
    /* Whether the native graph is kept after the executable was made from
     * it. */
    bool keeps;
    /* The device of the latest capture.  Set with the mutex held.  Atomic
     * because the Python layer reads it without the mutex. */
    struct ps_device *_Atomic device;
    /* Guards the fields below.  Also held across calls to the backend. */
    pthread_mutex_t mutex;
    /* The stream of the capture in progress, or NULL. */
    struct ps_stream *origin;
    /* The thread that must end the capture.  If `relaxed` is true, any thread
     * may end it. */
    pthread_t thread;
    bool relaxed;
    struct ps_capture capture;
    /* The number that the backend gave to the graph's latest capture, which is
     * in progress or finished.  0 if there is none, or if the backend does not
     * number captures. */
    uint64_t number;
    /* How many captures have begun.  This is also the order of the latest
     * one. */
    uint64_t begun;
    /* The handles of the native graph and of its executable.  Each is 0 if it
     * does not exist. */
    ps_handle native;
    ps_handle executable;
    /* Whether the executable has never been launched. */
    bool fresh;
    /* keep: the objects that the captured work uses.  updated: the objects
     * that the executable's work uses after ps_graph_update has replaced the
     * captured work with that of another graph. */
    struct ps_keep keep;
    struct ps_keep updated;
    /* A borrowed block (see memory.h) of 0 bytes.  Every launch counts as a
     * use of the block, so the block is released when all launches are done.
     * When the graph drops the block, it gives the block's owner references to
     * the objects of `keep` and `updated`, so these objects live until all
     * launches are done.  NULL if there was no launch since the graph was
     * captured or updated. */
    struct ps_block *launches;
    /* The stream of the latest launch; NULL before the first one.  Work that
     * is queued on this stream later runs after all launches. */
    struct ps_stream *launched;
};

/* Create a graph without a capture.  keeps: whether to keep the native graph
 * after instantiation, as torch's keep_graph does. */
ps_status ps_graph_create(bool keeps, struct ps_graph **graph);

/* What a call has ended and dropped. */
struct ps_graph_end {
    /* Whether the call has ended a capture in progress.  If so, operations is
     * the number of captured operations. */
    bool capture;
    size_t operations;
    /* The number and the order of the graph's latest capture before the call;
     * see ps_graph.number and ps_graph.begun. */
    uint64_t number;
    uint64_t order;
    /* Whether a reset has emptied the graph, which was not empty before.  If
     * so, executable is the number of its executable; see
     * ps_graph_executable_number. */
    bool dropped;
    uint64_t executable;
};

/* Free the graph.  If a capture into it is in progress, also end the capture,
 * whichever thread began it.  The exception is a capture on another thread's
 * default stream, which only that thread can end: it does so when it next uses
 * the stream, or when it ends. */
ps_status ps_graph_destroy(struct ps_graph *graph, struct ps_graph_end *end);

/* Begin to capture the stream's work into the graph.  *number becomes the
 * capture's number, or 0 if the backend does not number captures.  *order
 * becomes the capture's order; see ps_graph.begun.  Statuses:
 * PS_ERROR_GRAPH_TAKEN, PS_ERROR_GRAPH_DEFAULT; PS_ERROR_NOT_SUPPORTED if the
 * backend has no graphs. */
ps_status
ps_graph_capture_begin(struct ps_graph *graph, struct ps_stream *stream,
                       enum ps_capture_mode mode, uint64_t *number,
                       uint64_t *order);

/* End the capture that began on the stream.  After success, the caller must
 * call ps_graph_finish next.  After a failure that ended the capture, the
 * graph is empty.  May block.  Statuses: PS_ERROR_GRAPH_IDLE,
 * PS_ERROR_GRAPH_STREAM, PS_ERROR_CAPTURE_WRONG_THREAD. */
ps_status
ps_graph_capture_end(struct ps_graph *graph, struct ps_stream *stream,
                     struct ps_graph_end *end);

/* Finish the capture with this order, which has ended.  If there is no
 * executable, makes it from the native graph.  Then drops the native graph,
 * unless keep_native is true.  Does nothing for a graph that was created with
 * `keeps`, whose executable is made later, nor if another thread has begun a
 * later capture.  *made becomes true if this call has made the executable.  On
 * failure, the graph becomes empty.  May block. */
ps_status ps_graph_finish(struct ps_graph *graph, uint64_t order,
                          bool keep_native, bool *made);

/* Make the graph hold a reference to the object, because its work uses the
 * object. */
ps_status ps_graph_keep(struct ps_graph *graph, const struct ps_kept *item);

/* Returns whether a capture is in progress.  *number becomes the number of the
 * graph's latest capture; see ps_graph.number. */
bool ps_graph_is_capturing(struct ps_graph *graph, uint64_t *number);

/* Returns how many captures of the graph have begun. */
uint64_t ps_graph_begun(struct ps_graph *graph);

/* Returns a new reference to the stream of the latest launch, or NULL if there
 * was no launch.  Work that is queued on this stream later runs after all
 * launches of the graph. */
struct ps_stream *ps_graph_launched(struct ps_graph *graph);

/* Make a new executable from the native graph, with options of enum
 * ps_instantiate_option.  May block.  Statuses: PS_ERROR_GRAPH_EMPTY,
 * PS_ERROR_GRAPH_FINAL; PS_ERROR_NOT_SUPPORTED if `options` does not contain
 * all options and the backend has no graph_instantiate_with. */
ps_status ps_graph_instantiate(struct ps_graph *graph, unsigned options);

/* Make the executable with all options, unless the graph has one or is empty.
 * *made becomes true if this call has made it.  May block. */
ps_status ps_graph_prepare(struct ps_graph *graph, bool *made);

/* Make later launches of `graph` do the work of `other` instead.  `number` is
 * the number of the latest capture of `other`.  That capture must have no
 * gates (see capture_gate in backend.h), and `other` must still have its
 * native graph.  Makes the executable of `graph` if there is none; *made
 * becomes true if this call has made it.  After success, `graph` also holds
 * references to the objects that the work of `other` uses.  May block.
 * Statuses: PS_ERROR_GRAPH_EMPTY; PS_ERROR_GRAPH_SOURCE if `other` has not
 * kept its native graph, or if the number is 0 because the caller knows of no
 * capture; PS_ERROR_GRAPH_CHANGED if `other` was captured again since the
 * caller read its number; PS_ERROR_GRAPH_STREAM if the two graphs were
 * captured on different devices; PS_ERROR_GRAPH_UPDATE if the graphs differ
 * too much.  In the last case *difference says how they differ, and `graph`
 * does the same work as before. */
ps_status ps_graph_update(struct ps_graph *graph, struct ps_graph *other,
                          uint64_t number,
                          struct ps_graph_difference *difference, bool *made);

/* Add the work of `child`, as one operation of the stream, to the capture of
 * `graph` that is in progress.  `number` is the number of the latest capture
 * of `child`.  That capture must have no gates, and `child` must still have
 * its native graph.  After success, `graph` also holds references to the
 * objects that the work of `child` uses.  May block.  Statuses:
 * PS_ERROR_GRAPH_IDLE; PS_ERROR_GRAPH_SOURCE and PS_ERROR_GRAPH_CHANGED as for
 * ps_graph_update; PS_ERROR_GRAPH_STREAM if the stream does not belong to the
 * capture of `graph`, or is on another device than `child`. */
ps_status ps_graph_add_child(struct ps_graph *graph, struct ps_graph *child,
                             uint64_t number, struct ps_stream *stream);

/* A launch and its callbacks.  The launch fails if `number` is not the number
 * of the graph's latest capture.  In that case, if `number` is 0 because the
 * caller knows of no capture, the status is PS_ERROR_GRAPH_EMPTY.  The
 * callbacks of all launches of a graph are called one after another, in the
 * order of the launches.  The graph's mutex is held during a callback, so a
 * callback must not block. */
struct ps_launch {
    uint64_t number;
    /* The current stream of the graph's device, as the caller read it before
     * the launch; NULL if the graph had no device.  The launch uses this
     * stream if the calling thread's default stream is current, but no longer
     * exists because the thread is ending. */
    struct ps_stream *stream;
    /* Called just before the launch is queued on the stream. */
    void (*begin)(struct ps_launch *launch, struct ps_stream *stream);
    /* Called after begin() if the launch could not be queued. */
    void (*cancel)(struct ps_launch *launch);
    /* What ps_launch_end drops; NULL before the launch. */
    struct ps_stream *previous;
    struct ps_stream *own;
    struct ps_block *used;
};

/* Queue the graph's work on the current stream of the device on which the
 * graph was captured.  Makes the executable if there is none.  May block.
 * Statuses: PS_ERROR_GRAPH_EMPTY, PS_ERROR_GRAPH_INNER, PS_ERROR_GRAPH_BEHIND,
 * PS_ERROR_CAPTURE_IMPLICIT; PS_ERROR_GRAPH_CHANGED if launch->number is not
 * the number of the graph's latest capture; PS_ERROR_QUEUE_FULL if the queue
 * of a stream is full.  In the last case *full becomes a new reference to that
 * stream.  Otherwise *full becomes NULL. */
ps_status ps_graph_launch(struct ps_graph *graph, struct ps_currents *currents,
                          struct ps_launch *launch, struct ps_stream **full);

/* Drop the references that ps_graph_launch has left in *launch.  May run code
 * of the program, which owns streams. */
void ps_launch_end(struct ps_launch *launch);

/* Release everything that the graph holds, and end a capture in progress.
 * Queued launches still run.  May block.  Returns the status of the clean-up.
 * If it returns PS_ERROR_CAPTURE_WRONG_THREAD, nothing has changed. */
ps_status ps_graph_reset(struct ps_graph *graph, struct ps_graph_end *end);

/* If a capture is in progress that this thread has begun since ps_graph_begun
 * returned `begun`, do what ps_graph_reset does.  Otherwise, does nothing. */
ps_status ps_graph_drop(struct ps_graph *graph, uint64_t begun,
                        struct ps_graph_end *end);

/* Get the handles of the native graph and of the executable.  A handle is 0 if
 * the graph does not have that object. */
void ps_graph_handles(struct ps_graph *graph, ps_handle *native,
                      ps_handle *executable);

/* Returns the number by which profilers of the device identify the executable,
 * or 0 if the graph has no executable. */
uint64_t ps_graph_executable_number(struct ps_graph *graph);

/* Queue an operation that makes the graph's next launch faster, such as an
 * upload to the device.  The operation is queued on `stream`, and the next
 * launch should be on the same stream.  Makes the executable if there is none;
 * *made becomes true if this call has made it.  May block.  Statuses:
 * PS_ERROR_GRAPH_EMPTY; PS_ERROR_GRAPH_STREAM for a stream of another device;
 * PS_ERROR_GRAPH_INNER for a stream that is being captured;
 * PS_ERROR_CAPTURE_IMPLICIT. */
ps_status
ps_graph_upload(struct ps_graph *graph, struct ps_stream *stream, bool *made);

/* Get the nodes and edges of the native graph, in arrays that the caller
 * frees.  May block.  Statuses: PS_ERROR_GRAPH_EMPTY. */
ps_status ps_graph_describe(struct ps_graph *graph,
                            struct ps_graph_node **nodes, size_t *node_count,
                            struct ps_graph_edge **edges, size_t *edge_count);

/* Write the native graph to a file.  May block.  Statuses:
 * PS_ERROR_GRAPH_EMPTY. */
ps_status ps_graph_print(struct ps_graph *graph, const char *path);

#endif
