"""Running a training to its fault, and the table of what was seen."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from forking_launcher import FORKING_LAUNCHER, rank_command

from tfdist.launch.machine.mpi import find_mpirun, mpirun_environment
from tfdist.testing.job import read_text
from tfdist.testing.run import wait_until

# What is trained: an Estimator's model, a Keras model by `fit`, or a variable by an own loop.
PROGRAMS = {name: Path(__file__).with_name(f"{name}.py") for name in ("training", "fit", "loop")}
DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
_SHOWN = ("--progress", "none", "--print-topology", "no")
_ENVIRONMENT = {"COLUMNS": "100", "TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "tensorflow"}
_START, _END = "<!-- made by the tests -->\n", "<!-- end -->\n"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The end of a run with a fault.

    Attributes:
      exit_code: The launcher's.
      output: All that it printed.
      ended_s: Seconds from the fault until no process of the run was left.
      last_step: The step of the last complete checkpoint; None without one.
    """

    exit_code: int
    output: str
    ended_s: float
    last_step: int | None

    @property
    def blamed(self) -> str:
        match = re.search(r"(worker \d+|evaluator) failed(?: first)?", self.output)
        return match[1] if match else ""

    @property
    def rank(self) -> str:
        """The rank that has failed, as mpirun tells it."""
        match = re.search(r"process rank (\d+) |Process name: \[\[\d+,1\],(\d+)\]", self.output)
        return (match[1] or match[2]) if match else ""

    @property
    def how(self) -> str:
        lines = re.findall(r"^│ how +(.*?) *│\n(?:│ {8,}(\S.*?) *│\n)?", self.output, re.MULTILINE)
        return " ".join(part for part in lines[-1] if part) if lines else ""


@pytest.fixture
def run_to_fault(
    tmp_path: Path,
    fake_cluster: Any,
    fake_cluster_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    all_end: Callable[..., bool],
) -> Callable[..., Seen]:
    """Starts the training, under the launcher or mpirun, and waits until nothing of it is left.

    The launcher, its agents, the workers and mpirun's ranks are forked: they have TensorFlow
    imported then.
    """
    monkeypatch.chdir(tmp_path)

    def run(
        *,
        engine: str,
        num_workers: int,
        fault: str,
        moment: str,
        worker: int,
        options: tuple[str, ...] = (),
        to_launcher: int | None = None,
        program: str = "training",
    ) -> Seen:
        model_dir = tmp_path / "model"
        note = Path(f"{model_dir}.fault")
        arguments = (str(PROGRAMS[program]), str(model_dir), fault, moment, str(worker))
        launched = ("run", *_SHOWN, "--engine", engine, "--num-instances", str(num_workers))
        if engine == "mpirun":
            start = _start_mpirun(
                num_workers, rank_command(arguments, tmp_path, fake_cluster_server), tmp_path
            )
        else:
            words = [*launched, *options, "--", sys.executable, *arguments]
            start = _fork(fake_cluster, words)
        with start as (launcher, read_output):
            started = wait_until(
                lambda: _has_come(note, read_output, to_launcher) or launcher.poll() is not None,
                150,
            )
            assert (started and launcher.poll() is None) or note.exists(), read_output()
            processes = _grandchildren()
            if to_launcher is not None:
                note.write_text(repr(time.time()))
                launcher.send_signal(to_launcher)
            exit_code = launcher.wait(150)
            assert all_end(*(one.pid for one in processes), limit_s=40), f"one runs: {processes}"
            ended_s = time.time() - float(note.read_text())
            text = read_output()
        step = _last_epoch(model_dir) if program == "fit" else _last_step(model_dir)
        return Seen(exit_code=exit_code, output=text, ended_s=ended_s, last_step=step)

    return run


def _grandchildren() -> list[psutil.Process]:
    """Returns what runs below this process's children: the launcher, and the fork server."""
    children = psutil.Process().children()
    return [one for child in children for one in child.children(recursive=True)]


@contextlib.contextmanager
def _start_mpirun(
    num_workers: int, rank: Sequence[str], folder: Path
) -> Iterator[tuple[Any, Callable[[], str]]]:
    """Starts mpirun as docs/horovod.md shows, and returns it with a reader of all output."""
    mpirun = find_mpirun()
    assert mpirun is not None
    places = ("-np", str(num_workers), "-H", f"localhost:{num_workers}")
    environment = mpirun_environment(mpirun, {**os.environ, **_ENVIRONMENT})
    with (folder / "mpirun.stderr").open("wb") as file:
        launcher = subprocess.Popen(
            [mpirun, *places, *rank],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield launcher, lambda: "".join(map(read_text, sorted(folder.glob("*.std*"))))
    finally:
        launcher.kill()
        launcher.wait()


@contextlib.contextmanager
def _fork(cluster: Any, words: Sequence[str]) -> Iterator[tuple[Any, Callable[[], str]]]:
    """Does the same with a launcher with these arguments, which forks what it starts."""
    command = [FORKING_LAUNCHER, *words]
    with cluster.start_script(command, engine="none", env=_ENVIRONMENT, forked=True) as script:
        yield script.workers[0], script.workers[0].text


def _has_come(note: Path, read_output: Callable[[], str], to_launcher: int | None) -> bool:
    if to_launcher is None:
        return note.exists()
    return "Saving checkpoints for 20" in read_output()


def _last_step(model_dir: Path) -> int | None:
    """Loads every value of the last checkpoint; the step says which it was."""
    import tensorflow as tf

    path = tf.train.latest_checkpoint(str(model_dir))
    if path is None:
        return None
    reader = tf.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    names = ("global_step", "step/.ATTRIBUTES/VARIABLE_VALUE")
    return int(next(values[name] for name in names if name in values))


def _last_epoch(backup: Path) -> int | None:
    """Loads every value of a backup; returns the steps of the epochs that it has seen."""
    import h5py
    import numpy as np

    if not backup.exists():
        return None
    with h5py.File(backup / "latest.weights.h5") as file:
        file.visititems(lambda _, item: np.asarray(item) if hasattr(item, "dtype") else None)
    return 10 * int(json.loads((backup / "training_metadata.json").read_text())["epoch"])


@pytest.fixture(scope="session")
def fault_table(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, ...]]]:
    """Rows of the table in the docs; written at the end if that was asked for."""
    rows: list[tuple[str, ...]] = []
    yield rows
    if rows and request.config.getoption("--write-fault-table"):
        text = DOCUMENT.read_text()
        before, rest = text.split(_START)
        _, after = rest.split(_END)
        head = (
            "engine",
            "workers",
            "fault",
            "when",
            "who",
            "report",
            "exit code",
            "all ended after",
            "last checkpoint",
        )
        lines = ["|".join(("", *(f" {cell} " for cell in row), "")) for row in (head, *rows)]
        lines.insert(1, "|---" * len(head) + "|")
        DOCUMENT.write_text(before + _START + "\n".join(lines) + "\n" + _END + after)
