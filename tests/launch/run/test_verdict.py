"""The worker that caused the end of a run, found from the workers' records without a process."""

from collections.abc import Callable

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


def test_a_run_goes_on_while_a_worker_runs(make_worker: MakeWorker) -> None:
    assert judge([make_worker(), make_worker()], NOW_S) is None
    assert judge([make_worker(code=0, ended_s=0.0), make_worker()], NOW_S) is None


def test_a_run_is_done_when_all_workers_have_succeeded(make_worker: MakeWorker) -> None:
    workers = [make_worker(code=0, ended_s=NOW_S), make_worker(code=0, ended_s=NOW_S)]
    assert judge(workers, NOW_S) == Verdict(exit_code=0)


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


def test_a_failure_is_judged_only_when_a_report_of_an_earlier_one_must_have_arrived(
    make_worker: MakeWorker,
) -> None:
    fresh, other = make_worker(code=3, ended_s=NOW_S - 0.1), make_worker()
    assert judge([fresh, other], NOW_S) is None
    assert judge([fresh, other], NOW_S + 2.0) is not None


def test_a_failure_is_judged_at_once_when_no_more_reports_can_arrive(
    make_worker: MakeWorker,
) -> None:
    fresh = make_worker(code=3, ended_s=NOW_S)
    ended, lost = make_worker(code=0, ended_s=1.0), make_worker(is_lost=True, lost_s=NOW_S)
    assert blamed(fresh, ended, lost) == ("worker 0", "exited", 3)


def test_a_survivor_is_given_time_for_the_real_failure_to_show(make_worker: MakeWorker) -> None:
    survivor, silent = make_worker(code=200, ended_s=NOW_S), make_worker(heard_s=NOW_S)
    assert judge([survivor, silent], NOW_S + 1.0) is None
    verdict = judge([survivor, silent], NOW_S + SILENCE_S + 1.0)
    assert verdict is not None
    assert verdict.worker == silent.plan.index


def test_a_worker_that_ended_with_0_while_another_needed_it_ended_early(
    make_worker: MakeWorker,
) -> None:
    early, survivor = make_worker(code=0, ended_s=900.0), make_worker(code=200, ended_s=910.0)
    assert blamed(early, survivor) == ("worker 0", "ended early", 1)
    assert verdict_of(early, survivor).detail == "worker 1 still needed it"


def test_a_survivor_is_not_judged_while_another_worker_saves(make_worker: MakeWorker) -> None:
    first, survivor = make_worker(code=0, ended_s=900.0), make_worker(code=200, ended_s=910.0)
    saves = make_worker(phase="saving")
    assert judge([first, survivor, saves], NOW_S) is None


@pytest.mark.parametrize("phase", ["", "training", "saving", "leaving"])
@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_a_run_whose_workers_all_end_with_0_succeeds_however_long_the_last_one_takes(
    make_worker: MakeWorker, phase: str, grace_s: float
) -> None:
    early, late = (
        make_worker(code=0, ended_s=1.0),
        make_worker(**({"phase": phase} if phase else {})),
    )
    assert judge([early, late], NOW_S, grace_s=grace_s) is None
    late.code, late.ended_s = 0, NOW_S
    assert judge([early, late], NOW_S, grace_s=grace_s) == Verdict(exit_code=0)


def test_a_worker_whose_agent_is_gone_is_blamed(make_worker: MakeWorker) -> None:
    lost = make_worker(is_lost=True, lost_s=LONG_AGO_S)
    assert blamed(lost, make_worker(heard_s=NOW_S)) == ("worker 0", "silent", 124)
    assert "its agent exited" in verdict_of(lost).detail


def test_a_worker_whose_mpirun_is_gone_is_blamed(make_worker: MakeWorker) -> None:
    orphan = make_worker(orphaned_s=LONG_AGO_S, heard_s=NOW_S)
    assert blamed(orphan) == ("worker 0", "silent", 124)
    assert "mpirun" in verdict_of(orphan).detail


def test_a_silent_worker_failed_when_it_was_last_heard_of(make_worker: MakeWorker) -> None:
    heard_s = NOW_S - SILENCE_S - 1.0
    silent, crashed = make_worker(heard_s=heard_s), make_worker(code=1, ended_s=heard_s + 5.0)
    assert blamed(silent, crashed) == ("worker 0", "silent", 124)
    assert "21 s" in verdict_of(silent).detail


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


def test_without_a_timeout_no_worker_stalls(make_worker: MakeWorker) -> None:
    assert judge([make_worker(quiet_s=900.0, phase="training")], NOW_S) is None


def test_a_stall_begins_with_the_timeout(make_worker: MakeWorker) -> None:
    worker = make_worker(quiet_s=9.9, phase="training", in_step=True)
    assert judge([worker], NOW_S, stall_timeout_s=10.0) is None
    worker.quiet_s = 10.0
    assert blamed(worker, stall_timeout_s=10.0) == ("worker 0", "stalled", 124)


def test_a_stopped_worker_is_blamed_before_one_that_is_not_in_step(
    make_worker: MakeWorker,
) -> None:
    outside = make_worker(quiet_s=60.0, phase="training", in_step=False)
    stopped = make_worker(quiet_s=20.0, phase="training", in_step=True, is_stopped=True)
    assert blamed(outside, stopped, stall_timeout_s=10.0) == ("worker 1", "stalled", 124)
    assert "SIGSTOP" in verdict_of(outside, stopped, stall_timeout_s=10.0).detail


