"""The end of a training whose loss became NaN: the workers on which it did.

The reported loss is the mean over the workers, so the NaN of one worker is seen by all of them in
the same step. Each worker fetches its own loss, too. Only after a NaN was seen, one small reduction
tells all workers whose it was. In a later step it would be too late: then all weights are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.estimator.loop.agreement import flag_of_each_worker
from tfdist.process.endings import OneLineError
from tfdist.process.exit_codes import LOST_WORKER
from tfdist.strategies.placement import HOST


class NanLossElsewhereError(OneLineError, v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss of another worker became NaN; this worker did nothing wrong."""

    exit_code: ClassVar[int] = LOST_WORKER

    def __init__(self, workers: Sequence[int]) -> None:
        names = " and ".join(str(worker) for worker in workers)
        super().__init__(f"NaN loss during training: the loss of worker {names} became NaN.")

    def __str__(self) -> str:
        return str(self.args[0])


class NanTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Ends the training after a NaN, as `NanTensorHook` does, and tells whose loss it was.

    Every worker has this hook, and sees the NaN in the same step. `loss` is the mean over the
    workers, `own_loss` the loss of this one: float32 scalars on the host.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, loss: tf.Tensor, own_loss: tf.Tensor
    ) -> None:
        self._strategy = strategy
        self._losses = [loss, own_loss]

    def begin(self) -> None:
        with tf.device(HOST):
            self._is_own = v1.placeholder(tf.float32, [])
        self._flags = flag_of_each_worker(self._strategy, self._is_own)

    def before_run(self, run_context: SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._losses)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        loss, own_loss = run_values.results
        if not np.isnan(loss):
            return
        # Two losses of opposite infinity make a NaN, too.
        is_own = not np.isfinite(own_loss)
        flags = run_context.session.run(self._flags, {self._is_own: float(is_own)})
        workers = [int(worker) for worker in np.flatnonzero(flags)]
        if workers and not is_own:
            raise NanLossElsewhereError(workers)
        v1.logging.error("Model diverged with loss = NaN.")
        raise v1.train.NanLossDuringTrainingError
