"""Small Keras programs on replicas and workers, against plain Keras with the global batch.

    python tests/programs/keras_numbers.py                             all programs, all layouts
    ... --keras keras --layout 1x2 masked_sequence 'loss_*'            some, in one layout
    ... --list                                                         what there is

Each layout of a run is one set of processes, which makes all of its programs in turn. A difference
is printed with the numbers of both, and an error with its stack.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import gc
import importlib
import io
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from number_programs.table import BOTH, PROGRAMS, Found, Program

KINDS = ("overrides", "inputs", "weights_and_masks", "losses", "metrics", "layers", "models")
for _kind in KINDS:
    importlib.import_module(f"number_programs.{_kind}")

# Engine, workers, replicas of each.
LAYOUTS = {
    "1x2": ("none", 1, 2),
    "grpc2": ("grpc", 2, 1),
    "horovod2": ("horovod", 2, 1),
    "2x2": ("grpc", 2, 2),
    "grpc3": ("grpc", 3, 1),  # A batch of 7 rows does not divide by 3.
}
ALONE = "plain"
LIMIT_S = 600.0  # For all runs of a layout.
# Two numbers are equal to 6 decimals; or relatively, where many are added.
ATOL, RTOL = 2e-6, 1e-5


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """A program with one of the Kerases, in a layout."""

    library: str
    name: str
    layout: str

    @property
    def program(self) -> Program:
        return PROGRAMS[self.name]

    @property
    def reference(self) -> Run:
        """The same with plain Keras."""
        layout = f"{ALONE} {self.layout}" if self.program.is_of_layout else ALONE
        return dataclasses.replace(self, layout=layout)

    def __str__(self) -> str:
        return f"{self.library} {self.layout} {self.name}"


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """The outcome of a program on a worker.

    Attributes:
      found: Its numbers.
      lines: The lines that it has logged or written to stderr.
      error: The text of its error; "" without one.
      is_one_line: Whether the error is shown to the user as one line.
      processor_s: Its processor time.
    """

    found: Found
    lines: list[str]
    error: str = ""
    is_one_line: bool = False
    processor_s: float = 0.0


def all_runs(
    libraries: Iterable[str] = BOTH, layouts: Iterable[str] = LAYOUTS, names: Sequence[str] = ()
) -> list[Run]:
    """Returns the runs with these Kerases and layouts of programs whose names fit a pattern."""
    return [
        Run(library, name, layout)
        for library in libraries
        for layout in layouts
        for name, one in PROGRAMS.items()
        if library in one.libraries and layout in (one.layouts or LAYOUTS)
        if not names or any(fnmatch.fnmatch(name, pattern) for pattern in names)
    ]


# In a worker.


def make(runs: Sequence[Run]) -> list[Outcome]:
    """Makes runs of one layout, or of plain Keras, in this process and in turn."""
    from number_programs.bench import Bench

    outcomes = []
    strategy = None
    # A collection of garbage takes longer than a training here.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    for run in runs:
        is_alone = run.layout.startswith(ALONE)
        _, num_workers, num_replicas = LAYOUTS.get(run.layout.split()[-1], ("none", 1, 1))
        if not is_alone and strategy is None:
            from tfdist.strategies import strategy_for_run

            strategy = strategy_for_run(num_replicas=num_replicas)
            with strategy.scope():  # Over gRPC, TensorFlow's server starts here.
                pass
        keras = importlib.import_module(run.library)
        keras.utils.set_random_seed(7)
        bench = Bench(
            keras=keras, strategy=strategy, num_workers=num_workers, num_replicas=num_replicas
        )
        print(run, flush=True)  # Shown where a worker fails.
        outcomes.append(_outcome(run, bench))
        more = {"free_memory": False} if bench.is_keras_3 else {}
        keras.backend.clear_session(**more)
    return outcomes


def _outcome(run: Run, bench: Any) -> Outcome:
    from tfdist.process.endings import OneLineError

    began_s, found, error, is_one_line = time.process_time(), {}, "", False
    with _collected() as lines:
        try:
            found = {name: np.asarray(v) for name, v in run.program.run(bench).items()}
        except OneLineError as one:
            error, is_one_line = f"{type(one).__name__}: {one}", True
        except Exception:  # A test shows it.
            error = traceback.format_exc()
    return Outcome(
        found=found,
        lines=lines,
        error=error,
        is_one_line=is_one_line,
        processor_s=time.process_time() - began_s,
    )


@contextlib.contextmanager
def _collected() -> Iterator[list[str]]:
    """Collects the lines that TensorFlow's logger gets, and those of stderr."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    class Both(io.StringIO):
        def write(self, text: str) -> int:
            terminal.write(text)  # Of a process that ends, all is shown that it wrote.
            return super().write(text)

    lines: list[str] = []
    terminal = sys.stderr
    logger, keep, written = logging.getLogger("tensorflow"), Keep(), Both()
    handlers, logger.handlers[:] = list(logger.handlers), [keep]
    try:
        with contextlib.redirect_stderr(written):
            yield lines
    finally:
        logger.handlers[:] = handlers
        lines += written.getvalue().splitlines()


