"""CUDA devices, streams and events under torch.cuda's names.

The devices are GPUs, or the CPU engine's if is_emulated() is true.  A device
argument is an int, a str, a pystreams.device or a cuda.device; None
and a negative int mean the calling thread's current device.
"""

from __future__ import annotations

from .. import _C
from .._C import (
    AcceleratorError,
    OutOfMemoryError,
    StreamContext,
    get_stream_from_external,
)
from .._C import CudaDevice as device
from .._C import CudaEvent as Event
from .._C import CudaExternalStream as ExternalStream
from .._C import CudaStream as Stream
from .._C import cuda_current_stream as current_stream
from .._C import cuda_default_stream as default_stream
from .._C import cuda_stream as stream
from .._C import set_stream as _set_stream
from . import graphs as graphs
from . import green_contexts as green_contexts
from ._graphs import (
    CUDAGraph,
    export_dot,
    export_graph_data,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
)
from .green_contexts import GreenContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    import uuid
    from typing import Any

    from .._C import _Device, _StreamLike

__all__ = [
    "AcceleratorError",
    "CUDAGraph",
    "CudaError",
    "Event",
    "ExternalStream",
    "GreenContext",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "check_error",
    "cudaStatus",
    "cudart",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "export_dot",
    "export_graph_data",
    "get_device_attributes",
    "get_device_capability",
    "get_device_name",
    "get_device_pci_bus_id",
    "get_device_properties",
    "get_stream_from_external",
    "graph",
    "graph_pool_handle",
    "host_memory_stats",
    "init",
    "ipc_collect",
    "is_available",
    "is_current_stream_capturing",
    "is_emulated",
    "is_initialized",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_peer_access",
    "set_pool_threshold",
    "set_stream",
    "stream",
    "synchronize",
    "trim_pool",
]

_CUDA = 1


def device_count() -> int:
    """Return how many devices there are; 0 if CUDA can't be used.

    Follows CUDA_VISIBLE_DEVICES until a device is used.  Never raises and
    initializes nothing, so it is safe before a fork.
    """
    return _C.device_count(_CUDA)


def is_available() -> bool:
    """Return whether there is a device to use.

    Never raises and initializes nothing, so it is safe before a fork.
    """
    return _C.device_count(_CUDA) > 0


def is_emulated() -> bool:
    """Return whether the CPU engine serves these devices."""
    return _C.is_emulated(_CUDA)


def is_initialized() -> bool:
    """Return whether this process has used a device."""
    return _C.is_initialized(_CUDA)


def init() -> None:
    """Initialize the devices now, not at their first use.

    May block.  Raises RuntimeError if there is none to use, and in a forked
    child of a process that used one.
    """
    _C.initialize(_CUDA)


def current_device() -> int:
    """Return the index of the calling thread's current device."""
    return _C.current_device(_CUDA)


def set_device(device: _Device) -> None:
    """Make a device the calling thread's current one.

    A negative index does nothing.  May block.  Raises ValueError if the
    argument names no index, AcceleratorError if it is out of range.
    """
    if not (isinstance(device, int) and device < 0):
        _C.set_device(
            _CUDA, _C.device_index(_CUDA, device, True, "set_device")
        )


def synchronize(device: _Device = None, timeout: float | None = None) -> None:
    """Wait until all work queued on a device so far is done.

    Releases the GIL, and blocks for timeout seconds at most.  After that time,
    it raises TimeoutError, but the work goes on.  Ctrl-C ends a wait with a
    timeout.  Raises AcceleratorError if any of the work failed.
    """
    _C.synchronize(_CUDA, device, timeout)


class device_of(device):
    """Make the device of an object current within a with block.

    The object has get_device(), as torch's tensors do, or a device attribute,
    as buffers, streams and CuPy's arrays do.  If it is not on a CUDA device,
    the current device is unchanged.
    """

    __slots__ = ()

    def __init__(self, obj: object) -> None:
        place: Any
        if not getattr(obj, "is_cuda", True):
            place = -1
        elif hasattr(obj, "get_device"):
            place = obj.get_device()
        else:
            place = getattr(obj, "device", None)
            if hasattr(place, "type") and hasattr(place, "index"):
                place = place.index if place.type == "cuda" else -1
            else:
                place = getattr(place, "id", -1)
        super().__init__(place)


