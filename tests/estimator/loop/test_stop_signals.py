"""SIGTERM and SIGUSR1 to a training alone: it finishes its step, saves and leaves."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from brief_training import Steps

import tfdist.estimator as tfe
from tfdist.strategies import stop_signals
from tfdist.strategies.stop_signals import StopOrder, describe, overdue

Make = Callable[..., Any]
TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


def send(*signals: int) -> None:
    for number in signals:
        os.kill(os.getpid(), number)


def signal_after(calls: int, *signals: int) -> Steps:
    """A hook that sends signals to this process after some session calls."""
    return Steps(lambda steps, run: send(*signals) if steps == calls else None)


@pytest.mark.parametrize(
    ("signals", "loop", "code", "step"),
    [
        ([TERM], 1, 143, 2),
        ([USR1], 1, 138, 2),
        ([TERM, TERM, USR1], 1, 143, 2),
        ([USR1], 3, 138, 6),
    ],
)
def test_a_signal_ends_training_after_the_step_with_a_checkpoint(
    make: Make,
    numbers: Make,
    saved_steps: Make,
    logged: list[str],
    tmp_path: Path,
    signals: list[int],
    loop: int,
    code: int,
    step: int,
) -> None:
    estimator = make(device={"iterations_per_loop": loop})
    with pytest.raises(SystemExit) as ended:
        estimator.train(numbers(), hooks=[signal_after(2, *signals)])
    assert ended.value.code == code
    assert saved_steps(tmp_path) == [0, step]
    name = signal.Signals(signals[0]).name
    assert f"Stopped by {name} after step {step}; its checkpoint is saved." in logged
    assert [signal.getsignal(n) for n in (TERM, USR1)] == [signal.SIG_DFL, signal.SIG_DFL]
    estimator.train(numbers(), steps=3)  # goes on from there
    assert saved_steps(tmp_path) == [0, step, step + 3]


def test_a_signal_in_the_last_save_lets_it_finish_and_then_leaves(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path
) -> None:
    class Signal(tfe.CheckpointSaverListener):  # type: ignore[misc,name-defined]
        def before_save(self, session: Any, global_step_value: int) -> None:
            if global_step_value == 3:
                send(TERM)

    with pytest.raises(SystemExit) as ended:
        make().train(numbers(), steps=3, saving_listeners=[Signal()])
    assert ended.value.code == 143
    assert saved_steps(tmp_path) == [0, 3]


@pytest.mark.parametrize("moment", ["input_fn", "first save"])
def test_a_signal_before_the_first_step_ends_at_once(
    make: Make, numbers: Make, tmp_path: Path, moment: str
) -> None:
    class Signal(tfe.CheckpointSaverListener):  # type: ignore[misc,name-defined]
        saved = ""

        def before_save(self, session: Any, global_step_value: int) -> None:
            send(USR1)

        def after_save(self, session: Any, global_step_value: int) -> None:
            raise AssertionError("goes on")

    def input_fn() -> Any:
        if moment == "input_fn":
            send(USR1)
            raise AssertionError("goes on")
        return numbers()()

    with pytest.raises(SystemExit) as ended:
        make().train(input_fn, saving_listeners=[Signal()])
    assert ended.value.code == 138
    state = tmp_path / "checkpoint"
    assert state.exists() == (moment == "first save")  # that checkpoint is whole


@pytest.mark.parametrize(
    ("train_hooks", "eval_hooks", "expected", "has_evaluated"),
    [([(2, TERM)], [], [0, 2], False), ([], [(3, TERM)], [0, 5], True)],
    ids=["in a training", "in an evaluation"],
)
def test_a_stopped_training_is_not_evaluated_and_a_stopped_evaluation_ends_at_once(
    make: Make,
    numbers: Make,
    saved_steps: Make,
    tmp_path: Path,
    train_hooks: Any,
    eval_hooks: Any,
    expected: list[int],
    has_evaluated: bool,
) -> None:
    evaluations: list[int] = []

    def eval_input_fn() -> Any:
        evaluations.append(1)
        return numbers()()

    spec = tfe.TrainSpec(numbers(), max_steps=100, hooks=[signal_after(*a) for a in train_hooks])
    hooks = [signal_after(*a) for a in eval_hooks]
    eval_spec = tfe.EvalSpec(eval_input_fn, steps=None, hooks=hooks, throttle_secs=0)
    with pytest.raises(SystemExit) as ended:
        tfe.train_and_evaluate(make(save_checkpoints_steps=5), spec, eval_spec)
    assert ended.value.code == 143
    assert saved_steps(tmp_path) == expected
    assert bool(evaluations) == has_evaluated


def test_a_signal_ends_an_evaluator(
    make: Make, numbers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator", "index": 0}}')
    timer = threading.Timer(0.3, send, [TERM])
    timer.start()
    with pytest.raises(SystemExit) as ended:  # while it waits for a checkpoint
        tfe.train_and_evaluate(
            make(),
            tfe.TrainSpec(numbers(), max_steps=100),
            tfe.EvalSpec(numbers(), start_delay_secs=0, throttle_secs=60),
        )
    timer.join()
    assert ended.value.code == 143


@pytest.fixture
def own_handler() -> Iterator[list[int]]:
    """A program's own handler of SIGTERM, and what it got."""
    got: list[int] = []
    before = signal.signal(TERM, lambda number, frame: got.append(number))
    yield got
    signal.signal(TERM, before)