# Where the outcomes are compared.


def problem_of(run: Run, workers: Sequence[Outcome], alone: Outcome) -> str:
    """Returns what is not as it is expected; "" if all is."""
    one = run.program
    if alone.error:
        return f"plain Keras fails:\n{alone.error}"
    if one.expected == "refused":
        return _refusal_problem(one, workers)
    failed = [worker for worker in workers if worker.error]
    if failed:
        return f"it fails:\n{failed[0].error}"
    problems = [_lines_problem(one, workers) if one.says else _stray_line(workers)]
    found = [worker.found for worker in workers]
    if one.holds is not None:
        problems.append(one.holds(found))
    else:
        problems += [_difference(one, alone.found, found[0]), _worker_difference(found)]
    return "\n".join(filter(None, problems))


def _refusal_problem(one: Program, workers: Sequence[Outcome]) -> str:
    text = one.refuses or one.keras_refuses
    for worker in workers:
        if not worker.error:
            return f"it is not refused with {text!r}"
        if text not in worker.error or (one.refuses and not worker.is_one_line):
            return f"it is not refused with a line that has {text!r}, but:\n{worker.error}"
    return ""


def _lines_problem(one: Program, workers: Sequence[Outcome]) -> str:
    numbers = [sum(one.says in line for line in worker.lines) for worker in workers]
    if max(numbers) == 1:
        return ""
    lines = "\n".join(workers[0].lines)
    return f"{max(numbers)} lines have {one.says!r}; there should be one. The lines are:\n{lines}"


def _stray_line(workers: Sequence[Outcome]) -> str:
    """Returns what is wrong if an exact program is said to differ on several replicas."""
    lines = [line for worker in workers for line in worker.lines if " replicas" in line]
    return f"it is exact, and a line says: {lines[0]}" if lines else ""


def _difference(one: Program, expected: Found, found: Found) -> str:
    if expected.keys() != found.keys():
        return f"other values: {sorted(expected.keys() ^ found.keys())} are in one of the two"
    problems = []
    for name, right in expected.items():
        value = found[name]
        if name.startswith(one.differs) and one.differs:
            continue
        if right.shape != value.shape:
            problems.append(f"{name}: shape {value.shape} for {right.shape}")
            continue
        off = np.abs(value.astype("float64") - right)
        is_off = ~(off <= ATOL + RTOL * np.abs(right)) & ~(np.isnan(value) & np.isnan(right))
        if is_off.any():
            problems.append(f"{name}: {_few(value, is_off)} for {_few(right, is_off)}")
    return "\n".join(problems)


def _few(values: Any, places: Any) -> str:
    """Writes the first of those at the places, in which a number is off."""
    if values.ndim == 1 and values.size <= 4:
        return np.array2string(values, precision=6, separator=", ")
    return np.array2string(values[places][:3], precision=6, separator=", ")


