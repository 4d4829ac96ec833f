/* Borrows memory from other libraries, as a source or destination of
 * copies. */
#ifndef PYSTREAMS_PYTHON_BORROW_H
#define PYSTREAMS_PYTHON_BORROW_H

#include "../core/stream.h"

#include "args.h"
#include "buffer.h"

/* The most dimensions that a producer's array may have.  NumPy has the same
 * limit. */
enum { MOST_DIMENSIONS = 64 };

/* What a producer, which is an object of another library, says about its
 * memory.  Most of it is unchecked until claim_extent or claim_hold. */
struct claim {
    /* What the producer is, for error messages: for example "the DLPack
     * tensor". */
    const char *what;
    /* The device that has the memory; NULL for host memory. */
    struct ps_device *device;
    bool pinned;
    bool read_only;
    /* Whether claim_hold must pin the memory. */
    bool pin;
    void *data;
    uint64_t item_bits;
    int ndim;
    const int64_t *shape;
    /* The strides, in multiples of stride_unit; NULL if the items are
     * contiguous. */
    const int64_t *strides;
    int64_t stride_unit;
};

/* Returns a claim for *nbytes bytes of host memory that is writable and not
 * pinned. */
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

/* Get the address range from the first to the last item of the claimed memory,
 * including gaps.  On failure, returns -1 with ValueError. */
int claim_extent(const struct claim *claim, const char **begin,
                 Py_ssize_t *nbytes);

/* Check a claim, and make a span of the memory.  If it is host memory, the
 * span's block belongs to host_device.  If this succeeds, release(owner) is
 * called with the GIL held when no span and no work uses the memory any more.
 * On failure, returns -1 with an exception. */
int claim_hold(const struct claim *claim, struct ps_device *host_device,
               void *owner, void (*release)(void *owner), struct span *span);

/* Pin the writable host memory of an object for the device.  Returns a new
 * Buffer for this memory; NULL with an exception. */
PyObject *view_pin(PyObject *object, struct ps_device *device);

/* Make a span of the memory of `object`, which is a Buffer or another
 * library's array.  A method will copy to or from this memory, and `partner`
 * is the other side of the copy.  The memory of another library is made ready
 * for work on `stream` or, if `stream` is NULL, for work on the current stream
 * of the memory's device.  If `write` is true, another library's read-only
 * memory is refused.  On failure, returns -1 with an exception. */
int operand_hold(const struct signature *method, PyObject *object,
                 struct span *partner, struct ps_stream *stream, bool write,
                 struct span *span);

/* Returns a new reference to the stream on which work with the device's memory
 * will run.  If `stream` is a stream of the device, this is `stream`.
 * Otherwise, or if `stream` is NULL, this is the device's current stream.  The
 * caller needs a reference, because Python code may make another stream
 * current before the work is queued.  On failure, returns NULL with an
 * exception. */
struct ps_stream *
handshake_stream(struct ps_device *device, struct ps_stream *stream);

/* Returns the number that identifies the stream in DLPack and the CUDA array
 * interface.  These do not allow 0, so the default stream has the number 1. */
static inline ps_handle
protocol_number(struct ps_stream *stream)
{
    return stream->handle != 0 ? stream->handle : 1;
}

/* Returns a new reference to the stream that has this number in DLPack or the
 * CUDA array interface.  The number 1 means the default stream, and 2 means
 * the calling thread's default stream.  Other numbers are handles.  On
 * failure, returns NULL with an exception that names the function and the
 * parameter. */
struct ps_stream *
protocol_stream(struct ps_device *device, const char *function,
                const char *name, PyObject *number);

#endif
