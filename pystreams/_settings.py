"""The settings that environment variables give."""

from __future__ import annotations

import os

from . import _C

# The environment variables of programs.
RUN_TIME = {
    "PYSTREAMS_ACCELERATOR",
    "PYSTREAMS_CPU_DEVICES",
    "PYSTREAMS_EMULATE_CUDA",
    "PYSTREAMS_EMULATE_MEMORY",
    "PYSTREAMS_EXPLAIN_SIGNAL",
    "PYSTREAMS_PER_THREAD_DEFAULT_STREAM",
    "PYSTREAMS_RACES",
    "PYSTREAMS_SCHEDULE",
}

# All environment variables, including those for builds and for the tests.
VARIABLES = RUN_TIME | {
    "PYSTREAMS_CUDA",
    "PYSTREAMS_DEBUG",
    "PYSTREAMS_SANITIZE",
    "PYSTREAMS_SHARED",
    "PYSTREAMS_URL",
    "PYSTREAMS_WERROR",
    "PYSTREAMS_CYCLES",
    "PYSTREAMS_FIRST_SEED",
    "PYSTREAMS_SEEDS",
    "PYSTREAMS_STRESS",
}

_UNITS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def _number(text: str) -> int:
    """Return the value of decimal digits; -1 for any other text."""
    digits = text.isascii() and text.isdigit() and len(text) < 20
    return int(text) if digits else -1


def _devices(variable: str, least: int) -> int:
    """Return a number of devices; 0 if the variable is not set."""
    text = os.environ.get(variable, "")
    if text and not least <= _number(text) <= 1024:
        raise ValueError(
            f"{variable} must be a number of devices from {least} to 1024, "
            f"got '{text}'"
        )
    return int(text or 0)


def parse_memory(name: str, text: str) -> int:
    """Return the number of bytes that a text such as "4GiB" means.

    For any other text, raises a ValueError that names the variable or
    parameter.
    """
    digits = text.rstrip("KMGTiB")
    shift = _UNITS.get(text[len(digits) :], 64)
    nbytes = _number(digits) << shift
    if not 0 < nbytes < 1 << 63:
        raise ValueError(
            f"{name} must be a number of bytes, KiB, MiB, GiB or TiB "
            f"above 0, such as '4GiB' or '65536', got '{text}'"
        )
    return nbytes


def _memory(variable: str) -> int:
    """Return a number of bytes; 0 if the variable is not set."""
    text = os.environ.get(variable, "")
    return parse_memory(variable, text) if text else 0


def per_thread_default_stream() -> bool:
    """Return whether each thread has a default stream of its own."""
    variable = "PYSTREAMS_PER_THREAD_DEFAULT_STREAM"
    text = os.environ.get(variable, "")
    if text not in {"", "0", "1"}:
        raise ValueError(f"{variable} must be '0' or '1', got '{text}'")
    return text == "1"


def register_backends() -> None:
    """Register the library's backends as the environment asks for them."""
    _C.register_backends(
        _devices("PYSTREAMS_CPU_DEVICES", 1) or 1,
        _devices("PYSTREAMS_EMULATE_CUDA", 0),
        _memory("PYSTREAMS_EMULATE_MEMORY"),
        per_thread_default_stream(),
    )


def default_type() -> int:
    """Return the device type used if none is given; C code asks once.

    Raises RuntimeError with the reason if the environment asks for one that is
    unknown or not available.
    """
    from . import _backends

    cpu, cuda = 0, 1
    name = os.environ.get("PYSTREAMS_ACCELERATOR")
    if not name:
        return cuda if _C.unavailable_reason(cuda) is None else cpu
    type = cuda if name == "cuda" else dict(_C.backends()).get(name)
    if type is None:
        type = _backends.load(name)
    if type < 0:
        names = ", ".join(
            dict.fromkeys([*dict(_C.backends()), *_backends.offered()])
        )
        raise RuntimeError(
            f"PYSTREAMS_ACCELERATOR names an unknown device type: '{name}'; "
            f"expected one of {names}"
        )
    reason = _C.unavailable_reason(type)
    if reason is not None:
        hint = "; set PYSTREAMS_EMULATE_CUDA=1 to emulate one"
        raise RuntimeError(
            f"PYSTREAMS_ACCELERATOR is '{name}', which is not available: "
            f"{reason}{hint if type == cuda else ''}"
        )
    return type


def look_for_races() -> None:
    """Look for races in the whole process if the environment says so."""
    action = os.environ.get("PYSTREAMS_RACES")
    if not action:
        return
    from . import races

    try:
        races._detect_in_program(action)
    except ValueError:
        raise ValueError(
            f"PYSTREAMS_RACES must be 'raise' or 'warn', got {action!r}"
        ) from None


def explore_a_schedule() -> None:
    """Run the whole program under a schedule if the environment says so."""
    name = os.environ.get("PYSTREAMS_SCHEDULE")
    if not name:
        return
    from . import schedules

    schedules._explore_program(name)


def explain_on_signal() -> None:
    """Print explain() at the signal that the environment names."""
    text = os.environ.get("PYSTREAMS_EXPLAIN_SIGNAL")
    if not text:
        return
    import signal

    # Import threading on this thread: the thread that first imports it counts
    # as the main thread.
    import threading  # noqa: F401

    from . import _explain, _futures  # noqa: F401

    number = _number(text)
    if number < 0:
        name = text if text.startswith("SIG") else f"SIG{text}"
        number = getattr(signal, name, 0) if name.isupper() else 0
    try:
        _C.explain_on_signal(number)
    except ValueError:
        raise ValueError(
            "PYSTREAMS_EXPLAIN_SIGNAL must be a signal that can be caught, "
            f"such as 'SIGUSR2' or '12', got {text!r}"
        ) from None
    os.register_at_fork(after_in_child=lambda: _C.explain_on_signal(number))


def warn_of_variables() -> None:
    """Warn about variables that have no effect."""
    for name in os.environ:
        if name.startswith("PYSTREAMS_") and name not in VARIABLES:
            import difflib
            import warnings

            # Compare the names without their common prefix.
            names = {known[10:]: known for known in RUN_TIME}
            near = difflib.get_close_matches(name[10:], names, 1, 0.6)
            hint = (
                "; the variable with the nearest name is " + names[near[0]]
                if near
                else ""
            )
            warnings.warn(
                f"{name} is set, but means nothing to pystreams{hint}",
                RuntimeWarning,
                stacklevel=3,
            )
    if os.environ.get("PYSTREAMS_EMULATE_MEMORY") and not _devices(
        "PYSTREAMS_EMULATE_CUDA", 0
    ):
        import warnings

        warnings.warn(
            "PYSTREAMS_EMULATE_MEMORY has no effect without "
            "PYSTREAMS_EMULATE_CUDA, the number of emulated devices",
            RuntimeWarning,
            stacklevel=3,
        )
