"""What register_backend refuses, with which messages, and that a refusal
changes nothing.  The example's tests cover a table that is accepted."""

import ctypes
import mmap
import re

import pytest
import tables
from places import SUPPORT

import pystreams
from pystreams import _C


def refused(table, reason, error=ValueError):
    before = _C.backends()
    with pytest.raises(error, match=re.escape(reason)):
        pystreams.register_backend(tables.capsule(table))
    assert _C.backends() == before


def test_members_are_those_of_the_contract(backend):
    members = _C.backend_members(backend.type)
    assert list(members) == [*tables.MEMBERS, "stream_fail"]
    assert all(members[name] for name in tables.REQUIRED)


@pytest.mark.parametrize(
    "size", [0, tables.LEAST_SIZE - 1, 2**16 + 1, 2**64 - 1], ids=str
)
def test_no_size_of_a_table(size):
    refused(
        tables.table(struct_size=size),
        f"the table's struct_size is {size}, but must be sizeof(struct "
        f"ps_backend), which is {tables.SIZE} in the header in "
        "pystreams.get_include()",
    )


def at_the_end_of_memory(nbytes, register):
    """Call register with the address of so many bytes, filled with ones,
    behind which nothing can be read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    memory[page - nbytes : page] = b"\xff" * nbytes
    assert protect(start + page, page, 0) == 0
    try:
        register(start + page - nbytes)
    finally:
        protect(start + page, page, mmap.PROT_READ | mmap.PROT_WRITE)


def test_of_another_size_nothing_else_is_read():
    def register(address):
        refused(address, f"the table's struct_size is {2**64 - 1}, but")

    at_the_end_of_memory(tables.Table.flags.offset, register)


OTHER_HEADERS = """
import ctypes, sys
sys.path.insert(0, {tests!r})
import pystreams, tables
from pystreams import _C

older = tables.table(struct_size=tables.LEAST_SIZE, event_elapsed=True)
pystreams.register_backend(tables.capsule(older))
members = _C.backend_members(77)
assert [m for m in members if members[m]] == tables.REQUIRED

class Newer(tables.Table):
    _fields_ = [("later", ctypes.c_void_p)]

newer = Newer(later=1)
ctypes.memmove(
    ctypes.byref(newer), ctypes.byref(tables.table()), tables.SIZE
)
newer.struct_size = ctypes.sizeof(newer)
newer.name = b"newer"
newer.device_type = 78
pystreams.register_backend(tables.capsule(newer))
members = _C.backend_members(78)
assert [m for m in members if members[m]] == tables.REQUIRED
print(_C.backends()[-2:])
"""


def test_tables_of_other_headers(run_python):
    """What an older table has not is NULL, what a newer one has more is not
    read."""
    done = run_python(OTHER_HEADERS.format(tests=str(SUPPORT)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "(('mine', 77), ('newer', 78))\n"


@pytest.mark.parametrize("member", tables.REQUIRED)
def test_a_required_member_is_missing(member):
    refused(
        tables.table(**{member: None}),
        f"the mine backend lacks {member}, which is required",
    )


@pytest.mark.parametrize(
    ("group", "member"),
    [(group, m) for group, members in tables.GROUPS.items() for m in members],
)
def test_a_group_is_there_in_part(group, member):
    whole = tables.GROUPS[group]
    others = dict.fromkeys(whole, True)
    there = next(name for name in whole if name != member)
    refused(
        tables.table(**(others | {member: None})),
        f"the mine backend has {there} but lacks {member}; the {group} group "
        "is there as a whole or not at all",
    )


def test_graphs_need_stream_capturing():
    refused(
        tables.table(**dict.fromkeys(tables.GRAPHS, True)),
        "the mine backend has capture_begin but lacks stream_capturing",
    )


@pytest.mark.parametrize(
    "name",
    [
        None,
        b"",
        b"Mine",
        b"2d",
        b"_mine",
        b"my device",
        b"mine:0",
        b"mine-2",
        b"caf\xc3\xa9",
        b"\xff\xfe",
        b"m" * 32,
        b"m" * 100_000,
    ],
    ids=lambda name: repr(name)[:12],
)
def test_a_malformed_name(name):
    refused(
        tables.table(name=name),
        "a backend's name must be like 'mtia', lower-case letters, digits "
        "and _, starting with a letter, at most 31",
    )


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_a_negative_device_type(number):
    refused(
        tables.table(device_type=number),
        f"the device type of the mine backend must not be negative, got "
        f"{number}",
    )


def test_a_name_that_is_taken(backend):
    refused(
        tables.table(name=backend.name.encode()),
        f"the name '{backend.name}' is taken, by the backend with device "
        f"type {backend.type}",
    )


def test_a_device_type_that_is_taken(backend):
    refused(
        tables.table(device_type=backend.type),
        f"the device type {backend.type} of the mine backend is taken, by "
        f"the {backend.name} backend",
    )


@pytest.mark.parametrize("value", [None, 1, b"pystreams.backend", object()])
def test_no_capsule(value):
    before = _C.backends()
    with pytest.raises(TypeError, match=r'capsule named "pystreams\.backend"'):
        pystreams.register_backend(value)
    assert _C.backends() == before


@pytest.mark.parametrize("name", [None, b"", b"pystreams.other"])
def test_another_capsule(name):
    table = tables.table()
    with pytest.raises(TypeError, match=r'capsule named "pystreams\.backend"'):
        pystreams.register_backend(tables.capsule(table, name))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            (0, 1),
            "the struct_size of the mine backend's faults is 0, but must be "
            "sizeof(struct ps_faults), which is 16 in",
        ),
        ((2**64 - 1, 1), f"the mine backend's faults is {2**64 - 1}, but"),
        (
            (16, None),
            "the faults of the mine backend lack stream_fail, which is "
            "required",
        ),
    ],
)
def test_faults_that_could_not_be_called(fields, reason):
    table, faults = tables.table(), tables.Faults(*fields)
    before = _C.backends()
    with pytest.raises(ValueError, match=re.escape(reason)):
        pystreams.register_backend(
            tables.capsule(table), tables.capsule(faults, b"pystreams.faults")
        )
    assert _C.backends() == before


def test_another_capsule_for_faults():
    table = tables.capsule(tables.table())
    before = _C.backends()
    with pytest.raises(TypeError, match=r'capsule named "pystreams\.faults"'):
        pystreams.register_backend(table, table)
    assert _C.backends() == before


FULL = """
import sys
sys.path.insert(0, {tests!r})
import pystreams, tables
from pystreams import _C

kept = [tables.table(name=b"d%d" % i, device_type=100 + i) for i in range(9)]
for i, table in enumerate(kept):
    before = _C.backends()
    try:
        pystreams.register_backend(tables.capsule(table))
    except ValueError as error:
        assert _C.backends() == before
        print(i + 2, error)
        break
    assert _C.backends() == (*before, (f"d{{i}}", 100 + i))
assert repr(pystreams.device("d3:1")) == "device(type='d3', index=1)"
"""


def test_too_many(run_python):
    done = run_python(FULL.format(tests=str(SUPPORT)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "8 register_backend: there is no place for the d6 backend: 8 are "
        "registered, and that is the most\n"
    )
