"""Memory of a training process and of its GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.monitoring.fit_callback import FitCallback
from tfdist.monitoring.scalars import MeasuringHook
from tfdist.process.endings import print_to_stderr
from tfdist.strategies.graph.step_counter import crosses


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The memory in use in one place.

    Attributes:
      place: "host", or "GPU:0", "GPU:1" and so on.
      now_bytes: Bytes in use.
      peak_bytes: The most bytes that were in use so far.
    """

    place: str
    now_bytes: int
    peak_bytes: int


class MemoryHook(MeasuringHook):
    """Logs present and peak memory every n steps, and writes it as summaries.

    Every worker that has the hook reports itself. Of the host it is the physical memory of this
    process (the resident set size), of a GPU what TensorFlow has allocated on it. Peaks are those
    since the process started.

    Args:
      every_n_steps: Steps between two reports.
      output_dir: Folder of the event file of worker 0, model_dir for instance; other workers write
        into its folder "worker_<index>". None writes no summaries.

    Attributes:
      last: The newest `MemoryUse` of each place; empty before the first report.

    Raises:
      ValueError: If the interval is below 1.
    """

    def __init__(
        self, every_n_steps: int = 100, output_dir: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(every_n_steps, output_dir)
        self.last: list[MemoryUse] = []

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        before = self._counter.step
        self._counter.count(run_context.session)
        if crosses(before, self._counter.step, self._every_n_steps):
            self._publish(*self._measure())

    def as_callback(self) -> FitCallback:
        """Returns a callback of Keras' `fit`, for Keras 3 and tf_keras.

        It prints the line on standard error. The step is the number of the optimizer's updates.
        """
        writer = self._output_dir and tf.summary.create_file_writer(self._output_dir)

        def report(step: int, logs: dict[str, Any]) -> None:
            line, values = self._measure()
            print_to_stderr(f"step {step}: {line}")
            if writer:
                with writer.as_default():
                    for tag, value in values.items():
                        tf.summary.scalar(tag, value, step)

        def end() -> None:
            if writer:
                writer.flush()

        return FitCallback(lambda step: None, report, end, self._every_n_steps)

    def _measure(self) -> tuple[str, dict[str, float]]:
        """Returns the memory as one line and as summaries."""
        self.last = [host_memory(), *gpu_memory()]
        return describe(self.last), tags(self.last)


def host_memory() -> MemoryUse:
    """Reads the physical memory of this process from Linux.

    The peak is not `resource.getrusage`'s, which counts the process that started this one.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return MemoryUse(place="host", now_bytes=1024 * kib["VmRSS"], peak_bytes=1024 * kib["VmHWM"])


def gpu_memory() -> list[MemoryUse]:
    """Reads what TensorFlow has allocated on each GPU; a GPU that does not count it is left out."""
    if not tf.config.list_physical_devices("GPU"):
        return []
    found = []
    for device in tf.config.list_logical_devices("GPU"):
        place = device.name.removeprefix("/device:")
        try:
            info = tf.config.experimental.get_memory_info(place)
        except ValueError:  # Its allocator has no statistics.
            continue
        found.append(MemoryUse(place=place, now_bytes=info["current"], peak_bytes=info["peak"]))
    return found


def describe(uses: list[MemoryUse]) -> str:
    """Returns the memory as one line."""
    parts = [
        f"{use.place} {use.now_bytes / 2**20:,.0f} MiB (peak {use.peak_bytes / 2**20:,.0f} MiB)"
        for use in uses
    ]
    return f"memory: {'; '.join(parts)}"


def tags(uses: list[MemoryUse]) -> dict[str, float]:
    """Returns the summaries, tag to MiB."""
    return {
        f"memory/{use.place.replace(':', '_')}_{kind}_mib": value / 2**20
        for use in uses
        for kind, value in (("now", use.now_bytes), ("peak", use.peak_bytes))
    }
