/* The statuses of core, in addition to those of backend.h.  The Python layer
 * turns most of them into exceptions. */
#ifndef PYSTREAMS_CORE_STATUS_H
#define PYSTREAMS_CORE_STATUS_H

#include <pystreams/backend.h>

enum {
    /* This process is a forked child, and a parent process created the object
     * or used the runtime. */
    PS_ERROR_FOREIGN = 1001,
    /* This process exported the handle, so it must not open the handle. */
    PS_ERROR_OWN_HANDLE = 1002,
    /* Core alone cannot tell whether the work is done: the backend must be
     * asked. */
    PS_ERROR_NOT_KNOWN = 1004,
    /* The work is on another thread's default stream.  A thread can wait for
     * such work only with an event that was recorded on the stream, and no
     * event was recorded after the latest work. */
    PS_ERROR_LAGS = 1005,

    /* The statuses below say why a call for a ps_graph was refused.  graph.h
     * explains the terms. */

    /* A capture into the graph is in progress, or has ended and the graph was
     * not reset since. */
    PS_ERROR_GRAPH_TAKEN = 1010,
    /* No capture into the graph is in progress. */
    PS_ERROR_GRAPH_IDLE = 1011,
    /* The call needs another stream: the one on which the capture began, one
     * that belongs to the capture, or one of the graph's device.  Or the two
     * graphs of the call belong to different devices. */
    PS_ERROR_GRAPH_STREAM = 1012,
    /* No work was captured into the graph. */
    PS_ERROR_GRAPH_EMPTY = 1013,
    /* The graph cannot be instantiated again, because it has an executable and
     * was created without `keeps`. */
    PS_ERROR_GRAPH_FINAL = 1014,
    /* The stream on which the graph is launched or uploaded is being
     * captured. */
    PS_ERROR_GRAPH_INNER = 1015,
    /* A capture cannot begin on a device's default stream. */
    PS_ERROR_GRAPH_DEFAULT = 1016,
    /* The graph was captured again since the caller read its capture
     * number. */
    PS_ERROR_GRAPH_CHANGED = 1017,
    /* The other graph of the call, whose work was to be copied, has no native
     * graph. */
    PS_ERROR_GRAPH_SOURCE = 1018,
    /* The launch would have to wait for the stream of the previous launch,
     * which is being captured. */
    PS_ERROR_GRAPH_BEHIND = 1019,
};

/* Returns the status to report after two steps: `status` if the first step
 * failed, else `next`. */
static inline ps_status
ps_first_failure(ps_status status, ps_status next)
{
    return status != PS_SUCCESS ? status : next;
}

#endif
