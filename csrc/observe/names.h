/* Names from other libraries.  Each distinct text has a number, so that a
 * record needs no memory for its name.  Names are never freed, because other
 * libraries keep their numbers. */
#ifndef PYSTREAMS_OBSERVE_NAMES_H
#define PYSTREAMS_OBSERVE_NAMES_H

#include <stdint.h>

/* Returns the number (> 0) of a UTF-8 text; 0 if out of memory. */
uint32_t ps_name_number(const char *text);

/* Returns the text with this number; NULL if there is none. */
const char *ps_name_text(uint32_t number);

/* Called before and after a fork, so that the child does not see a partial
 * change of another thread. */
void ps_names_lock(void);
void ps_names_unlock(void);
void ps_names_reset_in_child(void);

#endif
