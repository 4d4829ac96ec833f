/* The type Buffer, and the bytes that operations work on. */
#ifndef PYSTREAMS_PYTHON_BUFFER_H
#define PYSTREAMS_PYTHON_BUFFER_H

#include "../core/memory.h"

#include "module.h"

typedef struct {
    PyObject ob_base;
    /* NULL once closed. */
    struct ps_block *block;
    /* Within the block. */
    char *data;
    Py_ssize_t nbytes;
    /* Views that the buffer protocol has handed out. */
    Py_ssize_t exports;
    PyObject *weakrefs;
} BufferObject;

/* Bytes of a block that is held, so that they stay when another thread closes
 * the Buffer. */
struct span {
    struct ps_block *block;
    char *data;
    Py_ssize_t nbytes;
    /* Not a Buffer's, so that its owner knows nothing of the work on it. */
    bool foreign;
};

/* The bytes of an open Buffer of this process, until span_release; -1 with an
 * exception. */
int buffer_hold(PyObject *buffer, struct span *span);

/* Drop a reference from Python code, reporting a failure. */
void block_release(struct module_state *state, struct ps_block *block);

static inline void
span_release(struct module_state *state, struct span *span)
{
    block_release(state, span->block);
}

/* -1 with ValueError where the Buffer is closed. */
int buffer_check_open(PyObject *buffer);

/* -1 with an exception where it is closed, or of an ancestor. */
int buffer_check_usable(PyObject *buffer);

/* A Buffer of the span, which is released also on failure. */
PyObject *buffer_wrap(struct module_state *state, struct span *span);

/* New memory of the device in the order of the stream, pinned memory where
 * stream is NULL; -1 with an exception. */
int
span_create(struct module_state *state, struct ps_device *device,
            struct ps_stream *stream, Py_ssize_t nbytes, struct span *span);

/* Give back what was in use by work that was waited for.  Keeps a pending
 * exception. */
void memory_settle(struct module_state *state, struct ps_runtime *runtime);

#endif
