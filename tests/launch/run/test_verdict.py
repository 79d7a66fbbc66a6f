"""The worker that caused the end of a run, found from the workers' records without a process."""

from collections.abc import Callable
from typing import Any

import pytest

from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.run.verdict import judge, with_cause
from tfdist.launch.workers.channel import SILENCE_S
from tfdist.launch.workers.worker_state import WorkerState

MakeWorker = Callable[..., WorkerState]
NOW_S = 1000.0
LONG_AGO_S = NOW_S - 10.0


def verdict_of(*workers: WorkerState, **options: float) -> Verdict:
    verdict = judge(workers, NOW_S, **options)
    assert verdict is not None
    return verdict


def blamed(*workers: WorkerState, **options: float) -> tuple[str, str, int]:
    """Returns the blamed worker, the kind of failure, and the launcher's exit code."""
    verdict = verdict_of(*workers, **options)
    worker = next(one for one in workers if one.plan.index == verdict.worker)
    return worker.plan.name, verdict.kind, verdict.exit_code


@pytest.mark.parametrize(
    "sign",
    ["Horovod has been shut down. This was caused", "Error: Collective ops is aborted by: x"],
)
def test_a_worker_that_only_lost_another_one_is_not_blamed(
    make_worker: MakeWorker, sign: str
) -> None:
    lost, failed = make_worker(code=1, ended_s=901.0), make_worker(code=3, ended_s=902.0)
    lines = {lost.plan.index: ["Traceback", sign], failed.plan.index: ["ValueError: no file"]}
    verdict = verdict_of(lost, failed)
    found = with_cause(verdict, [lost, failed], lambda worker: lines[worker.plan.index])
    assert (found.worker, found.exit_code) == (failed.plan.index, 3)
    lines[failed.plan.index] = [sign]
    unknown = with_cause(verdict, [lost, failed], lambda worker: lines[worker.plan.index])
    assert (unknown.worker, unknown.exit_code) == (lost.plan.index, 1)


@pytest.mark.parametrize("code", [0, None])
def test_a_worker_whose_program_caught_the_error_of_its_training_is_blamed(
    make_worker: MakeWorker, code: int | None
) -> None:
    ended = {} if code is None else {"code": code, "ended_s": 901.0}
    failed, lost = make_worker(**ended), make_worker(code=200, ended_s=902.0)
    why = "its training has failed: ValueError: no. See its output for the cause."
    lines = [f"WorkerLostError: Lost worker {failed.plan.index} (a:1) while training: {why}"]
    found = with_cause(verdict_of(failed, lost), [failed, lost], lambda worker: lines)
    expected = Verdict(
        exit_code=1, worker=failed.plan.index, kind="caught", detail="ValueError: no"
    )
    assert found == expected
    lines[:] = ["WorkerLostError: Lost worker 7 (a:1) while training: " + why]
    unknown = with_cause(verdict_of(failed, lost), [failed, lost], lambda worker: lines)
    assert unknown == verdict_of(failed, lost)


def test_a_failure_is_judged_as_soon_as_no_report_of_an_earlier_one_can_arrive(
    make_worker: MakeWorker,
) -> None:
    fresh, other = make_worker(code=3, ended_s=NOW_S), make_worker()
    assert judge([fresh, other], NOW_S + 0.1) is None
    assert judge([fresh, other], NOW_S + 2.0) is not None
    ended, lost = make_worker(code=0, ended_s=1.0), make_worker(is_lost=True, lost_s=NOW_S)
    assert blamed(fresh, ended, lost) == ("worker 0", "exited", 3)


def test_a_survivor_is_given_time_for_the_real_failure_to_show(make_worker: MakeWorker) -> None:
    survivor, silent = make_worker(code=200, ended_s=NOW_S), make_worker(heard_s=NOW_S)
    assert judge([survivor, silent], NOW_S + 1.0) is None
    verdict = judge([survivor, silent], NOW_S + SILENCE_S + 1.0)
    assert verdict is not None
    assert verdict.worker == silent.plan.index


