/* Places: the lines at which the program calls the package. */
#ifndef PYSTREAMS_PYTHON_PLACES_H
#define PYSTREAMS_PYTHON_PLACES_H

#include "module.h"

#include <frameobject.h>

#if PY_VERSION_HEX < 0x030B0000
#define PyFrame_GetLasti(frame) ((frame)->f_lasti * (int)sizeof(_Py_CODEUNIT))
#endif

/* Find the innermost function on the calling thread's stack that belongs to
 * the program, not to this package.  Returns a new reference to its code
 * object; *instruction becomes the offset of the instruction that is running
 * in it.  Returns NULL without an exception if there is no such function; NULL
 * with an exception if out of memory. */
PyCodeObject *find_place(int *instruction);

/* Returns the place of the instruction at this offset as (file, line,
 * function), or None if code is NULL.  Returns NULL with an exception on
 * failure. */
PyObject *place_of(PyCodeObject *code, int instruction);

/* Places have numbers only after a call to places_hold.  A place keeps its
 * number until every caller of places_hold has called places_release.  On
 * failure, places_hold returns -1 with MemoryError, and places_release must
 * not be called. */
int places_hold(void);
void places_release(void);

/* Returns the number of the place that find_place finds.  Returns -1 if there
 * is no such place, if no caller holds the places, or if out of memory.  A
 * pending exception stays set. */
Py_ssize_t place_number(void);

/* Returns a new reference to the place with this number, as (file, line,
 * function).  Returns NULL without an exception if no place has this
 * number. */
PyObject *place_at(Py_ssize_t number);

#endif
