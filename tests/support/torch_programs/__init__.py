"""Small programs as people write them for torch: each takes the library under
torch's name, and asserts what it relies on.

The rule: nothing here knows which library it got.  Those of accelerator.py run
on whatever the accelerator is, those of cuda.py need CUDA devices.
"""

import ctypes


class Programs(list):
    """The programs of a module, which it decorates with this."""

    def __call__(self, function):
        self.append(function)
        return function


def raised(kind, function, *args):
    """The first line of the error that a call ends with."""
    try:
        function(*args)
    except kind as error:
        return str(error).split("\n")[0]
    raise AssertionError(f"{kind.__name__} was not raised")


def seen(memory):
    """The bytes of host memory that all work on it is done with."""
    return ctypes.string_at(memory.data_ptr(), memory.nbytes)
