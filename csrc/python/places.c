/* The GIL guards all of it.  Code is found again by its address and the offset
 * of the call; code that is made anew has the places of the old one. */
#include "places.h"

#include <frameobject.h>

#include "errors.h"

/* How the files of this package begin. */
static PyObject *own;

void
places_exclude(PyObject *package)
{
    Py_XSETREF(own, Py_NewRef(package));
}

static bool
is_of_package(PyCodeObject *code)
{
    return own != NULL && PyUnicode_Tailmatch(code->co_filename, own, 0,
                                              PY_SSIZE_T_MAX, -1) == 1;
}

#if PY_VERSION_HEX < 0x030B0000
#define PyFrame_GetLasti(frame) ((frame)->f_lasti)
#endif

PyCodeObject *
find_place(int *line)
{
    PyCodeObject *found = NULL;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyFrameObject *back = NULL;
        if (!is_of_package(code)) {
            found = code;
            *line = PyFrame_GetLineNumber(frame);
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

/* ---- Numbers ---- */

/* A call of the program: a shortcut to its place. */
struct call {
    PyCodeObject *code;
    int offset;
    Py_ssize_t place;
};

enum { CALLS = 512 };

static struct call calls[CALLS];
/* The places in order, and the numbers by places; NULL while nobody holds
 * them. */
static PyObject *places, *numbers;
static Py_ssize_t holders;

int
places_hold(void)
{
    if (holders == 0) {
        places = PyList_New(0);
        numbers = PyDict_New();
        if (places == NULL || numbers == NULL) {
            Py_CLEAR(places);
            Py_CLEAR(numbers);
            return -1;
        }
    }
    holders++;
    return 0;
}

void
places_release(void)
{
    if (--holders > 0) {
        return;
    }
    for (int i = 0; i < CALLS; i++) {
        Py_CLEAR(calls[i].code);
    }
    Py_CLEAR(places);
    Py_CLEAR(numbers);
}

PyObject *
place_at(Py_ssize_t number)
{
    return places != NULL && number >= 0 && number < PyList_GET_SIZE(places)
               ? PyList_GET_ITEM(places, number)
               : NULL;
}

/* The number of a place; -1 with an exception. */
static Py_ssize_t
number_of(PyObject *place)
{
    PyObject *known = PyDict_GetItemWithError(numbers, place);
    if (known != NULL || PyErr_Occurred()) {
        return known != NULL ? PyLong_AsSsize_t(known) : -1;
    }
    Py_ssize_t number = PyList_GET_SIZE(places);
    PyObject *made = PyLong_FromSsize_t(number);
    if (made == NULL || PyList_Append(places, place) < 0 ||
        PyDict_SetItem(numbers, place, made) < 0) {
        number = -1;
    }
    Py_XDECREF(made);
    return number;
}

static struct call *
call_slot(PyCodeObject *code, int offset)
{
    return &calls[((uintptr_t)code / 16 + (unsigned)offset) % CALLS];
}

/* Whether the frame is the program's, and the number of its place: -1 with an
 * exception. */
static bool
number_frame(PyFrameObject *frame, Py_ssize_t *number)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int offset = PyFrame_GetLasti(frame);
    struct call *call = call_slot(code, offset);
    bool found = true;
    if (call->code == code && call->offset == offset) {
        *number = call->place;
    }
    else if ((found = !is_of_package(code))) {
        PyObject *place =
            Py_BuildValue("(OiO)", code->co_filename,
                          PyFrame_GetLineNumber(frame), code->co_name);
        *number = place != NULL ? number_of(place) : -1;
        Py_XDECREF(place);
        /* A collection may have had them released meanwhile. */
        if (*number >= 0 && places != NULL) {
            PyCodeObject *replaced = call->code;
            *call = (struct call){(PyCodeObject *)Py_NewRef(code), offset,
                                  *number};
            Py_XDECREF(replaced);
        }
    }
    Py_DECREF(code);
    return found;
}

Py_ssize_t
place_number(void)
{
    Py_ssize_t number = -1;
    PyFrameObject *frame = places != NULL ? PyEval_GetFrame() : NULL;
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
