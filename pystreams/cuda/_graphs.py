"""Captures and graphs with torch's names, words and errors.

Ending a capture, entering a `graph` block and leaving it are one C call each,
so that Ctrl-C cannot interrupt them halfway.
"""

from __future__ import annotations

import atexit
import gc
import os

# Not from weakref, because importing weakref takes half a millisecond.
from _weakref import ref
from itertools import count

from .. import _C
from .._C import CudaStream as Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from typing_extensions import Self

    from .._C import _StreamLike

    _Pool = tuple[int, int]
    _GraphHook = Callable[["Graph"], object]
    _Hooks = dict[int, tuple[int, Callable[..., object]]]

_CUDA = 1
# Indexed by enum ps_capture_mode.
_MODES = ("global", "thread_local", "relaxed")

_pools = count(1)


def graph_pool_handle() -> _Pool:
    """Return a new token, two ints, for a memory pool that graphs share."""
    return 0, next(_pools)


def is_current_stream_capturing() -> bool:
    """Return whether work on the current stream is captured, not executed.

    Initializes nothing.
    """
    return _C.is_initialized(_CUDA) and _C.cuda_current_stream().is_capturing()


def _mode(name: str, function: str = "capture_begin") -> int:
    if not isinstance(name, str):
        raise TypeError(
            f"{function}() expects a str for capture_error_mode, but got "
            f"{type(name).__name__}"
        )
    if name not in _MODES:
        raise RuntimeError(
            "Unknown capture error mode. Expected `global`, `thread_local`, "
            f"or `relaxed`, got {name}"
        )
    return _MODES.index(name)


def _keeps(keep_graph: object, function: str) -> bool:
    # torch accepts None and any int, too.
    if keep_graph is not None and not isinstance(keep_graph, int):
        raise TypeError(
            f"{function}() expects a bool for keep_graph, but got "
            f"{type(keep_graph).__name__}"
        )
    return bool(keep_graph)


def _pool(pool: _Pool | None, function: str = "capture_begin") -> _Pool:
    """Return the token; a new one for None and (0, 0), which mean no pool."""
    if pool is None or pool == (0, 0):
        return next(_pools), 0
    if isinstance(pool, tuple) and [type(n) for n in pool] == [int, int]:
        return pool
    raise TypeError(
        f"{function}() expects None or a token of graph_pool_handle() or "
        f"CUDAGraph.pool() for pool, but got {pool!r}"
    )


# ---- Hooks ----

# Hook numbers, in the order of registration, across all graphs.
_numbers = count(1)
# By kind, the hooks that were registered for all graphs.
_everywhere: dict[str, _Hooks] = {}


class Handle:
    """A registered hook, or an object that a graph retains.

    remove(), close() and the end of a with block stop the hook or drop the
    object.
    """

    __slots__ = ("__weakref__", "_remove", "id")
    id: int

    def __init__(self, number: int, remove: Callable[[], object]) -> None:
        self.id = number
        self._remove = remove

    def remove(self) -> None:
        """Stop the hook, or drop the object.  A second call does nothing.

        A call to the hook on another thread may still be running.
        """
        self._remove()

    close = remove

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


class _Retained:
    """A holder of an object that a graph retains."""

    __slots__ = ("__weakref__", "obj")

    def __init__(self, obj: object) -> None:
        self.obj = obj


def _register(
    function: str, name: str, hooks: _Hooks, hook: Callable[..., object]
) -> Handle:
    if not callable(hook):
        raise TypeError(
            f"{function}() expects a callable for {name}, but got "
            f"{type(hook).__name__}"
        )
    number = next(_numbers)
    # A forked child runs none of its parent's hooks.
    hooks[number] = (os.getpid(), hook)
    if _C.Graph._use_hooks():
        atexit.register(_at_exit)
    return Handle(number, lambda: hooks.pop(number, None))


def _ours(hooks: _Hooks) -> list[Callable[..., object]]:
    """Return this process's hooks, in the order of registration."""
    pid = os.getpid()
    return [hook for process, hook in hooks.copy().values() if process == pid]


def _own(graph: Graph, kind: str) -> list[Callable[..., object]]:
    hooks: _Hooks = graph.__dict__.get("_hooks", {}).get(kind, {})
    return _ours(hooks)


def _run_all(calls: list[Callable[..., object]], *arguments: object) -> None:
    """Call each function with the arguments, and log the exceptions."""
    for call in calls:
        try:
            call(*arguments)
        except Exception:
            from logging import getLogger

            getLogger("pystreams.graphs").exception(
                "exception in a hook of graphs"
            )


