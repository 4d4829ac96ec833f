/* The type `Buffer`: device or pinned memory, or a part of another Buffer's
 * memory.  Most methods first copy the object's fields, because another thread
 * may close the Buffer meanwhile. */
#include "buffer.h"

#include <inttypes.h>

#include "../core/memory_use.h"
#include "../core/thread.h"

#include "args.h"
#include "array_interface.h"
#include "borrow.h"
#include "current.h"
#include "device.h"
#include "dlpack.h"
#include "errors.h"
#include "races.h"
#include "schedules.h"
#include "share.h"
#include "stream.h"
#include "submit.h"
#include "transfer.h"
#include "wait.h"

static BufferObject *
as_buffer(PyObject *self)
{
    return (BufferObject *)self;
}

/* The properties of a Buffer.  They are read in one step, because another
 * thread may close the Buffer. */
struct traits {
    struct ps_device *device; /* NULL if the Buffer is closed */
    char *data;
    bool pinned;
    bool read_only;
    bool interprocess;
};

static struct traits
traits_of(PyObject *op)
{
    BufferObject *self = as_buffer(op);
    struct traits traits = {NULL};
    Py_BEGIN_CRITICAL_SECTION(op);
    if (self->block != NULL) {
        traits = (struct traits){self->block->device, self->data,
                                 self->block->pinned, self->block->read_only,
                                 self->block->share != NULL};
    }
    Py_END_CRITICAL_SECTION();
    return traits;
}

char *
buffer_data(PyObject *op)
{
    return traits_of(op).data;
}

static int
raise_closed(void)
{
    return refuse(PyExc_ValueError, "the Buffer is closed");
}

/* Like traits_of, but returns -1 with ValueError if the Buffer is closed. */
static int
traits_of_open(PyObject *op, struct traits *traits)
{
    *traits = traits_of(op);
    return traits->device != NULL ? 0 : raise_closed();
}

static int
check_generation(const struct ps_block *block)
{
    return block->generation == ps_generation()
               ? 0
               : zero_or_raise(block->device->runtime, "using a Buffer",
                               PS_ERROR_FOREIGN);
}

/* Like buffer_hold, but also accepts a Buffer that a parent process
 * created. */
static int
hold(PyObject *op, struct span *span)
{
    BufferObject *self = as_buffer(op);
    *span = (struct span){.nbytes = self->nbytes};
    Py_BEGIN_CRITICAL_SECTION(op);
    if (self->block != NULL) {
        span->block = ps_block_ref(self->block);
        span->data = self->data;
    }
    Py_END_CRITICAL_SECTION();
    return span->block != NULL ? 0 : raise_closed();
}

int
buffer_hold(PyObject *op, struct span *span)
{
    if (hold(op, span) < 0) {
        return -1;
    }
    if (check_generation(span->block) < 0) {
        span_release(span);
        return -1;
    }
    return 0;
}

/* If ps_runtime_note_failure has stored the failure of a clean-up, report
 * it. */
static void
report_noted(struct ps_runtime *runtime)
{
    report_cleanup(runtime, NULL, "releasing resources",
                   ps_runtime_take_failure(runtime));
}

void
block_release(struct ps_block *block)
{
    struct ps_device *device = block->device;
    ps_status status;
    if (ps_refs_drop_shared(&block->refs)) {
        return;
    }
    if (ps_races_are_on()) {
        block_ends(block);
    }
    WITHOUT_GIL(status = ps_block_unref(block));
    report_cleanup(device->runtime, device, "freeing memory", status);
    report_noted(device->runtime);
}

void
memory_settle(struct ps_runtime *runtime)
{
    if (ps_memory_has_retired(&runtime->memory)) {
        WITHOUT_GIL(ps_memory_sweep(runtime));
    }
    report_noted(runtime);
}

PyObject *
buffer_new(void)
{
    PyTypeObject *type = module_state.buffer_type;
    return type->tp_alloc(type, 0);
}

void
buffer_open(PyObject *op, const struct span *span)
{
    BufferObject *self = as_buffer(op);
    self->block = span->block;
    self->data = span->data;
    self->nbytes = span->nbytes;
}

PyObject *
buffer_wrap(struct span *span)
{
    PyObject *self = buffer_new();
    if (self == NULL) {
        block_release(span->block);
        return NULL;
    }
    buffer_open(self, span);
    return self;
}

static void
raise_not_allocated(struct ps_device *device, Py_ssize_t nbytes, bool pinned,
                    ps_status status)
{
    const struct ps_backend *backend = device->runtime->backend;
    char operation[160];
    uint64_t free, total;
    int length = snprintf(operation, sizeof(operation),
                          "allocating %zd "
                          "bytes of %s",
                          nbytes, pinned ? "pinned memory" : "memory");
    if (status == PS_ERROR_OUT_OF_MEMORY && !pinned) {
        ps_status known;
        WITHOUT_GIL(known = backend->memory_info(backend, device->index, &free,
                                                 &total));
        if (known == PS_SUCCESS) {
            snprintf(operation + length, sizeof(operation) - (size_t)length,
                     " (%s:%d has %" PRIu64 " free of %" PRIu64 ")",
                     backend->name, device->index, free, total);
        }
    }
    raise_status(device->runtime, operation, status);
}