def set_stream(stream: _StreamLike | None) -> None:
    """Make a stream current on its device, and its device current.

    Applies to the calling thread or, within an asyncio task, to that task
    only.  If stream is None, does nothing.
    """
    if stream is not None:
        _set_stream(_C.as_stream("set_stream", stream, _CUDA))


# torch's property names, and the attributes that have their values.
_ATTRIBUTES = {
    "is_integrated": "Integrated",
    "is_multi_gpu_board": "IsMultiGpuBoard",
    "max_threads_per_block": "MaxThreadsPerBlock",
    "max_threads_per_multi_processor": "MaxThreadsPerMultiProcessor",
    "regs_per_multiprocessor": "MaxRegistersPerMultiprocessor",
    "shared_memory_per_block": "MaxSharedMemoryPerBlock",
    "shared_memory_per_block_optin": "MaxSharedMemoryPerBlockOptin",
    "shared_memory_per_multiprocessor": "MaxSharedMemoryPerMultiprocessor",
    "clock_rate": "ClockRate",
    "memory_clock_rate": "MemoryClockRate",
    "memory_bus_width": "GlobalMemoryBusWidth",
    "pci_bus_id": "PciBusId",
    "pci_device_id": "PciDeviceId",
    "pci_domain_id": "PciDomainId",
}


class _CudaDeviceProperties:
    """The properties of a device; sizes are in bytes, rates in kHz.

    A property that a device does not report is 0.
    """

    __slots__ = (
        "L2_cache_size",
        "gcnArchName",
        "major",
        "minor",
        "multi_processor_count",
        "name",
        "total_memory",
        "uuid",
        "warp_size",
        *_ATTRIBUTES,
    )
    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int
    L2_cache_size: int
    uuid: uuid.UUID
    # As in torch: the name of the device if its architecture has no name.
    gcnArchName: str
    is_integrated: int
    is_multi_gpu_board: int
    max_threads_per_block: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    pci_bus_id: int
    pci_device_id: int
    pci_domain_id: int

    def __init__(
        self, properties: _C._DeviceProperties, attributes: dict[str, int]
    ) -> None:
        from uuid import UUID

        self.name = self.gcnArchName = properties["name"]
        self.major = properties["major"]
        self.minor = properties["minor"]
        self.total_memory = properties["total_memory"]
        self.multi_processor_count = properties["multi_processor_count"]
        self.warp_size = properties["warp_size"]
        self.L2_cache_size = properties["l2_cache_size"]
        self.uuid = UUID(bytes=properties["uuid"])
        for name, attribute in _ATTRIBUTES.items():
            setattr(self, name, attributes.get(attribute, 0))

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _CudaDeviceProperties):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, "
            f"minor={self.minor}, total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, "
            f"pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, "
            f"L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def get_device_properties(device: _Device = None) -> _CudaDeviceProperties:
    """Return a device's name, capability, memory and other properties.

    The results of two calls are equal if all their values are equal.
    """
    name = "get_device_properties"
    return _CudaDeviceProperties(
        _C.device_properties(_CUDA, device, name),
        _C.device_attributes(_CUDA, device, name),
    )


def get_device_attributes(device: _Device = None) -> dict[str, int]:
    """Return a device's attributes, such as "MaxThreadsPerBlock", by name.

    The names are those of CUDA's cudaDeviceAttr without their prefix, as in
    CuPy's Device.attributes.  Attributes that the device lacks are left out.
    """
    return _C.device_attributes(_CUDA, device, "get_device_attributes")


def get_device_pci_bus_id(device: _Device = None) -> str:
    """Return a device's address on the PCI bus, such as "0000:3B:00.0".

    Each emulated device has its own address, at which there is no hardware.
    """
    found = _C.device_attributes(_CUDA, device, "get_device_pci_bus_id")
    domain = found.get("PciDomainId", 0)
    bus, place = found.get("PciBusId", 0), found.get("PciDeviceId", 0)
    return f"{domain:04X}:{bus:02X}:{place:02X}.0"


