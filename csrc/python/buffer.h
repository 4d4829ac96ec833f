/* The type Buffer, and the bytes that operations work on. */
#ifndef PYSTREAMS_PYTHON_BUFFER_H
#define PYSTREAMS_PYTHON_BUFFER_H

#include "../core/memory.h"

#include "module.h"

typedef struct {
    PyObject ob_base;
    /* NULL once closed. */
    struct ps_block *block;
    /* The first byte, within the block. */
    char *data;
    Py_ssize_t nbytes;
    /* The number of views of the buffer protocol that are not released.  If it
     * is not 0, the Buffer cannot be closed. */
    Py_ssize_t exports;
    PyObject *weakrefs;
} BufferObject;

/* A range of bytes of a block that is held, so that it stays valid if another
 * thread closes the Buffer. */
struct span {
    struct ps_block *block;
    char *data;
    Py_ssize_t nbytes;
    /* Whether another library owns the memory.  That library does not know of
     * the work queued here. */
    bool foreign;
};

/* Hold the bytes of an open Buffer of this process until span_release; -1 with
 * an exception. */
int buffer_hold(PyObject *buffer, struct span *span);

/* The first byte; NULL if the Buffer is closed. */
char *buffer_data(PyObject *buffer);

/* Drop a reference from Python code, reporting a failure. */
void block_release(struct ps_block *block);

static inline void
span_release(struct span *span)
{
    block_release(span->block);
}

/* A new Buffer for the span, which is released on failure. */
PyObject *buffer_wrap(struct span *span);

/* The same in two steps: buffer_new returns a closed Buffer, or NULL with an
 * exception; the second step opens it for the span, and cannot fail. */
PyObject *buffer_new(void);
void buffer_open(PyObject *buffer, const struct span *span);

enum memory_kind {
    MEMORY_ORDERED, /* device memory, in the order of a stream */
    MEMORY_PINNED,
    MEMORY_INTERPROCESS,
};

/* Allocate memory of the device, in the order of the stream if the kind has
 * one; -1 with an exception. */
int
span_create(enum memory_kind kind, struct ps_device *device,
            struct ps_stream *stream, Py_ssize_t nbytes, struct span *span);

/* Free the blocks whose work has completed, after a wait, and report a
 * clean-up that failed since the last call, of whatever kind.  Keeps a pending
 * exception. */
void memory_settle(struct ps_runtime *runtime);

#endif
