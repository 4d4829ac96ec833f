/* Places of a program: the lines at which it calls the package. */
#ifndef PYSTREAMS_PYTHON_PLACES_H
#define PYSTREAMS_PYTHON_PLACES_H

#include "module.h"

#include <frameobject.h>

#if PY_VERSION_HEX < 0x030B0000
#define PyFrame_GetLasti(frame) ((frame)->f_lasti * (int)sizeof(_Py_CODEUNIT))
#endif

/* The innermost function that is the program's own, a new reference, and the
 * instruction that it is at.  NULL without an exception if there is none, with
 * one if out of memory. */
PyCodeObject *find_place(int *instruction);

/* The place of an instruction of the code as (file, line, function), None if
 * there is no code; NULL with an exception. */
PyObject *place_of(PyCodeObject *code, int instruction);

/* Between the two, places are numbered; they keep their numbers as long as
 * anybody holds them. */
int places_hold(void);
void places_release(void);

/* The number of the place that find_place finds; it is cached for each call of
 * the program.  -1 if there is none, or no memory; keeps a pending
 * exception. */
Py_ssize_t place_number(void);

/* The place as (file, line, function), a new reference; NULL without an
 * exception if there is no such number. */
PyObject *place_at(Py_ssize_t number);

#endif
