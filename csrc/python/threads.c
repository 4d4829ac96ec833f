/* Threads that run Python code, but are started and ended in C.  They do not
 * run the start-up code of `threading`, because an exception in it would end
 * the thread.  They can start even at the end of the program, when Python no
 * longer starts threads.  They are daemon threads, so the program does not
 * wait for them. */
#include "threads.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "errors.h"

struct start {
    bool (*prepare)(void);
    void (*serve)(void);
    void (*left)(void);
    sem_t begun;
    bool failed;
};

/* `none` is the result of a call that adds the thread to `threading` or
 * removes it from there.  If the call has raised an exception, report the
 * exception. */
static void
check_shown(PyObject *none)
{
    if (drop_result(none) < 0) {
        report_ignored("showing a thread to threading");
    }
}

/* Create a thread state for the calling thread, which has none yet.  Returns
 * NULL if there is no memory. */
static PyThreadState *
create_state(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Main();
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
    /* Call these two functions instead of PyThreadState_New, which in Python
     * 3.11 does not check whether the first of them fails. */
    PyAPI_FUNC(void) _PyThreadState_SetCurrent(PyThreadState *);
    PyThreadState *state = _PyThreadState_Prealloc(interpreter);
    if (state != NULL) {
        _PyThreadState_SetCurrent(state);
    }
    return state;
#else
    return PyThreadState_New(interpreter);
#endif
}

static void
serve_by_name(void (*serve)(void))
{
    static atomic_int count;
    char name[16];
    snprintf(name, sizeof(name), "pystreams-%d",
             atomic_fetch_add(&count, 1) + 1);
    pthread_setname_np(pthread_self(), name);
    check_shown(
        import_call("pystreams._futures", "enter_thread", "(s)", name));
    serve();
    check_shown(import_call("pystreams._futures", "leave_thread", "()"));
}

static void *
thread_main(void *argument)
{
    struct start *start = argument;
    void (*serve)(void) = start->serve, (*left)(void) = start->left;
    /* Create the thread state on the new thread, because a state is bound to
     * the thread that creates it. */
    PyThreadState *thread = create_state();
    bool ready =
        thread != NULL && (start->prepare == NULL || start->prepare());
    start->failed = !ready;
    /* Do not use `start` after this, because it is on the stack of the thread
     * that waits for the semaphore. */
    sem_post(&start->begun);
    if (thread == NULL) {
        return NULL;
    }
    PyEval_AcquireThread(thread);
    if (ready) {
        serve_by_name(serve);
    }
    PyThreadState_Clear(thread);
    PyThreadState_DeleteCurrent();
    if (ready) {
        left();
    }
    return NULL;
}

/* Create the thread with the stack size that threading.stack_size() has set.
 * Returns 0, or an error number as pthread_create does. */
static int
create_thread(struct start *start)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (PyThread_get_stacksize() != 0) {
        pthread_attr_setstacksize(&attributes, PyThread_get_stacksize());
    }
    int error = pthread_create(&thread, &attributes, thread_main, start);
    pthread_attr_destroy(&attributes);
    return error;
}

int
start_thread(bool (*prepare)(void), void (*serve)(void), void (*left)(void))
{
    struct start start = {.prepare = prepare, .serve = serve, .left = left};
    sem_init(&start.begun, 0, 0);
    int error = create_thread(&start);
    if (error == 0) {
        Py_BEGIN_ALLOW_THREADS
        while (sem_wait(&start.begun) != 0) {
        }
        Py_END_ALLOW_THREADS
    }
    sem_destroy(&start.begun);
    if (error != 0) {
        return refuse(PyExc_RuntimeError,
                      "cannot start one more thread for callables: %s",
                      strerror(error));
    }
    if (start.failed) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

void
end_child(PyObject *exception)
{
    import_call("pystreams._futures", "end_child", "(O)",
                exception != NULL ? exception : Py_None);
    PyErr_Print();
    _exit(1);
}
