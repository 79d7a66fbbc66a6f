"""The progress line of the whole run: its contents, and when it is drawn."""

import io
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tfdist.launch.options.values import ProgressMode
from tfdist.launch.screen.progress_line import ProgressLine, progress_text
from tfdist.launch.screen.terminal import Terminal
from tfdist.launch.screen.worker_status import RecentProgress
from tfdist.launch.workers.worker_state import Condition, WorkerSnapshot
from tfdist.process.progress_file import Progress
from tfdist.testing.run import wait_until


def worker(
    index: int, step: int, *, condition: Condition = "running", **facts: Any
) -> WorkerSnapshot:
    """Returns a worker in a step of a training of 1000 steps, unless the facts say otherwise."""
    usual = {"phase": "training", "in_step": True, "total_steps": 1000, "loss": 0.0312}
    progress = Progress(step=step, **{**usual, "examples": step * 32.0, **facts})
    return WorkerSnapshot(name=f"worker {index}", progress=progress, condition=condition)


def evaluator(step: int, phase: str = "evaluating") -> WorkerSnapshot:
    progress = Progress(phase=phase, step=step, examples=1e9, loss=7.0)
    return WorkerSnapshot(name="evaluator", progress=progress, is_evaluator=True)


def run_to(step: int, num_workers: int = 2, *, num_steps: int = 40) -> RecentProgress:
    """Returns the recent of a run that makes ten steps a second and has just finished `step`."""
    recent = RecentProgress()
    for number in range(step - num_steps, step + 1):
        workers = {index: worker(index, number) for index in range(num_workers)}
        recent = recent.after(number / 10, workers)
    return recent


def text(
    recent: RecentProgress,
    now_s: float,
    workers: Mapping[int, WorkerSnapshot],
    width: int = 200,
    **options: Any,
) -> str:
    return progress_text(now_s, recent.after(now_s, workers), workers, width, **options).plain


def test_the_line_contains_all_known_values() -> None:
    workers = {0: worker(0, 412), 1: worker(1, 412), 2: evaluator(400)}
    assert text(run_to(412), 41.2, workers, elapsed_s=3725.4) == (
        "step 412/1000  41 %  loss 0.03120  640 samples/s  1:02:05 elapsed  ETA 0:59  "
        "[0 training 412] [1 training 412] [evaluator evaluating 400]"
    )


def test_the_epoch_of_fit_is_shown() -> None:
    workers = {0: worker(0, 7, total_steps=20, epoch=2, total_epochs=5, loss=0.5)}
    line = text(RecentProgress(), 0.0, workers)
    assert line.startswith("step 7/20  epoch 2/5  35 %  loss 0.5")


def test_a_narrow_line_leaves_out_the_less_important() -> None:
    workers = {0: worker(0, 412), 1: worker(1, 412), 2: evaluator(400)}
    numbers = "step 412/1000  41 %  loss 0.03120  640 samples/s"
    for width, expected in {
        110: f"{numbers}  0:45 elapsed  ETA 0:59  2 training, 1 evaluating",
        80: f"{numbers}  0:45 elapsed  ETA 0:59",
        60: f"{numbers}  ETA 0:59",
        40: "step 412/1000  41 %  ETA 0:59",
        20: "step 412  41 %",
    }.items():
        assert text(run_to(412), 41.2, workers, width, elapsed_s=45.0) == expected


def test_no_line_is_wider_than_asked_for() -> None:
    workers = {0: worker(0, 412), 1: worker(1, 412, condition="stopped"), 2: evaluator(400)}
    for width in range(20, 200):
        line = text(run_to(412), 52.0, workers, width, has_bar=True)
        assert len(line) <= max(width, len("step 412  worker 1 stopped"))
        assert "1 stopped" in line


def test_a_line_about_1024_workers_in_all_kinds_of_trouble_is_no_wider() -> None:
    conditions = itertools.cycle(["running", "stopped", "silent", "ended", "running", "silent"])
    workers = {i: worker(i, 400 + i % 13, condition=next(conditions)) for i in range(1024)}
    for width in (80, 120, 200):
        line = text(run_to(412, 1024, num_steps=4), 52.0, workers, width)
        assert len(line) <= width
        assert "stopped" in line or line.endswith("...")


def test_a_bar_fills_the_room_and_shows_without_colours_what_is_done() -> None:
    line = text(run_to(500, 1), 50.0, {0: worker(0, 500)}, 200, has_bar=True)
    assert f"step 500/1000  {'━' * 15}{'─' * 15}  50 %  " in line


def test_64_workers_are_counted_and_those_in_trouble_are_named() -> None:
    workers = {index: worker(index, 412) for index in range(64)}
    workers[3] = worker(3, 412, phase="saving")
    assert text(run_to(412, 64), 41.2, workers).endswith("  63 training, 1 saving")
    workers[7] = worker(7, 412, condition="stopped")
    workers[9] = worker(9, 412, condition="silent")
    assert text(run_to(412, 64), 41.2, workers).endswith(
        "  61 training, 1 saving, worker 7 stopped, worker 9 silent"
    )
    workers |= {index: worker(index, 412, condition="silent") for index in range(9, 25)}
    line = text(run_to(412, 64), 41.2, workers)
    assert line.endswith("  46 training, 1 saving, worker 7 stopped, workers 9-24 silent")


