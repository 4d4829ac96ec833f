"""Green contexts, under the names of torch.cuda.green_contexts."""

from __future__ import annotations

from .. import _C
from .._arguments import integer
from .._C import Partition
from .._C import cuda_current_stream as _current_stream
from .._C import cuda_stream as _stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from typing_extensions import Self

    from .._C import CudaStream, StreamContext, _Device

__all__ = ["GreenContext"]

_CUDA = 1


def _count(num_sms: int) -> int:
    """Check num_sms and return it: an error raised by Partition would name
    Partition's parameter."""
    count = integer("GreenContext", "num_sms", num_sms)
    if count < 1:
        raise ValueError(
            "GreenContext() expects an int of at least 1 for num_sms, but got "
            f"{count}"
        )
    return count


def _refuse(options: dict[str, object], default: object = None) -> None:
    """Raise if an option that torch has does not have its default value."""
    for name, value in options.items():
        if value != default:
            raise NotImplementedError(
                "GreenContext supports num_sms and device_id, but not "
                f"{name}={value!r}"
            )


def _check_queues(scope: str | None, limit: int | None) -> None:
    """Raise for work queues other than those that all contexts share."""
    if scope not in (None, "device_ctx", "balanced"):
        raise ValueError(
            "workqueue_scope must be 'device_ctx' or 'balanced', got "
            f"{scope!r}"
        )
    if limit is not None and scope is None:
        raise RuntimeError(
            "workqueue_concurrency_limit requires workqueue_scope to be set"
        )
    _refuse(
        {
            "workqueue_scope": None if scope == "device_ctx" else scope,
            "workqueue_concurrency_limit": limit,
        }
    )


def _groups(*options: Any) -> Iterable[tuple[Any, ...]]:
    """Return the options of each group.  A sequence has one option per group;
    any other value holds for all groups."""
    lengths = {len(o) for o in options if hasattr(o, "__len__")} or {1}
    if len(lengths) > 1:
        raise ValueError("All sequence options must have the same length")
    count = lengths.pop()
    return zip(
        *(o if hasattr(o, "__len__") else [o] * count for o in options),
        strict=True,
    )


class GreenContext(Partition):
    """GreenContext(num_sms, device_id=None)

    A Partition of at least num_sms multiprocessors of a CUDA device, by
    default the current one.

    Unlike in torch, two contexts that exist at the same time share no
    multiprocessor.  Raises what Partition raises, ValueError for a device of
    another type, and NotImplementedError for torch's other arguments; with
    num_sms, workqueue_scope="device_ctx" is accepted, and changes nothing.
    """

    _entered: tuple[StreamContext, _C.Stream, _C.Stream] | None = None

    def __new__(
        cls,
        num_sms: int | None = None,
        device_id: _Device = None,
        *,
        sm_partition: None = None,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
        green_context_obj: None = None,
    ) -> Self:
        _check_queues(workqueue_scope, workqueue_concurrency_limit)
        _refuse(
            {
                "sm_partition": sm_partition,
                "green_context_obj": green_context_obj,
            }
        )
        if num_sms is None and workqueue_scope is not None:
            raise NotImplementedError(
                "GreenContext() needs num_sms: work queues without "
                "multiprocessors are not supported"
            )
        if num_sms is None:
            raise RuntimeError("GreenContext() needs num_sms")
        count = _count(num_sms)
        number = _C.device_index(_CUDA, device_id, False, "GreenContext")
        return super().__new__(cls, count, _C.device("cuda", number))

    @staticmethod
    def create(
        num_sms: int | None = None,
        device_id: _Device = None,
        *,
        sm_partition: None = None,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
    ) -> GreenContext:
        """Return GreenContext(num_sms, device_id)."""
        return GreenContext(
            num_sms,
            device_id,
            sm_partition=sm_partition,
            workqueue_scope=workqueue_scope,
            workqueue_concurrency_limit=workqueue_concurrency_limit,
        )

    @staticmethod
    def split(
        *,
        num_sms: int | Sequence[int] = 0,
        coscheduled_sm_count: int | Sequence[int] = 0,
        preferred_coscheduled_sm_count: int | Sequence[int] = 0,
        backfill: bool | Sequence[bool] = False,
        locality_domain_ids: int | Sequence[int | None] | None = None,
        workqueue_scope: str | None = None,
        workqueue_concurrency_limit: int | None = None,
        device_id: _Device = None,
    ) -> tuple[GreenContext, ...]:
        """Return a context for each number, all on one device.

        If one cannot be made, none is.  Raises ValueError for sequences of
        different lengths, NotImplementedError for the number 0, which means
        the largest context in torch, and for other arguments like
        GreenContext().
        """
        _check_queues(workqueue_scope, workqueue_concurrency_limit)
        numbers = []
        for number, scheduled, preferred, filled, domain in _groups(
            num_sms,
            coscheduled_sm_count,
            preferred_coscheduled_sm_count,
            backfill,
            locality_domain_ids,
        ):
            if number == 0:
                raise NotImplementedError(
                    "GreenContext.split() expects a number of multiprocessors "
                    "for num_sms: the largest one is not looked for"
                )
            _refuse({"locality_domain_ids": domain})
            _refuse(
                {
                    "coscheduled_sm_count": scheduled,
                    "preferred_coscheduled_sm_count": preferred,
                    "backfill": filled,
                },
                default=0,
            )
            numbers.append(number)
        contexts: list[GreenContext] = []
        try:
            for number in numbers:
                contexts.append(GreenContext(number, device_id))
        except BaseException:
            # The exception's traceback would keep the contexts alive.
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
        """Make a stream of the context and its device current in this thread.

        This stream waits for the stream that was current before.
        pop_context() undoes this.  Work that other libraries queue on the
        default stream does not run in the context.  Raises RuntimeError if the
        last call has not been undone.
        """
        if self._entered is not None:
            raise RuntimeError(
                "set_context called twice before pop_context; a context is "
                "current in one thread at a time"
            )
        previous, stream = _current_stream(), self.Stream()
        stream.wait_stream(previous)
        context = _stream(stream)
        # Allocate everything before the stream becomes current, so that
        # nothing can fail afterwards.
        self._entered = context, previous, stream
        try:
            context.__enter__()
        except BaseException:
            self._entered = None
            raise

    def pop_context(self) -> None:
        """Undo set_context(), in the thread that called it.

        The stream that becomes current again waits for the context's stream.
        Raises RuntimeError if set_context() was not called, or if another
        stream is current by now.
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
