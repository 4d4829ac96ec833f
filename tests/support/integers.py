"""Integers of a type other than int."""


class Number:
    """An integer that has only __index__(), like one of NumPy."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value
