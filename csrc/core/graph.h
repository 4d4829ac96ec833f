/* Graphs: work that was captured once and is launched as a whole, any number
 * of times.  A graph has one owner, and several threads may use it at once.
 *
 * The graph keeps references to the memory and the external events that its
 * work uses, until it is reset and its last launch is done. */
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
    /* Whether the native graph is kept after it was instantiated. */
    bool keeps;
    /* Guards the fields below.  Also held across calls of the backend. */
    pthread_mutex_t mutex;
    /* The device of the latest capture. */
    struct ps_device *device;
    /* The stream of the capture in progress, or NULL. */
    struct ps_stream *origin;
    /* The thread that must end the capture, unless `relaxed`. */
    pthread_t thread;
    bool relaxed;
    struct ps_capture capture;
    /* The number that the backend gave to the capture, in progress or
     * finished.  0 if the graph has no capture, or if the backend does not
     * number captures. */
    uint64_t number;
    /* The native graph and its executable, each 0 if it does not exist. */
    ps_handle native;
    ps_handle executable;
    /* Whether the executable has never been launched. */
    bool fresh;
    /* The objects that the captured work uses, and the objects of the graph
     * that ps_graph_update has put in place of this work. */
    struct ps_keep keep;
    struct ps_keep updated;
    /* A borrowed block of no bytes.  Every launch counts as a use of this
     * block, so the block is released when all launches are done, and the kept
     * objects with it.  NULL before the first launch. */
    struct ps_block *launches;
    /* The stream of the latest launch.  Work queued on it later runs after
     * every launch. */
    struct ps_stream *launched;
};

/* keeps: whether the graph keeps its native graph, as torch's keep_graph. */
ps_status ps_graph_create(bool keeps, struct ps_graph **graph);

/* Free the graph.  Ends its capture even on another thread than the capturing
 * one, since the graph has no other owner.  The exception is a capture on
 * another thread's default stream: it ends when that thread next uses the
 * stream. */
ps_status ps_graph_destroy(struct ps_graph *graph);

/* Begin a capture.  *number becomes the capture's number, or 0 if the backend
 * does not number captures.  Statuses: PS_ERROR_GRAPH_TAKEN,
 * PS_ERROR_GRAPH_DEFAULT; PS_ERROR_NOT_SUPPORTED if the backend has no
 * graphs. */
ps_status
ps_graph_capture_begin(struct ps_graph *graph, struct ps_stream *stream,
                       enum ps_capture_mode mode, uint64_t *number);

/* End the capture that began on the stream.  The caller must call
 * ps_graph_finish next.  *operations is the number of captured operations.
 * May block.  Statuses: PS_ERROR_GRAPH_IDLE, PS_ERROR_GRAPH_STREAM,
 * PS_ERROR_CAPTURE_WRONG_THREAD. */
ps_status ps_graph_capture_end(struct ps_graph *graph,
                               struct ps_stream *stream, size_t *operations);

/* Instantiate the graph, and drop the native graph unless the graph was
 * created with `keeps` or keep_native is true.  May block. */
ps_status ps_graph_finish(struct ps_graph *graph, bool keep_native);

/* Make the graph hold a reference to the object, because its work uses the
 * object. */
ps_status ps_graph_keep(struct ps_graph *graph, const struct ps_kept *item);

/* Returns a reference to the stream on which the capture in progress began;
 * NULL if there is no capture. */
struct ps_stream *ps_graph_origin(struct ps_graph *graph);

/* Returns a reference to the stream of the latest launch, whose later work
 * runs after all launches; NULL if there was no launch. */
struct ps_stream *ps_graph_launched(struct ps_graph *graph);

/* Instantiate the graph with options of enum ps_instantiate_option.  May
 * block.  Statuses: PS_ERROR_GRAPH_EMPTY, PS_ERROR_GRAPH_FINAL;
 * PS_ERROR_NOT_SUPPORTED if the backend takes no options and `options` is not
 * all of them. */
ps_status ps_graph_instantiate(struct ps_graph *graph, unsigned options);

