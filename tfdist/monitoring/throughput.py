"""Throughput of a training, and the shares of a traced step's time."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_flag
from tfdist.cluster.tasks import checked_count
from tfdist.monitoring.scalars import MeasuringHook
from tfdist.profile.records import length, ops_of, union
from tfdist.strategies.graph.step_counter import crosses


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The throughput measured over some steps.

    Attributes:
      steps_per_s: Global steps per second of wall-clock time, with the time between steps.
      examples_per_s: Examples of all workers per second; None if the batch size is not known.
      share_outside_steps: Share of the time outside session calls: hooks that save, summarise,
        evaluate.
      traced: Shares of the one step that was traced, if any.
    """

    steps_per_s: float
    examples_per_s: float | None
    share_outside_steps: float
    traced: StepShares | None


class ThroughputHook(MeasuringHook):
    """Logs steps and examples per second every n steps, and writes them as summaries.

    Every worker that has the hook measures itself. A hook cannot see inside a session call, so
    TensorFlow traces the last call of each interval, and its shares are reported as a sample. A
    traced call is slower than others. The time in reductions is spent on sending and on waiting for
    other workers together: TensorFlow does not separate them.

    Args:
      every_n_steps: Steps between two reports; the first interval begins after the first call.
      global_batch: Examples in one step of all workers together; None leaves examples out.
      output_dir: Folder of the event file of worker 0, model_dir for instance; other workers write
        into its folder "worker_<index>". None writes no summaries.
      traces: Whether a call of each interval is traced.

    Attributes:
      last: The newest `Throughput`; None before the first.

    Raises:
      ValueError: If the interval or the batch is below 1.
    """

    def __init__(
        self,
        every_n_steps: int = 100,
        global_batch: int | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        traces: bool = True,
    ) -> None:
        super().__init__(every_n_steps, output_dir)
        if global_batch is not None:
            checked_count("global_batch", global_batch)
        check_flag("traces", traces)
        self._global_batch = global_batch
        self._traces = traces
        self._is_traced = False
        self._is_measuring = False
        self.last: Throughput | None = None

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._is_measuring = False

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs | None:
        self._call_started_s = time.perf_counter()
        # The first call also prepares the graph, so it is not measured.
        self._is_traced = (
            self._traces and self._is_measuring and self._counter.may_cross(self._every_n_steps)
        )
        if not self._is_traced:
            return None
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        return v1.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        now_s = time.perf_counter()
        before = self._counter.step
        steps = self._counter.count(run_context.session)
        if not self._is_measuring:
            self._start_interval()
            return
        self._steps += steps
        self._in_steps_s += now_s - self._call_started_s
        if crosses(before, self._counter.step, self._every_n_steps):
            traced = shares_of(run_values.run_metadata.step_stats) if self._is_traced else None
            self._report(now_s, traced)
            self._start_interval()

    def _start_interval(self) -> None:
        self._is_measuring = True
        self._started_s = time.perf_counter()
        self._in_steps_s = 0.0
        self._steps = 0

    def _report(self, now_s: float, traced: StepShares | None) -> None:
        duration_s = max(now_s - self._started_s, 1e-9)
        steps_per_s = self._steps / duration_s
        self.last = Throughput(
            steps_per_s=steps_per_s,
            examples_per_s=self._global_batch and steps_per_s * self._global_batch,
            share_outside_steps=max(0.0, 1.0 - self._in_steps_s / duration_s),
            traced=traced,
        )
        self._publish(describe(self.last), tags(self.last))


def describe(measured: Throughput) -> str:
    """Returns the measurement as one line."""
    speed = f"{measured.steps_per_s:.4g} steps/sec"
    if measured.examples_per_s is not None:
        speed = f"{measured.examples_per_s:.4g} examples/sec, {speed}"
    line = f"throughput: {speed}; {measured.share_outside_steps:.0%} of the time outside of steps"
    if measured.traced is None:
        return line
    return (
        f"{line}; in a traced step {measured.traced.input:.0%} waiting for input, "
        f"{measured.traced.reductions:.0%} in reductions with other workers"
    )


def tags(measured: Throughput) -> dict[str, float]:
    """Returns the summaries, tag to value, without unknown values."""
    traced = measured.traced
    values = {
        "throughput/steps_per_sec": measured.steps_per_s,
        "throughput/examples_per_sec": measured.examples_per_s,
        "throughput/share_outside_steps": measured.share_outside_steps,
        "throughput/share_waiting_for_input": None if traced is None else traced.input,
        "throughput/share_in_reductions": None if traced is None else traced.reductions,
    }
    return {tag: value for tag, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class StepShares:
    """Shares of a traced step's time, each from 0 to 1; they may overlap.

    Attributes:
      input: While an op waited for the next batch.
      reductions: While a collective ran: sending, and waiting for the slowest worker.
    """

    input: float
    reductions: float


def shares_of(step_stats: Any) -> StepShares | None:
    """Computes the shares from the `step_stats` of a RunMetadata; None if nothing was recorded."""
    ops = ops_of(step_stats)
    if not ops:
        return None
    duration = max(op.span[1] for op in ops) - ops[0].span[0]
    if duration <= 0:
        return None
    return StepShares(
        input=length(union(op.span for op in ops if op.kind == "input")) / duration,
        reductions=length(union(op.span for op in ops if op.kind == "reduction")) / duration,
    )
