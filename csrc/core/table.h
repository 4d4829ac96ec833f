/* Checks of a table before it is registered: its size, names and members.  No
 * member is called. */
#ifndef PYSTREAMS_CORE_TABLE_H
#define PYSTREAMS_CORE_TABLE_H

#include <pystreams/backend.h>
#include <pystreams/faults.h>

#include <stdbool.h>

/* Why a table cannot be registered: a text for the user. */
struct ps_refusal {
    char text[256];
};

/* Format the reason as printf does.  Always returns PS_ERROR_INVALID_VALUE. */
__attribute__((format(printf, 2, 3))) ps_status
ps_refuse(struct ps_refusal *refusal, const char *format, ...);

/* Complete a table that was compiled with an older header.  *result is the
 * table itself, or a copy with NULL for the missing members, which the caller
 * frees.  If struct_size is not the size of any header, returns
 * PS_ERROR_INVALID_VALUE with the reason, and reads nothing else of the table.
 * Also PS_ERROR_OUT_OF_MEMORY. */
ps_status ps_table_complete(const struct ps_backend *backend,
                            const struct ps_backend **result,
                            struct ps_refusal *refusal);

/* Returns PS_ERROR_INVALID_VALUE, with the reason, if a required member is
 * missing, a group is incomplete, the name is malformed or the device type is
 * negative. */
ps_status
ps_table_check(const struct ps_backend *backend, struct ps_refusal *refusal);

/* As ps_table_check, for the table's fault injection: its size may be wrong,
 * or a member may be missing. */
ps_status ps_table_check_faults(const struct ps_backend *backend,
                                const struct ps_faults *faults,
                                struct ps_refusal *refusal);

/* The number of functions that a table may have. */
extern const int ps_table_member_count;

/* The name of the function number `index` in the contract's order, from 0 to
 * ps_table_member_count - 1.  *present becomes whether the table has it. */
const char *
ps_table_member(const struct ps_backend *backend, int index, bool *present);

#endif
