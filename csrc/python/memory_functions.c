/* The module's functions for device memory and its pools.  The first argument
 * of each is a device type, given as torch's number for it. */
#include "module.h"

#include "args.h"
#include "backends.h"
#include "buffer.h"
#include "device.h"
#include "errors.h"

#define COUNT(number) ((unsigned long long)(number))

static PyObject *
mem_get_info(PyObject *Py_UNUSED(module), PyObject *args)
{
    uint64_t free, total;
    struct ps_device *device = parse_device(args, "i|O:mem_get_info");
    ps_status status;
    if (device == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = device->runtime->backend;
    if (backend->memory_info == NULL) {
        return raise_absent(device->runtime, "memory");
    }
    memory_settle(device->runtime);
    WITHOUT_GIL(
        status = backend->memory_info(backend, device->index, &free, &total));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "mem_get_info", status);
    }
    return Py_BuildValue("(KK)", COUNT(free), COUNT(total));
}

static PyObject *
memory_stats(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_memory_stats stats;
    struct ps_memory_counter reserved;
    struct ps_device *device = parse_device(args, "i|Os:memory_stats");
    ps_status status;
    if (device == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_memory_stats_read(device, &stats, &reserved));
    if (status != PS_SUCCESS) {
        return raise_status(device->runtime, "memory_stats", status);
    }
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}",
        "allocated_bytes.all.current", COUNT(stats.bytes.current),
        "allocated_bytes.all.peak", COUNT(stats.bytes.peak),
        "allocated_bytes.all.allocated", COUNT(stats.bytes.allocated),
        "allocated_bytes.all.freed", COUNT(stats.bytes.freed),
        "allocation.all.current", COUNT(stats.blocks.current),
        "allocation.all.peak", COUNT(stats.blocks.peak),
        "allocation.all.allocated", COUNT(stats.blocks.allocated),
        "allocation.all.freed", COUNT(stats.blocks.freed),
        "reserved_bytes.all.current", COUNT(reserved.current),
        "reserved_bytes.all.peak", COUNT(reserved.peak));
}

static PyObject *
reset_peak_memory_stats(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_device *device =
        parse_device(args, "i|O:reset_peak_memory_stats");
    ps_status status;
    if (device == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = ps_memory_stats_reset_peak(device));
    return none_or_raise(device->runtime, "reset_peak_memory_stats", status);
}

static PyObject *
reset_accumulated_memory_stats(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_device *device =
        parse_device(args, "i|O:reset_accumulated_memory_stats");
    if (device == NULL) {
        return NULL;
    }
    ps_memory_stats_reset_totals(device);
    Py_RETURN_NONE;
}

/* Parse the only argument of a function, a device type.  Returns the runtime
 * of this type; NULL with an exception. */
static struct ps_runtime *
parse_type(PyObject *args, const char *format)
{
    int type;
    return PyArg_ParseTuple(args, format, &type) ? find_runtime(type) : NULL;
}

static PyObject *
host_memory_stats(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_memory_stats stats;
    struct ps_memory_counter reserved;
    struct ps_runtime *runtime = parse_type(args, "i:host_memory_stats");
    if (runtime == NULL) {
        return NULL;
    }
    ps_pinned_stats_read(runtime, &stats, &reserved);
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}",
        "allocations.current", COUNT(stats.blocks.current), "allocations.peak",
        COUNT(stats.blocks.peak), "allocations.allocated",
        COUNT(stats.blocks.allocated), "allocations.freed",
        COUNT(stats.blocks.freed), "allocated_bytes.current",
        COUNT(stats.bytes.current), "allocated_bytes.peak",
        COUNT(stats.bytes.peak), "allocated_bytes.allocated",
        COUNT(stats.bytes.allocated), "allocated_bytes.freed",
        COUNT(stats.bytes.freed), "reserved_bytes.current",
        COUNT(reserved.current), "reserved_bytes.peak", COUNT(reserved.peak),
        "reserved_bytes.allocated", COUNT(reserved.allocated),
        "reserved_bytes.freed", COUNT(reserved.freed));
}

static PyObject *
reset_peak_host_memory_stats(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_runtime *runtime =
        parse_type(args, "i:reset_peak_host_memory_stats");
    if (runtime == NULL) {
        return NULL;
    }
    ps_pinned_stats_reset_peak(runtime);
    Py_RETURN_NONE;
}

static PyObject *
reset_accumulated_host_memory_stats(PyObject *Py_UNUSED(module),
                                    PyObject *args)
{
    struct ps_runtime *runtime =
        parse_type(args, "i:reset_accumulated_host_memory_stats");
    if (runtime == NULL) {
        return NULL;
    }
    ps_pinned_stats_reset_totals(runtime);
    Py_RETURN_NONE;
}

static PyObject *
empty_cache(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_runtime *runtime = parse_type(args, "i:empty_cache");
    ps_status status = PS_SUCCESS;
    if (runtime == NULL) {
        return NULL;
    }
    const struct ps_backend *backend = runtime->backend;
    if (!ps_runtime_is_used(runtime) || backend->pool_trim == NULL) {
        Py_RETURN_NONE;
    }
    memory_settle(runtime);
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < atomic_load(&runtime->device_count); i++) {
        status = ps_first_failure(status, backend->pool_trim(backend, i, 0));
    }
    Py_END_ALLOW_THREADS
    return none_or_raise(runtime, "empty_cache", status);
}

