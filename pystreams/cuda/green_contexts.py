"""Green contexts, under the names of torch.cuda.green_contexts."""

from __future__ import annotations

from operator import index

from .. import _C
from .._C import Partition
from .._C import cuda_current_stream as _current_stream
from .._C import cuda_stream as _stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from .._C import CudaStream, StreamContext, _Device

__all__ = ["GreenContext"]

_CUDA = 1


def _count(num_sms: int) -> int:
    """Return the number; the errors of Partition would name its parameter."""
    try:
        count = index(num_sms)
    except TypeError:
        raise TypeError(
            "GreenContext() expects an int for num_sms, but got "
            f"{type(num_sms).__name__}"
        ) from None
    if count < 1:
        raise ValueError(
            "GreenContext() expects an int of at least 1 for num_sms, but got "
            f"{count}"
        )
    return count


class GreenContext(Partition):
    """GreenContext(num_sms, device_id=None)

    A Partition of at least num_sms multiprocessors of a CUDA device, by
    default the current one.

    Unlike torch's, two that live at the same time share no multiprocessor.
    Raises what Partition raises, and ValueError for a device of another type.
    """

    _entered: tuple[StreamContext, _C.Stream, _C.Stream] | None = None

    def __new__(cls, num_sms: int, device_id: _Device = None) -> Self:
        count = _count(num_sms)
        number = _C.device_index(_CUDA, device_id, False, "GreenContext")
        return super().__new__(cls, count, _C.device("cuda", number))

    @staticmethod
    def create(num_sms: int, device_id: _Device = None) -> GreenContext:
        """Return GreenContext(num_sms, device_id)."""
        return GreenContext(num_sms, device_id)

    @staticmethod
    def split(
        *, num_sms: int | Sequence[int], device_id: _Device = None
    ) -> tuple[GreenContext, ...]:
        """Return a context for each number, all of one device.

        If one cannot be made, none is.
        """
        numbers = [num_sms] if isinstance(num_sms, int) else num_sms
        contexts: list[GreenContext] = []
        try:
            for number in numbers:
                contexts.append(GreenContext(number, device_id))
        except BaseException:
            # The exception's traceback would keep them.
            contexts.clear()
            raise
        return tuple(contexts)

    @property
    def device_id(self) -> int:
        """The index of the device."""
        index = self.device.index
        assert index is not None
        return index

    @property
    def sm_count(self) -> int:
        """The number of multiprocessors that the context has."""
        return self.count

    if TYPE_CHECKING:

        def Stream(
            self, priority: int = 0, *, name: str | None = None
        ) -> CudaStream: ...

    def set_context(self) -> None:
        """Make a stream of the context, and its device, the thread's current.

        The stream waits for the one that was current.  pop_context() undoes
        this.  Work that other libraries queue on the default stream does not
        run in the context.  Raises RuntimeError if the last call was not
        undone.
        """
        if self._entered is not None:
            raise RuntimeError(
                "set_context called twice before pop_context; a context is "
                "current in one thread at a time"
            )
        previous, stream = _current_stream(), self.Stream()
        stream.wait_stream(previous)
        context = _stream(stream)
        # Nothing that takes memory comes after the stream is current.
        self._entered = context, previous, stream
        try:
            context.__enter__()
        except BaseException:
            self._entered = None
            raise

    def pop_context(self) -> None:
        """Undo set_context(), in the thread that called it.

        The stream that is current again waits for the context's.  Raises
        RuntimeError if set_context() was not called, or if another stream is
        current by now.
        """
        if self._entered is None:
            raise RuntimeError(
                "pop_context called without matching set_context"
            )
        context, previous, stream = self._entered
        if _current_stream() != stream:
            raise RuntimeError(
                "pop_context expects the context's stream to be the current "
                f"one, {stream!r}, but that is {_current_stream()!r}"
            )
        previous.wait_stream(stream)
        context.__exit__(None, None, None)
        self._entered = None
