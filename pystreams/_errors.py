"""The errors that an error came from."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def related(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, and its causes, contexts and parts, each once."""
    errors = [error]
    seen: set[int] = set()
    while errors:
        error = errors.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        errors += [error.__cause__, error.__context__]
        errors += getattr(error, "exceptions", ())
