"""Steps that a loss scale skips: their log lines, their summaries, and the end after many of them.

A skipped step's loss may be NaN, which does not end the training. Skipped steps are counted in
variables that are equal on all workers, so all workers log, go on or end alike. With
`GradientAccumulationOptimizer` a step is several session calls, and the last one shows whether it
is skipped: until then the losses of the calls wait.

    call               1           2           3               of n = 3
    loss               1.2         NaN         0.9
    hooks against NaN  waits       waits       skipped: none   else: all three
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.process.endings import OneLineError
from tfdist.strategies.placement import HOST
from tfdist.training.wrappers.accumulation import accumulated_updates
from tfdist.training.wrappers.loss_scale import LossScale, loss_scales_in

Hooks = list[v1.train.SessionRunHook]

# So many skipped steps in a row with the lowest scale end the training: the scale cannot help.
_MOST_IN_A_ROW = 20
_LINE_EVERY_S = 10.0


class GradientsNotFiniteError(OneLineError, v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The gradients are not finite, whatever the loss scale; raised on every worker."""

    def __str__(self) -> str:
        return str(self.args[0])


def hooks_with_loss_scales(
    hooks_against_nan: Hooks, train_op: tf.Operation, *, logs: bool
) -> Hooks:
    """Returns the hooks against NaN; in a graph with a loss scale, they let skipped steps pass.

    `train_op` runs in each session call; `logs` says whether this worker logs skipped steps.
    """
    scales = loss_scales_in(v1.get_default_graph())
    if not scales:
        return hooks_against_nan
    _add_summaries(scales, train_op)
    return [SkippedSteps(scales, hooks_against_nan, train_op, logs=logs)]


def _add_summaries(scales: Sequence[LossScale], train_op: tf.Operation) -> None:
    """Adds the scalar summaries `loss_scale` and `skipped_steps`, as they are after a step."""
    for number, scale in enumerate(scales):
        suffix = f"_{number}" if number else ""
        with tf.device(HOST), tf.control_dependencies([train_op]):
            v1.summary.scalar(f"loss_scale{suffix}", scale.scale())
            v1.summary.scalar(f"skipped_steps{suffix}", scale.skipped_steps.read_value())


class SkippedSteps(v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs skipped steps, and hands only other calls on to the hooks against NaN.

    Every worker has this hook. `others` are the hooks against NaN.
    """

    def __init__(
        self, scales: Sequence[LossScale], others: Hooks, train_op: tf.Operation, *, logs: bool
    ) -> None:
        self._scales = scales
        self._others = others
        self._train_op = train_op
        self._lines = [_Lines(scale, logs=logs) for scale in scales]
        self._waiting: list[SessionRunValues] = []  # Of the calls since the last update.

    def begin(self) -> None:
        variables = [v for s in self._scales for v in (s.skipped_steps, s.skipped_in_a_row)]
        with tf.device(HOST):
            self._now = tf.stack([variable.read_value() for variable in variables])
            with tf.control_dependencies([self._train_op]):
                # [skipped, in a row, ...] of each scale, after the call's steps.
                self._after_call = tf.stack([variable.read_value() for variable in variables])
                unfinished = [update.number.read_value() for update in accumulated_updates()]
                self._num_unfinished = tf.add_n(unfinished) if unfinished else tf.constant(0)
        for hook in self._others:
            hook.begin()

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self._skipped = session.run(self._now)[::2]  # [scales]
        for hook in self._others:
            hook.after_create_session(session, coord)

    def before_run(self, run_context: SessionRunContext) -> v1.train.SessionRunArgs:
        requested = [hook.before_run(run_context) for hook in self._others]
        fetches = [None if request is None else request.fetches for request in requested]
        wanted = {i: one for i, one in enumerate(fetches) if one is not None}
        own = {"counts": self._after_call, "num_unfinished": self._num_unfinished}
        return v1.train.SessionRunArgs({**own, "others": wanted})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        counts = np.reshape(run_values.results["counts"], [-1, 2])
        before, self._skipped = self._skipped, counts[:, 0]
        new = self._skipped - before  # [scales]
        for lines, number, in_a_row in zip(self._lines, new, counts[:, 1], strict=True):
            if number:
                lines.note(run_context.session, int(number), int(in_a_row))
        self._waiting.append(run_values)
        if new.any():
            self._waiting = []
        if run_values.results["num_unfinished"]:
            return
        finished, self._waiting = self._waiting, []
        for values in finished:
            for i, hook in enumerate(self._others):
                hook.after_run(
                    run_context, values._replace(results=values.results["others"].get(i))
                )

    def end(self, session: v1.Session) -> None:
        for lines in self._lines:
            lines.end()
        for hook in self._others:
            hook.end(session)


class _Lines:
    """The log lines of one loss scale: at most one in ten seconds."""

    def __init__(self, scale: LossScale, *, logs: bool) -> None:
        self._scale = scale
        self._logs = logs
        self._next_line_at = -float("inf")
        self._pending: list[str] = []  # The text of the last step, if no line has it yet.
        self._not_shown = 0

    def note(self, session: v1.Session, number: int, in_a_row: int) -> None:
        """Notes skipped steps; raises an error after many in a row with the lowest scale."""
        step, before, after, *flags = session.run(self._scale.last_skipped)
        names = [name for name, bad in zip(self._scale.names, flags, strict=True) if bad]
        if in_a_row >= _MOST_IN_A_ROW:
            raise GradientsNotFiniteError(
                f"{in_a_row} steps in a row were skipped with the lowest loss scale, "
                f"{_number(after)}: not finite {_gradients_of(names)}. Lower the learning rate, "
                "clip the gradients, or look for a division by 0 in the model."
            )
        change = _number(before) if before == after else f"{_number(before)} -> {_number(after)}"
        self._pending = [
            f"step {int(step)} skipped: the gradient of {names[0]} is not finite; loss scale "
            f"{change}"
        ]
        self._not_shown += number
        now = monotonic()
        if now >= self._next_line_at:
            self._next_line_at = now + _LINE_EVERY_S
            self.end()

    def end(self) -> None:
        """Logs what no line has said yet."""
        for text in self._pending if self._logs else ():
            more = self._not_shown - 1
            v1.logging.warning(text + (f" ({more} more since the last such line)" if more else ""))
        self._pending, self._not_shown = [], 0


def _gradients_of(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{'is the gradient' if len(names) == 1 else 'are the gradients'} of {shown}"


def _number(value: float) -> str:
    return f"{value:.10g}"
