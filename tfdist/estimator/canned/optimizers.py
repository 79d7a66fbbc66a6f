"""The optimizer of a canned estimator: from what the user gave to one for each graph.

Keras 2 optimizers of the older kind (`tf.keras.optimizers.legacy`) build v1 graphs, and their slots
have the names that tf.estimator's checkpoints hold. Newer ones are rebuilt as their older
namesakes; v1 optimizers are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.heads.keras_optimizers import graph_optimizer

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


def v1_optimizer_maker(optimizer: Any, learning_rate: float) -> MakeOptimizer:
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
