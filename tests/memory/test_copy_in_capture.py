"""Which copies a capture takes."""

import pytest

import pystreams

NOT_PINNED = "host memory that is not pinned.*pystreams.pin"
WAITED_FOR = "a copy that is waited for"


@pytest.mark.parametrize(
    ("copy", "match"),
    [
        (lambda b, h: b.copy_(bytes(64)), NOT_PINNED),
        (lambda b, h: b.copy_(bytes(64), non_blocking=True), NOT_PINNED),
        (lambda b, h: b.copy_to(bytearray(64)), NOT_PINNED),
        (lambda b, h: b.tobytes(), NOT_PINNED),
        (lambda b, h: b.copy_(h), WAITED_FOR),
        (lambda b, h: h.copy_(b), WAITED_FOR),
    ],
    ids=["from", "from, later", "to", "bytes", "from pinned", "to pinned"],
)
def test_copies_that_a_capture_refuses(pinning, graph, copy, match):
    """And goes on, with those that it takes."""
    memory = bytearray(range(64))
    host = pystreams.pin(memory, device=pinning.device())
    block = pinning.filled(1)
    with pinning.stream() as stream:
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            with pytest.raises(pystreams.AcceleratorError, match=match):
                copy(block, host)
            block.copy_(host, non_blocking=True)
        finally:
            graph.capture_end()
        graph.replay()
        stream.synchronize()
    assert block.tobytes() == memory
