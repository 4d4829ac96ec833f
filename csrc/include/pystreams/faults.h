/* Fault injection, with which tests make a device's work fail.  Programs do
 * not need it.  A backend that offers it registers a second capsule together
 * with the capsule of its table:
 *
 *     PyObject_CallMethod(pystreams, "register_backend", "NN", capsule,
 *                         PyCapsule_New((void *)&faults,
 *                                       PS_FAULTS_CAPSULE_NAME, NULL));
 *
 * The conformance suite, pystreams.testing, then also checks how the backend
 * reports failures. */
#ifndef PYSTREAMS_FAULTS_H
#define PYSTREAMS_FAULTS_H

#include "backend.h"

#define PS_FAULTS_CAPSULE_NAME "pystreams.faults"

struct ps_faults {
    /* sizeof(struct ps_faults); see struct ps_backend.  Every member is
     * required. */
    size_t struct_size;

    /* Queue an operation that fails with the status when its turn comes.
     * Enqueues.  Returns PS_ERROR_INVALID_VALUE for a status that is not a
     * failure. */
    ps_status (*stream_fail)(const struct ps_backend *backend, int device,
                             ps_handle stream, ps_status status);
};

#endif