def test_a_worker_that_ended_with_0_while_another_needed_it_is_blamed_when_none_saves_any_more(
    make_worker: MakeWorker,
) -> None:
    early, survivor = make_worker(code=0, ended_s=900.0), make_worker(code=200, ended_s=910.0)
    assert blamed(early, survivor) == ("worker 0", "ended early", 1)
    assert verdict_of(early, survivor).detail == "worker 1 still needed it"
    assert judge([early, survivor, make_worker(phase="saving")], NOW_S) is None


@pytest.mark.parametrize("facts", [{}, {"phase": "training"}, {"phase": "leaving"}])
@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_a_run_whose_workers_all_end_with_0_succeeds_however_long_the_last_one_takes(
    make_worker: MakeWorker, facts: dict[str, Any], grace_s: float
) -> None:
    early, late = make_worker(code=0, ended_s=1.0), make_worker(**facts)
    assert judge([early, late], NOW_S, grace_s=grace_s) is None
    late.code, late.ended_s = 0, NOW_S
    assert judge([early, late], NOW_S, grace_s=grace_s) == Verdict(exit_code=0)


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        ({"is_lost": True, "lost_s": LONG_AGO_S}, "its agent exited"),
        ({"orphaned_s": LONG_AGO_S, "heard_s": NOW_S}, "mpirun or ssh exited first"),
        ({"heard_s": NOW_S - SILENCE_S - 1.0}, "no message from it for 21 s"),
    ],
)
def test_a_worker_that_is_not_heard_of_any_more_is_blamed_from_then_on(
    make_worker: MakeWorker, facts: dict[str, Any], detail: str
) -> None:
    silent, crashed = make_worker(**facts), make_worker(code=1, ended_s=NOW_S - 5.0)
    assert blamed(silent, crashed) == ("worker 0", "silent", 124)
    assert verdict_of(silent, crashed).detail == detail


def test_the_exit_of_a_lost_worker_counts_for_more_than_its_loss(
    make_worker: MakeWorker,
) -> None:
    worker = make_worker(code=3, ended_s=LONG_AGO_S, is_lost=True, lost_s=LONG_AGO_S + 1.0)
    assert blamed(worker) == ("worker 0", "exited", 3)


@pytest.mark.parametrize("code", [138, 143])
def test_workers_that_were_asked_to_stop_have_not_failed(
    make_worker: MakeWorker, code: int
) -> None:
    workers = [make_worker(code=code, ended_s=900.0), make_worker(code=0, ended_s=901.0)]
    assert judge(workers, NOW_S) == Verdict(exit_code=code)


def test_a_worker_that_stopped_alone_is_blamed_only_after_the_grace_period(
    make_worker: MakeWorker,
) -> None:
    requested, goes_on = make_worker(code=143, ended_s=NOW_S - 5.0), make_worker()
    assert judge([requested, goes_on], NOW_S, grace_s=6.0) is None
    assert blamed(requested, goes_on, grace_s=4.0) == ("worker 0", "exited", 143)
    assert "did not stop with it" in verdict_of(requested, goes_on, grace_s=4.0).detail


@pytest.mark.parametrize("phase", ["stopping", "saving"])
def test_workers_that_save_longer_than_the_grace_period_stop_together(
    make_worker: MakeWorker, phase: str
) -> None:
    requested, saves = make_worker(code=143, ended_s=NOW_S - 60.0), make_worker(phase=phase)
    assert judge([requested, saves], NOW_S, grace_s=5.0) is None
    saves.code, saves.ended_s = 143, NOW_S
    assert judge([requested, saves], NOW_S, grace_s=5.0) == Verdict(exit_code=143)


def trains(quiet_s: float | None = None, *flags: str, **facts: Any) -> dict[str, Any]:
    """Returns the facts of a worker that trains, and has made no step for so long."""
    return {"phase": "training", "quiet_s": quiet_s, **dict.fromkeys(flags, True), **facts}


def silent(*flags: str, **facts: Any) -> dict[str, Any]:
    """Returns the facts of a worker that has not reported yet."""
    return {**dict.fromkeys(flags, True), **facts}


def evaluates(quiet_s: float, *flags: str) -> dict[str, Any]:
    return trains(quiet_s, "is_evaluator", *flags, phase="waiting")