def _run(graph: Graph, kind: str) -> None:
    """Call hooks of one kind, first those for all graphs.  C code calls this.

    If a hook for all graphs raises, the exception is only logged: such a hook,
    a profiler's for example, must not make other code's calls fail.
    """
    if kind in ("capture_start", "post_instantiate"):
        graph.__dict__.pop("_destroyed", None)
    if kind == "post_instantiate":
        known = graph.__dict__.setdefault("_executables", set())
        # Another thread may have reset the graph.
        if executable := graph._executable():
            known.add(executable)
    _run_all(_ours(_everywhere.get(kind, {})), graph)
    for hook in _own(graph, kind):
        hook(graph)


def _resetting(graph: Graph) -> None:
    """Wait for the replays before a reset, if a destroy callback requires
    that."""
    if graph.__dict__.get("_patient"):
        graph._wait()


def _destroyed(graph: Graph, executable: int) -> None:
    """Call the destroy hooks after a reset; then call and drop the destroy
    callbacks."""
    graph.__dict__.pop("_patient", None)
    # The finalizer of a graph calls this.  If a callback then stores the
    # graph, it may be reset later.
    again = graph.__dict__.get("_destroyed") == executable
    graph.__dict__["_destroyed"] = executable
    executables = graph.__dict__.pop("_executables", set())
    own = _own(graph, "destroy")
    graph.__dict__.get("_hooks", {}).pop("destroy", None)
    if executable != 0:
        executables.add(executable)
    for hook in [] if again else _ours(_everywhere.get("destroy", {})):
        _run_all([hook], executables.copy())
    _run_all(own)


def _at_exit() -> None:
    """Run the destroy hooks of all graphs that exist.

    Hooks could not run later, when the interpreter is finalized and the graphs
    end.
    """
    gc.unfreeze()  # get_objects() leaves frozen ones out
    for found in gc.get_objects():
        # Not isinstance(), which asks a proxy for its __class__.
        if issubclass(type(found), _C.Graph):
            _C.Graph.__del__(found)
    # Drop these hooks, because a later exit function may drop a graph.
    _everywhere.pop("destroy", None)


def _register_everywhere(kind: str, fn: Callable[..., object]) -> Handle:
    function = f"register_graph_{kind.removeprefix('post_')}_hook"
    return _register(function, "fn", _everywhere.setdefault(kind, {}), fn)


def register_graph_capture_start_hook(fn: _GraphHook) -> Handle:
    """Call fn(graph) when any graph's capture has begun.

    Like CUDAGraph.register_capture_start_hook, but fn runs before a graph's
    own hooks.  An exception that fn raises is logged.
    """
    return _register_everywhere("capture_start", fn)


def register_graph_capture_end_hook(fn: _GraphHook) -> Handle:
    """Call fn(graph) when any graph's capture has ended.

    Like CUDAGraph.register_capture_end_hook; see
    register_graph_capture_start_hook().
    """
    return _register_everywhere("capture_end", fn)


def register_graph_instantiate_hook(fn: _GraphHook) -> Handle:
    """Call fn(graph) when any graph has been instantiated.

    Like CUDAGraph.register_post_instantiate_hook; see
    register_graph_capture_start_hook().
    """
    return _register_everywhere("post_instantiate", fn)


def register_graph_replay_start_hook(fn: _GraphHook) -> Handle:
    """Call fn(graph) before each replay of any graph is queued.

    Like CUDAGraph.register_replay_start_hook; see
    register_graph_capture_start_hook().
    """
    return _register_everywhere("replay_start", fn)


def register_graph_replay_end_hook(fn: _GraphHook) -> Handle:
    """Call fn(graph) after each replay of any graph is queued.

    Like CUDAGraph.register_replay_end_hook; see
    register_graph_capture_start_hook().
    """
    return _register_everywhere("replay_end", fn)


def register_graph_destroy_hook(
    fn: Callable[[set[int]], object],
) -> Handle:
    """Call fn(executables) when any graph is reset or destroyed, or the
    program ends.

    executables has the "exec_graph_id" of get_graph_data() for each
    instantiation since the capture.  Of the instantiations before the first
    hook (of any kind) was registered, it has only the latest.  Called before
    the graph's own callbacks.  An exception that fn raises is logged.
    """
    return _register_everywhere("destroy", fn)


def _check_path(function: str, path: object) -> None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{function}() expects a path (str, bytes or os.PathLike) for "
            f"path, but got {type(path).__name__}"
        )


