/* The type Buffer, and spans: the byte ranges that operations work on. */
#ifndef PYSTREAMS_PYTHON_BUFFER_H
#define PYSTREAMS_PYTHON_BUFFER_H

#include "../core/memory.h"

#include "module.h"

typedef struct {
    PyObject ob_base;
    /* NULL after close(). */
    struct ps_block *block;
    /* The Buffer's first byte; it lies within the block. */
    char *data;
    Py_ssize_t nbytes;
    /* The number of buffer-protocol views that have not been released.  The
     * Buffer cannot be closed while it has such views. */
    Py_ssize_t exports;
    PyObject *weakrefs;
} BufferObject;

/* A range of bytes in a block, with a reference to the block.  The bytes stay
 * valid even if another thread closes the Buffer. */
struct span {
    struct ps_block *block;
    char *data;
    Py_ssize_t nbytes;
    /* Whether another library owns the memory.  Such a library does not know
     * of the work that this library queues. */
    bool foreign;
};

/* Get the span of a Buffer.  The caller must release the span with
 * span_release.  Returns -1 with an exception if the Buffer is closed, or if a
 * parent process created it. */
int buffer_hold(PyObject *buffer, struct span *span);

/* Returns the address of the Buffer's first byte; NULL if the Buffer is
 * closed. */
char *buffer_data(PyObject *buffer);

/* Drop a reference to the block.  Called with the GIL held.  A failure is
 * passed to sys.unraisablehook. */
void block_release(struct ps_block *block);

static inline void
span_release(struct span *span)
{
    block_release(span->block);
}

/* Returns a new Buffer for the span, and takes over the span.  On failure,
 * releases the span and returns NULL with an exception. */
PyObject *buffer_wrap(struct span *span);

/* buffer_wrap in two steps.  buffer_new returns a closed Buffer, or NULL with
 * an exception.  buffer_open opens it for the span, and cannot fail. */
PyObject *buffer_new(void);
void buffer_open(PyObject *buffer, const struct span *span);

enum memory_kind {
    MEMORY_ORDERED, /* device memory that is allocated in a stream's order */
    MEMORY_PINNED,
    MEMORY_INTERPROCESS,
};

/* Allocate memory of this kind for the device.  `stream` is used only for
 * MEMORY_ORDERED.  On failure, returns -1 with an exception. */
int
span_create(enum memory_kind kind, struct ps_device *device,
            struct ps_stream *stream, Py_ssize_t nbytes, struct span *span);

/* Free the retired blocks whose work is done; see ps_memory_sweep.  Call this
 * after waiting for work.  Also reports any clean-up that has failed since the
 * last call.  Keeps a pending exception. */
void memory_settle(struct ps_runtime *runtime);

#endif
