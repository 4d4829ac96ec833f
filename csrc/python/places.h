/* Places of a program: the lines at which the program calls the package. */
#ifndef PYSTREAMS_PYTHON_PLACES_H
#define PYSTREAMS_PYTHON_PLACES_H

#include "module.h"

#include <frameobject.h>

#if PY_VERSION_HEX < 0x030B0000
#define PyFrame_GetLasti(frame) ((frame)->f_lasti * (int)sizeof(_Py_CODEUNIT))
#endif

/* Returns the innermost running function that is the program's own, as a new
 * reference to its code, and the instruction in it.  Returns NULL without an
 * exception if there is none; NULL with an exception if out of memory. */
PyCodeObject *find_place(int *instruction);

/* Returns the place of an instruction as (file, line, function); None if code
 * is NULL.  NULL with an exception. */
PyObject *place_of(PyCodeObject *code, int instruction);

/* Between these two calls, places have numbers.  A place keeps its number as
 * long as any caller holds the places. */
int places_hold(void);
void places_release(void);

/* Returns the number of the place that find_place finds.  The number is cached
 * for each call in the program.  Returns -1 if there is no place or no memory.
 * Keeps a pending exception. */
Py_ssize_t place_number(void);

/* Returns the place with this number as (file, line, function), a new
 * reference.  NULL without an exception if there is none. */
PyObject *place_at(Py_ssize_t number);

#endif
