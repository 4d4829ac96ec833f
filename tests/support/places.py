"""The folders of the checkout that tests use."""

from pathlib import Path

# What tests import, and the programs that they run.
SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
