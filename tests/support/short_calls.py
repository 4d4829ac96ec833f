"""Makes the extension module's calls to the C library fail, in a process with
shortage.c preloaded."""

import ctypes


class Native:
    """shortage.c, compiled to the library at this path."""

    def __init__(self, library):
        loaded = ctypes.PyDLL(library)
        self.begin = loaded.shortage_begin
        self.begin.argtypes = (ctypes.c_long, ctypes.c_long)
        self.begin.restype = None
        self.end, self.held = loaded.shortage_end, loaded.shortage_held
        self.end.restype = self.held.restype = ctypes.c_long
        self.name = loaded.shortage_name
        self.name.restype = ctypes.c_char_p
        assert loaded.shortage_of(b"pystreams/_C.")

    def attempt(self, call, skip, count):
        error = None
        try:
            self.begin(skip, count)
            try:
                call()
            finally:
                failed = self.end()
        except BaseException as caught:
            error = caught
        return failed > 0, error

    def failed_call(self):
        return self.name().decode()