int
span_create(enum memory_kind kind, struct ps_device *device,
            struct ps_stream *stream, Py_ssize_t nbytes, struct span *span)
{
    struct ps_runtime *runtime = device->runtime;
    struct ps_block *block = NULL;
    struct core_wait wait;
    ps_status status;
    let_others_run();
    wait_begin(&wait, NO_TIMEOUT);
    ps_memory_sweep_some(runtime);
    switch (kind) {
    case MEMORY_PINNED:
        status = ps_block_create_pinned(device, (size_t)nbytes, &wait.limit,
                                        &block);
        break;
    case MEMORY_INTERPROCESS:
        status = ps_block_create_shared(device, (size_t)nbytes, &wait.limit,
                                        &block);
        break;
    default:
        status = ps_block_create(stream, (size_t)nbytes, &wait.limit, &block);
    }
    status = wait_end(&wait, status);
    report_noted(runtime);
    if (status != PS_SUCCESS && block != NULL) {
        /* The memory was allocated, but a signal handler has raised an
         * exception while the allocation waited. */
        block_release(block);
    }
    if (status != PS_SUCCESS) {
        raise_not_allocated(device, nbytes, kind == MEMORY_PINNED, status);
        return -1;
    }
    /* Report the allocation to the race detector.  The detector learns of
     * allocations from calls to the backend, but core makes no such call if
     * the block comes from its pool. */
    ps_races_forget_memory((uintptr_t)block->data, block->nbytes);
    note_memory(PS_NOTE_BLOCK, block->data, block->nbytes);
    *span = (struct span){block, block->data, nbytes, false};
    return 0;
}

/* Returns a new reference to the stream for an allocation.  If the argument is
 * NULL, this is the device's current stream.  Otherwise it is the stream that
 * the argument names, which must be a stream of the device.  On failure,
 * returns NULL with an exception. */
static struct ps_stream *
allocation_stream(const char *function, struct ps_device *device,
                  PyObject *argument)
{
    if (argument == NULL) {
        return current_stream_of(device);
    }
    struct ps_stream *stream = stream_named(function, argument);
    if (stream != NULL && stream->device != device) {
        struct ps_runtime *runtime = device->runtime;
        if (stream->device->runtime == runtime ||
            check_emulations(function, "memory", runtime, "stream",
                             stream->device->runtime) == 0) {
            PyErr_Format(
                PyExc_ValueError,
                "%s() expects a stream of %s:%d for stream, but got %R",
                function, runtime->backend->name, device->index, argument);
        }
        stream_release(stream);
        return NULL;
    }
    return stream;
}

/* Returns the device for memory of this kind that the argument names; NULL
 * with an exception.  Pinned memory is for copies to and from an accelerator.
 * So if the argument names a CPU, the device for pinned memory is the default
 * device. */
static struct ps_device *
home_argument(const char *function, PyObject *argument, enum memory_kind kind)
{
    struct ps_device *device = device_argument(function, -1, argument);
    return device != NULL && kind == MEMORY_PINNED &&
                   device->runtime->backend->device_type == PS_DEVICE_CPU
               ? device_argument(function, -1, NULL)
               : device;
}

/* Get the kind of memory that the arguments pin_memory and interprocess
 * select.  On failure, returns -1 with an exception. */
static int
kind_argument(const char *function, PyObject *const *values, Py_ssize_t nbytes,
              enum memory_kind *kind)
{
    bool pinned, interprocess;
    if (switch_argument(function, "pin_memory", values[3], &pinned) < 0 ||
        switch_argument(function, "interprocess", values[4], &interprocess) <
            0) {
        return -1;
    }
    if (pinned && interprocess) {
        return refuse(PyExc_ValueError,
                      "%s() expects pin_memory=False with interprocess=True: "
                      "pinned memory is of one process",
                      function);
    }
    if (interprocess && nbytes == 0) {
        return refuse(PyExc_ValueError,
                      "%s() expects an int of at least 1 for nbytes with "
                      "interprocess=True, but got 0",
                      function);
    }
    *kind = pinned         ? MEMORY_PINNED
            : interprocess ? MEMORY_INTERPROCESS
                           : MEMORY_ORDERED;
    if (*kind != MEMORY_ORDERED && values[2] != NULL && values[2] != Py_None) {
        return refuse(PyExc_ValueError,
                      "%s() expects None for stream with %s: %s memory is not "
                      "allocated in stream order",
                      function,
                      pinned ? "pin_memory=True" : "interprocess=True",
                      pinned ? "pinned" : "interprocess");
    }
    return 0;
}

/* Returns NULL if the backend can allocate memory of this kind; else the name
 * of the missing feature. */
static const char *
lacking(const struct ps_backend *backend, enum memory_kind kind)
{
    if (kind == MEMORY_INTERPROCESS) {
        return backend->shared_allocate == NULL ? "interprocess memory" : NULL;
    }
    return backend->memory_allocate != NULL ? NULL
           : kind == MEMORY_PINNED          ? "pinned memory"
                                            : "memory";
}

