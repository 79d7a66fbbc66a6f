"""One compiled call of a pipelined model: the whole schedule in one tf.function.

A call splits its samples into micro-batches on the host, runs the pipeline once for each weight
update, and combines the outputs on the host. `tfdist.pipeline.graph.execution` runs one pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.pipeline.graph.execution import Replica, ReplicaResult, Values, Weights, walk
from tfdist.pipeline.graph.gradients import added
from tfdist.pipeline.graph.tracing import TracedModel
from tfdist.pipeline.schedule import Box, inference_ticks, training_ticks
from tfdist.pipeline.settings import Settings
from tfdist.pipeline.stage_plan import replica_devices
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.slices import scaled

# A function that updates the weights, given pairs of a gradient and its variable.
Apply = Callable[[list[tuple[Any, tf.Variable]]], None]


class Program:
    """The compiled call of a model for one shape of input.

    Attributes:
      traced: The model, cut into stages.
      boxes: The boxes of one replica in one iteration, in the order of the recorded times; empty
        without profiling.
      devices: Name of each stage's device, for each replica.
    """

    def __init__(
        self,
        traced: TracedModel,
        settings: Settings,
        compute_devices: Sequence[str],
        apply: Apply | None,
        progress: Callable[[float], None],
    ) -> None:
        """Builds the graph of the calls; `progress` is that of `walk`."""
        self.traced = traced
        self.boxes: list[Box] = []
        self.devices = [
            tuple(compute_devices[index] for index in replica_devices(traced.stages, replica))
            for replica in range(settings.replication_factor)
        ]
        self._settings = settings
        self._apply = apply
        self._progress = progress
        schedule, num_stages = settings.execution_strategy.schedule, len(traced.stages)
        # In inference all iterations are micro-batches of one pipeline.
        self._iterations = 1 if apply is None else settings.device_iterations
        self._count = settings.micro_batches_per_replica // self._iterations
        ticks = inference_ticks if apply is None else training_ticks
        self._ticks = ticks(schedule, num_stages, self._count)
        specs = [self._spec_of_call(tensor) for tensor in traced.arguments]
        self._call = tf.function(self._run, autograph=False).get_concrete_function(*specs)

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[tf.Tensor], np.ndarray | None]:
        """Runs one call.

        Args:
          arguments: The model's arguments, flat. Each has the samples of all micro-batches of the
            call, one micro-batch after the other: [micro-batches * batch, ...].

        Returns:
          (outputs, times). `outputs` are the outputs that the output mode selects, flat. `times`
          is float64 [iterations, replicas, boxes, 2], the start and end of each box in seconds
          since the epoch, or None without profiling.
        """
        outputs, times = self._call(*arguments)
        return list(outputs), None if times is None else times.numpy()

    def _spec_of_call(self, argument: tf.Tensor) -> tf.TensorSpec:
        batch, *rest = argument.shape.as_list()
        total = batch * self._settings.micro_batches_per_call
        return tf.TensorSpec([total, *rest], argument.dtype)

    def _run(self, *arguments: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        with tf.device(HOST):
            # [iterations, micro-batches * replicas, batch, ...]
            split = [
                tf.reshape(one, [self._iterations, -1, *known.shape.as_list()])
                for one, known in zip(arguments, self.traced.arguments, strict=True)
            ]
        if self._iterations == 1:
            outputs, times = self._iteration([part[0] for part in split])
            outputs = [output[None] for output in outputs]  # [1, micro-batches, ...]
            times = None if times is None else times[None]  # [1, replicas, boxes, 2]
        else:
            outputs, times = self._loop(split)
        return [self._combined(output) for output in outputs], times

    def _loop(self, split: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """Runs the iterations one after the other, each with the weights of the previous one.

        Takes the arguments, [iterations, micro-batches * replicas, batch, ...] each. Returns the
        outputs, [iterations, micro-batches kept, ...] each, and the times, [iterations, replicas,
        boxes, 2], or None without profiling.
        """
        has_times = self._settings.profile_dir is not None
        kept = [tf.TensorArray(t.dtype, self._iterations) for t in self.traced.outputs]
        times = tf.TensorArray(tf.float64, self._iterations)

        def body(i: tf.Tensor, kept: list[Any], times: Any) -> Any:
            # [micro-batches kept, ...] each, and [replicas, boxes, 2].
            outputs, marks = self._iteration([part[i] for part in split])
            kept = [array.write(i, one) for array, one in zip(kept, outputs, strict=True)]
            return i + 1, kept, times if marks is None else times.write(i, marks)

        with tf.device(HOST):
            _, kept, times = tf.while_loop(
                lambda i, *_: i < self._iterations,
                body,
                (tf.constant(0), kept, times),
                parallel_iterations=1,
                maximum_iterations=self._iterations,
            )
            return [array.stack() for array in kept], times.stack() if has_times else None

    def _iteration(
        self, arguments: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """Adds one run of the pipeline and the update that follows it to the graph.

        Takes the arguments, [micro-batches * replicas, batch, ...] each. Returns the outputs,
        [micro-batches kept, ...] each, and the times, [replicas, boxes, 2], or None without
        profiling.
        """
        replicas = self._settings.replication_factor
        with tf.device(HOST):
            singles = [tf.unstack(argument) for argument in arguments]  # Lists of [batch, ...].
        names = [tensor.name for tensor in self.traced.arguments]
        micro_batches: list[Values] = [
            dict(zip(names, values, strict=True)) for values in zip(*singles, strict=True)
        ]
        walked = walk(
            self.traced.cut_stages,
            self._ticks,
            [
                Replica(devices=self.devices[r], micro_batches=micro_batches[r::replicas])
                for r in range(replicas)
            ],
            weights=Weights(lambda handle: self.traced.captured[handle.name]),
            captured=self.traced.captured,
            outputs=self.traced.outputs,
            one_at_a_time=self._settings.execution_strategy.schedule == "sequential",
            with_marks=self._settings.profile_dir is not None,
            progress=self._progress,
        )
        if self._apply is not None:
            self._apply(self._gradients(walked))
        self.boxes = walked[0].boxes
        with tf.device(HOST):
            marks = [walk.marks for walk in walked if walk.marks is not None]
            return self._picked(walked), tf.stack(marks) if marks else None

    def _gradients(self, walked: Sequence[ReplicaResult]) -> list[tuple[Any, tf.Variable]]:
        """Combines the gradients of all micro-batches and replicas, on the variables' devices.

        Returns:
          (gradient, variable) for each variable that has a gradient; the shapes agree.
        """
        is_mean = self._settings.accumulation_reduction == "mean"
        scale = 1.0 / (self._count * len(walked)) if is_mean else 1.0
        result = []
        for name, variable in self.traced.trained.items():
            parts = [walk.gradients[name] for walk in walked if name in walk.gradients]
            if parts:
                with tf.device(variable.device):
                    total = scaled(added(parts), scale)
                    result.append((tf.cast(total, variable.dtype), variable))
        return result

    def _picked(self, walked: Sequence[ReplicaResult]) -> list[tf.Tensor]:
        """Stacks the outputs of the micro-batches of one iteration that may be selected.

        The replicas alternate: the first micro-batch of each replica, then the second ones.

        Returns:
          [micro-batches * replicas, ...] each; with "final" [replicas, ...], with "sum" [1, ...].
        """
        in_turn = [
            part for of_all in zip(*(w.outputs for w in walked), strict=True) for part in of_all
        ]
        mode = self._mode
        if mode == "final":
            in_turn = in_turn[-len(walked) :]
        columns = zip(*in_turn, strict=True)
        return [tf.add_n(column)[None] if mode == "sum" else tf.stack(column) for column in columns]

    @property
    def _mode(self) -> str:
        return self._settings.output_mode_for(training=self._apply is not None)

    def _combined(self, output: tf.Tensor) -> tf.Tensor:
        """Returns an output as the user gets it, from [iterations, micro-batches, ...]."""
        with tf.device(HOST):
            if self._mode == "sum":
                return tf.reduce_sum(output, [0, 1])
            if self._mode == "final":
                output = output[-1:]  # [1, replicas, ...]
            if self._mode == "every_n":
                every = self._settings.every
                assert every is not None
                replicas = self._settings.replication_factor
                rest = output.shape.as_list()[2:]
                # [iterations * micro-batches // every, replicas, ...]
                output = tf.reshape(output, [-1, replicas, *rest])[every - 1 :: every]
            # [micro-batches, ...]
            one_by_one = tf.reshape(output, [-1, *output.shape.as_list()[2:]])
            if one_by_one.shape.rank > 1:  # [micro-batches, batch, ...] -> [samples, ...]
                return tf.reshape(one_by_one, [-1, *one_by_one.shape.as_list()[2:]])
            is_single = self._mode == "final" and one_by_one.shape[0] == 1
            return one_by_one[0] if is_single else one_by_one
