"""The folders of the checkout that tests use."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# What tests import, and the programs that they run.
SUPPORT = TESTS
