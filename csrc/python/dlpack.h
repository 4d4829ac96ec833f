/* DLPack: its ABI (version 1.3), and the conversions between its tensors and
 * Buffers.  The ABI defines the tensor, two structs that carry a tensor in a
 * capsule, and the exchange table, whose functions work without capsules. */
#ifndef PYSTREAMS_PYTHON_DLPACK_H
#define PYSTREAMS_PYTHON_DLPACK_H

#include "buffer.h"

enum {
    DLPACK_MAJOR = 1,
    DLPACK_MINOR = 3,
};

enum dlpack_device {
    DLPACK_CPU = 1,
    DLPACK_CUDA = 2,
    DLPACK_CUDA_HOST = 3,
    DLPACK_EXTENSION = 12,
    DLPACK_CUDA_MANAGED = 13,
};

enum { DLPACK_UINT = 1 };

enum {
    DLPACK_READ_ONLY = 1,
    DLPACK_IS_COPIED = 2,
    /* Each item takes a whole byte even if it has fewer than 8 bits. */
    DLPACK_PADDED = 4,
};

struct dlpack_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t *shape;
    int64_t *strides; /* in items; may be NULL if contiguous */
    uint64_t byte_offset;
};

/* The content of a capsule named "dltensor". */
struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self); /* may be NULL */
};

/* The content of a capsule named "dltensor_versioned". */
struct dlpack_versioned {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct dlpack_versioned *self); /* may be NULL */
    uint64_t flags;
    struct dlpack_tensor tensor;
};

/* DLPackExchangeAPI: a table of functions.  A type that has such a table
 * offers it as an attribute, in a capsule with the name DLPACK_EXCHANGE_NAME.
 * The functions return 0, or -1 with an exception. */
struct dlpack_exchange {
    uint32_t major;
    uint32_t minor;
    /* The table of an older version, or NULL.  A reader that does not know
     * this table's major version may read only the fields up to this one. */
    const struct dlpack_exchange *older;
    /* May be called without the GIL, so it reports errors through set_error,
     * not by exceptions. */
    int (*allocate)(struct dlpack_tensor *prototype,
                    struct dlpack_versioned **tensor, void *context,
                    void (*set_error)(void *context, const char *kind,
                                      const char *message));
    int (*managed_from_object)(void *object, struct dlpack_versioned **tensor);
    /* Make an object for the tensor.  The object takes over the tensor. */
    int (*managed_to_object)(struct dlpack_versioned *tensor, void **object);
    /* Get a tensor that is valid while the caller keeps the object alive.
     * This field may be NULL. */
    int (*tensor_from_object)(void *object, struct dlpack_tensor *tensor);
    int (*current_work_stream)(int device_type, int32_t device_id,
                               void **stream);
};

#define DLPACK_EXCHANGE_NAME       "dlpack_exchange_api"
#define DLPACK_NAME                "dltensor"
#define DLPACK_USED_NAME           "used_dltensor"
#define DLPACK_VERSIONED_NAME      "dltensor_versioned"
#define DLPACK_VERSIONED_USED_NAME "used_dltensor_versioned"

/* Returns 1 if the object has the attribute, else 0.  On failure, returns -1
 * with an exception. */
int has_attribute(PyObject *object, PyObject *name);

/* Make a span of a tensor's memory.  The object must be a capsule with a
 * tensor, or a producer.  A producer has __dlpack__ and __dlpack_device__, or
 * its type has an exchange table.  A producer's device memory is made ready
 * for the stream that handshake_stream returns for `stream`.  Returns 1 on
 * success; 0 if the object is neither a capsule nor a producer; -1 with an
 * exception.  host_device: as in claim_hold.  If it is NULL, this function
 * chooses a device that fits the tensor. */
int dlpack_hold(PyObject *object, struct ps_device *host_device,
                struct ps_stream *stream, struct span *span);

/* Get the address range of a tensor, including gaps between its items.  Uses
 * the exchange table of the tensor's type.  It neither waits for work nor
 * takes a reference.  Returns 1 on success; 0 if the type has no exchange
 * table; -1 with an exception. */
int dlpack_extent(PyObject *object, const char **begin, Py_ssize_t *nbytes);

/* Get the device for a DLPack device type and id; *device becomes NULL for
 * host memory.  `function` is for error messages.  On failure, returns -1 with
 * an exception. */
int dlpack_place(const char *function, long type, long id,
                 struct ps_device **device);

/* Compute the size in bytes of a tensor with the shape and the item type of
 * this one.  On failure, returns -1 with ValueError. */
int dlpack_nbytes(const struct dlpack_tensor *tensor, Py_ssize_t *nbytes);

/* Make a span of the tensor's memory, and take over the tensor.  host_device:
 * as in dlpack_hold.  On failure, returns -1 with an exception, and the tensor
 * still belongs to the caller. */
int dlpack_versioned_hold(struct dlpack_versioned *tensor,
                          struct ps_device *host_device, struct span *span);

/* Describe the span's memory in *tensor, with items of one byte.  The shape
 * and the strides become NULL.  On failure, returns -1 with BufferError. */
int dlpack_describe(struct span *span, struct dlpack_tensor *tensor);

/* Wait for the work that is known to use the span's host memory.  Call this
 * before another library gets access to the memory.  On failure, returns -1
 * with an exception. */
int dlpack_settle_host(struct span *span);

/* Record that another library's work on this stream may use the span.  The
 * memory is then not reused before that work is done.  Does nothing for an
 * external stream.  On failure, returns -1 with an exception. */
int dlpack_use(struct span *span, struct ps_stream *stream);

/* Returns a new tensor for the span, with the device, item type and shape of
 * `form`; NULL with an exception.  Takes over the span, even on failure. */
struct dlpack_versioned *
dlpack_export(struct span *span, const struct dlpack_tensor *form);

/* Add this library's exchange table to the type Buffer, as an attribute.  On
 * failure, returns -1 with an exception. */
int dlpack_add_exchange(PyTypeObject *type);

PyObject *Buffer_dlpack(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);
PyObject *Buffer_dlpack_device(PyObject *self, PyObject *ignored);

#endif