static PyObject *
empty_host_cache(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct ps_runtime *runtime = parse_type(args, "i:empty_host_cache");
    if (runtime == NULL) {
        return NULL;
    }
    if (ps_runtime_is_used(runtime)) {
        WITHOUT_GIL({
            ps_memory_sweep(runtime);
            ps_pinned_trim(runtime);
        });
        memory_settle(runtime);
    }
    Py_RETURN_NONE;
}

/* Get a limit in bytes, which may be UINT64_MAX.  On failure, returns -1 with
 * an exception. */
static int
limit_argument(const char *function, PyObject *argument, uint64_t *nbytes)
{
    ps_handle value = 0;
    PyObject *number = PyIndex_Check(argument) ? PyNumber_Index(argument)
                                               : Py_NewRef(argument);
    if (number == NULL) {
        return -1;
    }
    int failed = handle_argument(function, "nbytes", number, &value);
    Py_DECREF(number);
    *nbytes = value;
    return failed;
}

/* Parse a device and a number of bytes.  Returns the device; NULL with an
 * exception.  If `none` is true, the number may be None, which means no
 * limit. */
static struct ps_device *
parse_limit(PyObject *args, const char *function, bool none, uint64_t *nbytes)
{
    int type;
    PyObject *argument, *named = Py_None;
    if (!PyArg_ParseTuple(args, "iO|O", &type, &argument, &named) ||
        find_runtime(type) == NULL) {
        return NULL;
    }
    if (none && argument == Py_None) {
        *nbytes = UINT64_MAX;
    }
    else if (limit_argument(function, argument, nbytes) < 0) {
        return NULL;
    }
    struct ps_device *device = device_argument(function, type, named);
    if (device != NULL && device->runtime->backend->pool_trim == NULL) {
        raise_absent(device->runtime, "pools");
        return NULL;
    }
    return device;
}

static PyObject *
trim_pool(PyObject *Py_UNUSED(module), PyObject *args)
{
    uint64_t nbytes;
    struct ps_device *device = parse_limit(args, "trim_pool", false, &nbytes);
    ps_status status;
    if (device == NULL) {
        return NULL;
    }
    memory_settle(device->runtime);
    WITHOUT_GIL(status = PS_CALL(device, pool_trim, nbytes));
    return none_or_raise(device->runtime, "trim_pool", status);
}

static PyObject *
set_pool_threshold(PyObject *Py_UNUSED(module), PyObject *args)
{
    uint64_t nbytes;
    struct ps_device *device =
        parse_limit(args, "set_pool_threshold", true, &nbytes);
    ps_status status;
    if (device == NULL) {
        return NULL;
    }
    WITHOUT_GIL(status = PS_CALL(device, pool_set_threshold, nbytes));
    return none_or_raise(device->runtime, "set_pool_threshold", status);
}

PyMethodDef memory_functions[] = {
    FUNCTION("mem_get_info", mem_get_info, METH_VARARGS,
             "type, device=None, /",
             "Return (free, total) bytes: the memory that the program can "
             "still allocate, including\nfrom the library's own pool, and the "
             "device's total.  For a CPU, the system's memory."),
    FUNCTION("memory_stats", memory_stats, METH_VARARGS,
             "type, device=None, function='memory_stats', /",
             "Return counters of the bytes and blocks that live Buffers of "
             "the device hold, and of\nthe bytes that the device's pool has "
             "reserved."),
    FUNCTION("reset_peak_memory_stats", reset_peak_memory_stats, METH_VARARGS,
             "type, device=None, /",
             "Set the peaks of memory_stats to the current values."),
    FUNCTION("reset_accumulated_memory_stats", reset_accumulated_memory_stats,
             METH_VARARGS, "type, device=None, /",
             "Have the totals of memory_stats count from now on."),
    FUNCTION(
        "host_memory_stats", host_memory_stats, METH_VARARGS, "type, /",
        "Return counters of the pinned memory that live Buffers hold, and "
        "of what the pool of\npinned memory has reserved."),
    FUNCTION("reset_peak_host_memory_stats", reset_peak_host_memory_stats,
             METH_VARARGS, "type, /",
             "Set the peaks of host_memory_stats to the current values."),
    FUNCTION("reset_accumulated_host_memory_stats",
             reset_accumulated_host_memory_stats, METH_VARARGS, "type, /",
             "Have the totals of host_memory_stats count from now on."),
    FUNCTION("empty_cache", empty_cache, METH_VARARGS, "type, /",
             "Release to the devices the freed memory that their pools keep "
             "for reuse.  May block."),
    FUNCTION("empty_host_cache", empty_host_cache, METH_VARARGS, "type, /",
             "Free the pinned memory that is kept for reuse.  May block."),
    FUNCTION("trim_pool", trim_pool, METH_VARARGS,
             "type, nbytes, device=None, /",
             "Release freed memory from the device's pool to the device until "
             "at most nbytes are\nreserved, or no freed memory is left.  May "
             "block."),
    FUNCTION("set_pool_threshold", set_pool_threshold, METH_VARARGS,
             "type, nbytes, device=None, /",
             "Have the device's pool keep freed memory only while at most "
             "nbytes are reserved; None\nmeans no limit.  May block."),
    {NULL},
};
