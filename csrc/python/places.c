/* Places: the lines at which the program calls the package.  The critical
 * section of variables_owner() guards the variables here.  A call in the
 * program is identified by the code object that contains it and the offset of
 * its instruction. */
#include "places.h"

#include <stdatomic.h>

#include "args.h"
#include "errors.h"

/* The names of this package's files begin with this str.  It is NULL until
 * places_exclude sets it, and then constant. */
static PyObject *_Atomic own;

static PyObject *
places_exclude(PyObject *Py_UNUSED(module), PyObject *package)
{
    PyObject *unset = NULL;
    if (!PyUnicode_Check(package)) {
        refuse_type("places_exclude", "a str", "package", package);
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&own, &unset, Py_NewRef(package))) {
        Py_DECREF(package);
    }
    Py_RETURN_NONE;
}

PyMethodDef place_functions[] = {
    FUNCTION("places_exclude", places_exclude, METH_O, "package, /",
             "Treat files whose names begin with package as this package's: a "
             "place in them is never\nthe program's.  Only the first call has "
             "an effect.  Raises TypeError if package is not a\nstr."),
    {NULL},
};

static bool
is_of_package(PyCodeObject *code)
{
    PyObject *file = code->co_filename, *prefix = own;
    Py_ssize_t last = prefix != NULL ? PyUnicode_GET_LENGTH(prefix) - 1 : -1;
    /* First compare only the last character of the prefix.  In the names of
     * other files, the character at this index is rarely the same. */
    return last >= 0 && PyUnicode_GET_LENGTH(file) > last &&
           PyUnicode_READ_CHAR(file, last) ==
               PyUnicode_READ_CHAR(prefix, last) &&
           PyUnicode_Tailmatch(file, prefix, 0, PY_SSIZE_T_MAX, -1) == 1;
}

PyCodeObject *
find_place(int *instruction)
{
    PyCodeObject *found = NULL;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyFrameObject *back = NULL;
        if (!is_of_package(code)) {
            found = code;
            *instruction = PyFrame_GetLasti(frame);
        }
        else {
            Py_DECREF(code);
            back = PyFrame_GetBack(frame);
        }
        Py_DECREF(frame);
        frame = back;
    }
    return found;
}

PyObject *
place_of(PyCodeObject *code, int instruction)
{
    return code != NULL ? Py_BuildValue("(OiO)", code->co_filename,
                                        PyCode_Addr2Line(code, instruction),
                                        code->co_name)
                        : Py_NewRef(Py_None);
}

/* ---- Numbers ---- */

/* An entry of the cache that maps calls in the program to the numbers of their
 * places. */
struct call {
    PyCodeObject *code;
    int offset;
    Py_ssize_t place;
};

enum { CALLS = 512 };

static struct call calls[CALLS];
/* The list of places, and a dict from places to their indices in the list.
 * NULL while no places_hold is in effect. */
static PyObject *places, *numbers;
static Py_ssize_t holders;

int
places_hold(void)
{
    PyObject *list = PyList_New(0), *dict = PyDict_New();
    bool held = list != NULL && dict != NULL;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    if (held && holders == 0) {
        places = Py_NewRef(list);
        numbers = Py_NewRef(dict);
    }
    holders += held;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(list);
    Py_XDECREF(dict);
    return held ? 0 : -1;
}

void
places_release(void)
{
    PyCodeObject *codes[CALLS] = {NULL};
    PyObject *list = NULL, *dict = NULL;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    if (--holders == 0) {
        for (int i = 0; i < CALLS; i++) {
            codes[i] = calls[i].code;
            calls[i].code = NULL;
        }
        list = places;
        dict = numbers;
        places = numbers = NULL;
    }
    Py_END_CRITICAL_SECTION();
    for (int i = 0; i < CALLS; i++) {
        Py_XDECREF(codes[i]);
    }
    Py_XDECREF(list);
    Py_XDECREF(dict);
}

PyObject *
place_at(Py_ssize_t number)
{
    PyObject *place = NULL;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    if (places != NULL && number >= 0 && number < PyList_GET_SIZE(places)) {
        place = Py_NewRef(PyList_GET_ITEM(places, number));
    }
    Py_END_CRITICAL_SECTION();
    return place;
}

/* Returns the number of the place at which a call is made.  If `place` is
 * NULL, only looks in the cache.  Returns -1 without an exception if no
 * places_hold is in effect, or if `place` is NULL and the call is not in the
 * cache.  On failure, returns -1 with an exception. */
static Py_ssize_t
number_call(PyCodeObject *code, int offset, PyObject *place)
{
    PyCodeObject *replaced = NULL;
    Py_ssize_t number = -1;
    Py_BEGIN_CRITICAL_SECTION(variables_owner());
    struct call *call =
        &calls[((uintptr_t)code / 16 + (unsigned)offset) % CALLS];
    if (places != NULL && call->code == code && call->offset == offset) {
        number = call->place;
    }
    else if (places != NULL && place != NULL &&
             (number = number_in(places, numbers, place)) >= 0) {
        replaced = call->code;
        *call = (struct call){(PyCodeObject *)Py_NewRef(code), offset, number};
    }
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(replaced);
    return number;
}

/* Returns whether the frame runs code of the program.  If it does, *number
 * becomes the number of the place at which it runs.  If it does not, or if no
 * places_hold is in effect, *number becomes -1.  On failure, *number becomes
 * -1 and an exception is set. */
static bool
number_frame(PyFrameObject *frame, Py_ssize_t *number)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int offset = PyFrame_GetLasti(frame);
    *number = number_call(code, offset, NULL);
    bool found = *number >= 0 || !is_of_package(code);
    if (found && *number < 0) {
        PyObject *place = place_of(code, offset);
        if (place != NULL) {
            *number = number_call(code, offset, place);
        }
        Py_XDECREF(place);
    }
    Py_DECREF(code);
    return found;
}

Py_ssize_t
place_number(void)
{
    Py_ssize_t number = -1;
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) {
        return -1;
    }
    struct saved_exception saved = exception_save();
    Py_INCREF(frame);
    while (frame != NULL) {
        bool found = number_frame(frame, &number);
        Py_SETREF(frame, found ? NULL : PyFrame_GetBack(frame));
    }
    PyErr_Clear();
    exception_restore(saved);
    return number;
}