/* Returns a Buffer for new memory.  `values` are the arguments of
 * `function`. */
static PyObject *
allocate(const char *function, PyObject *const *values)
{
    Py_ssize_t nbytes;
    enum memory_kind kind;

    if (nbytes_argument(function, values[0], &nbytes) < 0 ||
        kind_argument(function, values, nbytes, &kind) < 0) {
        return NULL;
    }
    struct ps_device *device = home_argument(function, values[1], kind);
    if (device == NULL) {
        return NULL;
    }
    const char *missing = lacking(device->runtime->backend, kind);
    if (missing != NULL) {
        return raise_absent(device->runtime, missing);
    }
    struct ps_stream *stream = NULL;
    if (kind == MEMORY_ORDERED) {
        stream = allocation_stream(function, device,
                                   values[2] != Py_None ? values[2] : NULL);
        if (stream == NULL) {
            return NULL;
        }
    }
    struct span span;
    int result = span_create(kind, device, stream, nbytes, &span);
    stream_release(stream);
    return result == 0 ? buffer_wrap(&span) : NULL;
}

#define ALLOCATION_NAMES                                           \
    {                                                              \
        "nbytes", "device", "stream", "pin_memory", "interprocess" \
    }

static PyObject *
Buffer_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    static const struct signature signature = {"Buffer", 1, 1,
                                               ALLOCATION_NAMES};
    PyObject *values[5];
    return parse_tuple(&signature, args, kwargs, values) == 0
               ? allocate("Buffer", values)
               : NULL;
}

static PyObject *
empty(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs,
      PyObject *kwnames)
{
    static const struct signature signature = {"empty", 1, 1,
                                               ALLOCATION_NAMES};
    PyObject *values[5];
    return parse_arguments(&signature, args, nargs, kwnames, values) == 0
               ? allocate("empty", values)
               : NULL;
}

static void
release_reference(void *owner)
{
    Py_DECREF((PyObject *)owner);
}

static PyObject *
pin(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs,
    PyObject *kwnames)
{
    static const struct signature signature = {
        "pin", 1, 1, {"memory", "device"}};
    PyObject *values[2];
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0) {
        return NULL;
    }
    if (!PyObject_CheckBuffer(values[0])) {
        return raise_expected("pin",
                              "a writable object with the buffer protocol",
                              "memory", values[0]);
    }
    struct ps_device *device = home_argument("pin", values[1], MEMORY_PINNED);
    if (device == NULL) {
        return NULL;
    }
    if (device->runtime->backend->host_register == NULL) {
        return raise_absent(device->runtime, "pinning memory that exists");
    }
    memory_settle(device->runtime);
    return view_pin(values[0], device);
}

static PyObject *
Buffer_from_address(PyObject *Py_UNUSED(type), PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    static const struct signature signature = {
        "from_address", 2, 3, {"ptr", "nbytes", "device", "owner"}};
    PyObject *values[4];
    ps_handle address;
    Py_ssize_t nbytes;
    struct span span;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0 ||
        handle_argument("from_address", "ptr", values[0], &address) < 0 ||
        nbytes_argument("from_address", values[1], &nbytes) < 0) {
        return NULL;
    }
    struct ps_device *device = device_argument("from_address", -1, values[2]);
    if (device == NULL) {
        return NULL;
    }
    int64_t extent = nbytes;
    bool host = device->runtime->backend->flags & PS_BACKEND_HOST_MEMORY;
    struct claim claim =
        bytes_claim("from_address()", (void *)address, &extent);
    claim.device = host ? NULL : device;
    PyObject *owner = values[3] != NULL ? values[3] : Py_None;
    if (claim_hold(&claim, device, Py_NewRef(owner), release_reference,
                   &span) < 0) {
        Py_DECREF(owner);
        return NULL;
    }
    return buffer_wrap(&span);
}

PyMethodDef buffer_functions[] = {
    FUNCTION("empty", empty, METH_FASTCALL | METH_KEYWORDS,
             "nbytes, *, device=None, stream=None, pin_memory=False, "
             "interprocess=False",
             "Return a Buffer of nbytes of uninitialized memory, used in "
             "stream order.\n\n"
             "Device memory is allocated in the order of the stream, by "
             "default the device's current\none; pinned memory is host "
             "memory; interprocess memory is device memory that other "
             "processes\nmay open.  May block.  Raises ValueError for a "
             "negative size, a stream of another device\nand arguments "
             "that exclude each other, OutOfMemoryError if there is not "
             "enough memory."),
    FUNCTION("pin", pin, METH_FASTCALL | METH_KEYWORDS,
             "memory, *, device=None",
             "Pin existing host memory and return a Buffer for it "
             "(cudaHostRegister).\n\n"
             "memory is any writable, C-contiguous object with the buffer "
             "protocol: a bytearray, an\nmmap, a NumPy array or a "
             "memoryview.  Devices copy the Buffer asynchronously.  "
             "The\nmemory is unpinned, and the object released, when the "
             "last of the Buffer and its\nslices is dropped or, if work still "
             "uses it then, by the next synchronize() or pin()\nafter that "
             "work.  On a GPU, unpinning blocks until all queued work of the "
             "GPU is done.\nBlocks with the GIL released while pages are "
             "pinned.\n\n"
             "Raises TypeError for another object, ValueError for memory that "
             "is read-only or pinned\nalready, BufferError for memory that is "
             "not C-contiguous."),
    {NULL},
};