def get_device_name(device: _Device = None) -> str:
    """Return a device's name."""
    return _C.device_properties(_CUDA, device, "get_device_name")["name"]


def get_device_capability(device: _Device = None) -> tuple[int, int]:
    """Return a device's compute capability, (major, minor)."""
    properties = _C.device_properties(_CUDA, device, "get_device_capability")
    return properties["major"], properties["minor"]


def can_device_access_peer(device: _Device, peer_device: _Device) -> bool:
    """Return whether a device can access another's memory directly."""
    return _C.can_device_access_peer(_CUDA, device, peer_device)


def set_peer_access(
    device: _Device, peer_device: _Device, enabled: bool
) -> None:
    """Allow a device's work to use another device's Buffers, or forbid it.

    If this is not called, the first copy between the two devices gives access
    where can_device_access_peer() is true (cudaMemPoolSetAccess).  Call this
    before a library's kernel reads Buffers of another device.  Synchronize
    before taking access away: work that still uses the memory fails.
    Afterwards, copies go through the host.  Access to Buffers with
    interprocess=True is not taken away.  On emulated devices, this changes
    nothing.  May block.

    Raises ValueError if the devices are the same, AcceleratorError if they
    have no access to each other.
    """
    if not isinstance(enabled, int):
        raise TypeError(
            "set_peer_access() expects a bool for enabled, but got "
            f"{type(enabled).__name__}"
        )
    _C.set_peer_access(_CUDA, device, peer_device, enabled)


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Return a device's memory, (free, total) in bytes.

    Free is the memory that this program can still allocate: the driver's free
    memory plus the memory of freed Buffers that is kept for reuse.
    PYSTREAMS_EMULATE_MEMORY, such as "4GiB", sets the memory of an emulated
    device; by default, it is an equal share of half of the machine's memory.
    """
    return _C.mem_get_info(_CUDA, device)


def memory_stats(device: _Device = None) -> dict[str, int]:
    """Return the counts of Buffer memory on a device.

    allocation.all.* count buffers and allocated_bytes.all.* their bytes.
    .current is the present count, .peak is the greatest one, and .allocated
    and .freed are totals since the start.  reserved_bytes.all.current and
    .peak count the bytes that the device's pool holds from the driver: those
    of buffers, and freed memory that is kept for reuse.  The result is empty
    if no device has been used yet.  Initializes nothing.
    """
    return _stats("memory_stats", device)


def _stats(function: str, device: _Device) -> dict[str, int]:
    if not is_initialized():
        return {}
    return _C.memory_stats(_CUDA, device, function)


def memory_allocated(device: _Device = None) -> int:
    """Return the bytes that buffers hold on a device.

    Initializes nothing.
    """
    stats = _stats("memory_allocated", device)
    return stats.get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: _Device = None) -> int:
    """Return the peak number of bytes that buffers held on a device.

    The peak is since the start or the last reset_peak_memory_stats().
    Initializes nothing.
    """
    stats = _stats("max_memory_allocated", device)
    return stats.get("allocated_bytes.all.peak", 0)


def memory_reserved(device: _Device = None) -> int:
    """Return the bytes that the device's pool holds from the driver.

    These are the bytes of buffers plus freed memory that is kept for reuse.
    Initializes nothing.
    """
    stats = _stats("memory_reserved", device)
    return stats.get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: _Device = None) -> int:
    """Return the peak number of bytes that the device's pool held.

    The peak is since the start or the last reset_peak_memory_stats().
    Initializes nothing.
    """
    stats = _stats("max_memory_reserved", device)
    return stats.get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Reset the peaks of memory_stats() to the present values."""
    _C.reset_peak_memory_stats(_CUDA, device)


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Reset .allocated and .freed of memory_stats() to 0."""
    _C.reset_accumulated_memory_stats(_CUDA, device)


def empty_cache() -> None:
    """Release the unused memory of all pools to the driver.

    Other programs and libraries can then use it.  Pools keep memory that
    queued work still uses.  If a GPU's work does not end within a millisecond,
    its pool may also keep memory freed since the last synchronize().  Does
    nothing if no device has been used.  May block.
    """
    if is_initialized():
        _C.empty_cache(_CUDA)


def trim_pool(nbytes: int = 0, device: _Device = None) -> None:
    """Release freed memory to the driver until a pool holds at most nbytes.

    This is like empty_cache() for one device, but memory_reserved() does not
    fall below nbytes (cudaMemPoolTrimTo).  May block.
    """
    _C.trim_pool(_CUDA, nbytes, device)


def set_pool_threshold(nbytes: int | None, device: _Device = None) -> None:
    """Let a pool keep freed memory only while it holds at most nbytes.

    If the pool holds more than nbytes, it releases freed memory to the driver.
    On a GPU, it does so at the next call that waits for work to finish
    (cudaMemPoolAttrReleaseThreshold).  None or 2**64 - 1, the initial value,
    keeps everything.  May block.
    """
    _C.set_pool_threshold(_CUDA, nbytes, device)


def host_memory_stats() -> dict[str, int]:
    """Return the counts of pinned memory.

    allocations.* count pinned buffers and allocated_bytes.* their bytes.
    reserved_bytes.* also count the bytes of freed buffers that are kept for
    reuse.  .current is the present count, .peak is the greatest one, and
    .allocated and .freed are totals since the start.  The result is empty if
    no device has been used yet; initializes nothing.
    """
    return _C.host_memory_stats(_CUDA) if is_initialized() else {}


def reset_peak_host_memory_stats() -> None:
    """Reset the peaks of host_memory_stats() to the present values."""
    _C.reset_peak_host_memory_stats(_CUDA)


def reset_accumulated_host_memory_stats() -> None:
    """Reset .allocated and .freed of host_memory_stats() to 0."""
    _C.reset_accumulated_host_memory_stats(_CUDA)


def ipc_collect() -> None:
    """Do nothing: a Buffer of another process is freed like any other."""


def _sleep(cycles: int) -> None:
    """Queue a sleep of `cycles` clock cycles on the current stream.

    On an emulated device, a cycle is one nanosecond.
    """
    _C.sleep(_CUDA, cycles)


class cudaStatus:
    """torch's names for two cudaError_t values, with torch's numbers.

    ERROR_NOT_READY is an old number: the runtime returns 600 today.
    """

    SUCCESS = 0
    ERROR_NOT_READY = 34


class _cudart:
    """The few CUDA runtime functions that cudart() offers.

    Those that return an int return a cudaError_t; 0 is success.
    """

    class cudaError(int):
        """A cudaError_t, made from its number."""

        success = 0

    @staticmethod
    def cudaGetErrorString(error: int) -> str:
        """Return the runtime's description of an error."""
        return _C.status_text(_CUDA, error)

    @staticmethod
    def cudaStreamCreate(ptr: int) -> int:
        """Create a blocking stream on the current device, and write its
        handle to ptr.

        If ptr is 0, return cudaErrorInvalidValue and create none.
        """
        import ctypes

        if ptr == 0:
            return 1
        place = ctypes.c_void_p.from_address(ptr)
        status, handle = _C.raw_stream_create(_CUDA, None, True)
        if status == 0:
            place.value = handle
        return status

    @staticmethod
    def cudaStreamDestroy(stream: int) -> int:
        """Destroy a stream that cudaStreamCreate created."""
        return _C.raw_stream_destroy(_CUDA, stream)

    @staticmethod
    def cudaMemGetInfo(device: int) -> tuple[int, int]:
        """Return a device's memory, (free, total) in bytes."""
        return _C.mem_get_info(_CUDA, device)


def cudart() -> type[_cudart]:
    """Initialize the devices; return CUDA runtime functions."""
    init()
    return _cudart


class CudaError(RuntimeError):
    """The exception that check_error() raises for a cudaError_t."""

    def __init__(self, code: int) -> None:
        text = _cudart.cudaGetErrorString(code)
        super().__init__(f"{text} ({code})")


def check_error(res: int) -> None:
    """Raise CudaError unless a cudaError_t is success."""
    if not hasattr(res, "__index__"):
        raise TypeError(
            "check_error() expects an int for res, but got "
            f"{type(res).__name__}"
        )
    if res != _cudart.cudaError.success:
        raise CudaError(res)