def _worker_difference(found: Sequence[Found]) -> str:
    for number, other in enumerate(found[1:], 1):
        for name, value in found[0].items():
            if not np.array_equal(value, other.get(name), equal_nan=True):
                return f"{name}: worker {number} has other bits: {other.get(name)} for {value}"
    return ""


# The command line.


def main() -> int:
    """Runs the programs that the command line names, and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="names of programs, or patterns such as 'loss_*'")
    parser.add_argument("--keras", choices=BOTH, action="append")
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    parser.add_argument("--list", action="store_true", help="print the programs")
    parser.add_argument(
        "--times",
        action="store_true",
        help="print the processor time of each program, alone and in the workers",
    )
    parser.add_argument("--lines", action="store_true", help="print the lines that came")
    options = parser.parse_args()
    runs = all_runs(options.keras or BOTH, options.layout or LAYOUTS, options.names)
    if options.list:
        for one in dict.fromkeys(run.program for run in runs):
            print(f"{one.kind:18} {one.name:40} {one.expected:8} {' '.join(one.libraries)}")
        return 0
    if not runs:
        parser.error("no program has such a name")
    return _compare(runs, options)


def _compare(runs: Sequence[Run], options: Any) -> int:
    from tfdist.testing.fake_cluster import FakeCluster
    from tfdist.testing.server_process import ServerProcess

    global LIMIT_S
    LIMIT_S = max(LIMIT_S, 10.0 * len(runs))
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # As in the tests.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    server = ServerProcess()
    cluster = FakeCluster(server)
    problems = 0
    try:
        for kind in KINDS:  # A failure of a worker ends its layout.
            of_kind = [run for run in runs if run.program.kind == kind]
            if of_kind:
                alone = run_layout(cluster, sorted({run.reference for run in of_kind}))
            for layout in dict.fromkeys(run.layout for run in of_kind):
                own = [run for run in of_kind if run.layout == layout]
                problems += _print_layout(cluster, own, alone, options)
    finally:
        cluster.close()
        server.close()
    print(f"{problems} of {len(runs)} differ")
    return int(problems > 0)


def _print_layout(
    cluster: Any, runs: Sequence[Run], alone: dict[Run, list[Outcome]], options: Any
) -> int:
    """Makes runs of a layout and prints how they compare; returns the number that differ."""
    began_s = time.monotonic()
    try:
        outcomes = run_layout(cluster, runs)
    except Exception:
        traceback.print_exc()
        return len(runs)
    print(f"-- {runs[0].layout}: {len(runs)} programs, {time.monotonic() - began_s:.0f} s")
    problems = 0
    for run in runs:
        workers, plain = outcomes[run], alone[run.reference][0]
        problem = problem_of(run, workers, plain)
        problems += bool(problem)
        took = _times(plain, workers) if options.times else ""
        word = "DIFFERS" if problem else "ok"
        print(f"{word:8}{run}{took}", flush=True)
        lines = workers[0].lines if options.lines else []
        for line in [*problem.splitlines(), *(f"| {line}" for line in lines)]:
            print(f"        {line}", flush=True)
    return problems


def _times(plain: Outcome, workers: Sequence[Outcome]) -> str:
    return f" {plain.processor_s:.2f} s, {sum(one.processor_s for one in workers):.2f} s"


def run_layout(cluster: Any, runs: Sequence[Run]) -> dict[Run, list[Outcome]]:
    """Makes runs of one layout, or of plain Keras, in a set of processes.

    Returns:
      The outcome of each worker, of each run.
    """
    engine, num_workers, _ = LAYOUTS.get(runs[0].layout, ("none", 1, 1))

    def call(runs: Sequence[Run]) -> Any:
        # By name: AutoGraph reads the source of its functions.
        return importlib.import_module("keras_numbers").make(runs)

    workers = cluster.run(call, runs, engine=engine, num_workers=num_workers, timeout_s=LIMIT_S)
    return {run: [worker[number] for worker in workers] for number, run in enumerate(runs)}


if __name__ == "__main__":
    # Of the module, not of the program: outcomes come back as its classes.
    sys.exit(importlib.import_module("keras_numbers").main())
