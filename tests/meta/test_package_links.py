"""The URLs in the metadata of a package, which is all that a package index
shows of the project."""

import email
import os
import re
import subprocess
import sys

import pytest
from places import ROOT

REPOSITORY = "https://example.org/somebody/pystreams"
LINK = re.compile(r"\]\(([^)\s]+)\)")
README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture
def metadata(tmp_path):
    """Return metadata(url), which makes the metadata of a package, built with
    the address of the repository."""

    def make(url):
        subprocess.run(
            [
                *(sys.executable, "-W", "ignore", "setup.py", "-q"),
                *("egg_info", "--egg-base", tmp_path),
            ],
            cwd=ROOT,
            env=os.environ | {"PYSTREAMS_URL": url},
            check=True,
        )
        text = (tmp_path / "pystreams.egg-info/PKG-INFO").read_text("utf-8")
        return email.message_from_string(text)

    return make


@pytest.mark.parametrize("end", ["", "/"], ids=["plain", "slash"])
def test_links_lead_to_the_repository(metadata, end):
    made = metadata(REPOSITORY + end)
    urls = dict(u.split(", ") for u in made.get_all("Project-URL"))
    assert urls == {
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}/blob/HEAD/docs/guide.md",
        "Changelog": f"{REPOSITORY}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }
    text = made.get_payload()
    kinds = {f"{REPOSITORY}/{kind}/HEAD/": kind for kind in ("blob", "raw")}
    links = LINK.findall(text)
    files = 0
    for link in links:
        for start, kind in kinds.items():
            if link.startswith(start):
                path = link.removeprefix(start).partition("#")[0]
                assert (ROOT / path).is_file(), link
                assert (kind == "raw") == path.endswith(".png"), link
                files += 1
                break
        else:
            assert link.startswith(("https://", "#")), link
    assert files > 20
    assert len(links) == len(LINK.findall(README))


def test_without_a_repository_the_readme_stays(metadata):
    made = metadata("")
    assert made.get_all("Project-URL") is None
    assert made["Description-Content-Type"] == "text/markdown"
    assert made.get_payload().strip() == README.strip()
