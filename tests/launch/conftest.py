"""Real runs of `tfdist run` with small programs, and plans and workers for tests without one."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tfdist.launch.failures.failure import Failure
from tfdist.launch.workers.plan import WorkerPlan
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.progress_file import Progress
from tfdist.testing.run import wait_until

_LIMIT_S = 60.0
_MARK = "TFDIST_TEST_RUN"
_ROOT = Path(__file__).parents[2]
_STREAMS = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
# Precedes the code of a test's program.
_PRELUDE = (_ROOT / "tests" / "programs" / "launched_prelude.py").read_text()


class Run:
    """One `tfdist run` and its results.

    Attributes:
      process: The launcher.
      folder: Its working directory.
      log_dir: The folder of the workers' logs.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path, mark: str) -> None:
        self.process = process
        self.folder = folder
        self.log_dir = folder / "logs"
        self._mark = mark
        self._output: tuple[str, str] | None = None

    def wait(self, limit_s: float = _LIMIT_S) -> int:
        """Waits for the launcher's end; returns its exit code."""
        if self._output is None:
            self._output = self.process.communicate(timeout=limit_s)
        return self.process.returncode

    @property
    def out(self) -> str:
        """The workers' stdout, as the launcher showed it."""
        self.wait()
        assert self._output is not None
        return self._output[0]

    @property
    def err(self) -> str:
        """The workers' stderr and the launcher's own messages."""
        self.wait()
        assert self._output is not None
        return self._output[1]

    def log(self, name: str) -> str:
        """Returns the text of a log, such as that of "worker-0"."""
        return (self.log_dir / f"{name}.log").read_text()

    def wait_for(self, *names: str) -> None:
        """Waits until the workers have made files of these names in the folder."""
        for name in names:
            is_there = wait_until(
                lambda name=name: (self.folder / name).exists() or self.process.poll() is not None,
                _LIMIT_S,
            )
            assert is_there and (self.folder / name).exists(), (name, self.process.poll())

    def wait_until_ready(self, *workers: int) -> None:
        self.wait_for(*(f"ready-{worker}" for worker in workers))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def living(self, *words: str) -> list[psutil.Process]:
        """Returns the run's processes with these words in their command, with any parent."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(_MARK) == self._mark and process.is_running():
                    command = process.cmdline()
                    # A zombie has no environment and was left out above.
                    if all(any(word in part for part in command) for word in words):
                        found.append(process)
        return found

    def is_nothing_left(self, limit_s: float = 20.0) -> bool:
        return wait_until(lambda: not self.living(), limit_s)

    def end(self) -> None:
        """Ends the processes that a failed test has left."""
        while left := self.living():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts `tfdist run` with a program for each worker: its code, or a command."""
    runs: list[Run] = []

    def launch(
        program: str | Sequence[str],
        *options: str,
        num_instances: int = 2,
        environ: dict[str, str] | None = None,
        before: Sequence[str] = (),
        **popen: Any,
    ) -> Run:
        folder = tmp_path / f"run-{len(runs)}"
        folder.mkdir(exist_ok=True)  # a test may have put something into it
        if isinstance(program, str):
            path = folder / "program.py"
            path.write_text(_PRELUDE + textwrap.dedent(program))
            command: Sequence[str] = (sys.executable, "-S", str(path))  # starts faster
        else:
            command = program
        mark = uuid.uuid4().hex
        words = [sys.executable, "-m", "tfdist", "run", "--num-instances", str(num_instances)]
        if "--dry-run" not in options:
            words += ["--log-dir", "logs"]
        process = subprocess.Popen(
            [*before, *words, "--print-topology", "no", *options, "--", *command],
            cwd=folder,
            env={**_environment(), _MARK: mark, **(environ or {})},
            text=True,
            **{**_STREAMS, **popen},
        )
        runs.append(Run(process, folder, mark))
        return runs[-1]

    yield launch
    for run in runs:
        run.end()


def _environment() -> dict[str, str]:
    # A shell that starts the tests in the background has Ctrl-C ignored, and all that they start.
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TFDIST_", "TF_CONFIG"))}
    return {**kept, "PYTHONPATH": path}


@pytest.fixture
def break_agents(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Returns an environment in which every agent's Python runs `action` instead."""

    def break_agents(action: str) -> dict[str, str]:
        code = f"import os, time\nif 'TFDIST_AGENT_TOKEN' in os.environ:\n    {action}\n"
        (tmp_path / "sitecustomize.py").write_text(code)
        return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{_ROOT}"}

    return break_agents


@pytest.fixture
def make_worker(tmp_path: Path) -> Callable[..., WorkerState]:
    """Makes the launcher's record of a worker; each call makes the next worker's."""
    numbers = itertools.count()

    def make_worker(*, is_evaluator: bool = False, **facts: Any) -> WorkerState:
        index = next(numbers)
        plan = WorkerPlan(
            index=index,
            name="evaluator" if is_evaluator else f"worker {index}",
            host="localhost",
            replicas=range(0) if is_evaluator else range(index, index + 1),
            devices_per_replica=1,
            cores=None,
            command=("true",),
            environment={},
            log_path=tmp_path / f"worker-{index}.log",
        )
        progress = {name: facts.pop(name) for name in vars(Progress()) if name in facts}
        if progress:
            facts["progress"] = Progress(**progress)
        return WorkerState(plan=plan, **facts)

    return make_worker


@pytest.fixture
def failed() -> Callable[..., Failure]:
    """Makes the failure of worker 1, which exited with 3 unless the facts say otherwise."""

    def failed(**facts: Any) -> Failure:
        known: dict[str, Any] = {
            "name": "worker 1",
            "index": 1,
            "host": "node2",
            "pid": 4711,
            "kind": "exited",
            "code": 3,
            "after_s": 12.34,
            "at": datetime(2026, 11, 3, 12, 4, 31),
            "step": 412,
            "log_tail": (),
            "log_path": Path("logs/worker-1.txt"),
        }
        return Failure(**known | facts)

    return failed
