/* Checks of a backend's table before it is registered: its size, its name and
 * type, and which members it has.  No member is called. */
#ifndef PYSTREAMS_CORE_TABLE_H
#define PYSTREAMS_CORE_TABLE_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

/* A text for the user that says why a table cannot be registered. */
struct ps_refusal {
    char text[256];
};

/* Format the reason as printf does.  Always returns PS_ERROR_INVALID_VALUE. */
__attribute__((format(printf, 2, 3))) ps_status
ps_refuse(struct ps_refusal *refusal, const char *format, ...);

/* Complete a table that was compiled with an older backend.h.  If the table is
 * complete already, *result becomes the table itself.  Otherwise *result
 * becomes a copy in which the missing members are NULL; the caller must free
 * the copy.  Returns PS_ERROR_INVALID_VALUE, with the reason, if struct_size
 * cannot be that of any version of backend.h; no other member of the table is
 * read in this case.  Returns PS_ERROR_OUT_OF_MEMORY if there is no memory for
 * the copy. */
ps_status ps_table_complete(const struct ps_backend *backend,
                            const struct ps_backend **result,
                            struct ps_refusal *refusal);

/* Check a complete table.  Returns PS_ERROR_INVALID_VALUE, with the reason, if
 * a required member is missing, an optional group is only partly present, a
 * member is missing that another one needs, the name is malformed or the
 * device type is negative. */
ps_status
ps_table_check(const struct ps_backend *backend, struct ps_refusal *refusal);

/* Check the fault injection of a backend.  Returns PS_ERROR_INVALID_VALUE,
 * with the reason, if its size is wrong or a member is missing. */
ps_status ps_table_check_faults(const struct ps_backend *backend,
                                const struct ps_faults *faults,
                                struct ps_refusal *refusal);

/* The number of functions in struct ps_backend. */
extern const int ps_table_member_count;

/* Returns the name of the function with this index, from 0 to
 * ps_table_member_count - 1, in the order of struct ps_backend.  *present
 * becomes true if the table has the function, else false. */
const char *
ps_table_member(const struct ps_backend *backend, int index, bool *present);

#endif