static void
Buffer_dealloc(PyObject *op)
{
    BufferObject *self = as_buffer(op);
    clear_weakrefs(op, self->weakrefs);
    if (self->block != NULL && !is_finalizing()) {
        block_release(self->block);
    }
    object_free(op);
}

static PyObject *
Buffer_repr(PyObject *op)
{
    struct traits traits = traits_of(op);
    if (traits.device == NULL) {
        return PyUnicode_FromString("<pystreams.Buffer closed>");
    }
    struct handle_text text = handle_text((ps_handle)traits.data);
    if (traits.pinned) {
        return PyUnicode_FromFormat(
            "<pystreams.Buffer device=cpu pinned nbytes=%zd data=%s>",
            as_buffer(op)->nbytes, text.chars);
    }
    return PyUnicode_FromFormat(
        "<pystreams.Buffer device=%s:%d nbytes=%zd data=%s>",
        traits.device->runtime->backend->name, traits.device->index,
        as_buffer(op)->nbytes, text.chars);
}

/* Get a new reference to the stream that a method's argument names.  *stream
 * becomes NULL if the argument is None or was not given.  On failure, returns
 * -1 with an exception. */
static int
optional_stream(const char *method, PyObject *argument,
                struct ps_stream **stream)
{
    *stream = NULL;
    if (argument == NULL || argument == Py_None) {
        return 0;
    }
    *stream = stream_named(method, argument);
    return *stream != NULL ? 0 : -1;
}

/* Implements a method that copies between this Buffer and the method's first
 * argument.  If `here` is true, it copies into the Buffer, else out of it. */
static PyObject *
copy_with(PyObject *op, const struct signature *signature,
          PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
          bool here)
{
    struct span self, other;
    struct ps_stream *stream;
    PyObject *values[3];
    bool non_blocking;
    int result = -1;
    if (parse_arguments(signature, args, nargs, kwnames, values) < 0 ||
        switch_argument(signature->function, "non_blocking", values[1],
                        &non_blocking) < 0 ||
        buffer_hold(op, &self) < 0) {
        return NULL;
    }
    if (optional_stream(signature->function, values[2], &stream) == 0) {
        if (values[0] == op) {
            result = span_check_stream(signature->function, &self, stream);
        }
        else if (operand_hold(signature, values[0], &self, stream, !here,
                              &other) == 0) {
            result = span_copy(signature->function, here ? &self : &other,
                               here ? &other : &self, stream, non_blocking);
            span_release(&other);
        }
        stream_release(stream);
    }
    span_release(&self);
    return result == 0 ? Py_NewRef(op) : NULL;
}

static PyObject *
Buffer_copy(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    static const struct signature signature = {
        "copy_", 1, 3, {"src", "non_blocking", "stream"}};
    return copy_with(self, &signature, args, nargs, kwnames, true);
}

static PyObject *
Buffer_copy_to(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    static const struct signature signature = {
        "copy_to", 1, 3, {"dst", "non_blocking", "stream"}};
    return copy_with(self, &signature, args, nargs, kwnames, false);
}

static PyObject *
fill_with(PyObject *op, const char *method, const struct pattern *pattern,
          PyObject *argument)
{
    struct ps_stream *stream;
    struct span self;
    int result = -1;
    if (buffer_hold(op, &self) < 0) {
        return NULL;
    }
    if (optional_stream(method, argument, &stream) == 0) {
        result = span_fill(method, &self, pattern, stream);
        stream_release(stream);
    }
    span_release(&self);
    return result == 0 ? Py_NewRef(op) : NULL;
}

/* Get the pattern of a fill from the bytes of an object that supports the
 * buffer protocol.  On failure, returns -1 with an exception. */
static int
pattern_of(PyObject *object, struct pattern *pattern)
{
    Py_buffer view;
    uint16_t half;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    pattern->size = view.len;
    if (view.len == 1) {
        pattern->value = *(uint8_t *)view.buf;
    }
    else if (view.len == 2) {
        memcpy(&half, view.buf, 2);
        pattern->value = half;
    }
    else if (view.len == 4) {
        memcpy(&pattern->value, view.buf, 4);
    }
    else {
        refuse(PyExc_ValueError,
               "fill_() expects 1, 2 or 4 bytes for value, but %s has %zd",
               Py_TYPE(object)->tp_name, view.len);
        pattern->size = -1;
    }
    PyBuffer_Release(&view);
    return pattern->size > 0 ? 0 : -1;
}

/* Get the pattern of a fill from an argument.  An int means one byte, as in
 * cuda.core.  NumPy's integers have __index__, too, but their type determines
 * their size, so they are read through the buffer protocol.  On failure,
 * returns -1 with an exception. */