def test_a_handler_of_the_programs_own_is_left_alone(
    make: Make, numbers: Make, own_handler: list[int]
) -> None:
    estimator = make()
    estimator.train(numbers(), steps=4, hooks=[signal_after(2, TERM)])
    assert own_handler == [TERM]
    assert estimator.get_variable_value("global_step") == 4


@pytest.mark.processes
def test_a_signal_that_is_repeated_while_the_process_ends_changes_nothing(
    tmp_path: Path, fake_cluster: Any
) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
from tfdist.strategies.stop_signals import listening
with listening() as signals, signals.noted():
    os.kill(os.getpid(), signal.SIGTERM)
    signals.leave_if_requested()
""")
    command = [str(program)]
    [run] = fake_cluster.run_script(command, engine="none", forked=True, check=False)
    assert run.returncode == 143


def _forked() -> int:
    """Returns the process id of a child that waits for a signal, 20 s at most."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os.write(write_end, b"!")
        signal.pause()
        os._exit(1)
    os.read(read_end, 1)
    os.close(read_end)
    os.close(write_end)
    return child


@pytest.mark.processes
def test_a_process_that_a_program_forks_has_the_signals_from_before() -> None:
    """It would keep a training from its end, and a SIGTERM to it would be one to the training."""
    seen: list[int] = []

    def watch(number: int, since_s: float) -> bool:
        seen.append(number)
        return False

    with stop_signals.watched_signals([TERM], lambda number, _: seen.append(number), watch):
        first, second = _forked(), _forked()
        os.kill(first, TERM)
        assert os.WTERMSIG(os.waitpid(first, 0)[1]) == TERM
    assert os.waitpid(second, os.WNOHANG) == (0, 0)
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
    assert seen == []


def test_what_is_printed_into_a_closed_stream_is_no_signal() -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        with (
            stop_signals.watched_signals([TERM], lambda *_: None, lambda *_: False),
            pytest.raises(OSError, match="Bad file descriptor"),
        ):
            os.fstat(2)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_training_outside_the_main_thread_leaves_signals_alone(make: Make, numbers: Make) -> None:
    seen: list[Any] = []

    look = Steps(lambda *_: seen.append(signal.getsignal(TERM)))
    thread = threading.Thread(
        target=make().train, args=[numbers()], kwargs={"hooks": [look], "steps": 1}
    )
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
    assert stop_signals.current() is None


SAVED = "after step 7; its checkpoint is saved."


@pytest.mark.parametrize(
    ("order", "num_workers", "saves", "line"),
    [
        (StopOrder(number=TERM), 1, True, f"SIGTERM {SAVED}"),
        (StopOrder(number=USR1, receiver=2), 3, True, f"SIGUSR1 to worker 2 {SAVED}"),
        (
            StopOrder(number=TERM, receivers=2, receiver=3),
            3,
            False,
            "SIGTERM to 2 of 3 workers after step 7; no checkpoint is saved, as the RunConfig asks "
            "for none.",
        ),
    ],
)
def test_one_line_says_who_asked_and_what_is_saved(
    order: StopOrder, num_workers: int, saves: bool, line: str
) -> None:
    said = describe(order, step=7, num_workers=num_workers, saves=saves)
    assert said == f"Stopped by {line}"


WAITING = "while waiting for another worker: this worker ends now."


@pytest.mark.parametrize(
    ("number", "has_to_finish", "waited_s", "in_call_s", "expected"),
    [
        (TERM, False, 1.0, None, None),
        (TERM, False, 3.0, None, f"SIGTERM {WAITING}"),
        (signal.SIGINT, False, 3.0, None, f"Interrupted {WAITING}"),
        (TERM, True, 100.0, None, None),  # it saves, or its hooks work
        (TERM, True, 100.0, 24.0, None),  # calls have taken 15 s before
        (
            TERM,
            True,
            100.0,
            26.0,
            "SIGTERM: a session call does not end (after 26 s; does another worker hang?). This "
            "worker ends now; steps since the last checkpoint are lost.",
        ),
        (USR1, True, 100.0, 90.0, None),  # another worker may evaluate
    ],
)
def test_a_worker_that_hangs_ends_in_time(
    number: int, has_to_finish: bool, waited_s: float, in_call_s: float | None, expected: str | None
) -> None:
    line = overdue(
        number,
        waited_s=waited_s,
        has_to_finish=has_to_finish,
        in_call_s=in_call_s,
        longest_call_s=15.0,
    )
    assert line == expected


@pytest.mark.parametrize(
    ("number", "idle_s", "is_over"), [(TERM, 9.0, False), (TERM, 11.0, True), (USR1, 99.0, False)]
)
def test_a_loop_of_its_own_that_makes_no_step_any_more_ends_after_sigterm(
    number: int, idle_s: float, is_over: bool
) -> None:
    line = overdue(
        number,
        waited_s=100.0,
        has_to_finish=True,
        in_call_s=None,
        longest_call_s=15.0,
        idle_s=idle_s,
    )
    expected = "SIGTERM: no step of a loop has begun for 11 s. This worker ends now."
    assert line == (expected if is_over else None)
