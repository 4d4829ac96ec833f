/* Statuses of core, in addition to those of the contract.  The Python layer
 * turns each into an exception. */
#ifndef PYSTREAMS_CORE_STATUS_H
#define PYSTREAMS_CORE_STATUS_H

#include <pystreams/backend.h>

enum {
    /* A parent process created the object or used the runtime, and this is a
     * forked child. */
    PS_ERROR_FOREIGN = 1001,
    /* This process exported the handle, so it cannot open it. */
    PS_ERROR_OWN_HANDLE = 1002,
    /* Core does not know whether the work is done: the backend must be
     * called. */
    PS_ERROR_NOT_KNOWN = 1004,
    /* The work is on another thread's default stream, and no recorded event
     * covers its latest work. */
    PS_ERROR_LAGS = 1005,
    /* The graph's state does not permit the call: */
    PS_ERROR_GRAPH_TAKEN = 1010,   /* it holds or captures a graph */
    PS_ERROR_GRAPH_IDLE = 1011,    /* it has no capture in progress */
    PS_ERROR_GRAPH_STREAM = 1012,  /* the capture is another stream's */
    PS_ERROR_GRAPH_EMPTY = 1013,   /* it has no graph */
    PS_ERROR_GRAPH_FINAL = 1014,   /* no native graph is left */
    PS_ERROR_GRAPH_INNER = 1015,   /* the stream is being captured */
    PS_ERROR_GRAPH_DEFAULT = 1016, /* it is a default stream */
    PS_ERROR_GRAPH_CHANGED = 1017, /* it has another capture now */
    PS_ERROR_GRAPH_SOURCE = 1018,  /* it kept no native graph */
    PS_ERROR_GRAPH_BEHIND = 1019,  /* a captured stream launched it */
};

/* The status to report after two steps: that of the first failure. */
static inline ps_status
ps_first_failure(ps_status status, ps_status next)
{
    return status != PS_SUCCESS ? status : next;
}

#endif
