/* Statuses of core, in addition to the contract's.  Python turns each into an
 * exception. */
#ifndef PYSTREAMS_CORE_STATUS_H
#define PYSTREAMS_CORE_STATUS_H

#include <pystreams/backend.h>

enum {
    /* The object was created, or the runtime used, before this process was
     * forked. */
    PS_ERROR_FOREIGN = 1001,
    /* The event of the handle was created in this process. */
    PS_ERROR_OWN_HANDLE = 1002,
    /* Whether work is done is not known: the device has to be called. */
    PS_ERROR_NOT_KNOWN = 1004,
    /* No event covers the latest work of another thread's default stream. */
    PS_ERROR_LAGS = 1005,
    /* The graph is not in the state for the call: */
    PS_ERROR_GRAPH_TAKEN = 1010,   /* it holds a graph, or captures one */
    PS_ERROR_GRAPH_IDLE = 1011,    /* it captures nothing */
    PS_ERROR_GRAPH_STREAM = 1012,  /* the capture is another stream's */
    PS_ERROR_GRAPH_EMPTY = 1013,   /* it holds nothing */
    PS_ERROR_GRAPH_FINAL = 1014,   /* it was instantiated, and not kept */
    PS_ERROR_GRAPH_INNER = 1015,   /* it would be launched in a capture */
    PS_ERROR_GRAPH_DEFAULT = 1016, /* it would capture a default stream */
    PS_ERROR_GRAPH_CHANGED = 1017, /* it holds another capture by now */
    PS_ERROR_GRAPH_SOURCE = 1018,  /* it has not kept its capture */
    PS_ERROR_GRAPH_BEHIND = 1019,  /* it follows a stream that is captured */
};

/* The status to report after two steps: the first failure. */
static inline ps_status
ps_first_failure(ps_status status, ps_status next)
{
    return status != PS_SUCCESS ? status : next;
}

#endif
