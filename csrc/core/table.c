/* Tables are checked with a list of the functions of struct ps_backend.  The
 * list must agree with backend.h. */
#include "table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The names of the groups of members, for error texts.  A table must have all
 * members of a group or none.  OPTIONAL and REQUIRED are not groups: they mark
 * single members. */
static const char OPTIONAL[] = "optional";
static const char REQUIRED[] = "required";
static const char IPC[] = "interprocess events";
static const char SHARED[] = "interprocess memory";
static const char MEMORY[] = "memory";
static const char NOTIFICATIONS[] = "notifications";
static const char GATES[] = "gates";
static const char GRAPHS[] = "graphs";
static const char GRAPH_GATES[] = "gates in graphs";
static const char POOLS[] = "pools";
static const char PINNING[] = "pinning";
static const char TIMES[] = "times of operations";
static const char PARTITIONS[] = "partitions";
static const char BLOCKING[] = "blocking streams";
static const char ACTIVITIES[] = "activities";

enum { MOST_NAME = 31, MOST_SIZE = 1 << 16 };

#define MEMBER(group, name)                             \
    {                                                   \
        group, #name, offsetof(struct ps_backend, name) \
    }

static const struct {
    const char *group;
    const char *name;
    size_t offset;
} members[] = {
    MEMBER(REQUIRED, status_name),
    MEMBER(REQUIRED, status_text),
    MEMBER(REQUIRED, device_count),
    MEMBER(REQUIRED, device_current),
    MEMBER(REQUIRED, device_set),
    MEMBER(OPTIONAL, device_restore),
    MEMBER(REQUIRED, device_synchronize),
    MEMBER(REQUIRED, device_properties),
    MEMBER(REQUIRED, stream_priority_range),
    MEMBER(REQUIRED, stream_create),
    MEMBER(REQUIRED, stream_destroy),
    MEMBER(REQUIRED, stream_query),
    MEMBER(REQUIRED, stream_synchronize),
    MEMBER(REQUIRED, stream_wait_event),
    MEMBER(OPTIONAL, stream_wait_room),
    MEMBER(OPTIONAL, stream_device),
    MEMBER(REQUIRED, event_create),
    MEMBER(REQUIRED, event_destroy),
    MEMBER(REQUIRED, event_record),
    MEMBER(REQUIRED, event_query),
    MEMBER(REQUIRED, event_synchronize),
    MEMBER(OPTIONAL, event_elapsed),
    MEMBER(IPC, event_export),
    MEMBER(IPC, event_open),
    MEMBER(MEMORY, memory_allocate),
    MEMBER(MEMORY, memory_free),
    MEMBER(MEMORY, pinned_allocate),
    MEMBER(MEMORY, pinned_free),
    MEMBER(MEMORY, memory_copy),
    MEMBER(MEMORY, memory_fill),
    MEMBER(MEMORY, memory_info),
    MEMBER(OPTIONAL, peer_accessible),
    MEMBER(OPTIONAL, memory_device),
    MEMBER(OPTIONAL, host_function),
    MEMBER(OPTIONAL, sleep),
    MEMBER(NOTIFICATIONS, stream_notify),
    MEMBER(NOTIFICATIONS, event_notify),
    MEMBER(NOTIFICATIONS, notify_cancel),
    MEMBER(GATES, stream_gate),
    MEMBER(GATES, gate_open),
    MEMBER(OPTIONAL, stream_capturing),
    MEMBER(GRAPHS, capture_begin),
    MEMBER(GRAPHS, capture_end),
    MEMBER(OPTIONAL, capture_mode_exchange),
    MEMBER(GRAPHS, event_record_external),
    MEMBER(GRAPHS, stream_wait_external),
    MEMBER(GRAPHS, graph_instantiate),
    MEMBER(GRAPHS, graph_launch),
    MEMBER(GRAPHS, executable_destroy),
    MEMBER(GRAPHS, graph_destroy),
    MEMBER(OPTIONAL, graph_print),
    MEMBER(OPTIONAL, versions),
    MEMBER(OPTIONAL, shutdown),
    MEMBER(SHARED, shared_allocate),
    MEMBER(SHARED, shared_open),
    MEMBER(SHARED, shared_free),
    MEMBER(GRAPH_GATES, stream_capture),
    MEMBER(GRAPH_GATES, capture_gate),
    MEMBER(POOLS, pool_usage),
    MEMBER(POOLS, pool_reset_peak),
    MEMBER(POOLS, pool_trim),
    MEMBER(POOLS, pool_set_threshold),
    MEMBER(PINNING, host_register),
    MEMBER(PINNING, host_unregister),
    MEMBER(TIMES, time_now),
    MEMBER(TIMES, operation_times),
    MEMBER(OPTIONAL, memory_fill_items),
    MEMBER(OPTIONAL, device_attribute),
    MEMBER(OPTIONAL, stream_explain),
    MEMBER(OPTIONAL, graph_nodes),
    MEMBER(OPTIONAL, graph_upload),
    MEMBER(OPTIONAL, graph_instantiate_with),
    MEMBER(OPTIONAL, graph_update),
    MEMBER(OPTIONAL, capture_graph),
    MEMBER(PARTITIONS, partition_create),
    MEMBER(PARTITIONS, partition_destroy),
    MEMBER(PARTITIONS, partition_stream_create),
    MEMBER(BLOCKING, blocking_create),
    MEMBER(BLOCKING, stream_blocking),
    MEMBER(ACTIVITIES, activities_begin),
    MEMBER(ACTIVITIES, activities_flush),
    MEMBER(ACTIVITIES, activities_end),
    MEMBER(ACTIVITIES, stream_number),
    MEMBER(OPTIONAL, peer_access),
    MEMBER(OPTIONAL, thread_stream),
    MEMBER(OPTIONAL, executable_number),
};

