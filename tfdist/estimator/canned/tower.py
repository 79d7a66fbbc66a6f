"""The model_fn of a canned estimator, composed of towers, a head and optimizers.

A tower is a model that computes logits from features: a linear model, a deep network or a bias. The
logits of all towers are added. The head computes loss, metrics and predictions from the sum.

    features --> dnn tower ----+
         |                     +--> logits --> head --> loss, metrics, predictions
         +-----> linear tower -+                          |
                                        an optimizer for each tower's variables

Both generations of canned estimators have these towers. They are built from `Layers` here, and from
`ScopedLayers` in `tfdist.estimator.v1.model`. Each generation has its own heads, optimizers and
defaults.

Legacy Keras 2 optimizers (`tf.keras.optimizers.legacy`) build v1 graphs, and their slots have the
names in tf.estimator's checkpoints. Newer Keras optimizers are rebuilt as the legacy optimizers of
the same name. v1 optimizers are used unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.layers import Layers
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.train_op import forget_variables, graph_optimizer, minimize
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

MakeOptimizer = Callable[[], Any]

_KERAS_CLASSES: dict[str, Any] = {
    "Adagrad": tf_keras.optimizers.legacy.Adagrad,
    "Adam": tf_keras.optimizers.legacy.Adam,
    "Ftrl": tf_keras.optimizers.legacy.Ftrl,
    "RMSProp": tf_keras.optimizers.legacy.RMSprop,
    "SGD": tf_keras.optimizers.legacy.SGD,
}

_V1_CLASSES: dict[str, Any] = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


@dataclass(frozen=True)
class Tower:
    """A model that computes logits from features, with its optimizer.

    Attributes:
      name: "dnn", "linear" or "baseline", which is the first part of the variables' names.
      build: Function of (layers, features, mode, logits_dimension) that returns the logits, float32
        [batch, logits_dimension].
      optimizer: An optimizer, its name, or a function that returns one.
      learning_rate: Learning rate of an optimizer given by name. None is the generation's default.
      is_part: Whether the tower is part of a model that combines a linear and a deep part.
    """

    name: str
    build: Callable[[Any, dict[str, Any], str, int], tf.Tensor]
    optimizer: Any
    learning_rate: float | None = None
    is_part: bool = False

    def optimizer_maker(self, maker: Callable[[Any, float | None], MakeOptimizer]) -> MakeOptimizer:
        """Returns a function that returns the optimizer for a new graph; ValueError if unusable."""
        make = maker(self.optimizer, self.learning_rate)

        def make_checked() -> Any:
            optimizer = make()
            if self.is_part and isinstance(optimizer, v1.train.SyncReplicasOptimizer):
                raise ValueError(
                    "SyncReplicasOptimizer does not support multi optimizers case. Therefore, it "
                    "is not supported in DNNLinearCombined model. Use a DNN or a Linear model with "
                    "it."
                )
            return optimizer

        return make_checked


class CannedEstimator(Estimator):
    """An Estimator with a model of towers and a head.

    Args:
      head: A head of `tfdist.estimator`, or an object with the method `create_estimator_spec`.
      towers: At least one tower. The optimizer of the first increments the global step.
      model_dir: As in `Estimator`.
      config: As in `Estimator`.
      warm_start_from: As in `Estimator`.
    """

    def __init__(
        self,
        head: Any,
        towers: Sequence[Tower],
        model_dir: str | os.PathLike[str] | None,
        config: RunConfig | None,
        warm_start_from: WarmStartFrom = None,
    ) -> None:
        model_fn = make_model_fn(head, towers)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def make_model_fn(head: Any, towers: Sequence[Tower]) -> Callable[..., EstimatorSpec]:
    """Returns the model_fn of an Estimator with a head and towers, as in `CannedEstimator`."""
    makers = [tower.optimizer_maker(keras_optimizer_maker) for tower in towers]

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        check_features(features)
        built, parts = [], []
        for tower in towers:
            layers = Layers()
            with layers.scope(tower.name):
                parts.append(tower.build(layers, features, mode, head.logits_dimension))
            built.append(layers)
        how: dict[str, Any] = {}
        if mode == ModeKeys.TRAIN:
            optimizers = [make() for make in makers]
            loss_reduction = getattr(head, "loss_reduction", checks.MEAN)
            how = _how_to_train(list(zip(optimizers, built, strict=True)), loss_reduction)
        spec: EstimatorSpec = head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=total(parts), **how
        )
        return spec

    return model_fn


def check_features(features: Any) -> None:
    """Raises ValueError unless the features are a dict."""
    if not isinstance(features, dict):
        raise ValueError(
            f"features should be a dictionary of `Tensor`s. Given type: {type(features)}. Return "
            'a dict such as {"name": tensor} from input_fn.'
        )


def total(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of the logits of all towers, float32 [batch, logits_dimension]."""
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _how_to_train(pairs: list[tuple[Any, Layers]], loss_reduction: str) -> dict[str, Any]:
    """Returns the arguments of `create_estimator_spec` for training.

    Args:
      pairs: The optimizer and the layers of each tower.
      loss_reduction: As in `minimize`.
    """
    first, layers = pairs[0]
    if not is_v1(first):
        first.iterations = v1.train.get_or_create_global_step()
    if len(pairs) == 1:
        how = {"optimizer": first, "trainable_variables": layers.variables}
        return {**how, "update_ops": layers.updates} if layers.updates else how

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        ops: list[Any] = []
        for i, (optimizer, layers) in enumerate(pairs):
            ops += minimize(loss, loss_reduction, optimizer, layers.variables, counts_steps=i == 0)
            ops += layers.updates
        return tf.group(*ops)

    return {"train_op_fn": train_op_fn}


