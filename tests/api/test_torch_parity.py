"""What pystreams is, compared with what torch is.

torch's side is a record that torch_parity.py has made, on GPUs or, of a newer
version, without a GPU; ours is measured here, on emulated CUDA if there is no
GPU.
"""

import json

import pytest
from parity import facts, reasons
from torch_parity import (
    RECORD,
    RECORD_WITHOUT_A_GPU,
    Comparison,
    code,
    differences,
    matches,
    page,
)

from pystreams import cuda


@pytest.fixture(
    params=[RECORD, RECORD_WITHOUT_A_GPU], ids=["on-gpus", "without-a-gpu"]
)
def record(request):
    return json.loads(request.param.read_text())


@pytest.fixture(scope="module")
def ours():
    if not cuda.is_available():
        pytest.skip("no CUDA device, not even an emulated one")
    process = facts.elsewhere("pystreams", "all")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(output)


@pytest.fixture
def incomparable(ours):
    """The sections that cannot be compared, because what is installed here is
    not what the record was made with."""
    found = []
    if cuda.is_emulated():
        # An emulated device can be used in a forked child.
        found.append("forked: ")
    if any("has no CUDA backend" in text for text in ours.values()):
        found.append("no GPU: ")
    return tuple(found)


@pytest.fixture
def comparison(ours, incomparable, record):
    facts = record["facts"].items()
    torch = {k: v for k, v in facts if not k.startswith(incomparable)}
    if record["devices"] > 0:
        return Comparison(torch, ours)
    return Comparison(torch, ours, reasons.WITHOUT_A_GPU)


@pytest.mark.unscheduled
def test_no_faults(comparison):
    assert comparison.faults == []


@pytest.mark.unscheduled
def test_no_reason_is_left_over(comparison, incomparable, record):
    if record["devices"] < 2 or cuda.device_count() < 2:
        pytest.skip("less can be compared on fewer than two devices")
    left_over = [
        row for row in comparison.unused if not row[0].startswith(incomparable)
    ]
    assert left_over == []


def test_the_page_has_every_difference(comparison):
    text = "\n".join(page(comparison, "About."))
    assert comparison.summary() in text
    for rows in comparison.meant.values():
        assert [key for key, *_ in rows if code(key) not in text] == []


def test_programs_say_what_they_mean(ours):
    """A slip in a program is an error in both libraries, and no difference."""
    slips = ("NameError", "SyntaxError", "IndentationError", "KeyError")
    assert {k: v for k, v in ours.items() if v.startswith(slips)} == {}


def test_every_program_is_run(ours):
    count = cuda.device_count()
    for section, programs in facts.PROGRAMS.items():
        if section == "two devices" and count < 2:
            continue
        prefix = f"{section}: " if section in ("no GPU", "forked") else ""
        assert [p for p in programs if prefix + p not in ours] == []


def test_programs_are_told_apart():
    programs = [p for section in facts.PROGRAMS.values() for p in section]
    twice = {p for p in programs if programs.count(p) > 1}
    assert twice <= set(facts.PROGRAMS["no GPU"] + facts.PROGRAMS["forked"])


def test_differences_are_found():
    torch = {"torch.f": "(a)", "torch.g": "()", "torch.h": "(?)", "1 + 1": "2"}
    ours = {"torch.f": "(b)", "torch.h": "()", "1 + 1": "3", "2": "2"}
    assert list(differences(torch, ours)) == [
        ("torch.f", "(a)", "(b)"),
        ("torch.g", "()", reasons.ABSENT),
        ("1 + 1", "2", "3"),
    ]
    comparison = Comparison(torch, ours)
    assert comparison.faults == list(differences(torch, ours))
    assert len(comparison.unused) == len(list(comparison.rows()))


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a*", "abc", True),
        ("a*", "ba", False),
        ("f(*)", "f([x])", True),
        ("f(?)", "f(x)", False),
        ("*", "", True),
    ],
)
def test_patterns(pattern, text, expected):
    assert matches(pattern, text) is expected