def test_a_stopped_worker_is_blamed_though_others_still_move(make_worker: MakeWorker) -> None:
    stopped = make_worker(quiet_s=20.0, phase="training", is_stopped=True)
    moving = make_worker(quiet_s=0.1, phase="training")
    assert blamed(moving, stopped, stall_timeout_s=10.0)[0] == "worker 0"


def test_a_worker_between_steps_is_blamed_before_one_that_waits_longer(
    make_worker: MakeWorker,
) -> None:
    waits = make_worker(quiet_s=60.0, phase="training", in_step=True)
    sleeps = make_worker(quiet_s=20.0, phase="training", in_step=False)
    assert blamed(waits, sleeps, stall_timeout_s=10.0) == ("worker 1", "stalled", 124)
    assert "in its own Python code" in verdict_of(waits, sleeps, stall_timeout_s=10.0).detail


def test_a_worker_that_waits_for_its_own_input_is_blamed_before_one_that_waits_for_others(
    make_worker: MakeWorker,
) -> None:
    waits = make_worker(quiet_s=60.0, phase="training", in_step=True)
    starves = make_worker(quiet_s=20.0, phase="training", in_step=True, waits_for_input=True)
    assert blamed(waits, starves, stall_timeout_s=10.0)[0] == "worker 1"
    assert "its own input" in verdict_of(waits, starves, stall_timeout_s=10.0).detail


def test_a_worker_that_saves_for_too_long_is_blamed_before_one_that_waits_for_it(
    make_worker: MakeWorker,
) -> None:
    waits = make_worker(quiet_s=60.0, phase="training", in_step=True)
    saves = make_worker(quiet_s=59.0, phase="saving")
    assert blamed(waits, saves, stall_timeout_s=10.0)[0] == "worker 1"
    assert verdict_of(waits, saves, stall_timeout_s=10.0).detail.endswith("last seen saving")


def test_a_worker_that_waits_for_others_to_join_is_not_blamed_for_one_that_does_not(
    make_worker: MakeWorker,
) -> None:
    waits = make_worker(quiet_s=60.0, phase="waiting")
    builds = make_worker(quiet_s=20.0, phase="starting")
    assert blamed(waits, builds, stall_timeout_s=10.0)[0] == "worker 1"


def test_otherwise_the_worker_that_was_quiet_longest_is_blamed(make_worker: MakeWorker) -> None:
    workers = [make_worker(quiet_s=t, phase="training", in_step=True) for t in (20.0, 30.0, 25.0)]
    assert blamed(*workers, stall_timeout_s=10.0)[0] == "worker 1"
    assert "30 s" in verdict_of(*workers, stall_timeout_s=10.0).detail


def test_nothing_stalls_while_one_worker_moves(make_worker: MakeWorker) -> None:
    quiet, moving = (make_worker(quiet_s=t, phase="training") for t in (60.0, 1.0))
    assert judge([quiet, moving], NOW_S, stall_timeout_s=10.0) is None


def test_a_worker_without_a_report_yet_keeps_the_others_waiting(
    make_worker: MakeWorker,
) -> None:
    tells, mute = make_worker(quiet_s=60.0, phase="waiting"), make_worker(started_s=NOW_S - 30.0)
    assert blamed(tells, mute, stall_timeout_s=10.0) == ("worker 1", "stalled", 124)
    mute.started_s = NOW_S - 5.0
    assert judge([tells, mute], NOW_S, stall_timeout_s=10.0) is None


def test_programs_that_never_report_progress_do_not_stall(make_worker: MakeWorker) -> None:
    assert judge([make_worker(started_s=0.0)], NOW_S, stall_timeout_s=10.0) is None


def test_a_worker_that_was_stopped_before_its_first_report_stalls(make_worker: MakeWorker) -> None:
    stopped = make_worker(started_s=NOW_S - 30.0, is_stopped=True)
    assert blamed(stopped, make_worker(), stall_timeout_s=10.0)[:2] == ("worker 0", "stalled")
    assert judge([stopped], NOW_S, stall_timeout_s=31.0) is None


def test_an_evaluator_may_wait_for_checkpoints_without_limit(
    make_worker: MakeWorker,
) -> None:
    training = make_worker(quiet_s=1.0, phase="training")
    evaluator = make_worker(is_evaluator=True, quiet_s=900.0, phase="waiting")
    assert judge([training, evaluator], NOW_S, stall_timeout_s=10.0) is None
    training.code, training.ended_s = 0, NOW_S
    assert judge([training, evaluator], NOW_S, stall_timeout_s=10.0) is None


def test_an_evaluator_does_not_hide_that_the_training_stalls(make_worker: MakeWorker) -> None:
    training = make_worker(quiet_s=20.0, phase="training", in_step=True)
    evaluator = make_worker(is_evaluator=True, quiet_s=0.5, phase="evaluating")
    assert blamed(training, evaluator, stall_timeout_s=10.0)[0] == "worker 0"


def test_an_evaluator_that_was_stopped_is_blamed(make_worker: MakeWorker) -> None:
    training = make_worker(quiet_s=1.0, phase="training")
    evaluator = make_worker(is_evaluator=True, quiet_s=20.0, phase="waiting", is_stopped=True)
    assert blamed(training, evaluator, stall_timeout_s=10.0)[0] == "evaluator"


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
