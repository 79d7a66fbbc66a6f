"""StepProfileHook: records a few steps on every worker, and writes one profile of all of them."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import time
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.cluster.arguments import check_whole
from tfdist.process.progress_file import in_phase
from tfdist.profile.files import write_profile
from tfdist.profile.picture import check_can_draw
from tfdist.profile.records import Op, ops_of
from tfdist.profile.shares import Step, Worker, advice, joined
from tfdist.strategies.placement import HOST


class StepProfileHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """Profiles some steps of all workers together.

    With several workers every worker must have the hook, with the same steps. Put it first among
    the hooks: the time between two calls is then spent in all other hooks.

    Worker 0 writes `profile.txt` (shares of a step, memory, longest ops, advice), `trace.json` (for
    chrome://tracing or Perfetto) and `profile.png`. Times of different hosts are joined by the
    reductions that they have in common. A traced step is slower than others.

    A hook writes one profile: a later call of `train` with the same object records nothing.

    Args:
      directory: The folder, on worker 0's machine.
      first_step: The first step to record, counted from 1 in this call of `train`; a session call
        with `iterations_per_loop` counts as one step. Step 1 also prepares the graph.
      last_step: The last step to record.

    Raises:
      ValueError: If the steps are not whole numbers, or not in order.
      ImportError: If matplotlib is not installed.
    """

    def __init__(
        self, directory: str | os.PathLike[str], first_step: int = 10, last_step: int = 12
    ) -> None:
        check_whole("first_step", first_step)
        check_whole("last_step", last_step)
        if first_step > last_step:
            raise ValueError(
                f"first_step must not be above last_step, got {first_step} and {last_step}."
            )
        check_can_draw()
        self.directory = os.fspath(directory)
        self.first_step, self.last_step = int(first_step), int(last_step)
        # Set by the training: a tfdist strategy with several workers.
        self.strategy: tf.distribute.Strategy | None = None
        self._is_written = False

    def begin(self) -> None:
        self._calls = 0
        self._steps: list[Step] = []
        self._memory: dict[str, int] = {}
        self._ops: list[Op] | None = None
        if self.strategy is not None:
            with tf.device(HOST):
                self._own = v1.placeholder(tf.int32, [None])
                collectives = self.strategy.extended.collectives
                self._sizes = collectives.gather(tf.shape(self._own), "profile_sizes")  # [workers]
                self._all = collectives.gather(tf.identity(self._own), "profiles")  # [bytes of all]

    def before_run(self, run_context: SessionRunContext) -> v1.train.SessionRunArgs | None:
        self._close_step()
        if len(self._steps) == self.last_step - self.first_step + 1:
            self._write(run_context.session)
        self._calls += 1
        if not self._is_traced:
            return None
        if self.strategy is not None:  # The others may still collect the trace before.
            with in_phase("waiting"):
                run_context.session.run(self._sizes, {self._own: []})
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        return v1.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._is_traced:
            step_stats = run_values.run_metadata.step_stats
            self._ops = ops_of(step_stats)
            self._note_memory(step_stats)
            self._ended_s = time.perf_counter()

    def end(self, session: v1.Session) -> None:
        self._close_step()
        if self._steps:
            self._write(session)
        elif not self._is_written:
            v1.logging.warning(
                "No profile is written: training ended after %d step(s), and step %d was to be "
                "the first one.",
                self._calls,
                self.first_step,
            )

    @property
    def _is_traced(self) -> bool:
        return not self._is_written and self.first_step <= self._calls <= self.last_step

    def _close_step(self) -> None:
        if self._ops:
            hooks_s = time.perf_counter() - self._ended_s
            self._steps.append(Step(ops=self._ops, hooks_s=hooks_s))
        self._ops = None

    def _note_memory(self, step_stats: Any) -> None:
        # Linux counts it in KiB.
        self._memory["host"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for device in step_stats.dev_stats:
            for node in device.node_stats:
                for used in node.memory:
                    if used.allocator_name.startswith("GPU"):
                        before = self._memory.get(used.allocator_name, 0)
                        now = used.allocator_bytes_in_use
                        self._memory[used.allocator_name] = max(before, now)

    def _write(self, session: v1.Session) -> None:
        own = Worker(steps=self._steps, memory=self._memory)
        workers = [own] if self.strategy is None else self._gather(session, own)
        self._steps, self._is_written = [], True
        if self.strategy is None or self.strategy.extended.should_checkpoint:
            profile = joined(workers, self.first_step)
            text, *_ = write_profile(profile, self.directory)
            v1.logging.info("Profile of %d worker(s): %s. %s", len(workers), text, advice(profile))

    def _gather(self, session: v1.Session, own: Worker) -> list[Worker]:
        """Returns the profiles of all workers. A collective."""
        message = zlib.compress(json.dumps(dataclasses.asdict(own)).encode())
        feeds = {self._own: np.frombuffer(message, np.uint8).astype(np.int32)}
        with in_phase("waiting"):
            sizes, content = session.run([self._sizes, self._all], feeds)
        parts = np.split(content, np.cumsum(sizes)[:-1])
        return [
            _worker(json.loads(zlib.decompress(part.astype(np.uint8).tobytes()))) for part in parts
        ]


def _worker(values: Any) -> Worker:
    steps = []
    for step in values["steps"]:
        ops = [Op(**{**op, "span": tuple(op["span"])}) for op in step["ops"]]
        steps.append(Step(ops=ops, hooks_s=step["hooks_s"]))
    return Worker(steps=steps, memory=values["memory"])
