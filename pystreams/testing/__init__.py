"""The conformance suite: what <pystreams/backend.h> promises, shown on any
registered backend.

    pytest --pyargs pystreams.testing --pystreams-device mtia \\
        --pystreams-plugin fake_device

Each test is marked with the sentence of the contract that it shows.  Most of
them need a stream that stays busy until it is told to go on; the plugin's
launch(stream) -> id and complete(id) serve, else what the backend has of the
work group, else its gates.
"""

from __future__ import annotations

import pytest

__all__ = ["contract"]


def contract(member: str, sentence: str, *needs: str) -> pytest.MarkDecorator:
    """Mark a test with the member of struct ps_backend that it is about and
    the sentence there that it shows.

    It is absent where the backend lacks the member, or another one in needs.
    """
    return pytest.mark.pystreams_contract(member, sentence, *needs)
