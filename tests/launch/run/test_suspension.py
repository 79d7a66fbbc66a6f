"""A launcher that was suspended blames no worker for its own absence."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.testing.run import wait_until

Launch = Callable[..., Any]
_ROOT = Path(__file__).parents[3]
SILENCE_S = 1.5
TRAINING = """
    from tfdist.process.progress_file import find_progress_file

    on(signal.SIGTERM, (here / f"asked-{index}").touch)
    step = 0
    while not (here / "go").exists():
        find_progress_file().write(phase="training", step=step, in_step=True)
        step += 1
        ready()
        time.sleep(0.05)
    """


@pytest.fixture
def short_silence(tmp_path: Path) -> dict[str, str]:
    """An environment in which launcher and agents wait only briefly for each other."""
    code = "import tfdist.launch.workers.channel as channel\n"
    code += f"channel.SILENCE_S, channel.BEAT_S = {SILENCE_S}, 0.1\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": f"{tmp_path}:{_ROOT}"}


def suspend(*processes: Any, before_they_go_on: Callable[[], object] = lambda: None) -> None:
    """Stops processes for longer than the silence that is allowed."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    until_s = time.monotonic() + 2 * SILENCE_S
    wait_until(lambda: time.monotonic() > until_s, 60.0)
    before_they_go_on()
    for process in processes:
        process.send_signal(signal.SIGCONT)


def test_no_worker_is_blamed_after_a_suspension_of_the_launcher(
    launch: Launch, short_silence: dict[str, str]
) -> None:
    run = launch(TRAINING, "--stall-timeout", "2", environ=short_silence)
    run.wait_until_ready(0, 1)
    suspend(run.process)
    for index in range(2):  # They still train.
        (run.folder / f"ready-{index}").unlink()
    run.wait_until_ready(0, 1)
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    assert not list(run.folder.glob("asked-*"))
    assert "failed" not in run.err


def test_a_suspension_does_not_count_as_time_to_save(
    launch: Launch, short_silence: dict[str, str]
) -> None:
    saving = """
        def save():
            (here / f"asked-{index}").touch()
            wait_for("go")
            sys.exit(143)

        on(signal.SIGTERM, save)
        ready()
        time.sleep(600)
        """
    run = launch(saving, "--grace", "1", environ=short_silence)
    run.wait_until_ready(0, 1)
    run.signal(signal.SIGTERM)
    run.wait_for("asked-0", "asked-1")
    suspend(*run.living(), before_they_go_on=(run.folder / "go").touch)
    assert run.wait() == 143, run.err
    assert "killed" not in run.err
