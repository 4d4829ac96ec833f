"""The end of a program, in another process."""

from pystreams.testing import contract
from pystreams.testing.elsewhere import Elsewhere

SHUTTING_DOWN = "4"
ENDING = (
    "The program is ending: start no more queued work, wait for running work "
    "for at most timeout_ns, and end the backend's threads."
)


@contract("shutdown", ENDING)
def test_it_keeps_its_limit(elsewhere: Elsewhere) -> None:
    elsewhere.send("hold")
    assert elsewhere.ask("shutdown") == "in time"


@contract("shutdown", ENDING, "stream_notify")
def test_no_notification_comes_after_it(elsewhere: Elsewhere) -> None:
    elsewhere.send("hold")
    assert elsewhere.ask("register") == "None"
    elsewhere.ask("shutdown")
    elsewhere.send("release")
    assert elsewhere.ask("notifications") == "0"


@contract(
    "shutdown",
    "A later wait returns PS_ERROR_SHUTTING_DOWN if work is left.",
)
def test_a_later_wait(elsewhere: Elsewhere) -> None:
    elsewhere.send("hold")
    elsewhere.ask("shutdown")
    assert elsewhere.ask("wait-in-time") == SHUTTING_DOWN