static int
pattern_argument(PyObject *argument, struct pattern *pattern)
{
    Py_ssize_t value;
    if (!PyLong_Check(argument) && PyObject_CheckBuffer(argument)) {
        return pattern_of(argument, pattern);
    }
    if (!PyIndex_Check(argument)) {
        return refuse_type("fill_",
                           "an int or an object with the buffer protocol, of "
                           "1, 2 or 4 bytes,",
                           "value", argument);
    }
    if (int_argument("fill_", "value", argument, &value) < 0) {
        return -1;
    }
    if (value < 0 || value > 255) {
        return refuse(PyExc_ValueError,
                      "fill_() expects an int from 0 to 255 for value, but "
                      "got %zd; pass bytes, or a number of NumPy's, for a "
                      "value of 2 or 4 bytes",
                      value);
    }
    *pattern = (struct pattern){(uint32_t)value, 1};
    return 0;
}

static PyObject *
Buffer_fill(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    static const struct signature signature = {
        "fill_", 1, 2, {"value", "stream"}};
    PyObject *values[2];
    struct pattern pattern;
    if (parse_arguments(&signature, args, nargs, kwnames, values) < 0 ||
        pattern_argument(values[0], &pattern) < 0) {
        return NULL;
    }
    return fill_with(self, "fill_", &pattern, values[1]);
}

static PyObject *
Buffer_zero(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    PyObject *stream;
    if (parse_optional("zero_", "stream", args, nargs, kwnames, &stream) < 0) {
        return NULL;
    }
    return fill_with(op, "zero_", &(struct pattern){0, 1}, stream);
}

static PyObject *
Buffer_record_stream(PyObject *op, PyObject *argument)
{
    struct span self;
    if (buffer_hold(op, &self) < 0) {
        return NULL;
    }
    struct ps_stream *stream = stream_named("record_stream", argument);
    int result = -1;
    if (stream != NULL &&
        span_check_stream("record_stream", &self, stream) == 0) {
        ps_status status;
        WITHOUT_GIL(status = ps_block_use(self.block, stream, true));
        result = zero_or_raise_on(stream, "Buffer.record_stream", status);
    }
    stream_release(stream);
    span_release(&self);
    return none_unless_raised(result);
}

static PyObject *
Buffer_tobytes(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct span self, other;
    if (buffer_hold(op, &self) < 0) {
        return NULL;
    }
    int result = -1;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, self.nbytes);
    if (bytes != NULL) {
        int64_t extent = self.nbytes;
        /* Writing to the bytes object is allowed, because no other code has it
         * yet.  If the wait for the copy is interrupted, the span's reference
         * keeps the object alive. */
        struct claim claim =
            bytes_claim("bytes", PyBytes_AS_STRING(bytes), &extent);
        result = claim_hold(&claim, self.block->device, Py_NewRef(bytes),
                            release_reference, &other);
        if (result < 0) {
            Py_DECREF(bytes);
        }
    }
    if (result == 0) {
        result = span_copy("tobytes", &other, &self, NULL, false);
        span_release(&other);
    }
    span_release(&self);
    if (result < 0) {
        Py_CLEAR(bytes);
    }
    return bytes;
}

/* Returns an object that make() creates from a view of the Buffer.  reading:
 * whether make() only reads the memory. */
static PyObject *
view_as(PyObject *op, bool reading, PyObject *(*make)(PyObject *op))
{
    if (reading && ps_thread_set_word(PS_THREAD_READING, op) != PS_SUCCESS) {
        return PyErr_NoMemory();
    }
    PyObject *view = make(op);
    ps_thread_set_word(PS_THREAD_READING, NULL);
    return view;
}

/* bytes() requests the same kind of view as memoryview(), and the user of a
 * memoryview may write to it.  The argument `true` tells the race detector
 * that bytes() only reads. */
static PyObject *
Buffer_bytes(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return view_as(op, true, PyBytes_FromObject);
}

static PyObject *
Buffer_memoryview(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    static const struct signature signature = {
        "memoryview", 0, 0, {"readonly"}};
    PyObject *readonly;
    bool only;
    if (parse_arguments(&signature, args, nargs, kwnames, &readonly) < 0 ||
        truth_argument(readonly, &only) < 0) {
        return NULL;
    }
    PyObject *view = view_as(op, only, PyMemoryView_FromObject);
    if (view != NULL && only) {
        Py_SETREF(view, PyObject_CallMethod(view, "toreadonly", NULL));
    }
    return view;
}

static PyObject *
Buffer_data_ptr(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct traits traits;
    return traits_of_open(op, &traits) == 0 ? PyLong_FromVoidPtr(traits.data)
                                            : NULL;
}

static PyObject *
Buffer_is_pinned(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    struct traits traits;
    return traits_of_open(op, &traits) == 0 ? PyBool_FromLong(traits.pinned)
                                            : NULL;
}

