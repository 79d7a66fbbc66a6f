"""`tfdist.launch`: a function in several workers, called from Python."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

import tfdist
from tfdist.cluster import instances
from tfdist.launch.functions.calls import Outcome
from tfdist.launch.functions.launch import _GROUPS_LEFT_OUT, LaunchOptions, _values
from tfdist.launch.options.run_options import RUN
from tfdist.testing import WorkerFailedError
from tfdist.testing.run import wait_until


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of a run lie in the current folder."""
    monkeypatch.chdir(tmp_path)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def whoami(*given: object) -> tuple[object, ...]:
    print("called")
    return (*given, instances.instance_index(), instances.num_instances(), os.getpid())


@pytest.mark.processes
@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_each_worker_returns_a_value_and_the_output_is_shown(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    point = Point(3)
    results = tfdist.launch(whoami, "a", point, num_instances=3, engine=engine)
    assert [(word, one.x, *numbers[:-1]) for word, one, *numbers in results] == [
        ("a", 3, index, 3) for index in range(3)
    ]
    assert len({result[-1] for result in results} | {os.getpid()}) == 4
    shown = capsys.readouterr().out
    assert "[0-2] called\n" in shown
    assert "tfdist topology" in shown


@pytest.mark.processes
def test_keyword_arguments_are_bound_and_options_are_those_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def variable(*, name: str) -> str:
        return os.environ[name]

    found = tfdist.launch(
        partial(variable, name="OF_TEST"),
        num_instances=1,
        env={"OF_TEST": "a=b c"},
        print_topology=False,
        log_dir=tmp_path / "logs",
    )
    assert found == ["a=b c"]
    assert "topology" not in capsys.readouterr().out
    assert (tmp_path / "logs" / "worker-0.log").exists()


@pytest.mark.processes
def test_an_exception_of_a_worker_is_the_cause_and_its_traceback_begins_with_the_function(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def look_up(key: str) -> int:
        if instances.instance_index() == 1:
            return {"a": 1}[key]
        signal.pause()
        return 0

    with pytest.raises(WorkerFailedError, match="worker 1 of 2 failed: KeyError: 'b'") as caught:
        tfdist.launch(look_up, "b")
    assert caught.value.worker == 1
    assert isinstance(caught.value.__cause__, KeyError)
    shown = capsys.readouterr().out
    assert "worker 1 failed first" in shown
    assert "worker 0 was then stopped" in shown
    lines = shown.splitlines()  # in the box, and nowhere else
    [begin] = [place for place, line in enumerate(lines) if "Traceback (most recent call" in line]
    assert "look_up" in "".join(lines[begin + 1 : begin + 3])


@pytest.mark.parametrize(
    ("code", "message", "worker"),
    [
        (137, "tfdist run ended with exit code 137; the lines above say why", None),
        (0, "worker 1 ended with exit code 0 before the function returned", 1),
    ],
)
def test_a_run_without_a_value_of_each_worker_has_failed(
    code: int, message: str, worker: int | None
) -> None:
    with pytest.raises(WorkerFailedError, match=message) as caught:
        _values([Outcome.of_value(1), None], code)
    assert (caught.value.worker, caught.value.exit_code) == (worker, code)


@pytest.mark.processes
def test_the_value_after_a_restart_counts() -> None:
    def fail_once() -> int:
        if instances.restart_count() == 0:
            os._exit(3)
        return instances.restart_count()

    assert tfdist.launch(fail_once, num_instances="1", max_restarts=1) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 3}, 'unknown option "--num-workers". Did you mean "--num-instances"'),
        ({"num_instances": 0}, '--num-instances: got "0", allowed are whole numbers from 1'),
        ({"engine": "mpi"}, '--engine: got "mpi"'),
        ({"host": "a,b"}, "--host has no effect on a function"),
        ({"dry_run": True}, "--dry-run has no effect on a function"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_started(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        tfdist.launch(whoami, **options)
    assert str(caught.value).startswith(message)
    assert not list(tmp_path.iterdir())


def test_editors_know_the_options_that_the_launcher_knows() -> None:
    left_out = ("accepted for poprun's sake", *_GROUPS_LEFT_OUT)
    known = {o.key.replace("-", "_") for o in RUN.declared if o.group.title not in left_out}
    known -= {"num_instances", "engine", "numa_aware"}  # the arguments of `launch`, and poprun's
    assert LaunchOptions.__annotations__.keys() == known


def test_what_cannot_be_sent_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the call cannot be sent to a worker"):
        tfdist.launch(whoami, sys.stdout)
    assert not list(tmp_path.iterdir())


_PROGRAM = """
import os, pathlib, signal, tfdist

def wait(folder):
    pathlib.Path(folder, os.environ["TFDIST_INSTANCE_INDEX"]).write_text(str(os.getpid()))
    signal.pause()

try:
    tfdist.launch(wait, os.getcwd())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def interrupted(tmp_path: Path) -> Callable[[signal.Signals], tuple[str, list[int]]]:
    """Sends a signal to a program in whose workers a function waits; returns output and pids."""

    def run(number: signal.Signals) -> tuple[str, list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdout=-1, stderr=-2, text=True
        )
        files = [tmp_path / "0", tmp_path / "1"]
        assert wait_until(lambda: all(one.exists() and one.read_text() for one in files), 30)
        pids = [int(file.read_text()) for file in files]
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
        return output, pids

    return run


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_workers_end_with_the_program_that_launched_them(
    number: signal.Signals, interrupted: Callable[[signal.Signals], tuple[str, list[int]]]
) -> None:
    output, pids = interrupted(number)
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 30)
    assert output.endswith("interrupted\n") is (number == signal.SIGINT)
