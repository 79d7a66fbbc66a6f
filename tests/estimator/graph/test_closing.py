"""A session that does not close does not hold its worker back, nor spoil the program's end."""

import logging
import subprocess
import sys
import threading

import pytest
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph import sessions


class _StuckSession:
    """A session whose workers do not answer."""

    def __init__(self) -> None:
        self.may_close = threading.Event()
        self.is_closed = threading.Event()

    def close(self) -> None:
        assert self.may_close.wait(20.0)
        self.is_closed.set()


def test_a_session_that_does_not_close_is_left_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "_CLOSE_LIMIT_S", 0.1)
    stuck = _StuckSession()
    sessions.limit_close(stuck)
    with caplog.at_level(logging.DEBUG, logger="tensorflow"):
        stuck.close()
    assert not stuck.is_closed.is_set()
    assert "The session was not closed within 0 s" in caplog.text
    stuck.may_close.set()
    assert stuck.is_closed.wait(20.0)


def test_a_session_is_closed_when_close_returns() -> None:
    with v1.Graph().as_default():
        session = v1.Session()
        sessions.limit_close(session)
        one = v1.constant(1)
        assert session.run(one) == 1
        session.close()
        with pytest.raises(RuntimeError, match="closed"):
            session.run(one)
        session.close()


_PROGRAM = """
import time

from tfdist.estimator.graph import sessions

sessions._CLOSE_LIMIT_S = 0.1


class Slow:
    def close(self):
        time.sleep(1.0)
        print("closed", flush=True)


slow = Slow()
sessions.limit_close(slow)
slow.close()
print("the end", flush=True)
"""


@pytest.mark.processes
def test_a_program_waits_at_its_end_for_a_session_that_closes_slowly() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout.split("\n")) == (0, ["the end", "closed", ""])
    assert "Waiting for TensorFlow to close a session, for 75 s at most." in ended.stderr