static PyObject *
Buffer_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    BufferObject *self = as_buffer(op);
    struct ps_block *block = NULL;
    Py_ssize_t exports;
    ps_status status;
    Py_BEGIN_CRITICAL_SECTION(op);
    exports = self->exports;
    if (exports == 0) {
        block = self->block;
        self->block = NULL;
        self->data = NULL;
    }
    Py_END_CRITICAL_SECTION();
    if (exports > 0) {
        return PyErr_Format(PyExc_BufferError,
                            "cannot close a Buffer with %zd exported views; "
                            "release them first",
                            exports);
    }
    if (block == NULL) {
        Py_RETURN_NONE;
    }
    struct ps_runtime *runtime = block->device->runtime;
    if (ps_races_are_on()) {
        block_ends(block);
    }
    WITHOUT_GIL(status = ps_block_unref(block));
    return none_or_raise(runtime, "Buffer.close", status);
}

static Py_ssize_t
Buffer_length(PyObject *op)
{
    return as_buffer(op)->nbytes;
}

static PyObject *
Buffer_subscript(PyObject *op, PyObject *key)
{
    struct span part;
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(key)) {
        return PyErr_Format(PyExc_TypeError,
                            "a Buffer is indexed by slices, not by %s",
                            Py_TYPE(key)->tp_name);
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0 || hold(op, &part) < 0) {
        return NULL;
    }
    if (step != 1) {
        span_release(&part);
        return PyErr_Format(PyExc_ValueError,
                            "Buffer[start:stop:step] expects 1 for step, but "
                            "got %zd",
                            step);
    }
    part.nbytes = PySlice_AdjustIndices(part.nbytes, &start, &stop, step);
    part.data += start;
    return buffer_wrap(&part);
}

/* Increment the number of views.  Returns -1 with ValueError if the Buffer is
 * closed. */
static int
export_begin(PyObject *op)
{
    BufferObject *self = as_buffer(op);
    bool open;
    Py_BEGIN_CRITICAL_SECTION(op);
    open = self->block != NULL;
    self->exports += open;
    Py_END_CRITICAL_SECTION();
    return open ? 0 : raise_closed();
}

static void
export_end(PyObject *op)
{
    Py_BEGIN_CRITICAL_SECTION(op);
    as_buffer(op)->exports--;
    Py_END_CRITICAL_SECTION();
}

/* Fill in *view.  The caller has already incremented the number of views, so
 * close() cannot drop the block meanwhile.  On failure, returns -1 with an
 * exception. */
static int
view_exported(PyObject *op, Py_buffer *view, int flags)
{
    BufferObject *self = as_buffer(op);
    static char empty;
    if (check_generation(self->block) < 0) {
        return -1;
    }
    if (!self->block->host) {
        struct ps_device *device = self->block->device;
        return refuse(PyExc_BufferError,
                      "the host cannot address memory of %s:%d; copy it to a "
                      "pinned Buffer, or use tobytes()",
                      device->runtime->backend->name, device->index);
    }
    /* Clear the word now, because it applies to this view alone.
     * host_access() below may run Python code that creates other views of the
     * Buffer. */
    bool reading = ps_thread_word(PS_THREAD_READING) == op;
    if (reading) {
        ps_thread_set_word(PS_THREAD_READING, NULL);
    }
    /* memoryview() requests PyBUF_FULL_RO, but its user may write if the
     * memory is writable. */
    bool writes =
        !reading && !self->block->read_only &&
        ((flags & PyBUF_WRITABLE) || (flags & PyBUF_FULL_RO) == PyBUF_FULL_RO);
    if (ps_races_are_on() &&
        host_access("a view", self->data, self->nbytes, writes) < 0) {
        return -1;
    }
    note_memory(writes ? PS_NOTE_VIEW_WRITES : PS_NOTE_VIEW, self->data,
                (size_t)self->nbytes);
    return PyBuffer_FillInfo(view, op,
                             self->data != NULL ? self->data : &empty,
                             self->nbytes, self->block->read_only, flags);
}

static int
Buffer_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    view->obj = NULL;
    if (export_begin(op) < 0) {
        return -1;
    }
    if (view_exported(op, view, flags) < 0) {
        export_end(op);
        return -1;
    }
    return 0;
}

static void
Buffer_releasebuffer(PyObject *op, Py_buffer *view)
{
    note_memory(PS_NOTE_VIEW_END, view->buf, (size_t)view->len);
    export_end(op);
}

static PyObject *
Buffer_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    struct traits traits;
    if (traits_of_open(op, &traits) < 0) {
        return NULL;
    }
    return traits.pinned
               ? device_new(PS_DEVICE_CPU, -1)
               : device_new(traits.device->runtime->backend->device_type,
                            traits.device->index);
}

/* Returns None for memory that was allocated during a capture, because the
 * stream on which core allocates such memory is internal. */
static PyObject *
Buffer_get_stream(PyObject *op, void *Py_UNUSED(closure))
{
    struct span self;
    if (hold(op, &self) < 0) {
        return NULL;
    }
    struct ps_stream *stream = ps_block_stream(self.block);
    span_release(&self);
    return stream != NULL ? stream_wrap(NULL, stream) : Py_NewRef(Py_None);
}

