"""Integers of another type than int."""


class Number:
    """As an integer of NumPy is: it has __index__() alone."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value