def export_dot(
    path: str | os.PathLike[str], *, verbose: bool = True
) -> Callable[[Graph], None]:
    """Return a hook for register_capture_end_hook() that writes the graph to a
    file, as debug_dump() does."""
    _check_path("export_dot", path)

    def dump(graph: Graph) -> None:
        graph.debug_dump(path, verbose=verbose)

    return dump


def export_graph_data(
    path: str | os.PathLike[str],
) -> Callable[[Graph], None]:
    """Return a hook for register_post_instantiate_hook() that pickles the
    result of get_graph_data() into a file."""
    _check_path("export_graph_data", path)

    def dump(graph: Graph) -> None:
        from pickle import dumps

        data = dumps(graph.get_graph_data())
        with open(path, "wb") as file:
            file.write(data)

    return dump


_LABELS = ("kernel_name", "host_fn_name")


def _dot(nodes: list[dict[str, Any]]) -> str:
    """Return the graph in Graphviz' language, a word or two for each node."""
    lines = ["digraph {", "  node [shape=box];"]
    for node in nodes:
        names = [node["node_type"], *filter(None, map(node.get, _LABELS))]
        label = "\\n".join(n.replace("\\", "\\\\") for n in names)
        label = label.replace('"', "'")
        lines.append(f'  {node["index"]} [label="{label}"];')
        lines += [f"  {node['index']} -> {i};" for i in node["dependents"]]
    return "\n".join([*lines, "}", ""])