def keras_optimizer_maker(optimizer: Any, learning_rate: float | None) -> MakeOptimizer:
    """Returns a function that returns a Keras 2 or v1 optimizer for a new graph.

    Args:
      optimizer: As in `Tower`. A function takes no arguments, and runs in the graph.
      learning_rate: As in `Tower`. None is the default of Keras.
    """
    # A legacy optimizer belongs to the first graph that uses it. Later graphs get a copy.
    config = _config_of(optimizer)

    def make() -> Any:
        if isinstance(optimizer, str):
            chosen = _class_named(optimizer, _KERAS_CLASSES)
            return chosen() if learning_rate is None else chosen(learning_rate=learning_rate)
        if config is not None and optimizer.weights:
            return type(optimizer).from_config(config)
        return _for_graph(optimizer() if callable(optimizer) else optimizer)

    return make


def v1_optimizer_maker(optimizer: Any, learning_rate: float | None) -> MakeOptimizer:
    """Returns the same as `keras_optimizer_maker` for v1 optimizers only; the default is 0.05."""
    rate = 0.05 if learning_rate is None else learning_rate

    def make() -> Any:
        if isinstance(optimizer, str):
            return _class_named(optimizer, _V1_CLASSES)(learning_rate=rate)
        made = optimizer() if callable(optimizer) else optimizer
        if not is_v1(made):
            raise ValueError(
                f"The given object is not an Optimizer instance. Given: {made}. Give a name or an "
                "optimizer of tf.compat.v1.train."
            )
        return made

    return make


def is_v1(optimizer: Any) -> bool:
    """Returns True if `optimizer` is an optimizer of `tf.compat.v1.train`."""
    return isinstance(optimizer, v1.train.Optimizer)


def _class_named(name: str, classes: dict[str, Any]) -> Any:
    if name not in classes:
        raise ValueError(
            f"Unsupported optimizer name: {name}. Supported names are: {tuple(sorted(classes))}"
        )
    return classes[name]


def _config_of(optimizer: Any) -> dict[str, Any] | None:
    """Returns the settings of an unused legacy optimizer; None for others, or if it has none."""
    if not isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer) or optimizer.weights:
        return None
    try:
        return dict(optimizer.get_config())
    except NotImplementedError:
        return None


def _for_graph(optimizer: Any) -> Any:
    """Returns an optimizer that trains in a v1 graph; ValueError if there is none."""
    if is_v1(optimizer):
        return optimizer
    rebuilt = graph_optimizer(optimizer)
    if rebuilt is not optimizer:
        forget_variables(optimizer)  # So that they are not saved.
    return rebuilt
