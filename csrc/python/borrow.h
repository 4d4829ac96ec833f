/* Memory of other libraries. */
#ifndef PYSTREAMS_PYTHON_BORROW_H
#define PYSTREAMS_PYTHON_BORROW_H

#include "../core/stream.h"

#include "args.h"
#include "buffer.h"

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

/* The memory of a copy's other side, a Buffer's or any object's, which is the
 * method's first argument: ready for work on the stream (NULL: the current one
 * of the memory's device).  write: not read-only.  -1 with an exception. */
int operand_hold(struct module_state *state, const struct signature *method,
                 PyObject *object, struct span *partner,
                 struct ps_stream *stream, bool write, struct span *span);

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
                const char *function, const char *name, PyObject *number);

#endif
