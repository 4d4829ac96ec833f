"""What register_backend refuses, with which words, and that nothing changes
then.  A table that is taken in is tested with the example's."""

import ctypes
import mmap
import re

import pytest
import tables

import pystreams
from pystreams import _C


def refused(table, reason, error=ValueError):
    before = _C.backends()
    with pytest.raises(error, match=re.escape(reason)):
        pystreams.register_backend(tables.capsule(table))
    assert _C.backends() == before


def test_members_are_those_of_the_contract(backend):
    members = _C.backend_members(backend.type)
    assert list(members) == tables.MEMBERS
    assert all(members[name] for name in tables.REQUIRED)


@pytest.mark.parametrize(
    "version", [0, tables.ABI_VERSION + 1, 2**32 - 1], ids=str
)
def test_another_abi_version(version):
    refused(
        tables.table(abi_version=version),
        f"the table has ABI version {version}, and this pystreams takes "
        f"{tables.ABI_VERSION}; build the backend again, against the header "
        "in pystreams.get_include()",
    )


def test_of_another_version_nothing_else_is_read():
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    end = page - tables.Table.name.offset
    memory[end:page] = b"\xff" * (page - end)
    assert protect(start + page, page, 0) == 0
    try:
        refused(start + end, "the table has ABI version 4294967295")
    finally:
        protect(start + page, page, mmap.PROT_READ | mmap.PROT_WRITE)


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


def test_too_many(run_python, request):
    done = run_python(FULL.format(tests=str(request.path.parent)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "8 register_backend: there is no place for the d6 backend: 8 are "
        "registered, and that is the most\n"
    )
