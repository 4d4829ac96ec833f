/* Callables in captured graphs.  A callable that is submitted during a capture
 * becomes a template, and a gate is captured in its place.  A gate is an
 * operation at which a stream waits until the gate is opened.  Each launch of
 * the graph makes a job from each template.  The job waits in the template's
 * list until its launch has reached the gate:
 *
 *    launch --> template's list --gate is reached--> queue --> as in submit.c
 *
 * Launches of one graph run one after another, so the first job of a list
 * belongs to the launch that has reached the gate. */
#include "captured.h"

#include "current.h"
#include "errors.h"
#include "future.h"
#include "late.h"
#include "races.h"
#include "stream.h"
#include "timeline.h"

/* A template: a captured callable.  The mutex of submit.c guards the fields
 * that change. */
struct captured {
    struct captured *next;
    struct calls *calls;
    /* The job that Stream.submit has made.  The jobs of the launches are
     * copies of it.  This job has no stream, because a graph keeps no stream
     * alive.  It has no Future either: the Future's exception may refer to the
     * graph, and the graph must not keep itself alive. */
    struct job *job;
    struct ps_device *device;
    ps_handle stream;
    /* The first template that this capture has for the same stream.  Its
     * `jobs` is the number of unfinished jobs of all templates for that
     * stream.  Other templates do not use `jobs`. */
    struct captured *row;
    unsigned jobs;
    /* The jobs of the launches that have not reached this template's gate yet,
     * in the order of the launches. */
    struct job *first;
    struct job **tail;
};

struct calls {
    atomic_uint refs;
    struct ps_runtime *runtime;
    /* number: the capture's number.  capturing: the same number while the
     * capture is in progress, otherwise 0. */
    uint64_t capturing;
    uint64_t number;
    uint64_t order;          /* the capture's place among those of its graph */
    struct calls *neighbour; /* the next in the static list `capturing` */
    struct captured *first;
    struct captured **tail;
    size_t count;
    /* The number of calls to capture_job that may still add a template.  Such
     * a call may still be running after another thread has ended the
     * capture. */
    unsigned adding;
};

/* A list of the `struct calls` of the captures in progress. */
static struct calls *capturing;
/* The number of captures for which calls_expect was called, but not yet
 * calls_begin. */
static atomic_int expected;

