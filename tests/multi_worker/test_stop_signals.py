"""SIGTERM and SIGUSR1 to one worker: all finish the same step, worker 0 saves, all leave."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.testing import WorkerFailedError


@pytest.fixture(scope="session")
def train_until_signal(
    train_briefly: Any, collect_log: Callable[[], list[str]]
) -> Callable[..., dict[str, Any]]:
    """Trains in a worker until a signal ends it, and says how: `code`, `calls`, `lines`."""

    def train_until_signal(
        engine: str, receiver: int, number: int, *, loop: int = 1, model_dir: str
    ) -> dict[str, Any]:
        import os

        import tensorflow as tf
        from brief_training import Steps

        lines, counted = collect_log(), []

        def hooks(index: int) -> list[Any]:
            def send(calls: int, run: Any) -> None:
                if calls == 3 and index == receiver:
                    os.kill(os.getpid(), number)

            counted.append(Steps(send))
            return counted

        def input_fn() -> Any:
            return tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat()

        of_all = {
            "input_fn": lambda index: input_fn,
            "iterations": lambda index: loop,
            "model_dir": lambda index: model_dir,
        }
        try:
            train_briefly(engine, hooks=hooks, **of_all)
        except SystemExit as end:
            stopped = [line for line in lines if line.startswith("Stopped by")]
            return {"code": end.code, "calls": counted[0].steps, "lines": stopped}
        raise AssertionError("training has ended")

    return train_until_signal


@pytest.mark.parametrize(
    ("engine", "receiver", "name", "loop"),
    [("grpc", 1, "SIGTERM", 1), ("horovod", 0, "SIGUSR1", 2)],
)
def test_a_signal_to_one_worker_stops_all_after_the_same_step(
    fake_cluster: Any,
    train_until_signal: Any,
    tmp_path: Path,
    engine: str,
    receiver: int,
    name: str,
    loop: int,
) -> None:
    ends = fake_cluster.run(
        train_until_signal,
        engine,
        receiver,
        int(signal.Signals[name]),
        loop=loop,
        model_dir=str(tmp_path / "model"),
        engine=engine,
    )
    calls = 4  # One after the signal, in which the workers agree.
    step = calls * loop
    code = {"SIGTERM": 143, "SIGUSR1": 138}[name]
    line = f"Stopped by {name} to worker {receiver} after step {step}; its checkpoint is saved."
    assert ends == [{"code": code, "calls": calls, "lines": [line]}] * 2
    assert f'model_checkpoint_path: "model.ckpt-{step}"' in (
        (tmp_path / "model" / "checkpoint").read_text()
    )


def test_sigterm_ends_a_worker_that_waits_for_a_stopped_one(
    fake_cluster: Any, train_briefly: Any, tmp_path: Path
) -> None:
    # test_interrupts.py has it over Horovod, with Ctrl-C.
    pid_file = tmp_path / "stopped"

    def hooks(index: int) -> list[Any]:
        import os
        import signal
        import threading

        import psutil
        from brief_training import Steps

        from tfdist.strategies import stop_signals
        from tfdist.testing.run import wait_until

        def has_stopped() -> bool:
            text = pid_file.read_text() if pid_file.exists() else ""
            return bool(text) and psutil.Process(int(text)).status() == psutil.STATUS_STOPPED

        def leave_when_the_other_has_stopped() -> None:
            if wait_until(has_stopped, 60):
                os.kill(os.getpid(), signal.SIGTERM)

        def stop(steps: int, run: Any) -> None:
            # Perhaps while the other one still needs it for its own third step.
            if steps == 3 and index == 1:
                pid_file.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)  # until the run is ended with SIGKILL

        if index == 0:
            stop_signals._STEP_GRACE_S = 1.0
            threading.Thread(target=leave_when_the_other_has_stopped, daemon=True).start()
        return [Steps(stop)]

    with pytest.raises(WorkerFailedError) as caught:
        fake_cluster.run(train_briefly, "grpc", hooks=hooks)
    assert (caught.value.worker, caught.value.exit_code) == (0, 143)
    assert "SIGTERM: a session call does not end" in str(caught.value)
