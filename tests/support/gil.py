"""Whether this interpreter runs without the GIL."""

import sys

FREE = not getattr(sys, "_is_gil_enabled", lambda: True)()
