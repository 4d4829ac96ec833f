/* Names that other libraries give to kernels and ranges.  Each distinct text
 * gets a number, so that a record of an operation stores the number only.
 * Names are never freed, because other libraries keep their numbers. */
#ifndef PYSTREAMS_OBSERVE_NAMES_H
#define PYSTREAMS_OBSERVE_NAMES_H

#include <stdint.h>

/* Returns the number (> 0) of a UTF-8 text; 0 if out of memory. */
uint32_t ps_name_number(const char *text);

/* Returns the text with this number; NULL if there is none. */
const char *ps_name_text(uint32_t number);

/* Called before and after a fork, and in the child, so that the child does not
 * see a change that another thread has half made. */
void ps_names_lock(void);
void ps_names_unlock(void);
void ps_names_reset_in_child(void);

#endif
