"""Calls of a pipelined model: checks, one compiled program for each shape, profiling."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tfdist.cluster.instance_variables import nearest_multiples
from tfdist.pipeline.devices import compute_devices
from tfdist.pipeline.graph.program import Apply, Program
from tfdist.pipeline.graph.tracing import TracedModel, trace
from tfdist.pipeline.options import Options
from tfdist.pipeline.settings import Settings
from tfdist.pipeline.stage_plan import PlannedStage, check_inference, check_plan
from tfdist.pipeline.timeline.files import write_timeline
from tfdist.pipeline.timeline.step_times import TimedBox, Timeline
from tfdist.process.text import listed
from tfdist.profile.picture import check_can_draw
from tfdist.strategies.placement import HOST

# The first call is slow, since it creates the kernels. It is profiled as well, because a run may
# have one call only; a second call replaces its timeline.
_PROFILED_CALLS = 2

_TOTAL = 100  # Length of the progress bar, in percent.
_TRACED = 0.25  # The share of the bar when the stages are traced; the rest are the micro-batches.


class CompiledCalls:
    """The compiled programs of one model, one for each shape of input.

    Attributes:
      settings: The settings of the run.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        options: Options,
        *,
        user: str,
        make_update: Callable[[TracedModel], Apply] | None,
    ) -> None:
        """Freezes the options; the first call builds the graph.

        `user` is the user of the options in error messages, such as "a training model".
        `make_update` returns the function that updates the weights of a traced model; it is None in
        inference.
        """
        if not callable(model):
            raise TypeError(f"the model must be callable, got {model!r}.")
        if not isinstance(options, Options):
            raise TypeError(f"options must be tfdist.pipeline.Options, got {options!r}.")
        self.settings: Settings = options.freeze(user)
        if make_update is None:
            check_inference(self.settings.gradient_accumulation)
        if self.settings.profile_dir is not None:
            check_can_draw()
        self._model = model
        self._make_update = make_update
        self._programs: dict[Any, Program] = {}
        self._num_calls = 0
        if self.settings.random_seed is not None:
            tf.random.set_seed(self.settings.random_seed)

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        """Runs one call; see `TrainingModel.__call__` and `InferenceModel.__call__`."""
        with tf.device(HOST):
            flat = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(arguments)]
        batch = self._micro_batch_size(flat)
        specs = [tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype) for leaf in flat]
        key = tf.nest.map_structure(lambda _: None, arguments), tuple(specs)
        program = self._programs.get(repr(key))
        if program is None:
            program = self._build(tf.nest.pack_sequence_as(arguments, specs))
            self._programs[repr(key)] = program
        self._num_calls += 1
        if self.settings.profile_dir is not None and self._num_calls <= _PROFILED_CALLS:
            outputs = profiled_call(program, flat, self.settings)
        else:
            outputs, _ = program(flat)
        return tf.nest.pack_sequence_as(program.traced.structure, outputs)

    def _micro_batch_size(self, arguments: Sequence[tf.Tensor]) -> int:
        """Returns the samples of a micro-batch; refuses arguments that do not split into them."""
        if not all(argument.shape.rank for argument in arguments):
            raise TypeError(
                "the arguments of a call are arrays or tensors, got single numbers. A list is a "
                "structure of arguments: make an array of it with np.array."
            )
        sizes = {int(argument.shape[0]) for argument in arguments}
        if len(sizes) != 1:
            shapes = listed(str(tuple(argument.shape)) for argument in arguments)
            raise ValueError(
                f"the arguments of a call have the same number of samples in their first "
                f"dimension, got shapes {shapes}. Constants belong into the model."
            )
        (samples,) = sizes
        count = self.settings.micro_batches_per_call
        if samples == 0 or samples % count:
            s = self.settings
            fix = listed(nearest_multiples(samples, count), "or")
            raise ValueError(
                f"a call got {samples} samples, which do not split into {count} micro-batches "
                f"(device_iterations {s.device_iterations} x gradient_accumulation "
                f"{s.gradient_accumulation} x replication_factor {s.replication_factor}). "
                f"Give it {fix} samples."
            )
        return samples // count

    def _build(self, specs: tuple[Any, ...]) -> Program:
        settings = self.settings
        devices = compute_devices()
        training = self._make_update is not None
        num_done, num_steps = 0, 2

        def check(stages: Sequence[PlannedStage]) -> None:
            nonlocal num_steps
            num_steps = len(stages) + 2
            check_plan(
                stages,
                settings.execution_strategy.schedule,
                training=training,
                gradient_accumulation=settings.gradient_accumulation,
                device_iterations=settings.device_iterations,
                replication_factor=settings.replication_factor,
                num_devices=len(devices),
            )

        def place(index: int) -> str:
            # A device that does not exist is refused later, when all stages are known.
            is_there = settings.optimizer_state == "device" and index < len(devices)
            return devices[index] if is_there else HOST

        with building_bar(shown=settings.show_progress_bar) as show:

            def progress() -> None:
                nonlocal num_done
                num_done += 1
                show(_TRACED * num_done / num_steps)

            traced = trace(
                self._model,
                specs,
                settings.execution_strategy,
                training=training,
                recomputation=settings.recomputation,
                place_variables=place,
                check=check,
                progress=progress,
            )
            update = None if self._make_update is None else self._make_update(traced)
            progress()
            return Program(
                traced,
                settings,
                devices,
                update,
                progress=lambda share: show(_TRACED + (1 - _TRACED) * share),
            )


def profiled_call(program: Program, arguments: Sequence[Any], settings: Settings) -> list[Any]:
    """Runs a call and writes its profile, with a timeline of its last iteration.

    Returns:
      The call's outputs, flat.
    """
    assert settings.profile_dir is not None
    with tf.profiler.experimental.Profile(settings.profile_dir):
        outputs, times = program(arguments)
    assert times is not None
    timeline = timeline_of(program, times[-1], type(settings.execution_strategy).__name__)
    paths = write_timeline(timeline, settings.profile_dir)
    v1.logging.info("Profile of a call written: %s", ", ".join(str(path) for path in paths))
    return outputs


def timeline_of(program: Program, times: np.ndarray, title: str) -> Timeline:
    """Returns a timeline of the times of one iteration, [replicas, boxes, 2] in seconds."""
    boxes = [
        TimedBox(
            box=box,
            device=program.devices[replica][box.stage].removeprefix("/device:"),
            replica=replica,
            start_s=float(start),
            end_s=float(end),
        )
        for replica, of_replica in enumerate(times)
        for box, (start, end) in zip(program.boxes, of_replica, strict=True)
    ]
    return Timeline(boxes, [stage.name for stage in program.traced.stages], title)


@contextmanager
def building_bar(*, shown: bool) -> Iterator[Callable[[float], None]]:
    """Shows a progress bar on stderr; yields a function that takes the share done, 0 to 1."""
    columns = (
        TextColumn("Graph compilation:"),
        TaskProgressColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # A notebook is not a terminal, and rich's bars for notebooks need another package.
    console = Console(stderr=True, force_jupyter=False, force_terminal=sys.stderr.isatty())
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task("", total=_TOTAL)
        yield lambda share: progress.update(task, completed=round(share * _TOTAL))
        progress.update(task, completed=_TOTAL)
