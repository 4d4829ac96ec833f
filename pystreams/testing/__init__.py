"""Tools for tests, and the conformance suite of backends.

emulated_cuda(), hold() and fail() are for the tests of any program.

The conformance suite tests any registered backend against the promises in
<pystreams/backend.h>.

    pytest --pyargs pystreams.testing --pystreams-device mtia \\
        --pystreams-plugin fake_device

Each test is marked with the sentence of the contract that it tests.  Most
tests keep a stream busy until they open a gate.  If the plugin has the
functions launch(stream) -> id and complete(id), these keep it busy; otherwise
a host function, a gate or a sleep of the backend does.
"""

from __future__ import annotations

from .kit import emulated_cuda, fail, hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

__all__ = ["ORDER", "contract", "emulated_cuda", "fail", "hold"]

# A sentence that tests of several groups are marked with.
ORDER = (
    "Queued work may run before or after the call that queued it returns. The "
    "work of a stream runs in the order in which it was queued; only events "
    "order it relative to the work of other streams."
)


def contract(member: str, sentence: str, *needs: str) -> pytest.MarkDecorator:
    """Mark a test with a member of struct ps_backend, and the sentence of its
    contract that the test is for.

    The test is skipped if the backend lacks the member, or one of `needs`.
    """
    import pytest

    return pytest.mark.pystreams_contract(member, sentence, *needs)
