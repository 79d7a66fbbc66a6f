"""The end of a rank: how long it waits for the others, and what it leaves out."""

import gc
import threading
import time

import pytest

from tfdist.cluster import WorkerLostError
from tfdist.process import endings
from tfdist.strategies.horovod import ending

LONG_S = 20.0


class Seen:
    """The events of the end of a rank, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
        self.events: list[str] = []
        monkeypatch.setattr(endings, "ending_error", lambda: error)
        monkeypatch.setattr(ending, "_skip_destructors", lambda: self.events.append("exit"))
        monkeypatch.setattr(gc, "freeze", lambda: self.events.append("no search for garbage"))
        monkeypatch.setattr(time, "sleep", lambda seconds: self.events.append(f"{seconds:g} s"))

    def shutdown(self) -> None:
        self.events.append("shutdown")


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (None, ["shutdown", "exit"]),
        (ValueError("no"), ["shutdown", "no search for garbage", "exit"]),
        (WorkerLostError("one"), ["shutdown", "1 s", "no search for garbage", "exit"]),
    ],
    ids=["success", "failure", "survivor"],
)
def test_a_rank_that_fails_ends_without_a_search_for_garbage(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, events: list[str]
) -> None:
    seen = Seen(monkeypatch, error)
    ending._Ending(seen.shutdown).run()
    assert seen.events == events


@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["success", "failure"])
def test_a_rank_leaves_others_that_do_not_end(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException | None,
) -> None:
    seen = Seen(monkeypatch, error)
    # A failure has a limit of its own: with that of a success this test would wait too long.
    monkeypatch.setattr(ending, "_LIMIT_S", LONG_S if error else 0.1)
    monkeypatch.setattr(ending, "_LIMIT_OF_A_FAILURE_S", 0.1 if error else LONG_S)
    others_end = threading.Event()
    ending._Ending(lambda: bool(others_end.wait(LONG_S))).run()
    others_end.set()
    assert seen.events[-1] == "exit"
    assert "The other ranks have not ended: this one leaves." in capsys.readouterr().err
