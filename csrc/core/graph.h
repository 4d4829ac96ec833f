/* Graphs: work that was captured once and is launched as a whole, any number
 * of times.  A graph has one owner, and several threads may use it at once.
 *
 * It keeps the memory and the external events that its work uses, until it is
 * reset and its last launch is done. */
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
    /* Guards the fields below, also across calls of the backend. */
    pthread_mutex_t mutex;
    /* The device of the latest capture. */
    struct ps_device *device;
    /* The stream of the capture in progress, or NULL. */
    struct ps_stream *origin;
    /* The thread that must end the capture, unless `relaxed`. */
    pthread_t thread;
    bool relaxed;
    struct ps_capture capture;
    /* The number of the capture that it holds or makes; 0 if there is none, or
     * if the backend does not number captures. */
    uint64_t number;
    /* 0 while there is none. */
    ps_handle native;
    ps_handle executable;
    /* Whether the executable was never launched. */
    bool fresh;
    /* The objects that the captured work uses, and those of the work that an
     * update has put in its place. */
    struct ps_keep keep;
    struct ps_keep updated;
    /* A block that the streams of all launches use; the kept objects are
     * dropped with it when the launches are done.  NULL before the first
     * launch. */
    struct ps_block *launches;
    /* The stream of the latest launch; its later work runs after every
     * launch. */
    struct ps_stream *launched;
};

/* keeps: as torch's keep_graph. */
ps_status ps_graph_create(bool keeps, struct ps_graph **graph);

/* Free it.  Ends its capture on any thread, since no other owner is left; that
 * of another thread's default stream ends when that thread next uses it. */
ps_status ps_graph_destroy(struct ps_graph *graph);

/* *number is that of the capture, or 0.
 * PS_ERROR_GRAPH_TAKEN, PS_ERROR_GRAPH_DEFAULT; PS_ERROR_NOT_SUPPORTED if
 * the backend has no graphs. */
ps_status
ps_graph_capture_begin(struct ps_graph *graph, struct ps_stream *stream,
                       enum ps_capture_mode mode, uint64_t *number);

/* End the capture that began on the stream; ps_graph_finish is to follow.
 * *operations is the number of captured operations.  May block.
 * PS_ERROR_GRAPH_IDLE, PS_ERROR_GRAPH_STREAM,
 * PS_ERROR_CAPTURE_WRONG_THREAD. */
ps_status ps_graph_capture_end(struct ps_graph *graph,
                               struct ps_stream *stream, size_t *operations);

/* Instantiate the graph and drop the native one, unless that is kept
 * (keep_native: keep it in any case).  May block. */
ps_status ps_graph_finish(struct ps_graph *graph, bool keep_native);

/* Make the graph keep the object, which its work uses. */
ps_status ps_graph_keep(struct ps_graph *graph, const struct ps_kept *item);

/* A reference to the stream that is being captured; NULL if there is none. */
struct ps_stream *ps_graph_origin(struct ps_graph *graph);

/* A reference to the stream whose later work comes after all launches; NULL if
 * there was none. */
struct ps_stream *ps_graph_launched(struct ps_graph *graph);

/* options: of enum ps_instantiate_option.  May block.
 * PS_ERROR_GRAPH_EMPTY, PS_ERROR_GRAPH_FINAL; PS_ERROR_NOT_SUPPORTED if the
 * backend knows no options and not all are wanted. */
ps_status ps_graph_instantiate(struct ps_graph *graph, unsigned options);

/* Make later launches do the work of the other graph's capture of that number,
 * which it must have kept and which has no gates.  Instantiates the graph if
 * necessary.  Both keep the objects that the work uses.  May block.
 * PS_ERROR_GRAPH_EMPTY, PS_ERROR_GRAPH_SOURCE, PS_ERROR_GRAPH_CHANGED if the
 * other one holds another capture, PS_ERROR_GRAPH_STREAM if they were captured
 * on different devices; PS_ERROR_GRAPH_UPDATE, with *difference, and with the
 * graph as it was. */
ps_status
ps_graph_update(struct ps_graph *graph, struct ps_graph *other,
                uint64_t number, struct ps_graph_difference *difference);

/* Capture the work of the child's capture of that number, which it must have
 * kept and which has no gates, on a stream of the graph's capture.  The graph
 * keeps the objects that the work uses, too.  May block.
 * PS_ERROR_GRAPH_IDLE, PS_ERROR_GRAPH_SOURCE, PS_ERROR_GRAPH_CHANGED as
 * above; PS_ERROR_GRAPH_STREAM if the stream is in no capture of the graph's,
 * or of another device than the child. */
ps_status ps_graph_add_child(struct ps_graph *graph, struct ps_graph *child,
                             uint64_t number, struct ps_stream *stream);

/* Callbacks for a launch of the capture of that number.  Launches of one graph
 * call these one after another, in the order of the launches, and with the
 * graph's mutex held: a function must not wait. */
struct ps_launch {
    uint64_t number;
    /* The launch is about to be queued on the stream. */
    void (*begin)(struct ps_launch *launch, struct ps_stream *stream);
    /* It was not queued after all. */
    void (*cancel)(struct ps_launch *launch);
};

/* Queue the work on the current stream of the device where it was captured,
 * after instantiating the graph if necessary.  May block.
 * PS_ERROR_GRAPH_EMPTY, PS_ERROR_GRAPH_INNER, PS_ERROR_GRAPH_BEHIND,
 * PS_ERROR_CAPTURE_IMPLICIT; PS_ERROR_GRAPH_CHANGED if the
 * graph holds another capture than the launch is for; PS_ERROR_QUEUE_FULL if a
 * queue is full, with a reference to its stream in *full.  Otherwise *full is
 * NULL. */
ps_status ps_graph_launch(struct ps_graph *graph, struct ps_currents *currents,
                          struct ps_launch *launch, struct ps_stream **full);

/* Release everything that the graph holds, and end its capture.  Queued
 * launches still run.  May block; the status is that of the clean-up. *dropped
 * says whether there was a capture or a graph.
 * PS_ERROR_CAPTURE_WRONG_THREAD, with nothing given up. */
ps_status ps_graph_reset(struct ps_graph *graph, bool *dropped);

/* The native graph and the executable, each 0 if there is none. */
void ps_graph_handles(struct ps_graph *graph, ps_handle *native,
                      ps_handle *executable);

/* The number by which tools name the executable; 0 if there is none. */
uint64_t ps_graph_executable_number(struct ps_graph *graph);

/* The number of the capture that it holds or makes, as in ps_launch. */
uint64_t ps_graph_number(struct ps_graph *graph);

/* Prepare the next launch, on the stream, after instantiating the graph if
 * necessary.  May block.  PS_ERROR_GRAPH_EMPTY; PS_ERROR_GRAPH_STREAM for a
 * stream of another device; PS_ERROR_GRAPH_INNER for one that is being
 * captured, PS_ERROR_CAPTURE_IMPLICIT. */
ps_status ps_graph_upload(struct ps_graph *graph, struct ps_stream *stream);

/* The nodes and edges of the native graph, in memory that the caller frees.
 * May block.  PS_ERROR_GRAPH_EMPTY. */
ps_status ps_graph_describe(struct ps_graph *graph,
                            struct ps_graph_node **nodes, size_t *node_count,
                            struct ps_graph_edge **edges, size_t *edge_count);

/* Write the native graph to a file.  May block.  PS_ERROR_GRAPH_EMPTY. */
ps_status ps_graph_print(struct ps_graph *graph, const char *path);

#endif
