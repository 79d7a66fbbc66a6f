"""The model_fn of a canned estimator: towers that give logits, a head, and optimizers.

A tower is one way from features to logits (a linear model, a deep network, a bias). The logits of
all towers are added; the head makes loss, metrics and predictions of the sum.

    features --> dnn tower ----+
         |                     +--> logits --> head --> loss, metrics, predictions
         +-----> linear tower -+                          |
                                        an optimizer for each tower's variables

A tower serves both generations: it is built from `Layers` here, from `ScopedLayers` in
`tfdist.estimator.canned.v1`. Heads, optimizers and defaults are the generation's, too.

Keras 2 optimizers of the older kind (`tf.keras.optimizers.legacy`) build v1 graphs, and their slots
have the names that tf.estimator's checkpoints hold. Newer ones are rebuilt as their older
namesakes; v1 optimizers are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.canned.layers import Layers
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.heads import checks
from tfdist.estimator.heads.train_op import graph_optimizer
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
    """One way from features to logits, with its optimizer.

    Attributes:
      name: "dnn", "linear" or "baseline": the first part of its variables' names.
      build: From (layers, features, mode, logits_dimension) to float32 [batch, logits_dimension].
      optimizer: An optimizer, its name, or a function that returns one.
      learning_rate: For an optimizer given by name; None is the optimizer's default.
      is_part: Whether it is a part of a model with a linear and a deep part.
    """

    name: str
    build: Callable[[Any, dict[str, Any], str, int], tf.Tensor]
    optimizer: Any
    learning_rate: float | None = None
    is_part: bool = False

    def optimizer_maker(self, maker: Callable[[Any, float | None], MakeOptimizer]) -> MakeOptimizer:
        """Returns a function that gives the optimizer for a new graph, or raises ValueError.

        Args:
          maker: `keras_optimizer_maker` or `v1_optimizer_maker`.
        """
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
    """An Estimator whose model is towers and a head.

    Args:
      head: A head of `tfdist.estimator`, or an object with its `create_estimator_spec`.
      towers: At least one. The first one's optimizer increments the global step.
      model_dir: As in `Estimator`.
      config: As in `Estimator`.
      warm_start_from: As in `Estimator`.
    """

    def __init__(
        self,
        head: Any,
        towers: Sequence[Tower],
        model_dir: Any,
        config: Any,
        warm_start_from: Any = None,
    ) -> None:
        model_fn = _make_model_fn(head, towers)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def _make_model_fn(head: Any, towers: Sequence[Tower]) -> Callable[..., EstimatorSpec]:
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
            is_mean = getattr(head, "loss_reduction", checks.MEAN) != checks.SUM
            how = _how_to_train(list(zip(optimizers, built, strict=True)), is_mean)
        spec: EstimatorSpec = head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=total(parts), **how
        )
        return spec

    return model_fn


def check_features(features: Any) -> None:
    """Refuses features that are not a dict.

    Raises:
      ValueError: If so.
    """
    if not isinstance(features, dict):
        raise ValueError(
            f"features should be a dictionary of `Tensor`s. Given type: {type(features)}. Return "
            'a dict such as {"name": tensor} from input_fn.'
        )


def total(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds the logits of all towers, float32 [batch, logits_dimension]."""
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _how_to_train(pairs: list[tuple[Any, Layers]], loss_is_mean: bool) -> dict[str, Any]:
    """Returns the arguments of `create_estimator_spec` that say how to train.

    Args:
      pairs: An optimizer for each tower's variables.
      loss_is_mean: Whether the loss is a mean over the batch, so that the workers' gradients are
        averaged.
    """
    global_step = v1.train.get_or_create_global_step()
    first, layers = pairs[0]
    if not is_v1(first):
        first.iterations = global_step
    if len(pairs) == 1:
        how = {"optimizer": first, "trainable_variables": layers.variables}
        return {**how, "update_ops": layers.updates} if layers.updates else how

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        workers = tf.distribute.get_strategy().num_replicas_in_sync
        share = loss / workers if loss_is_mean and workers > 1 else loss
        ops: list[Any] = []
        for i, (optimizer, layers) in enumerate(pairs):
            if is_v1(optimizer):
                # It divides a mean loss by the number of workers itself.
                step = global_step if i == 0 else None
                ops.append(optimizer.minimize(loss, global_step=step, var_list=layers.variables))
            else:
                ops += optimizer.get_updates(share, layers.variables)
            ops += layers.updates
        return tf.group(*ops)

    return {"train_op_fn": train_op_fn}


def keras_optimizer_maker(optimizer: Any, learning_rate: float | None = None) -> MakeOptimizer:
    """Returns a function that gives the optimizer for a new graph.

    Args:
      optimizer: A name ("Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"), a Keras 2 or v1 optimizer, or
        a function without arguments that returns one and runs in the graph.
      learning_rate: For a name; None is Keras' default.

    Returns:
      A function that raises ValueError if the optimizer cannot be used.
    """
    # A legacy optimizer belongs to the first graph that it works in: later ones get a new one.
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
    """Does what `keras_optimizer_maker` does, with v1 optimizers only."""

    def make() -> Any:
        if isinstance(optimizer, str):
            return _class_named(optimizer, _V1_CLASSES)(learning_rate=learning_rate)
        made = optimizer() if callable(optimizer) else optimizer
        if not is_v1(made):
            raise ValueError(
                f"The given object is not an Optimizer instance. Given: {made}. Give a name or an "
                "optimizer of tf.compat.v1.train."
            )
        return made

    return make


def is_v1(optimizer: Any) -> bool:
    """Says whether it is an optimizer of `tf.compat.v1.train`."""
    return isinstance(optimizer, v1.train.Optimizer)


def _class_named(name: str, classes: dict[str, Any]) -> Any:
    if name not in classes:
        raise ValueError(
            f"Unsupported optimizer name: {name}. Supported names are: {tuple(sorted(classes))}"
        )
    return classes[name]


def _config_of(optimizer: Any) -> dict[str, Any] | None:
    """Reads an unused legacy optimizer's settings, while no graph holds them yet."""
    if not isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer) or optimizer.weights:
        return None
    try:
        return dict(optimizer.get_config())
    except NotImplementedError:
        return None


def _for_graph(optimizer: Any) -> Any:
    """Accepts what trains in a v1 graph, and rebuilds newer Keras 2 optimizers."""
    if is_v1(optimizer) or hasattr(optimizer, "get_updates"):
        return optimizer
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise ValueError(
            "The given object is not a tf.keras.optimizers.Optimizer instance. Given: "
            f"{optimizer}. Give a name, an optimizer of tf_keras or of tf.compat.v1.train, or a "
            "function that returns one."
        )
    rebuilt = graph_optimizer(optimizer)
    v1.logging.warning(
        "tf.keras.optimizers.%s is used as tf.keras.optimizers.legacy.%s: an Estimator's graph "
        "needs that kind.", type(optimizer).__name__, type(rebuilt).__name__
    )  # fmt: skip
    _forget_variables(optimizer)
    return rebuilt


def _forget_variables(optimizer: Any) -> None:
    """Takes variables that an unused optimizer made in this graph out of what is saved."""
    graph = v1.get_default_graph()
    # Its `variables` are not all of them.
    unused = {id(value) for value in vars(optimizer).values() if isinstance(value, tf.Variable)}
    for name in graph.collections:
        kept = [x for x in graph.get_collection(name) if id(x) not in unused]
        graph.get_collection_ref(name)[:] = kept
