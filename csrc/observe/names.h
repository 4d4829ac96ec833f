/* Names that other libraries give to kernels and ranges.  Each distinct text
 * gets a number, so that the slice of an operation (see timeline.h) need only
 * store the number.  Names are never freed, because other libraries keep the
 * numbers of names as handles. */
#ifndef PYSTREAMS_OBSERVE_NAMES_H
#define PYSTREAMS_OBSERVE_NAMES_H

#include <stdint.h>

/* Returns the number of a UTF-8 text, which is above 0; assigns one to a new
 * text.  Returns 0 if out of memory. */
uint32_t ps_name_number(const char *text);

/* Returns the text with this number, or NULL if no text has this number. */
const char *ps_name_text(uint32_t number);

/* ps_names_lock is called before a fork, ps_names_unlock is called after it in
 * the parent, and ps_names_reset_in_child is called in the child.  So the
 * child does not see a change that another thread had only half made. */
void ps_names_lock(void);
void ps_names_unlock(void);
void ps_names_reset_in_child(void);

#endif