@pytest.mark.parametrize(
    ("facts", "cells"),
    [
        ({"condition": "stopped"}, "[0 waiting 412] [1 stopped 412]"),
        ({"in_step": False}, "[0 waiting 412] [1 no step for 12 s]"),
        ({"waits_for_input": True}, "[0 waiting 412] [1 no input for 12 s]"),
        ({}, "[0 no step for 12 s] [1 no step for 12 s]"),  # All are in a step.
    ],
)
def test_a_worker_that_keeps_the_others_waiting_is_visible(
    facts: dict[str, Any], cells: str
) -> None:
    line = text(run_to(412), 53.2, {0: worker(0, 412), 1: worker(1, 412, **facts)})
    assert line.endswith(f"  {cells}")
    assert "ETA" not in line


def test_a_worker_that_lags_is_visible_and_one_that_reports_later_is_not_behind() -> None:
    recent = run_to(412)  # ten steps a second
    late_report = {0: worker(0, 412), 1: worker(1, 393), 2: worker(2, 411)}
    assert "behind" not in text(recent, 41.2, late_report)
    lags = {**late_report, 1: worker(1, 390)}
    line = text(recent, 41.2, lags)
    assert line.endswith("  [0 training 412] [1 behind 390] [2 training 411]")
    assert "ETA" not in line


def test_a_worker_that_imports_is_no_trouble() -> None:
    importing = WorkerSnapshot(name="worker 1", condition="importing")
    line = text(run_to(412), 41.2, {0: worker(0, 412), 1: importing})
    assert line.endswith("  [0 training 412] [1 importing]")


def test_the_evaluators_steps_are_its_own() -> None:
    workers = {0: worker(0, 412), 1: evaluator(3, "training")}
    assert text(run_to(412, 1), 41.2, workers).endswith(
        "  320 samples/s  ETA 0:59  [0 training 412] [evaluator training 3]"
    )


def test_slow_steps_and_long_saves_are_not_late() -> None:
    recent = RecentProgress()
    for number in range(5):
        recent = recent.after(number * 30.0, {0: worker(0, number)})
    assert "training" in text(recent, 180.0, {0: worker(0, 4)})
    assert "no step for 95 s" in text(recent, 215.0, {0: worker(0, 4)})
    workers = {0: worker(0, 412, phase="saving")}
    recent = run_to(412, 1).after(41.3, workers)
    assert text(recent, 99.0, workers).endswith("[0 saving 412]")
    # The worker has just begun to train again.
    assert text(recent, 99.1, {0: worker(0, 412)}).endswith("[0 training 412]")


def test_before_the_first_step_the_line_shows_the_workers_phase() -> None:
    unknown = {"total_steps": -1, "loss": math.nan, "examples": 0.0}
    running, waiting = WorkerSnapshot(name="worker 0"), worker(1, -1, phase="waiting", **unknown)
    assert text(RecentProgress(), 5.0, {0: running}) == "[0 running]"
    line = text(RecentProgress(), 5.0, {0: running, 1: waiting})
    assert line == "no step yet  [0 running] [1 waiting]"
    # A program that goes on after its training.
    trained = worker(0, 4, phase="starting", **unknown)
    assert text(RecentProgress(), 5.0, {0: trained}).endswith("[0 running 4]")


@pytest.mark.parametrize(
    ("mode", "one"), [("auto", WorkerSnapshot(name="worker 0")), ("none", worker(0, 1))]
)
def test_a_program_without_reports_gets_no_plain_lines_and_the_mode_none_has_none(
    mode: ProgressMode, one: WorkerSnapshot
) -> None:
    with drawn(mode=mode) as (line, err):
        line.update(0.0, {0: one})
        line.close(20.0)
    assert err.getvalue() == ""


def test_without_a_known_end_there_is_no_percentage_and_without_examples_steps_are_counted() -> (
    None
):
    recent = RecentProgress().after(0.0, {0: worker(0, 1)}).after(0.1, {0: worker(0, 2)})
    line = text(recent, 1.1, {0: worker(0, 4, total_steps=-1)})
    assert line == "step 4  loss 0.03120  64 samples/s  [0 training 4]"
    recent = RecentProgress()
    for number in range(2):
        recent = recent.after(number / 2, {0: worker(0, number, examples=0.0)})
    assert "  2 steps/s  " in text(recent, 1.5, {0: worker(0, 3, examples=0.0)})


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    recent = RecentProgress()
    for second in range(100):  # ten times faster in the second half
        step = second if second < 50 else 50 + 10 * (second - 50)
        recent = recent.after(float(second), {0: worker(0, step)})
    assert recent.steps_per_s() == pytest.approx(10)
    assert recent.examples_per_s() == pytest.approx(320)
    # The run makes no further step.
    assert recent.after(160.0, {0: worker(0, 540)}).steps_per_s() < 4


