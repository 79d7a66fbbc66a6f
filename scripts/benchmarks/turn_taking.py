"""Contenders that take turns: each is a few worker processes, and one contender runs at a time.

Between its turns a contender is stopped (SIGSTOP), so that what waits does not take the cores from
what works.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contender import Contender

START_TIMEOUT_S = 180.0
TURN_TIMEOUT_S = 300.0
END_TIMEOUT_S = 20.0


class ContenderError(RuntimeError):
    """A contender could not start or has failed; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The times of one turn."""

    seconds: float  # A step's, of the slowest worker.
    peak_bytes: int  # The most memory that a worker has had.
    # The most memory in the turn beyond that between two turns, of all workers; 0 where it was not
    # watched.
    step_bytes: int = 0


@dataclass
class _Worker:
    pid: int
    num_parameters: int
    connection: socket.socket
    lines: Any


@dataclass
class Running:
    """A contender whose workers have been started."""

    contender: Contender
    processes: list[subprocess.Popen[bytes]]
    folder: Path
    workers: list[_Worker] = field(default_factory=list)

    @property
    def num_parameters(self) -> int:
        """Trainable values of the model, as its workers said; 0 where they did not."""
        return max(worker.num_parameters for worker in self.workers)

    def take_turn(
        self, num_steps: int, timeout_s: float = TURN_TIMEOUT_S, *, watches_memory: bool = False
    ) -> Turn:
        """Lets the workers do so many steps; the others of the benchmark are stopped meanwhile.

        `watches_memory` measures `Turn.step_bytes`, which costs time at the start.

        Raises:
          ContenderError: If a worker ends or takes too long.
        """
        self._signal(signal.SIGCONT)
        order = json.dumps({"steps": num_steps, "watches_memory": watches_memory})
        for worker in self.workers:
            with suppress(OSError):  # It has ended: nothing is heard from it.
                worker.connection.sendall(f"{order}\n".encode())
        reports = [self._hear(worker, timeout_s) for worker in self.workers]
        self._signal(signal.SIGSTOP)
        return Turn(
            seconds=max(report["seconds"] for report in reports) / num_steps,
            peak_bytes=max(report["peak_bytes"] for report in reports),
            step_bytes=sum(report.get("step_bytes", 0) for report in reports),
        )

    def _hear(self, worker: _Worker, timeout_s: float) -> Any:
        worker.connection.settimeout(timeout_s)
        try:
            line = worker.lines.readline()
        except ConnectionError:
            line = ""
        except TimeoutError:
            raise ContenderError(
                f"{self.contender.name}: no word for {timeout_s:.0f} s. {self.last_words()}"
            ) from None
        if not line:
            raise ContenderError(f"{self.contender.name}: a worker ended. {self.last_words()}")
        return json.loads(line)

    def last_words(self) -> str:
        """Returns the last line of output that speaks of an error, else the last one."""
        lines = [
            line
            for path in sorted(self.folder.glob("output-*.txt"))
            for line in path.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["It printed nothing."])[-1].strip()

    def _signal(self, number: signal.Signals) -> None:
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def kill(self) -> None:
        """Kills the workers."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Ends the workers: asks them, then stops what is left."""
        self._signal(signal.SIGCONT)
        for worker in self.workers:
            with suppress(OSError):
                worker.connection.sendall(b'{"steps": 0}\n')
        deadline_s = time.monotonic() + (END_TIMEOUT_S if self.workers else 0)
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                _stop_group(process)
        for worker in self.workers:
            worker.lines.close()
            worker.connection.close()


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stops a process, and what it started, which is in its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        break
    process.wait()


@contextmanager
def running(contender: Contender, cores: Sequence[int]) -> Iterator[Running]:
    """Starts a contender, with a core for each worker, and ends it.

    Raises:
      ContenderError: If a worker does not come.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as name:
        folder = Path(name)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "turns"))
            listener.listen(contender.num_workers)
            run = Running(contender, [], folder)
            try:
                _start(run, cores)
                _accept(run, listener)
                yield run
            except BaseException:
                run.kill()  # Else many contenders would take minutes to end one by one.
                raise
            finally:
                run.end()


def _start(run: Running, cores: Sequence[int]) -> None:
    contender = run.contender
    for number, command in enumerate(contender.commands):
        own = contender.environ[number % len(contender.environ)]
        environ = {
            "TF_ENABLE_ONEDNN_OPTS": "1",
            **os.environ,
            **own,
            "TFDIST_BENCHMARK_SOCKET": str(run.folder / "turns"),
            "TFDIST_BENCHMARK_CORES": ",".join(map(str, cores)),
        }
        with (run.folder / f"output-{number}.txt").open("wb") as output:
            run.processes.append(
                subprocess.Popen(
                    command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=run.folder,
                )
            )


def _accept(run: Running, listener: socket.socket) -> None:
    """Waits until every worker has connected."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    listener.settimeout(0.5)
    found: dict[int, _Worker] = {}
    while len(found) < run.contender.num_workers:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            ended = [p for p in run.processes if p.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                why = f"exit code {ended[0].returncode}" if ended else "it did not start in time"
                raise ContenderError(f"{run.contender.name}: {why}. {run.last_words()}") from None
            continue
        connection.settimeout(START_TIMEOUT_S)
        lines = connection.makefile("r")
        if not (line := lines.readline()):
            continue  # It has ended, which is said above.
        hello = json.loads(line)
        found[hello["worker"]] = _Worker(hello["pid"], hello["parameters"], connection, lines)
    run.workers = [found[index] for index in sorted(found)]
