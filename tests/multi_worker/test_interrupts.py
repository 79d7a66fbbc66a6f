"""Ctrl-C ends a worker at every moment, and the others with it."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.testing import WorkerFailedError

ENGINES = ["grpc", "horovod"]
# A second or less on two idle cores; without what is tested, the workers wait or train forever.
CTRL_C_LIMIT_S = 30.0
LOST_LIMIT_S = 60.0
START_LIMIT_S = 150.0


@pytest.fixture(scope="session")
def interrupt_when() -> Callable[..., None]:
    """Starts a thread in a worker that presses Ctrl-C, or sends SIGTERM, once a condition holds."""

    def interrupt_when(is_so: Callable[[], bool], pressed: str, name: str = "SIGINT") -> None:
        """Leaves the time of the signal in the file `pressed`."""
        import os
        import signal
        import threading
        import time
        from pathlib import Path

        def press() -> None:
            while not is_so():
                time.sleep(0.01)
            Path(pressed).write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.Signals[name])

        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=press, daemon=True).start()

    return interrupt_when


@pytest.fixture(scope="session")
def main_thread_is_in() -> Callable[[str], bool]:
    """Tells whether the main thread is in a function of that name, or in one that it called."""

    def is_in(function: str) -> bool:
        import sys
        import threading

        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        return frame is not None

    return is_in


@pytest.mark.parametrize(("name", "end"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)])
def test_ctrl_c_and_sigterm_end_a_worker_that_waits_for_a_peer(
    fake_cluster: Any,
    train_briefly: Any,
    interrupt_when: Any,
    main_thread_is_in: Any,
    tmp_path: Path,
    name: str,
    end: type[BaseException],
) -> None:
    pressed = tmp_path / "pressed"

    def wait_alone() -> float:
        import json
        import os
        import time

        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            return 0.0
        interrupt_when(lambda: main_thread_is_in("_start_server"), str(pressed), name)
        try:
            train_briefly("grpc")
        except end as ended:
            assert getattr(ended, "code", 143) == 143
            return time.monotonic()
        raise AssertionError("not interrupted")

    ended_s, _ = fake_cluster.run(wait_alone)
    assert ended_s - float(pressed.read_text()) < CTRL_C_LIMIT_S


def test_ctrl_c_ends_a_worker_that_waits_for_a_stopped_one(
    fake_cluster: Any,
    train_briefly: Any,
    interrupt_when: Any,
    main_thread_is_in: Any,
    tmp_path: Path,
) -> None:
    # test_stop_signals.py has it over gRPC, with SIGTERM.
    pressed, stopped = tmp_path / "pressed", tmp_path / "stopped"

    def hooks(index: int) -> list[Any]:
        import os
        import signal

        import psutil
        from brief_training import Steps

        def stop(steps: int, run: Any) -> None:
            if steps == 3 and index == 1:
                stopped.with_suffix(".tmp").write_text(str(os.getpid()))
                stopped.with_suffix(".tmp").rename(stopped)
                os.kill(os.getpid(), signal.SIGSTOP)  # until the run is ended with SIGKILL

        hook = Steps(stop)
        looks: list[int] = []

        def waits_for_the_stopped_one() -> bool:
            if not stopped.exists() or not main_thread_is_in("_call_tf_sessionrun"):
                looks.clear()
                return False
            looks.append(hook.steps)
            is_stuck = len(looks) > 30 and len(set(looks[-30:])) == 1
            status = psutil.Process(int(stopped.read_text())).status()
            return is_stuck and status == psutil.STATUS_STOPPED

        if index == 0:
            interrupt_when(waits_for_the_stopped_one, str(pressed))
        return [hook]

    with pytest.raises(WorkerFailedError) as caught:
        fake_cluster.run(train_briefly, "horovod", hooks=hooks, engine="horovod")
    assert time.monotonic() - float(pressed.read_text()) < CTRL_C_LIMIT_S
    assert (caught.value.worker, caught.value.exit_code) == (0, 130)
    assert "Interrupted while waiting for another worker: this worker ends now." in str(
        caught.value
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_workers_that_train(
    fake_cluster: Any, train_briefly: Any, interrupt_when: Any, tmp_path: Path, engine: str
) -> None:
    def hooks(index: int) -> list[Any]:
        from brief_training import Steps

        count = Steps()
        interrupt_when(lambda: count.steps >= 3, str(tmp_path / str(index)))
        return [count]

    def train() -> bool:
        def input_fn(index: int) -> Any:
            import tensorflow as tf

            return lambda: tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat()

        try:
            train_briefly(engine, hooks=hooks, input_fn=input_fn)
        except KeyboardInterrupt:
            return True
        return False

    # Both are interrupted, as the workers of one terminal or mpirun are. The second one may be
    # waiting for the first by then, and ends with code 130.
    try:
        assert fake_cluster.run(train, engine=engine) == [True, True]
    except WorkerFailedError as error:
        assert error.exit_code == 130
    pressed_s = [float((tmp_path / str(index)).read_text()) for index in range(2)]
    assert time.monotonic() - max(pressed_s) < CTRL_C_LIMIT_S


def test_ctrl_c_in_one_terminal_ends_the_other_worker_in_one_line(fake_cluster: Any) -> None:
    program = str(Path(__file__).parents[1] / "programs" / "ending_training.py")
    with fake_cluster.start_script([program, "grpc", "never"], forked=True) as script:
        for worker in script.workers:
            worker.wait_for_text("^trains$", START_LIMIT_S)
        other, interrupted = script.workers
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(CTRL_C_LIMIT_S) == -signal.SIGINT
        assert other.wait(LOST_LIMIT_S) == 200
    assert "Traceback" not in other.stderr()
    line = other.stderr().splitlines()[-1]
    assert line.startswith("WorkerLostError: Lost worker 1 (127.0.0.1:")
    assert line.endswith(". See its output for the cause.")
