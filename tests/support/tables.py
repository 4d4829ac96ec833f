"""Backend tables, made with ctypes from what backend.h says.  They are only
for registration; their functions must not be called."""

import ctypes
import re
from pathlib import Path

from producers import new

import pystreams

NAME = b"pystreams.backend"
TEXT = (Path(pystreams.get_include()) / "pystreams/backend.h").read_text()
MEMBERS = re.findall(
    r"\(\*(\w+)\)\(", TEXT[TEXT.index("struct ps_backend {") :]
)
OPTIONAL = {
    "device_restore",
    "stream_wait_room",
    "stream_device",
    "event_elapsed",
    "peer_accessible",
    "peer_access",
    "thread_stream",
    "executable_number",
    "memory_device",
    "host_function",
    "sleep",
    "stream_capturing",
    "capture_mode_exchange",
    "graph_print",
    "graph_nodes",
    "graph_upload",
    "graph_instantiate_with",
    "graph_update",
    "capture_graph",
    "versions",
    "shutdown",
    "memory_fill_items",
    "device_attribute",
    "stream_explain",
}
MEMORY = [
    "memory_allocate",
    "memory_free",
    "pinned_allocate",
    "pinned_free",
    "memory_copy",
    "memory_fill",
    "memory_info",
]
NOTIFICATIONS = ["stream_notify", "event_notify", "notify_cancel"]
GATES = ["stream_gate", "gate_open"]
IPC = ["event_export", "event_open"]
SHARED = ["shared_allocate", "shared_open", "shared_free"]
GRAPHS = [
    "capture_begin",
    "capture_end",
    "event_record_external",
    "stream_wait_external",
    "graph_instantiate",
    "graph_launch",
    "executable_destroy",
    "graph_destroy",
]
GRAPH_GATES = ["stream_capture", "capture_gate"]
POOLS = ["pool_usage", "pool_reset_peak", "pool_trim", "pool_set_threshold"]
TIMES = ["time_now", "operation_times"]
ACTIVITIES = [
    "activities_begin",
    "activities_flush",
    "activities_end",
    "stream_number",
]
PINNING = ["host_register", "host_unregister"]
PARTITIONS = [
    "partition_create",
    "partition_destroy",
    "partition_stream_create",
]
BLOCKING = ["blocking_create", "stream_blocking"]
GROUPS = {
    "memory": MEMORY,
    "notifications": NOTIFICATIONS,
    "gates": GATES,
    "interprocess events": IPC,
    "interprocess memory": SHARED,
    "graphs": GRAPHS,
    "gates in graphs": GRAPH_GATES,
    "pools": POOLS,
    "pinning": PINNING,
    "times of operations": TIMES,
    "partitions": PARTITIONS,
    "blocking streams": BLOCKING,
    "activities": ACTIVITIES,
}
REQUIRED = [m for m in MEMBERS if m not in OPTIONAL.union(*GROUPS.values())]


class Table(ctypes.Structure):
    """struct ps_backend."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("device_type", ctypes.c_int),
        *((member, ctypes.c_void_p) for member in MEMBERS),
    )


SIZE = ctypes.sizeof(Table)
LEAST_SIZE = Table.event_synchronize.offset + Table.event_synchronize.size


def table(**fields):
    """A table with the required members and these fields."""
    some_function = ctypes.cast(
        ctypes.CDLL(None).getpid, ctypes.c_void_p
    ).value
    values = dict.fromkeys(REQUIRED, some_function)
    values |= {"struct_size": SIZE, "name": b"mine", "device_type": 77}
    for name, value in fields.items():
        values[name] = some_function if value is True else value
    return Table(**values)


class Faults(ctypes.Structure):
    """struct ps_faults."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("stream_fail", ctypes.c_void_p),
    )


def capsule(address, name=NAME):
    """A capsule for a table.  The table and the name must outlive the
    capsule."""
    if not isinstance(address, int):
        address = ctypes.addressof(address)
    return new(address, name, None)
