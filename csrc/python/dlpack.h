/* DLPack: its ABI, as its specification lays it out (version 1.1), a tensor
 * and the two forms in which a capsule hands it over; and both ways between
 * tensors and Buffers. */
#ifndef PYSTREAMS_PYTHON_DLPACK_H
#define PYSTREAMS_PYTHON_DLPACK_H

#include "buffer.h"

enum {
    DLPACK_MAJOR = 1,
    DLPACK_MINOR = 1,
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
    /* Each item of less than 8 bits has a byte of its own. */
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

/* In a capsule named "dltensor". */
struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self); /* may be NULL */
};

/* In a capsule named "dltensor_versioned". */
struct dlpack_versioned {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct dlpack_versioned *self); /* may be NULL */
    uint64_t flags;
    struct dlpack_tensor tensor;
};

#define DLPACK_NAME                "dltensor"
#define DLPACK_USED_NAME           "used_dltensor"
#define DLPACK_VERSIONED_NAME      "dltensor_versioned"
#define DLPACK_VERSIONED_USED_NAME "used_dltensor_versioned"

/* 1 if the object has the attribute, 0 if not, -1 with an exception. */
int has_attribute(PyObject *object, PyObject *name);

/* Hold the tensor of a producer or a capsule: 1; 0 if the object is neither;
 * -1 with an exception.  host_device as in claim_hold, NULL for the memory's
 * own. */
int dlpack_hold(PyObject *object, struct ps_device *host_device,
                struct ps_stream *stream, struct span *span);

PyObject *Buffer_dlpack(PyObject *self, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames);
PyObject *Buffer_dlpack_device(PyObject *self, PyObject *ignored);

#endif
