"""The worker that failed first, from plain records, as `run`, `slurm` and `testing` decide it."""

import signal

import pytest

from tfdist.launch.failures.first_failure import (
    Verdict,
    WorkerEnd,
    first_failure,
    lost_without_a_cause,
    verdict_on,
)

SHUT_DOWN = "Horovod has been shut down. This was caused by an exception on one of the ranks"


def ends(*codes: int | None, error: str = "") -> list[WorkerEnd]:
    """Returns workers that ended with these codes, one after the other."""
    return [
        WorkerEnd(worker=index, time_s=float(index), exit_code=code, error=error)
        for index, code in enumerate(codes)
    ]


@pytest.mark.parametrize(
    ("codes", "others_are_ended", "cause"),
    [
        ([0, 0], False, None),
        ([0, 3, 1], False, 1),
        ([200, 3], False, 1),
        ([200, 200], False, None),
        ([143, 138], False, None),
        ([143, 3], False, 1),
        ([-9, 3], True, 0),
        ([200, -15, 7], True, 2),
        ([200, -15, 7], False, 1),
        ([200, -9, -15], True, None),
        ([None, 3], False, 0),
    ],
)
def test_the_first_failure_that_does_not_follow_from_another_is_the_cause(
    codes: list[int | None], others_are_ended: bool, cause: int | None
) -> None:
    found = first_failure(reversed(ends(*codes)), others_are_ended=others_are_ended)
    assert (None if found is None else found.worker) == cause


def test_a_worker_whose_output_says_that_it_lost_another_is_no_cause() -> None:
    lost = ends(1, error=SHUT_DOWN)
    failed = WorkerEnd(worker=1, time_s=9.0, exit_code=3)
    assert first_failure([*lost, failed]) is failed
    assert first_failure(lost) is None


def test_a_verdict_has_the_exit_code_that_a_shell_gives() -> None:
    assert verdict_on(ends(3)[0]) == Verdict(exit_code=3, worker=0)
    assert verdict_on(ends(-signal.SIGKILL)[0]) == Verdict(exit_code=137, worker=0, kind="signal")
    silent = WorkerEnd(worker=2, time_s=0.0, kind="silent", detail="its agent exited")
    expected = Verdict(exit_code=124, worker=2, kind="silent", detail="its agent exited")
    assert verdict_on(silent) == expected


@pytest.mark.parametrize(
    ("codes", "worker", "kind", "exit_code"),
    [
        ([0, 200], 0, "ended early", 1),
        ([0, 200, 0], 1, "exited", 200),
        ([143, 200, 0], 0, "exited", 143),
        ([143, 200], 0, "exited", 143),
        ([200, 0], 0, "exited", 200),
        ([200, 200], 0, "exited", 200),
    ],
)
def test_a_worker_that_ended_while_another_needed_it_is_the_cause(
    codes: list[int | None], worker: int, kind: str, exit_code: int
) -> None:
    verdict = lost_without_a_cause(ends(*codes))
    assert (verdict.worker, verdict.kind, verdict.exit_code) == (worker, kind, exit_code)
