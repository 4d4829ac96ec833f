/* What hooks leave for later. */
#include "late.h"

#include <stdlib.h>

#include "../core/thread.h"
#include "../observe/races.h"

#include "errors.h"
#include "races.h"
#include "schedules.h"

ps_status
late_begin(struct late *late)
{
    return ps_thread_set_word(PS_THREAD_LATE, late);
}

void
late_end(void)
{
    ps_thread_set_word(PS_THREAD_LATE, NULL);
}

bool
late_run(struct late *late, ps_status *status)
{
    PyObject *notes = late->notes, *arguments = late->report;
    struct ps_description *forgotten = late->forgotten;
    late->notes = late->report = NULL;
    late->forgotten = NULL;
    struct saved_exception saved = exception_save();
    while (forgotten != NULL) {
        struct ps_description *next = forgotten->next;
        races_forget(forgotten);
        forgotten = next;
    }
    for (Py_ssize_t i = 0; notes != NULL && i < PyList_GET_SIZE(notes); i++) {
        schedules_note(PyList_GET_ITEM(notes, i));
    }
    Py_XDECREF(notes);
    exception_restore(saved);
    if (arguments == NULL) {
        return false;
    }
    bool again = *status != PS_SUCCESS;
    ps_status reported = races_report(arguments);
    if (reported != PS_SUCCESS) {
        *status = reported;
    }
    return again && reported == PS_SUCCESS;
}

void
late_free(struct late *late)
{
    free(late->reported);
}

bool
late_knows(const struct late *late, const struct ps_race *race)
{
    for (size_t i = 0; i < late->count; i++) {
        const struct ps_access *known = &late->reported[i];
        if (known->begin == race->access->begin &&
            known->nbytes == race->access->nbytes &&
            known->writes == race->access->writes) {
            return true;
        }
    }
    return false;
}

ps_status
late_report(struct late *late, const struct ps_race *race, PyObject *arguments)
{
    size_t count = late->count;
    struct ps_access *grown =
        arguments != NULL
            ? realloc(late->reported, (count + 1) * sizeof(*grown))
            : NULL;
    if (grown == NULL) {
        Py_XDECREF(arguments);
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        return PS_RAISED;
    }
    late->reported = grown;
    late->reported[late->count++] = *race->access;
    late->report = arguments;
    return PS_RAISED;
}

struct hook
hook_begin(void)
{
    struct hook hook = {
        .gil = PyGILState_Ensure(),
        .late = ps_thread_word(PS_THREAD_LATE),
    };
#if PY_VERSION_HEX < 0x030C0000
    hook.collects = hook.late != NULL && PyGC_Disable() != 0;
#endif
    return hook;
}

void
hook_end(struct hook hook)
{
    if (hook.collects) {
        PyGC_Enable();
    }
    PyGILState_Release(hook.gil);
}