static PyObject *
Buffer_get_readonly(PyObject *op, void *Py_UNUSED(closure))
{
    struct traits traits;
    return traits_of_open(op, &traits) == 0 ? PyBool_FromLong(traits.read_only)
                                            : NULL;
}

static PyMethodDef buffer_methods[] = {
    CLASS_METHOD(
        "from_address", Buffer_from_address, METH_FASTCALL | METH_KEYWORDS,
        ", /, ptr, nbytes, device=None, *, owner=None",
        "Return a Buffer for nbytes of existing memory at the address ptr, "
        "without a copy.\n\n"
        "The memory belongs to device, by default the accelerator's current "
        "device; with\ndevice='cpu' it is host memory.  owner is kept alive "
        "until nothing uses the memory any\nmore, work on streams included; "
        "the memory itself is never freed.  Does not block.\n\n"
        "Raises ValueError for a negative size, and if the device can tell "
        "that the memory is\nnot its own."),
    METHOD("data_ptr", Buffer_data_ptr, METH_NOARGS, ", /",
           "Return the address of the first byte; 0 if the Buffer is empty."),
    METHOD("is_pinned", Buffer_is_pinned, METH_NOARGS, ", /",
           "Return whether this is pinned host memory."),
    METHOD(
        "copy_", Buffer_copy, METH_FASTCALL | METH_KEYWORDS,
        ", /, src, non_blocking=False, stream=None",
        "Copy the bytes of src, of the same size, and return self "
        "(cudaMemcpyAsync).\n\n"
        "src is a Buffer, or any C-contiguous object with the buffer "
        "protocol, DLPack or the CUDA\narray interface.  The copy is queued "
        "on stream, by default the current stream of the\ndevice memory "
        "involved; between two devices, on the source's current stream and in "
        "the\norder of both current streams.  The producer of device memory "
        "makes it ready for that\nstream.  If src is host memory of another "
        "library, or if one side is host memory and\nnon_blocking is false, "
        "blocks with the GIL released until the copy is done.  In a\ncapture, "
        "non_blocking must be true for such copies: each replay copies, and "
        "the graph\nkeeps the memory alive.\n\n"
        "Does nothing if src is this Buffer.  Raises ValueError for a source "
        "of another size,\none that overlaps this Buffer and one whose "
        "producer describes it wrongly, and for a\nread-only Buffer; "
        "TypeError for another type."),
    METHOD("copy_to", Buffer_copy_to, METH_FASTCALL | METH_KEYWORDS,
           ", /, dst, non_blocking=False, stream=None",
           "Copy the bytes to dst, of the same size, and return self "
           "(cudaMemcpyAsync).\n\n"
           "If dst is a Buffer, does what dst.copy_(self) does; dst may also "
           "be any writable object\nthat copy_ accepts.  If dst is not a "
           "Buffer and non_blocking is false, blocks until the\ncopy is "
           "done."),
    METHOD(
        "fill_", Buffer_fill, METH_FASTCALL | METH_KEYWORDS,
        ", /, value, stream=None",
        "Queue a fill with a repeated value and return self "
        "(cudaMemsetAsync).\n\n"
        "value is an int from 0 to 255, for every byte, or an object with the "
        "buffer protocol\nthat has 1, 2 or 4 bytes: b'\\1\\0', "
        "numpy.float32(1.5).  Does not wait for the fill.\nRaises ValueError "
        "for another value, and unless the size and the address of the "
        "Buffer\nare multiples of the value's size."),
    METHOD("zero_", Buffer_zero, METH_FASTCALL | METH_KEYWORDS,
           ", /, stream=None",
           "Queue a fill of every byte with 0 and return self."),
    METHOD("record_stream", Buffer_record_stream, METH_O, ", stream, /",
           "Declare that work on the stream uses the memory.  The memory is "
           "reused only after the\nwork that the stream has when the Buffer "
           "is closed or collected."),
    METHOD("tobytes", Buffer_tobytes, METH_NOARGS, ", /",
           "Wait for the work queued on the current stream of the Buffer's "
           "device; return the bytes.\n\n"
           "Blocks with the GIL released."),
    METHOD("__bytes__", Buffer_bytes, METH_NOARGS, ", /",
           "Return a copy of host memory, without waiting for work."),
    METHOD("memoryview", Buffer_memoryview, METH_FASTCALL | METH_KEYWORDS,
           ", /, *, readonly=False",
           "Return a memoryview of host memory, writable unless readonly, "
           "without waiting for "
           "any work.\n\n"
           "Raises BufferError for memory that the host cannot address."),
    METHOD("__dlpack__", Buffer_dlpack, METH_FASTCALL | METH_KEYWORDS,
           ", /, *, stream=None, max_version=None, dl_device=None, copy=None",
           "Return a DLPack capsule of the bytes, versioned if max_version is "
           "at least (1, 0).\n\n"
           "The consumer's stream waits for all work that is known to use the "
           "memory.  As stream,\nNone and 1 mean the default stream, 2 the "
           "thread's, -1 no wait; 0 is not allowed.  For\nhost memory, stream "
           "must be None, and the call blocks with the GIL released.  "
           "copy=True\nexports a copy; dl_device=(1, 0) exports a copy of "
           "device memory on the host.\n\n"
           "Memory that the consumer drops while a stream of its own works on "
           "it needs\nrecord_stream().  Raises BufferError if the memory "
           "cannot be exported as asked."),
    METHOD("__dlpack_device__", Buffer_dlpack_device, METH_NOARGS, ", /",
           "Return DLPack's (device type, device id) of the memory."),
    METHOD("ipc_handle", Buffer_ipc_handle, METH_NOARGS, ", /",
           "Return the 96 bytes by which another process opens this memory "
           "(cuMemExportToShareableHandle).\n\n"
           "They are valid while this process lives and keeps the memory.  A "
           "Buffer can also be\npickled, which passes the handle on.  Raises "
           "RuntimeError unless the Buffer was made\nwith interprocess=True."),
    METHOD("from_ipc_handle", Buffer_from_ipc_handle,
           METH_FASTCALL | METH_KEYWORDS | METH_CLASS, ", /, device, handle",
           "Open the memory of another process by its handle "
           "(cuMemImportFromShareableHandle).\n\n"
           "A device without an index stands for the one that has the "
           "memory.  The Buffer stays\nvalid even if that process closes its "
           "own Buffer or ends.  Only interprocess events\norder the work of "
           "two processes.  Blocks with the GIL released, on a CUDA device "
           "for at\nmost ten seconds if that process does not answer.  Raises "
           "ValueError for a handle of\nanother kind, size or device, "
           "RuntimeError if the memory no longer exists or belongs to\nthis "
           "process."),
    METHOD("__reduce__", Buffer_reduce, METH_NOARGS, ", /",
           "Return what pickle needs to open the memory in another "
           "process.\n\n"
           "Raises TypeError unless the Buffer was made with "
           "interprocess=True."),
    METHOD(
        "close", Buffer_close, METH_NOARGS, ", /",
        "Release the memory now; it is freed after the work that uses it.\n\n"
        "Closing twice is harmless.  Raises BufferError while memoryviews of "
        "it exist."),
    {NULL},
};