def test_the_first_step_does_not_count_for_the_speed() -> None:
    recent = RecentProgress().after(0.0, {0: worker(0, -1, phase="starting")})
    for number in range(40):  # the first step takes 9 s, and each other one 0.1 s
        recent = recent.after(number / 4, {0: worker(0, 0)})
    assert "samples/s" not in text(recent, 10.0, {0: worker(0, 1)})
    recent = recent.after(10.0, {0: worker(0, 1)}).after(10.5, {0: worker(0, 6)})
    assert recent.steps_per_s() == pytest.approx(10)


def test_starting_saving_and_evaluating_do_not_count_for_the_speed() -> None:
    recent, now_s = run_to(412), 41.2
    for phase in ("saving", "evaluating"):
        for _ in range(100):  # of 0.5 s
            now_s += 0.5
            recent = recent.after(now_s, {0: worker(0, 412, phase=phase), 1: worker(1, 412)})
    for number in range(1, 20):
        recent = recent.after(now_s + number / 10, {i: worker(i, 412 + number) for i in (0, 1)})
    # Time between a phase's begin or end and the next report counts as training.
    assert recent.steps_per_s() == pytest.approx(59 / 6.4, rel=0.02)


def test_after_a_restart_the_speed_is_measured_again() -> None:
    recent = run_to(412)
    for number in range(4):
        restarted = {0: worker(0, 400 + number, examples=16.0 * number)}
        recent = recent.after(60.0 + number, restarted)
    assert recent.examples_per_s() == pytest.approx(16)


def test_two_readings_at_the_same_time_count_once() -> None:
    recent = RecentProgress().after(1.0, {0: worker(0, 1)}).after(2.0, {0: worker(0, 2)})
    assert "samples/s" not in text(recent, 2.0, {0: worker(0, 3)})


def test_the_time_left_is_given_in_minutes_hours_or_days_unless_the_run_stops() -> None:
    ends = {0.1: "ETA 0:59", 10.0: "ETA 1:38:00", 1_000.0: "ETA 6 d 19 h"}
    for seconds_a_step, expected in ends.items():
        recent = RecentProgress()
        for number in range(400, 413):
            recent = recent.after(number * seconds_a_step, {0: worker(0, number)})
        assert expected in text(recent, 412 * seconds_a_step, {0: worker(0, 412)})
    for phase in ("stopping", "leaving"):
        line = text(run_to(412, 1), 41.2, {0: worker(0, 412, phase=phase)})
        assert "320 samples/s" in line and "ETA" not in line


def test_the_loss_has_four_digits() -> None:
    shown = {2.3: "2.300", 0.0312: "0.03120", 1234.5: "1234", 1e-7: "1.000e-07", math.inf: "inf"}
    for loss, expected in shown.items():
        assert f"  loss {expected}  " in text(RecentProgress(), 1.0, {0: worker(0, 1, loss=loss)})


@contextmanager
def drawn(mode: ProgressMode = "auto") -> Iterator[tuple[ProgressLine, io.StringIO]]:
    err = io.StringIO()
    terminal = Terminal(None, err, environ={})
    try:
        yield ProgressLine(terminal, mode=mode, environ={}), err
    finally:
        terminal.close()


def test_a_file_gets_a_plain_line_every_10_seconds_if_it_changed() -> None:
    with drawn() as (line, err):
        for tenth in range(0, 400):
            now_s = tenth / 10
            step = min(tenth, 250)  # no progress after 25 s
            line.update(now_s, {0: worker(0, step, total_steps=-1, loss=math.nan)})
        line.close(40.0)
    # At 30 s the step is new; at 40 s the line says that it has lasted long.
    assert [part.split("  ")[0] for part in err.getvalue().splitlines()] == [
        "tfdist: step 0",
        "tfdist: step 100",
        "tfdist: step 200",
        "tfdist: step 250",
        "tfdist: step 250",
    ]
    assert err.getvalue().splitlines()[-1].endswith("  [0 no step for 15 s]")
    assert "\x1b" not in err.getvalue()


def test_a_plain_line_is_not_broken_into_two() -> None:
    with drawn() as (line, err):
        line.update(0.0, {index: worker(index, 412) for index in range(8)})
        line.close(1.0)
    (written,) = err.getvalue().splitlines()
    assert len(written) > 150


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "environ", "is_live"),
    [
        ("auto", {}, True),
        ("auto", {"CI": "true"}, False),
        ("bar", {"CI": "true"}, True),
        ("plain", {}, False),
    ],
)
def test_a_terminal_gets_one_line_that_is_drawn_again_in_its_place(
    mode: ProgressMode, environ: dict[str, str], is_live: bool
) -> None:
    err = Tty()
    terminal = Terminal(None, err, environ=environ)
    line = ProgressLine(terminal, mode=mode, environ=environ)
    line.update(0.0, {0: worker(0, 1)})
    assert not is_live or wait_until(lambda: "step 1/1000" in err.getvalue(), 10.0)
    line.close(1.0)
    terminal.close()
    assert ("\r\x1b[J" in err.getvalue()) is is_live
    assert err.getvalue().count("\n") == 1  # what stays at the end