class Graph(_C.Graph):
    """A CUDAGraph for any device type."""

    def _hooks_of(self, kind: str) -> _Hooks:
        kinds: dict[str, _Hooks] = self.__dict__.setdefault("_hooks", {})
        return kinds.setdefault(kind, {})

    def _register(self, kind: str, hook: _GraphHook) -> Handle:
        function = f"register_{kind}_hook"
        return _register(function, "hook", self._hooks_of(kind), hook)

    def register_capture_start_hook(self, hook: _GraphHook) -> Handle:
        """Call hook(graph) when a capture has begun.

        Work that the hook queues on the captured stream is captured.  If the
        hook raises, the capture is dropped, and capture_begin() raises its
        exception.

        Hooks run once for each such call, on its thread: first those for all
        graphs, then the graph's own, both in the order of registration.  A
        forked child runs none of its parent's hooks.  If one of the graph's
        own hooks raises, no other hook runs after it.  Returns a handle, whose
        remove() stops the hook.
        """
        return self._register("capture_start", hook)

    def register_capture_end_hook(self, hook: _GraphHook) -> Handle:
        """Call hook(graph) when a capture has ended.

        raw_cuda_graph(), debug_dump() and get_graph_data() work in the hook,
        whatever keep_graph is.  If the hook raises, so does capture_end(), but
        the graph can be replayed.  See register_capture_start_hook().
        """
        return self._register("capture_end", hook)

    def register_post_instantiate_hook(self, hook: _GraphHook) -> Handle:
        """Call hook(graph) after each instantiation.

        The hook can inspect the graph, as a capture-end hook can.  If the hook
        raises, so does the call that instantiated the graph: capture_end(),
        instantiate(), upload() or update(), which have taken effect then, or
        replay(), which then queues nothing.  See
        register_capture_start_hook().
        """
        return self._register("post_instantiate", hook)

    def register_replay_start_hook(self, hook: _GraphHook) -> Handle:
        """Call hook(graph) before each replay is queued.

        If the hook raises, so does replay(), which then queues nothing.  See
        register_capture_start_hook().
        """
        return self._register("replay_start", hook)

    def register_replay_end_hook(self, hook: _GraphHook) -> Handle:
        """Call hook(graph) after each attempt to queue a replay.

        The replayed work may still be running.  If the hook raises, so does
        replay(), but the replay stays queued.  See
        register_capture_start_hook().
        """
        return self._register("replay_end", hook)

    def register_destroy_callback(
        self,
        cb: Callable[[], object],
        *,
        synchronize_before_release: bool = False,
    ) -> Handle:
        """Call cb() once, when the graph is reset or destroyed.

        If synchronize_before_release is true, the graph waits for its replays
        first.  An exception that cb raises is logged, and the other callbacks
        still run.  If reset() raises before it has reset the graph, cb is not
        called.  If the graph still exists when the program ends, cb is called
        like an atexit function.
        """
        hooks = self._hooks_of("destroy")
        handle = _register("register_destroy_callback", "cb", hooks, cb)
        if synchronize_before_release:
            self.__dict__["_patient"] = True
        return handle

    def retain_object(
        self, obj: object, *, synchronize_before_release: bool = False
    ) -> Handle:
        """Keep obj until the graph is reset or destroyed and its replays are
        done.

        The garbage collector does not see this reference: if obj refers to the
        graph, both live until reset() or remove() is called.

        Never waits, so synchronize_before_release changes nothing.  Returns a
        handle, whose remove() releases obj at once.
        """
        kept = _Retained(obj)
        self._keep(kept)
        # A weak reference, so that only the graph keeps the holder alive.
        found = ref(kept)

        def remove() -> None:
            if (retained := found()) is not None:
                retained.obj = None

        return Handle(next(_numbers), remove)

    def pools(self) -> list[_Pool]:
        """Return a list of pool() alone: a graph has one memory pool."""
        return [self.pool()]

    def debug_dump(
        self, debug_path: str | os.PathLike[str], *, verbose: bool = True
    ) -> None:
        """Write the graph to a file, in Graphviz' language
        (cudaGraphDebugDotPrint).

        If verbose is true, the file has sizes and addresses.  Warns, and does
        nothing, unless debug mode was enabled, keep_graph is True or a
        capture-end or post-instantiate hook calls this.  May block.  Raises
        OSError if the file cannot be written, NotImplementedError if the
        backend cannot do it.
        """
        if verbose or self._state()[1] == 0:
            super().debug_dump(debug_path)
            return
        text = _dot(self.get_graph_data()["nodes"])
        with open(debug_path, "w", encoding="utf-8") as file:
            file.write(text)

    def get_graph_data(self) -> dict[str, Any]:
        """Return the nodes of the graph and the edges between them.

        The result has "exec_graph_id", the number of the executable or 0,
        "nodes", in an order in which they may run, and "edges".  Nodes are
        dicts with "index", "node_id", "graph_id" (exec_graph_id), "tools_id"
        (graph_id << 32 | node_id), "node_type" ("kernel", "memcpy", "memset",
        "host", "event_record", "wait_event", "child_graph", "empty",
        "mem_alloc", "mem_free", "batch_mem_op", "conditional" or "other"),
        "kernel_name", "grid_dim", "block_dim" and "shared_mem_bytes", the
        dynamic shared memory (for kernels, if known; otherwise None),
        "event_ptr", "host_fn_addr", "host_fn_name" (for a callable, its own
        name), "nbytes", and "dependencies" and "dependents", lists of indices.
        Edges are dicts with "from" and "to", the indices of nodes, and
        "from_port", "to_port" and "type", those of cudaGraphEdgeData.

        A driver for CUDA 13.1 or later gives exec_graph_id and node_id, so
        that tools_id is the one that CUPTI reports.  Otherwise exec_graph_id
        is raw_cuda_graph_exec(), and node_id is the index.

        Raises RuntimeError unless keep_graph is True, debug mode was enabled
        or a capture-end or post-instantiate hook calls this,
        NotImplementedError if the backend cannot describe a graph.  May block.
        """
        nodes, edges = self._nodes()
        executable = self._executable()
        found: list[dict[str, Any]] = []
        for (
            kind,
            number,
            kernel,
            grid,
            block,
            shared,
            function,
            name,
            event,
            nbytes,
        ) in nodes:
            node = {
                "index": len(found),
                "node_type": kind,
                "tools_id": executable << 32 | number,
                "graph_id": executable,
                "node_id": number,
                "kernel_name": kernel,
                "grid_dim": grid,
                "block_dim": block,
                "shared_mem_bytes": shared,
                "event_ptr": event,
                "host_fn_addr": function,
                "host_fn_name": name,
                "nbytes": nbytes,
                "dependencies": [],
                "dependents": [],
            }
            found.append(node)
        for start, end, *_ in edges:
            found[start]["dependents"].append(end)
            found[end]["dependencies"].append(start)
        keys = ("from", "to", "from_port", "to_port", "type")
        return {
            "exec_graph_id": executable,
            "nodes": found,
            "edges": [dict(zip(keys, edge, strict=True)) for edge in edges],
        }

    def capture_begin(
        self,
        pool: _Pool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture the current stream (cudaStreamBeginCapture).

        Until capture_end(), the stream's work is captured and not executed.  A
        stream that waits for an event recorded in the capture joins it.
        capture_error_mode says which threads must not make calls that are
        unsafe during a capture: 'global' (all), 'thread_local' (this one) or
        'relaxed' (none).  pool is a token of graph_pool_handle() or pool(); it
        has no effect, as there is no caching allocator and each graph keeps
        the Buffers that its work uses.  So nothing is left for
        check_input_liveness to find.

        Raises RuntimeError if the current stream is a default stream, if there
        is a captured graph already, and for any other mode.
        """
        self._begin(_mode(capture_error_mode), _pool(pool))

    def pool(self) -> _Pool:
        """Return the token of the memory pool, for another capture_begin().

        Raises RuntimeError if nothing was captured.
        """
        _, handle, executable, pool = self._state()
        if handle == executable == 0:
            raise RuntimeError(
                "Called CUDAGraph::pool() without a preceding successful "
                "capture."
            )
        return pool

    def raw_cuda_graph(self) -> int:
        """Return the cudaGraph_t as an int.

        Only replay() may launch a graph that has callables.  A captured copy
        of pageable memory has callables, too.  Raises RuntimeError unless
        keep_graph is True and capture_end() was called, or a capture-end or
        post-instantiate hook calls this.
        """
        keeps, handle, *_ = self._state()
        if handle == 0 and not keeps:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless "
                "CUDAGraph was initialized with keep_graph=true"
            )
        if handle == 0:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance until "
                "capture_end() has been called"
            )
        return handle

    def raw_cuda_graph_exec(self) -> int:
        """Return the cudaGraphExec_t as an int.

        It is valid until instantiate() or reset().  Only replay() may launch a
        graph that has callables.  A captured copy of pageable memory has
        callables, too.  Raises RuntimeError if the graph is not instantiated.
        """
        _, _, handle, _ = self._state()
        if handle == 0:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until "
                "instantiate() has been called"
            )
        return handle


class CUDAGraph(Graph):
    """Work that is captured once and replayed as a whole.

    It keeps the Buffers and the external events that its work uses until it is
    reset or destroyed.  With keep_graph, the cudaGraph_t is kept for
    raw_cuda_graph(), and instantiate() makes the graph ready to replay.

    Raises RuntimeError if there is no device, NotImplementedError if the
    backend has no graphs.  Safe to use from several threads.
    """

    __module__ = "pystreams.cuda"

    def __new__(cls, keep_graph: bool = False) -> Self:
        return super().__new__(cls, _CUDA, _keeps(keep_graph, "CUDAGraph"))


class graph(_C.GraphContext):
    """Capture the current stream's work within a with block.

    Entering the block waits until all work on the current device is done.  In
    the block, the given stream is current, or a new one if none is given.
    pool, capture_error_mode and check_input_liveness are those of
    CUDAGraph.capture_begin.  However the block ends, the capture ends, the
    streams that joined it are usable again, and the stream that was current
    before is current again.  If the block and the end of the capture both
    raise, the block's exception is propagated.
    """

    __module__ = "pystreams.cuda"

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: _Pool | None = None,
        stream: _StreamLike | None = None,
        capture_error_mode: str = "global",
        *,
        check_input_liveness: bool = False,
    ) -> None:
        for method in ("capture_begin", "capture_end", "reset"):
            if not callable(getattr(cuda_graph, method, None)):
                raise TypeError(
                    "graph() expects a CUDAGraph for cuda_graph, but got "
                    f"{type(cuda_graph).__name__}"
                )
        self.capture_stream: _C.Stream = (
            Stream() if stream is None else _C.as_stream("graph", stream)
        )
        if self.capture_stream.device_type != _CUDA:
            raise ValueError(
                "graph() expects a stream of a CUDA device for stream, but "
                f"got one of {self.capture_stream.device}"
            )
        super().__init__(self.capture_stream)
        self.cuda_graph = cuda_graph
        self._captured = True
        self.pool = pool
        self.capture_error_mode = capture_error_mode

    def _begin(self) -> None:
        begin = self.cuda_graph.capture_begin
        self._captured = self.capture_stream.is_capturing()
        # Look this up now, so that __exit__ cannot fail before the call.
        self._end = self.cuda_graph.capture_end
        begin(self.pool, self.capture_error_mode)

    def _cancel(self) -> None:
        """Drop the capture that _begin() has begun into another library's
        graph, which cannot be asked."""
        if not self._captured and self.capture_stream.is_capturing():
            self.cuda_graph.reset()

    @property
    def stream_ctx(self) -> _C.StreamContext:
        """The context manager that makes the stream current: this object."""
        return self
