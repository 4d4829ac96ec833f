"""Threads that start at the same time."""

import threading


def together(work, threads=64, meanwhile=None):
    """Run work(number) on each thread, all starting at the same time.
    Raise the first error again.

    Until the threads have ended, this thread calls meanwhile().
    """
    barrier = threading.Barrier(threads)
    errors = []

    def run(number):
        try:
            barrier.wait(60)
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    while meanwhile and any(thread.is_alive() for thread in running):
        meanwhile()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
