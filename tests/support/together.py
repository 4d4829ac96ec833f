"""Threads that start at once."""

import threading


def together(work, threads=64):
    """Run work(number) on each thread, all starting at once; re-raise."""
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
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