/* Make later launches of `graph` do the work of `other` instead.  `other` must
 * still hold the capture with this number and its native graph, without gates.
 * Instantiates `graph` if necessary.  Both graphs then keep the objects that
 * this work uses.  May block.  Statuses: PS_ERROR_GRAPH_EMPTY;
 * PS_ERROR_GRAPH_SOURCE if `other` has not kept its native graph;
 * PS_ERROR_GRAPH_CHANGED if `other` holds another capture;
 * PS_ERROR_GRAPH_STREAM if the two were captured on different devices;
 * PS_ERROR_GRAPH_UPDATE, with *difference, if the graphs differ too much, and
 * then `graph` is unchanged. */
ps_status
ps_graph_update(struct ps_graph *graph, struct ps_graph *other,
                uint64_t number, struct ps_graph_difference *difference);

/* Capture the work of `child` on the stream, as part of the capture of
 * `graph`.  `child` must still hold the capture with this number and its
 * native graph, without gates.  `graph` keeps the objects that this work uses,
 * too.  May block.  Statuses: PS_ERROR_GRAPH_IDLE; PS_ERROR_GRAPH_SOURCE and
 * PS_ERROR_GRAPH_CHANGED as for ps_graph_update; PS_ERROR_GRAPH_STREAM if the
 * stream does not belong to the capture of `graph`, or is on another device
 * than `child`. */
ps_status ps_graph_add_child(struct ps_graph *graph, struct ps_graph *child,
                             uint64_t number, struct ps_stream *stream);

/* Callbacks of one launch, which is meant for the capture with this number.
 * Launches of one graph call these functions one after another, in the order
 * of the launches.  The graph's mutex is held, so the functions must not
 * wait. */
struct ps_launch {
    uint64_t number;
    /* Called just before the launch is queued on the stream. */
    void (*begin)(struct ps_launch *launch, struct ps_stream *stream);
    /* Called if queueing then failed. */
    void (*cancel)(struct ps_launch *launch);
};

/* Queue the graph's work on the current stream of the device where it was
 * captured.  Instantiates the graph if necessary.  May block.  Statuses:
 * PS_ERROR_GRAPH_EMPTY, PS_ERROR_GRAPH_INNER, PS_ERROR_GRAPH_BEHIND,
 * PS_ERROR_CAPTURE_IMPLICIT; PS_ERROR_GRAPH_CHANGED if the graph holds another
 * capture than launch->number; PS_ERROR_QUEUE_FULL, with a reference to the
 * stream whose queue is full in *full.  With any other status *full is
 * NULL. */
ps_status ps_graph_launch(struct ps_graph *graph, struct ps_currents *currents,
                          struct ps_launch *launch, struct ps_stream **full);

/* Release everything that the graph holds, and end its capture.  Queued
 * launches still run.  May block.  *dropped says whether the graph had a
 * capture, a native graph or an executable.  Returns the status of the
 * clean-up, or PS_ERROR_CAPTURE_WRONG_THREAD, and then nothing has changed. */
ps_status ps_graph_reset(struct ps_graph *graph, bool *dropped);

/* The native graph and the executable, each 0 if there is none. */
void ps_graph_handles(struct ps_graph *graph, ps_handle *native,
                      ps_handle *executable);

/* The number by which the device's tools name the executable; 0 if there is
 * none. */
uint64_t ps_graph_executable_number(struct ps_graph *graph);

/* The graph's capture number, as in ps_launch. */
uint64_t ps_graph_number(struct ps_graph *graph);

/* Prepare the next launch, which will be on this stream, so that it starts
 * faster.  Instantiates the graph if necessary.  May block.  Statuses:
 * PS_ERROR_GRAPH_EMPTY; PS_ERROR_GRAPH_STREAM for a stream of another device;
 * PS_ERROR_GRAPH_INNER for a stream that is being captured;
 * PS_ERROR_CAPTURE_IMPLICIT. */
ps_status ps_graph_upload(struct ps_graph *graph, struct ps_stream *stream);

/* Get the nodes and edges of the native graph, in arrays that the caller
 * frees.  May block.  Statuses: PS_ERROR_GRAPH_EMPTY. */
ps_status ps_graph_describe(struct ps_graph *graph,
                            struct ps_graph_node **nodes, size_t *node_count,
                            struct ps_graph_edge **edges, size_t *edge_count);

/* Write the native graph to a file.  May block.  Statuses:
 * PS_ERROR_GRAPH_EMPTY. */
ps_status ps_graph_print(struct ps_graph *graph, const char *path);

#endif