struct calls *
calls_create(struct ps_runtime *runtime)
{
    struct calls *calls = PyMem_Calloc(1, sizeof(*calls));
    if (calls == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    calls->runtime = runtime;
    calls->tail = &calls->first;
    atomic_init(&calls->refs, 1);
    return calls;
}

struct calls *
calls_ref(struct calls *calls)
{
    if (calls != NULL) {
        atomic_fetch_add(&calls->refs, 1);
    }
    return calls;
}

void
calls_unref(struct calls *calls)
{
    if (calls == NULL || atomic_fetch_sub(&calls->refs, 1) > 1) {
        return;
    }
    while (calls->first != NULL) {
        struct captured *captured = calls->first;
        calls->first = captured->next;
        job_destroy(captured->job);
        PyMem_Free(captured);
    }
    PyMem_Free(calls);
}

void
captured_unref(struct captured *captured)
{
    calls_unref(captured != NULL ? captured->calls : NULL);
}

int
calls_traverse(const struct calls *calls, visitproc visit, void *arg)
{
    const struct captured *captured = calls != NULL ? calls->first : NULL;
    for (; captured != NULL; captured = captured->next) {
        Py_VISIT(captured->job->context);
        for (Py_ssize_t i = 0; i < captured->job->count; i++) {
            Py_VISIT(captured->job->args[i]);
        }
    }
    return 0;
}

void
calls_expect(void)
{
    atomic_fetch_add(&expected, 1);
}

void
calls_begin(struct calls *calls, uint64_t number, uint64_t order)
{
    jobs_lock();
    calls->number = calls->capturing = number;
    calls->order = order;
    if (number != 0) {
        calls->neighbour = capturing;
        capturing = calls;
    }
    jobs_unlock();
    atomic_fetch_sub(&expected, 1);
}

void
calls_end(struct calls *calls)
{
    if (calls == NULL) {
        return;
    }
    jobs_lock();
    struct calls **link = &capturing;
    while (*link != NULL && *link != calls) {
        link = &(*link)->neighbour;
    }
    if (*link != NULL) {
        *link = calls->neighbour;
    }
    calls->capturing = 0;
    jobs_unlock();
}

bool
calls_any(struct calls *calls)
{
    jobs_lock();
    bool any = calls != NULL && calls->count + calls->adding > 0;
    jobs_unlock();
    return any;
}

bool
calls_are_later(const struct calls *calls, const struct calls *other)
{
    return calls->order > other->order;
}

uint64_t
calls_number(const struct calls *calls)
{
    return calls->number;
}

/* ---- Captures ---- */

/* The ps_launched_gate_function of the captured gates.  Called when a launch
 * has reached the gate of a template. */
static void
reached(void *argument, ps_handle gate, ps_status status)
{
    struct captured *captured = argument;
    jobs_lock();
    struct job *job = captured->first;
    captured->first = job != NULL ? job->next : NULL;
    if (captured->first == NULL) {
        captured->tail = &captured->first;
    }
    jobs_unlock();
    if (job != NULL) {
        job->gate = gate;
        job_reached(job, status);
    }
    else {
        /* If another library has launched the executable, there is no job.  In
         * that case, open the gate at once. */
        const struct ps_backend *backend = captured->device->runtime->backend;
        backend->gate_open(backend, captured->device->index, gate);
    }
}

static ps_status
capture_number(struct ps_stream *stream, uint64_t *number)
{
    const struct ps_backend *backend = stream->device->runtime->backend;
    ps_status status;
    *number = 0;
    CALL_BACKEND(stream->device->runtime,
                 status = backend->stream_capture(
                     backend, stream->device->index, stream->handle, number));
    return status;
}

/* Returns whether the stream no longer belongs to the capture with this
 * number, because another thread has ended the capture. */
static bool
has_left(struct ps_stream *stream, uint64_t number)
{
    uint64_t now;
    return capture_number(stream, &now) == PS_SUCCESS && now != number;
}

/* Returns a new reference to the list of callables of the capture to which the
 * stream belongs; NULL with an exception.  *number becomes the number of the
 * capture.  If the stream has left the capture, or calls_begin has not been
 * called yet, returns NULL without an exception.  The graph cannot be launched
 * until the caller has called end_adding. */
static struct calls *
begin_adding(struct ps_stream *stream, uint64_t *number)
{
    const struct ps_backend *backend = stream->device->runtime->backend;
    if (backend->capture_gate == NULL) {
        PyErr_Format(PyExc_NotImplementedError,
                     "Stream.submit: the %s backend cannot capture callables; "
                     "submit it before the capture begins, or after each "
                     "replay",
                     backend->name);
        return NULL;
    }
    ps_status status = capture_number(stream, number);
    if (status != PS_SUCCESS) {
        raise_on_stream(stream, "Stream.submit", status);
        return NULL;
    }
    if (*number == 0) {
        return NULL;
    }
    bool may_come = atomic_load(&expected) > 0;
    jobs_lock();
    struct calls *calls = capturing;
    while (calls != NULL && (calls->runtime != stream->device->runtime ||
                             calls->capturing != *number)) {
        calls = calls->neighbour;
    }
    if (calls != NULL) {
        calls_ref(calls)->adding++;
    }
    jobs_unlock();
    if (calls == NULL && !may_come && !has_left(stream, *number)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Stream.submit: a callable can be captured only into "
                        "a graph of pystreams, but this capture is another "
                        "library's; submit it before the capture begins, or "
                        "after it ends");
    }
    return calls;
}

/* Add the template, unless it is NULL, and drop the reference to the list. */
static void
end_adding(struct calls *calls, struct captured *captured)
{
    jobs_lock();
    if (captured != NULL) {
        struct captured *other = calls->first;
        while (other != NULL && (other->stream != captured->stream ||
                                 other->device != captured->device)) {
            other = other->next;
        }
        captured->row = other != NULL ? other->row : captured;
        *calls->tail = captured;
        calls->tail = &captured->next;
        calls->count++;
    }
    calls->adding--;
    jobs_unlock();
    calls_unref(calls);
}

/* Finish the Future of a captured callable with an exception, since the
 * callable runs only in launches, which do not settle the Future.  The job
 * itself never runs, so the race detector must not expect it. */
static void
settle(PyObject *future, PyObject *exception)
{
    ps_races_callable_ended(future_moment(future));
    if (future_start(future)) {
        future_settle(future, exception, true, false);
        future_finish(future);
    }
}

