/* Places of a program: the lines at which the program calls the package. */
#ifndef PYSTREAMS_PYTHON_PLACES_H
#define PYSTREAMS_PYTHON_PLACES_H

#include "module.h"

#include <frameobject.h>

#if PY_VERSION_HEX < 0x030B0000
#define PyFrame_GetLasti(frame) ((frame)->f_lasti * (int)sizeof(_Py_CODEUNIT))
#endif

/* Find the innermost function on the calling thread's stack that belongs to
 * the program, not to this package.  Returns a new reference to its code
 * object; *instruction becomes the instruction that is running in it.  Returns
 * NULL without an exception if there is no such function; NULL with an
 * exception if out of memory. */
PyCodeObject *find_place(int *instruction);

/* Returns the place of an instruction as (file, line, function); None if code
 * is NULL.  NULL with an exception. */
PyObject *place_of(PyCodeObject *code, int instruction);

/* Between places_hold and places_release, places have numbers.  A place keeps
 * its number until every caller of places_hold has called places_release. */
int places_hold(void);
void places_release(void);

/* Returns the number of the place that find_place finds; -1 if there is none
 * or memory is short.  The number of each place is cached.  Keeps a pending
 * exception. */
Py_ssize_t place_number(void);

/* Returns the place with this number as (file, line, function), a new
 * reference.  NULL without an exception if there is none. */
PyObject *place_at(Py_ssize_t number);

#endif
