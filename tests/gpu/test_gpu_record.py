"""gpu_record.py: its tables match the run."""

from places import SUPPORT

PROGRAM = SUPPORT / "gpu_record.py"

RUN = """<testsuites><testsuite name="pytest">
<testcase classname="tests.test_a" name="one" />
<testcase classname="tests.test_a" name="two">
<failure message="no" /></testcase>
<testcase classname="tests.test_b.TestMany" name="three">
<skipped message="needs a | GPU" /></testcase>
<testcase classname="tests.test_b" name="four"><error message="x" /></testcase>
</testsuite></testsuites>"""


def test_rows(run_python, tmp_path):
    (tmp_path / "run.xml").write_text(RUN)
    done = run_python([PROGRAM], "run.xml")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "| what | version |"
    assert any(line.startswith("| Python | 3.") for line in lines)
    assert "| test_a | 1 | 1 | 0 | 0 |" in lines
    assert "| test_b | 0 | 0 | 1 | 1 |" in lines
    assert "| all | 1 | 1 | 1 | 1 |" in lines
    assert lines[-1] == "| needs a \\| GPU | 1 |"