static PyObject *
Buffer_get_interprocess(PyObject *op, void *Py_UNUSED(closure))
{
    struct traits traits;
    return traits_of_open(op, &traits) == 0
               ? PyBool_FromLong(traits.interprocess)
               : NULL;
}

static PyGetSetDef buffer_getset[] = {
    {"device", Buffer_get_device, NULL,
     PyDoc_STR("The memory's device; device('cpu') when pinned.")},
    {"stream", Buffer_get_stream, NULL,
     PyDoc_STR("The stream in whose order the memory was allocated and will "
               "be freed; None for\npinned memory, another library's, and "
               "memory allocated in a capture.")},
    {"readonly", Buffer_get_readonly, NULL,
     PyDoc_STR("Whether the memory is read-only; only another library's "
               "memory can be.")},
    {"interprocess", Buffer_get_interprocess, NULL,
     PyDoc_STR("Whether other processes can open the memory.")},
    {"__cuda_array_interface__", Buffer_get_array_interface, NULL,
     PyDoc_STR(
         "The CUDA array interface, version 3, of CUDA device memory; "
         "AttributeError for\nany other.  The stream that it names, the "
         "current one, waits for all work that is\nknown to use the memory.")},
    {NULL},
};

static PyMemberDef buffer_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(BufferObject, nbytes), READONLY,
     PyDoc_STR("The size in bytes.")},
    WEAKREFS(BufferObject),
    {NULL},
};

PyDoc_STRVAR(
    buffer_doc,
    "Buffer(nbytes, *, device=None, stream=None, pin_memory=False, "
    "interprocess=False)\n--\n\n"
    "nbytes bytes of uninitialized memory, allocated and used in stream "
    "order.\n\n"
    "Device memory is allocated and freed in the order of a stream "
    "(cudaMallocAsync),\nby default the device's current one; pinned memory "
    "is host memory that devices\ncopy asynchronously (cudaHostAlloc).  "
    "buffer[a:b] is a Buffer for a part of the\nsame memory.  Host memory has "
    "the buffer protocol.\n\n"
    "Raises ValueError for a negative size, a stream of another device and "
    "arguments that\nexclude each other, OutOfMemoryError if there is not "
    "enough memory.");

static PyType_Slot buffer_slots[] = {
    {Py_tp_new, Buffer_new},
    {Py_tp_dealloc, Buffer_dealloc},
    {Py_tp_repr, Buffer_repr},
    {Py_tp_methods, buffer_methods},
    {Py_tp_getset, buffer_getset},
    {Py_tp_members, buffer_members},
    {Py_mp_length, Buffer_length},
    {Py_mp_subscript, Buffer_subscript},
    {Py_bf_getbuffer, Buffer_getbuffer},
    {Py_bf_releasebuffer, Buffer_releasebuffer},
    {Py_tp_doc, (void *)buffer_doc},
    {0, NULL},
};

PyType_Spec buffer_spec =
    TYPE_SPEC("pystreams.Buffer", BufferObject, 0, buffer_slots);
