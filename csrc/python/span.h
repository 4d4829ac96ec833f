/* What the files share that deal with memory: Buffers, the bytes that copies
 * and protocols work on, and what other libraries say of theirs. */
#ifndef PYSTREAMS_PYTHON_SPAN_H
#define PYSTREAMS_PYTHON_SPAN_H

#include "module.h"

/* ---- buffer.c, buffer_new.c ---- */

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

extern PyType_Spec buffer_spec;

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

PyObject *Buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* A Buffer of the span, which is released also on failure. */
PyObject *buffer_wrap(struct module_state *state, struct span *span);

/* New memory of the device in the order of the stream, pinned memory where
 * stream is NULL; -1 with an exception. */
int
span_create(struct module_state *state, struct ps_device *device,
            struct ps_stream *stream, Py_ssize_t nbytes, struct span *span);

/* ---- borrow.c ---- */

/* The most dimensions that a producer is believed to have: NumPy's. */
enum { MOST_DIMENSIONS = 64 };

/* What a producer says of its memory. */
struct claim {
    /* What says so, for messages: "the DLPack tensor". */
    const char *what;
    /* NULL for host memory. */
    struct ps_device *device;
    bool pinned;
    bool read_only;
    void *data;
    uint64_t item_bits;
    int ndim;
    const int64_t *shape;
    /* NULL where contiguous; counted in units of bytes, or of items. */
    const int64_t *strides;
    int64_t stride_unit;
};

/* Check a claim and hold the memory, for host memory on behalf of host_device;
 * after success release(owner) is called when nothing uses it any more, with
 * the GIL held.  -1 with an exception. */
int claim_hold(struct module_state *state, const struct claim *claim,
               struct ps_device *host_device, void *owner,
               void (*release)(void *owner), struct span *span);

/* The memory of a copy's other side, a Buffer's or any object's: ready for
 * work on the stream (NULL: the current one of the memory's device).  write:
 * not read-only.  -1 with an exception. */
int operand_hold(struct module_state *state, PyObject *object,
                 struct span *partner, struct ps_stream *stream, bool write,
                 struct span *span);

/* The stream that work on memory of the device will run on: stream where it is
 * of that device, else the current one.  A new reference: what runs until
 * then may make another current. */
struct ps_stream *
handshake_stream(struct ps_device *device, struct ps_stream *stream);

/* The protocols' number of a stream, whose 0 is not allowed. */
static inline ps_handle
protocol_number(struct ps_stream *stream)
{
    return stream->handle != 0 ? stream->handle : 1;
}

/* A new reference to the stream of a protocol's number: 1 the default stream,
 * 2 the calling thread's, else a handle; NULL with an exception. */
struct ps_stream *
protocol_stream(struct module_state *state, struct ps_device *device,
                const char *what, PyObject *number);

/* ---- dlpack_import.c, dlpack_export.c ---- */

/* 1 where the object has the attribute, 0 where not, -1 with an exception. */
int has_attribute(PyObject *object, PyObject *name);

/* Hold the tensor of a producer or a capsule: 1, 0 where it is neither, -1
 * with an exception.  host_device as in claim_hold, NULL for the memory's
 * own. */
int dlpack_hold(struct module_state *state, PyObject *object,
                struct ps_device *host_device, struct ps_stream *stream,
                struct span *span);

PyObject *Buffer_dlpack(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);
PyObject *Buffer_dlpack_device(PyObject *self, PyObject *ignored);

extern PyMethodDef dlpack_functions[];

/* ---- array_interface.c ---- */

/* As dlpack_hold, for an object with __cuda_array_interface__; device: the one
 * it is of where the backend cannot tell. */
int array_interface_hold(struct module_state *state, PyObject *object,
                         struct ps_device *device, struct ps_stream *stream,
                         struct span *span);

PyObject *Buffer_get_array_interface(PyObject *self, void *closure);

/* ---- transfer.c ---- */

/* -1 with ValueError unless the stream, or NULL, is of the span's backend. */
int span_check_stream(struct span *span, struct ps_stream *stream);

/* What the methods do; stream NULL: the current one of the device memory.  -1
 * with an exception. */
int span_copy(struct module_state *state, struct span *to, struct span *from,
              struct ps_stream *stream, bool non_blocking);
int span_fill(struct module_state *state, struct span *span, uint8_t value,
              struct ps_stream *stream);

/* Make the stream (NULL: the caller, with the GIL released) wait for all work
 * that is known to use the memory; -1 with an exception. */
int span_settle(struct module_state *state, struct span *span,
                struct ps_stream *stream);

#endif
