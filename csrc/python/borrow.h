/* Memory of other libraries. */
#ifndef PYSTREAMS_PYTHON_BORROW_H
#define PYSTREAMS_PYTHON_BORROW_H

#include "../core/stream.h"

#include "args.h"
#include "buffer.h"

/* The most dimensions that a producer's array may have, as in NumPy. */
enum { MOST_DIMENSIONS = 64 };

/* A producer's claim about its memory. */
struct claim {
    /* The claimant, for error messages: "the DLPack tensor". */
    const char *what;
    /* NULL for host memory. */
    struct ps_device *device;
    bool pinned;
    bool read_only;
    /* Whether to pin the memory. */
    bool pin;
    void *data;
    uint64_t item_bits;
    int ndim;
    const int64_t *shape;
    /* NULL if contiguous; items that follow each other differ by
     * stride_unit. */
    const int64_t *strides;
    int64_t stride_unit;
};

/* A claim of so many bytes of host memory, writable and not pinned. */
static inline struct claim
bytes_claim(const char *what, void *data, const int64_t *nbytes)
{
    return (struct claim){
        .what = what,
        .data = data,
        .item_bits = 8,
        .ndim = 1,
        .shape = nbytes,
    };
}

/* The bytes from the first to the last item of the claimed memory, gaps
 * included; -1 with ValueError. */
int claim_extent(const struct claim *claim, const char **begin,
                 Py_ssize_t *nbytes);

/* Check a claim and hold the memory; host_device holds host memory.  After
 * success, release(owner) is called with the GIL held when nothing uses the
 * memory any more.  -1 with an exception. */
int claim_hold(const struct claim *claim, struct ps_device *host_device,
               void *owner, void (*release)(void *owner), struct span *span);

/* A Buffer that pins an object's writable memory for the device; NULL with an
 * exception. */
PyObject *view_pin(PyObject *object, struct ps_device *device);

/* Hold the memory of the method's first argument, a Buffer or any other
 * object, as the other side of a copy, ready for work on the stream (NULL: the
 * current one of the memory's device).  write: read-only memory is refused. -1
 * with an exception. */
int operand_hold(const struct signature *method, PyObject *object,
                 struct span *partner, struct ps_stream *stream, bool write,
                 struct span *span);

/* A new reference to the stream that work on memory of the device will run on:
 * `stream` if it is of that device, else the current one; NULL with an
 * exception.  The reference is needed because Python code that runs until then
 * may make another stream current. */
struct ps_stream *
handshake_stream(struct ps_device *device, struct ps_stream *stream);

/* The number of a stream in DLPack and the CUDA array interface, which do not
 * allow 0. */
static inline ps_handle
protocol_number(struct ps_stream *stream)
{
    return stream->handle != 0 ? stream->handle : 1;
}

/* A new reference to the stream that such a number means: 1 the default
 * stream, 2 the calling thread's, else a handle.  NULL with an exception that
 * names the function and the parameter. */
struct ps_stream *
protocol_stream(struct ps_device *device, const char *function,
                const char *name, PyObject *number);

#endif
