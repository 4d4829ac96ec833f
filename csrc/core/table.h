/* Checks of a table before it is registered: its form, and the members that it
 * has.  Nothing here calls a member. */
#ifndef PYSTREAMS_CORE_TABLE_H
#define PYSTREAMS_CORE_TABLE_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

/* Why a table cannot be registered, for the user. */
struct ps_refusal {
    char text[256];
};

/* Write the reason, as printf does; always PS_ERROR_INVALID_VALUE. */
__attribute__((format(printf, 2, 3))) ps_status
ps_refuse(struct ps_refusal *refusal, const char *format, ...);

/* The table itself, or a copy with NULL for the members that its header did
 * not have; the caller frees it.  PS_ERROR_INVALID_VALUE, with the reason, if
 * the size is not that of any header; nothing else of the table is read then.
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_table_complete(const struct ps_backend *backend,
                            const struct ps_backend **result,
                            struct ps_refusal *refusal);

/* PS_ERROR_INVALID_VALUE, with the reason: a missing required member, an
 * incomplete group, a malformed name, a negative device type. */
ps_status
ps_table_check(const struct ps_backend *backend, struct ps_refusal *refusal);

/* Likewise, for its fault injection: a size that no header has, a missing
 * member. */
ps_status ps_table_check_faults(const struct ps_backend *backend,
                                const struct ps_faults *faults,
                                struct ps_refusal *refusal);

/* The functions that a table may have, in the contract's order. */
extern const int ps_table_member_count;

/* The name of a member from 0 to ps_table_member_count - 1, and whether the
 * table has it. */
const char *
ps_table_member(const struct ps_backend *backend, int index, bool *present);

#endif
