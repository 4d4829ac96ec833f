/* Names from other libraries: each distinct text has a number, so that a
 * record needs no memory for its name.  They are never freed, because other
 * libraries keep the numbers. */
#ifndef PYSTREAMS_OBSERVE_NAMES_H
#define PYSTREAMS_OBSERVE_NAMES_H

#include <stdint.h>

/* The number (> 0) of a text in UTF-8; 0 if out of memory. */
uint32_t ps_name_number(const char *text);

/* NULL if no name has the number. */
const char *ps_name_text(uint32_t number);

/* Called around a fork, so that the child sees no partial change. */
void ps_names_lock(void);
void ps_names_unlock(void);
void ps_names_reset_in_child(void);

#endif