int
capture_job(struct job *job)
{
    struct ps_stream *stream = job->stream;
    const struct ps_backend *backend = stream->device->runtime->backend;
    PyObject *future = job->future;
    struct ps_slice *slice = job->slice;
    uint64_t number;
    ps_status status;
    int result = -1;
    struct captured *captured = PyMem_Calloc(1, sizeof(*captured));
    PyObject *exception = PyObject_CallFunction(
        PyExc_RuntimeError, "s",
        "the callable was captured into a graph, and runs at each replay: "
        "wait for the replay's stream, which raises its exception");
    if (captured == NULL || exception == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    struct calls *calls = begin_adding(stream, &number);
    if (calls == NULL) {
        result = PyErr_Occurred() != NULL ? -1 : 0;
        goto end;
    }
    captured->calls = calls;
    captured->job = job;
    captured->device = stream->device;
    captured->stream = stream->identity;
    captured->tail = &captured->first;
    job->slice = NULL;
    CALL_BACKEND(stream->device->runtime,
                 status = backend->capture_gate(backend, stream->device->index,
                                                stream->handle, number,
                                                reached, captured));
    if (status == PS_SUCCESS) {
        job->stream = NULL;
        job->row = NULL;
        job->future = NULL;
        end_adding(calls, captured);
        captured = NULL;
        /* Do not access the job any more: another thread may have dropped the
         * graph, which frees the job. */
        stream_release(stream);
        if (slice != NULL) {
            ps_slice_drop(slice);
        }
        settle(future, exception);
        Py_DECREF(future);
        result = 1;
    }
    else {
        job->slice = slice;
        end_adding(calls, NULL);
        if (status == PS_ERROR_INVALID_VALUE && has_left(stream, number)) {
            result = 0;
        }
        else {
            raise_on_stream(stream, "Stream.submit", status);
        }
    }
end:
    PyMem_Free(captured);
    Py_XDECREF(exception);
    return result;
}

PyObject *
calls_name(struct calls *calls, const void *argument)
{
    const struct captured *captured = NULL;
    if (calls != NULL) {
        jobs_lock();
        captured = calls->first;
        while (captured != NULL && captured != argument) {
            captured = captured->next;
        }
        jobs_unlock();
    }
    if (captured == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *function = Py_NewRef(captured->job->function);
    PyObject *name = PyObject_GetAttrString(function, "__qualname__");
    if (name == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        name = PyObject_Repr(function);
    }
    Py_DECREF(function);
    return name;
}

/* ---- Launches ---- */

struct replay {
    struct ps_launch base;
    size_t count;
    struct job *jobs[];
};

static struct replay *
replay_of(struct ps_launch *launch)
{
    return (struct replay *)launch;
}

/* Append the jobs of this launch to the lists of their templates. */
static void
replay_begin(struct ps_launch *launch, struct ps_stream *stream)
{
    struct replay *replay = replay_of(launch);
    jobs_lock();
    for (size_t i = 0; i < replay->count; i++) {
        struct job *job = replay->jobs[i];
        job->stream = ps_stream_ref(stream);
        job->next = NULL;
        *job->captured->tail = job;
        job->captured->tail = &job->next;
    }
    jobs_unlock();
}

/* Remove the jobs of this launch from the lists again.  Each job is the last
 * one in its list. */
static void
replay_cancel(struct ps_launch *launch)
{
    struct replay *replay = replay_of(launch);
    jobs_lock();
    for (size_t i = 0; i < replay->count; i++) {
        struct captured *captured = replay->jobs[i]->captured;
        struct job **link = &captured->first;
        while (*link != replay->jobs[i]) {
            link = &(*link)->next;
        }
        *link = NULL;
        captured->tail = link;
    }
    jobs_unlock();
}

static void
replay_destroy(struct replay *replay, bool queued)
{
    for (size_t i = 0; i < replay->count && !queued; i++) {
        job_give_up(replay->jobs[i]);
        job_destroy(replay->jobs[i]);
    }
    PyMem_Free(replay);
}

/* Create the jobs of a launch.  On failure, returns NULL with an exception. */
static struct replay *
replay_create(struct calls *calls, uint64_t number)
{
    size_t count = 0;
    struct captured *captured = NULL;
    if (calls != NULL) {
        jobs_lock();
        /* While callables may still be added, the launch must be refused.  The
         * number UINT64_MAX has this effect, because no capture has it. */
        bool complete = calls->capturing == 0 && calls->adding == 0;
        number = complete ? calls->number : UINT64_MAX;
        count = complete ? calls->count : 0;
        captured = calls->first;
        jobs_unlock();
    }
    struct replay *replay =
        PyMem_Calloc(1, sizeof(*replay) + count * sizeof(replay->jobs[0]));
    if (replay == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    replay->base = (struct ps_launch){
        .number = number,
        .begin = replay_begin,
        .cancel = replay_cancel,
    };
    for (; replay->count < count; captured = captured->next) {
        struct job *job = job_again(captured->job);
        if (job != NULL) {
            job->row = &captured->row->jobs;
            job->captured = captured;
            calls_ref(calls);
        }
        if (job == NULL || job_expect(job) < 0) {
            job_destroy(job);
            replay_destroy(replay, false);
            return NULL;
        }
        replay->jobs[replay->count++] = job;
    }
    return replay;
}

ps_status
launch_calls(struct ps_graph *graph, struct calls *calls, uint64_t number,
             struct ps_stream *stream, struct late *late,
             struct ps_stream **full)
{
    *full = NULL;
    struct replay *replay = replay_create(calls, number);
    if (replay == NULL) {
        return PS_RAISED;
    }
    replay->base.stream = stream;
    ps_status status = late_begin(late);
    if (status == PS_SUCCESS && replay->count > 0 && ps_races_are_on()) {
        status = ps_thread_set_word(PS_THREAD_LAUNCH, replay);
    }
    if (status == PS_SUCCESS) {
        /* Read the current streams only now: the Python code that ran above
         * may have replaced them. */
        struct ps_currents *currents = currents_in_use();
        Py_BEGIN_ALLOW_THREADS
        status = ps_graph_launch(graph, currents, &replay->base, full);
        late_end();
        ps_thread_set_word(PS_THREAD_LAUNCH, NULL);
        ps_launch_end(&replay->base);
        Py_END_ALLOW_THREADS
    }
    else {
        late_end();
    }
    replay_destroy(replay, status == PS_SUCCESS);
    return status;
}

void
captured_launching(const struct ps_actor_name *stream)
{
    struct replay *replay = ps_thread_word(PS_THREAD_LAUNCH);
    for (size_t i = 0; replay != NULL && i < replay->count; i++) {
        future_set_moment(replay->jobs[i]->future, ps_races_callable(stream));
    }
}

/* ---- Failures ---- */

/* An exception from a captured callable that no wait has raised yet.  For each
 * stream, only the first such exception is kept.  Later ones are reported at
 * once. */
struct failure {
    struct failure *next;
    struct ps_stream *stream;
    PyObject *exception;
};

atomic_int captured_failures;

/* The list of failures, the oldest first. */
static struct failure *failures;

static void
report(PyObject *exception)
{
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    report_ignored("running a captured callable");
}

void
captured_failed(const struct job *job, PyObject *exception)
{
    struct failure *failure = PyMem_Malloc(sizeof(*failure)), **link;
    if (failure == NULL) {
        report(exception);
        return;
    }
    *failure = (struct failure){
        .stream = ps_stream_ref(job->stream),
        .exception = Py_NewRef(exception),
    };
    jobs_lock();
    for (link = &failures; *link != NULL; link = &(*link)->next) {
        if ((*link)->stream == failure->stream) {
            break;
        }
    }
    bool first = *link == NULL;
    if (first) {
        *link = failure;
        atomic_fetch_add(&captured_failures, 1);
    }
    jobs_unlock();
    if (!first) {
        report(exception);
        stream_release(failure->stream);
        Py_DECREF(exception);
        PyMem_Free(failure);
    }
}

static bool
concerns(const struct failure *failure, const struct work *work)
{
    const struct ps_stream *stream = failure->stream;
    if (stream->generation != ps_generation()) {
        return false;
    }
    if (work == NULL) {
        return true;
    }
    return work->stream != NULL
               ? work->stream->identity == stream->identity &&
                     work->stream->device == stream->device
               : work->event == NULL && work->device == stream->device;
}

/* Remove and return the oldest exception that concerns the work or, if `work`
 * is NULL, the oldest exception overall.  Returns NULL if there is no such
 * exception. */
static PyObject *
take_failure(const struct work *work)
{
    jobs_lock();
    struct failure **link = &failures, *failure;
    while ((failure = *link) != NULL && !concerns(failure, work)) {
        link = &failure->next;
    }
    if (failure != NULL) {
        *link = failure->next;
        atomic_fetch_sub(&captured_failures, 1);
    }
    jobs_unlock();
    if (failure == NULL) {
        return NULL;
    }
    PyObject *exception = failure->exception;
    stream_release(failure->stream);
    PyMem_Free(failure);
    return exception;
}

int
raise_captured_failure(const struct work *work)
{
    PyObject *exception = take_failure(work);
    if (exception == NULL) {
        return 0;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return -1;
}

void
report_captured_failures(void)
{
    PyObject *exception;
    while ((exception = take_failure(NULL)) != NULL) {
        report(exception);
        Py_DECREF(exception);
    }
}