const int ps_table_member_count = sizeof(members) / sizeof(members[0]);

ps_status
ps_refuse(struct ps_refusal *refusal, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(refusal->text, sizeof(refusal->text), format, arguments);
    va_end(arguments);
    return PS_ERROR_INVALID_VALUE;
}

const char *
ps_table_member(const struct ps_backend *backend, int index, bool *present)
{
    void (*function)(void);
    memcpy(&function, (const char *)backend + members[index].offset,
           sizeof(function));
    *present = function != NULL;
    return members[index].name;
}

/* If `there` is true, returns the name of the group's first member that the
 * table has; otherwise, the name of the group's first member that the table
 * lacks.  Returns NULL if there is no such member. */
static const char *
first(const struct ps_backend *backend, const char *group, bool there)
{
    for (int i = 0; i < ps_table_member_count; i++) {
        bool present;
        const char *name = ps_table_member(backend, i, &present);
        if (members[i].group == group && present == there) {
            return name;
        }
    }
    return NULL;
}

static bool
is_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    static const char all[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t length = strnlen(name, MOST_NAME + 1);
    return strspn(name, letters) > 0 && strspn(name, all) == length &&
           length <= MOST_NAME;
}

/* The smallest valid struct_size.  Every table must have the members up to the
 * last required one, event_synchronize. */
enum {
    LEAST_SIZE = offsetof(struct ps_backend, event_synchronize) +
                 sizeof(((struct ps_backend *)NULL)->event_synchronize),
};

ps_status
ps_table_complete(const struct ps_backend *backend,
                  const struct ps_backend **result, struct ps_refusal *refusal)
{
    size_t size = backend->struct_size;
    if (size < LEAST_SIZE || size > MOST_SIZE) {
        return ps_refuse(refusal,
                         "the table's struct_size is %zu, but must be "
                         "sizeof(struct ps_backend), which is %zu in the "
                         "header in pystreams.get_include()",
                         size, sizeof(*backend));
    }
    *result = backend;
    if (size < sizeof(*backend)) {
        struct ps_backend *copy = calloc(1, sizeof(*copy));
        if (copy == NULL) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
        memcpy(copy, backend, size);
        *result = copy;
    }
    return PS_SUCCESS;
}

static ps_status
check_group(const struct ps_backend *backend, const char *group,
            struct ps_refusal *refusal)
{
    const char *missing = first(backend, group, false);
    const char *present = first(backend, group, true);
    if (missing != NULL && present != NULL) {
        return ps_refuse(refusal,
                         "the %s backend has %s but lacks %s; the %s group is "
                         "there as a whole or not at all",
                         backend->name, present, missing, group);
    }
    return PS_SUCCESS;
}

ps_status
ps_table_check_faults(const struct ps_backend *backend,
                      const struct ps_faults *faults,
                      struct ps_refusal *refusal)
{
    size_t size = faults->struct_size;
    if (size < sizeof(*faults) || size > MOST_SIZE) {
        return ps_refuse(refusal,
                         "the struct_size of the %s backend's faults is %zu, "
                         "but must be sizeof(struct ps_faults), which is %zu "
                         "in the header in pystreams.get_include()",
                         backend->name, size, sizeof(*faults));
    }
    return faults->stream_fail != NULL
               ? PS_SUCCESS
               : ps_refuse(refusal,
                           "the faults of the %s backend lack stream_fail, "
                           "which is required",
                           backend->name);
}

ps_status
ps_table_check(const struct ps_backend *backend, struct ps_refusal *refusal)
{
    if (backend->name == NULL || !is_name(backend->name)) {
        return ps_refuse(refusal,
                         "a backend's name must be like 'mtia', lower-case "
                         "letters, digits and _, starting with a letter, at "
                         "most %d; got '%.40s'",
                         MOST_NAME,
                         backend->name != NULL ? backend->name : "NULL");
    }
    if (backend->device_type < 0) {
        return ps_refuse(refusal,
                         "the device type of the %s backend must not be "
                         "negative, got %d",
                         backend->name, backend->device_type);
    }
    const char *missing = first(backend, REQUIRED, false);
    if (missing != NULL) {
        return ps_refuse(refusal, "the %s backend lacks %s, which is required",
                         backend->name, missing);
    }
    ps_status status = PS_SUCCESS;
    for (int i = 0; i < ps_table_member_count && status == PS_SUCCESS; i++) {
        const char *group = members[i].group;
        if (group != OPTIONAL && group != REQUIRED) {
            status = check_group(backend, group, refusal);
        }
    }
    if (status == PS_SUCCESS && backend->capture_begin != NULL &&
        backend->stream_capturing == NULL) {
        status = ps_refuse(refusal,
                           "the %s backend has capture_begin but lacks "
                           "stream_capturing",
                           backend->name);
    }
    if (status == PS_SUCCESS && backend->capture_gate != NULL &&
        (backend->capture_begin == NULL || backend->gate_open == NULL)) {
        status = ps_refuse(
            refusal, "the %s backend has capture_gate but lacks %s",
            backend->name,
            backend->gate_open == NULL ? "gate_open" : "capture_begin");
    }
    return status;
}
