"""FitProfile: some steps of `fit` as TensorFlow's profiler records them, on each worker.

A session's trace says when each reduction begins and ends, so an Estimator's profile compares the
workers. The profiler of TensorFlow 2 does not know the end of Horovod's reductions: each worker
writes what it has recorded itself.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from tfdist.cluster.environment import read_profile
from tfdist.process.endings import print_to_stderr
from tfdist.profile import trace_events
from tfdist.strategies.eager.step import NOW
from tfdist.strategies.private_runtime import profiled_ops


class FitProfile:
    """Records steps of a call of `fit`, counted from 1, and writes `trace-worker-<index>.json`."""

    def __init__(self, folder: str, first_step: int, last_step: int, worker_index: int) -> None:
        self._folder = Path(folder)
        self._first_step, self._last_step = first_step, last_step
        self._worker_index = worker_index
        self._num_steps = self._first_recorded = 0
        self._recorded: tempfile.TemporaryDirectory[str] | None = None
        self._is_over = False  # Written, or impossible.

    @contextmanager
    def step(self, num_steps: int) -> Iterator[None]:
        """Marks a call of the train function, which makes so many steps: all or none recorded."""
        first = self._num_steps + 1
        self._num_steps += num_steps
        if first <= self._first_step <= self._num_steps:
            self._first_recorded = first
            self._start()
        yield
        if self._recorded is not None and first <= self._last_step <= self._num_steps:
            self._write()

    def _start(self) -> None:
        recorded = tempfile.TemporaryDirectory(prefix="tfdist_")
        options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
        try:
            tf.profiler.experimental.start(recorded.name, options)
        except tf.errors.AlreadyExistsError:
            self._is_over = True
            print_to_stderr(
                f"No profile is written: the program's own profiler runs in step {self._num_steps}."
                " Leave it out, such as TensorBoard's profile_batch."
            )
        else:
            self._recorded = recorded

    def end(self) -> None:
        """Writes what there is, at the end of `fit`."""
        if self._recorded is not None:
            self._write()
        elif not self._is_over:
            print_to_stderr(
                f"No profile is written: training ended after {self._num_steps} step(s), and step "
                f"{self._first_step} was to be the first one."
            )

    def _write(self) -> None:
        assert self._recorded is not None
        tf.profiler.experimental.stop()
        with self._recorded as folder:
            ops = [op for path in Path(folder).rglob("*.xplane.pb") for op in profiled_ops(path)]
        self._recorded, self._is_over = None, True
        threads = sorted({op.thread for op in ops})
        begin = min((op.start for op in ops), default=0.0)
        events = trace_events.process_names(0, f"worker {self._worker_index}", threads)
        for op in ops:
            place = 0, threads.index(op.thread)
            span = op.start - begin, op.end - begin
            events.append(trace_events.box(op.name, op.type, place, *span))
        os.makedirs(self._folder, exist_ok=True)
        path = self._folder / f"trace-worker-{self._worker_index}.json"
        path.write_text(json.dumps(trace_events.trace(events)), encoding="utf-8")
        print_to_stderr(
            f"Profile of steps {self._first_recorded} to {self._num_steps}: {path}, for "
            "chrome://tracing or Perfetto"
        )


def profile_of_run(worker_index: int) -> FitProfile | None:
    """Returns the profile that `tfdist run --profile` requests, of the first `fit` of a process."""
    requested = read_profile()
    if requested is None or NOW.has_profiled:
        return None
    NOW.has_profiled = True
    return FitProfile(*requested, worker_index)
