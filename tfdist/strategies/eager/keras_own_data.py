"""The number of steps of an epoch where each worker has a dataset of its own.

Keras counts a dataset's batches. Where the replicas of a worker take its batches in turn, a step
has one for each replica, and all workers make as many steps as the one with most batches.

Private names: Keras 3's `TFEpochIterator` and its `_num_batches`; of tf_keras' `DataHandler` the
methods `_configure_dataset_and_inferred_steps` and `_infer_steps`.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.datasets import steps_of_all
from tfdist.strategies.eager.keras_extension import extends


def adapt_number_of_steps(library: str) -> None:
    """Extends the class of a library, "keras" or "tf_keras", that counts steps."""
    if library == "keras":
        _adapt_keras_3(importlib.import_module("keras.src.backend.tensorflow.trainer"))
    else:
        _adapt_tf_keras(importlib.import_module("tf_keras.src.engine.data_adapter"))


def _has_own_data(strategy: Any) -> bool:
    return not getattr(strategy.extended, "divides_batches", True)


def _adapt_keras_3(module: Any) -> None:
    @extends(module.TFEpochIterator, "__init__")
    def init_counted(init: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        strategy = self._distribute_strategy
        self.is_of_own_data = _has_own_data(strategy) and not self.steps_per_epoch
        if self.is_of_own_data:
            self.num_steps = steps_of_all(
                strategy,
                self._num_batches,
                self.steps_per_execution,
            )
            self._num_batches = self.num_steps

    @extends(module.TFEpochIterator, "reset")
    def reset_counted(reset: Any, self: Any) -> None:
        reset(self)
        if getattr(self, "is_of_own_data", False):
            self._num_batches = self.num_steps


def _adapt_tf_keras(module: Any) -> None:
    @extends(module.DataHandler, "_configure_dataset_and_inferred_steps")
    def configure_counted(
        configure: Any,
        self: Any,
        strategy: Any,
        x: Any,
        steps: Any,
        class_weight: Any,
        distribute: bool,
    ) -> None:
        self.is_of_own_data = distribute and _has_own_data(strategy)
        configure(self, strategy, x, steps, class_weight, distribute)

    @extends(module.DataHandler, "_infer_steps")
    def infer_counted(infer: Any, self: Any, steps: int | None, dataset: Any) -> int | None:
        number: int | None = infer(self, steps, dataset)
        if not self.is_of_own_data or steps is not None:
            return number
        at_a_time = int(self._steps_per_execution.numpy())
        return steps_of_all(tf.distribute.get_strategy(), number, at_a_time)
