/* An extension module with a device type of the CPU engine's, "failing", in
 * which calls of some members fail, and with the extension module's calloc,
 * if this is loaded before all others. */
#include <Python.h>

#include <link.h>
#include <stdatomic.h>

#include "../../../csrc/backends/backends.h"

/* ---- Members ---- */

enum { MEMORY = 64 << 20 };

static struct ps_backend engine;
static const char *member = "";
static ps_status failure;
static int times;

static int
member_fails(const char *name)
{
    return strcmp(member, name) == 0 && times > 0 && times-- > 0;
}

#define FAILING(name, parameters, arguments)                          \
    static ps_status failing_##name parameters                        \
    {                                                                 \
        return member_fails(#name) ? failure : engine.name arguments; \
    }

FAILING(event_create,
        (const struct ps_backend *backend, int device, unsigned flags,
         ps_handle *event),
        (backend, device, flags, event))
FAILING(memory_free,
        (const struct ps_backend *backend, int device, ps_handle stream,
         void *data),
        (backend, device, stream, data))
FAILING(graph_destroy,
        (const struct ps_backend *backend, int device, ps_handle graph),
        (backend, device, graph))

/* ---- The extension module's memory ---- */

void *__libc_calloc(size_t count, size_t size);
void *__libc_malloc(size_t size);

static uintptr_t code, code_end;
static atomic_long left = -1;

static int
find_code(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    (void)argument;
    if (strstr(info->dlpi_name, "/_C.") == NULL) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_flags & PF_X) {
            code = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            code_end = code + info->dlpi_phdr[i].p_memsz;
        }
    }
    return 1;
}

/* Have all calls fail after so many; none if below 0. */
void
failing_memory(long after)
{
    dl_iterate_phdr(find_code, NULL);
    left = after;
}

static int
fails(void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    return left >= 0 && address >= code && address < code_end &&
           (left == 0 || left-- == 0);
}

void *
calloc(size_t count, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL
                                              : __libc_calloc(count, size);
}

void *
malloc(size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

/* ---- The module ---- */

static PyObject *
fail(PyObject *module, PyObject *args)
{
    (void)module;
    return PyArg_ParseTuple(args, "sii", &member, &failure, &times)
               ? Py_NewRef(Py_None)
               : NULL;
}

static PyMethodDef functions[] = {
    {"fail", fail, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "failing",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_failing(void)
{
    struct ps_backend *table =
        (struct ps_backend *)ps_cpu_backend("failing", 20, 1, MEMORY);
    engine = *table;
    table->event_create = failing_event_create;
    table->memory_free = failing_memory_free;
    table->graph_destroy = failing_graph_destroy;
    PyObject *module = PyModule_Create(&definition);
    PyObject *capsule = PyCapsule_New(table, PS_CAPSULE_NAME, NULL);
    PyObject *pystreams = PyImport_ImportModule("pystreams");
    PyObject *done =
        pystreams != NULL
            ? PyObject_CallMethod(pystreams, "register_backend", "N", capsule)
            : NULL;
    Py_XDECREF(pystreams);
    if (done == NULL) {
        Py_CLEAR(module);
    }
    Py_XDECREF(done);
    return module;
}