@pytest.mark.parametrize(
    ("facts", "worker", "detail"),
    [
        ([trains(10, "in_step")], "worker 0", "no step for 10 s"),
        # A stopped one comes before all others, though they may move.
        ([trains(60), trains(20, "in_step", "is_stopped")], "worker 1", "SIGSTOP"),
        ([trains(20, "is_stopped"), trains(0.1)], "worker 0", "SIGSTOP"),
        ([silent("is_stopped", started_s=NOW_S - 30), silent()], "worker 0", "SIGSTOP"),
        ([trains(1), evaluates(20, "is_stopped")], "evaluator", "SIGSTOP"),
        # Then those for which the others wait.
        ([trains(60, "in_step"), trains(20)], "worker 1", "in its own Python code"),
        (
            [trains(60, "in_step"), trains(20, "in_step", "waits_for_input")],
            "worker 1",
            "own input",
        ),
        ([trains(60, "in_step"), trains(59, phase="saving")], "worker 1", "last seen saving"),
        ([trains(60, phase="waiting"), trains(20, phase="starting")], "worker 1", "starting"),
        (
            [trains(60, phase="waiting"), silent(started_s=NOW_S - 30)],
            "worker 1",
            "no progress yet",
        ),
        ([trains(60, "in_step"), trains(20, "is_own_loop", phase="starting")], "worker 1", "start"),
        # A loop of its own that has made steps is a training.
        (
            [trains(60, "in_step", "is_own_loop", "counts_steps"), trains(20, "is_own_loop")],
            "worker 1",
            "between two steps",
        ),
        # Then the one that was quiet longest; an evaluator hides nothing.
        ([trains(s, "in_step") for s in (20, 30, 25)], "worker 1", "no step for 30 s"),
        ([trains(20, "in_step"), evaluates(0.5)], "worker 0", "waiting for the other workers"),
    ],
)
def test_the_worker_that_keeps_the_others_waiting_is_blamed_for_a_stall(
    make_worker: MakeWorker, facts: list[dict[str, Any]], worker: str, detail: str
) -> None:
    workers = [make_worker(**one) for one in facts]
    assert blamed(*workers, stall_timeout_s=10.0) == (worker, "stalled", 124)
    assert detail in verdict_of(*workers, stall_timeout_s=10.0).detail
    assert judge(workers, NOW_S) is None
    assert judge(workers, NOW_S, stall_timeout_s=61.0) is None


@pytest.mark.parametrize(
    "facts",
    [
        [trains(9.9, "in_step")],
        [trains(60), trains(1)],
        [trains(60, phase="waiting"), silent(started_s=NOW_S - 5)],
        [silent(started_s=0.0)],  # a program that never reports progress
        # Loops of their own, whose steps are unknown.
        [trains(60, "is_own_loop", phase="waiting"), trains(60, "is_own_loop", phase="starting")],
        [trains(1), evaluates(900)],  # It waits for checkpoints.
        [trains(1, code=0, ended_s=NOW_S), evaluates(900)],
    ],
)
def test_a_run_that_goes_on_does_not_stall(
    make_worker: MakeWorker, facts: list[dict[str, Any]]
) -> None:
    assert judge([make_worker(**one) for one in facts], NOW_S, stall_timeout_s=10.0) is None


def test_a_worker_that_fails_is_blamed_before_one_that_stalls(make_worker: MakeWorker) -> None:
    stalled = make_worker(quiet_s=60.0, phase="training", in_step=False)
    failed = make_worker(code=3, ended_s=LONG_AGO_S)
    assert blamed(stalled, failed, stall_timeout_s=10.0) == ("worker 1", "exited", 3)


def test_no_worker_is_blamed_if_the_agents_took_a_suspended_launcher_for_lost(
    make_worker: MakeWorker,
) -> None:
    workers = [make_worker(is_lost=True, lost_s=LONG_AGO_S, absence_s=31.0) for _ in range(2)]
    verdict = verdict_of(*workers)
    assert (verdict.worker, verdict.exit_code) == (None, 124)
    assert "the launcher was suspended for 31 s" in verdict.detail
