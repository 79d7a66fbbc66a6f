"""Every name of Keras that it does not promise to keep and that tfdist uses, and why.

A tf_keras model that is converted to an Estimator is rebuilt in a v1 graph, where tf_keras makes of
it a model of its older kind (`tf_keras.src.engine.training_v1`). That kind has no public door to
some of its parts. Nothing else in tfdist touches them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

__all__ = [
    "CompiledWith",
    "clone_and_build",
    "compile_arguments",
    "compiled_metrics",
    "has_known_graph",
    "has_weights_to_keep",
    "learning_rate_as_given",
    "make_eager_again",
    "name_layers_from_the_start",
    "to_legacy",
    "track",
    "weight_the_losses",
]


@dataclass(frozen=True, kw_only=True)
class CompiledWith:
    """What a model is compiled with, read once and outside of the Estimator's graphs.

    Attributes:
      own_optimizer: The one that the user's model has.
      optimizer: Of the older kind, or a v1 optimizer wrapped by Keras.
      optimizer_config: Its settings as plain values, to make another one from; None if it has none
        to read.
      arguments: The other arguments of `compile`.
    """

    own_optimizer: Any
    optimizer: Any
    optimizer_config: Any
    arguments: dict[str, Any]


def compile_arguments(model: Any) -> dict[str, Any]:
    """Returns the arguments that the user gave to `compile`; publicly there is only their JSON."""
    return dict(model._get_compile_args())


def clone_and_build(
    model: Any,
    inputs: Any,
    targets: Sequence[tf.Tensor] | None,
    *,
    compiled: CompiledWith,
    custom_objects: dict[str, Any] | None,
    iterations: tf.Variable | None,
) -> Any:
    """Rebuilds a model in the current graph on these inputs; compiles it if there are iterations.

    `tf_keras.models.clone_model` is public, but it neither compiles nor knows subclassed models.

    Args:
      model: The user's model; left as it is.
      inputs: Tensors in the model's order, a dict of them, or None for placeholders.
      targets: Tensors in the order of the model's outputs, or None for placeholders.
      compiled: What to compile with.
      custom_objects: Classes and functions by name, for layers that are not Keras' own.
      iterations: The variable that the optimizer counts its steps in, or None to not compile.
    """
    with _compiled_as(model, compiled):
        return tf_keras.__internal__.models.clone_and_build_model(
            model,
            inputs,
            targets,
            custom_objects,
            compile_clone=iterations is not None,
            optimizer_iterations=iterations,
            optimizer_config=compiled.optimizer_config,
        )


@contextmanager
def _compiled_as(model: Any, compiled: CompiledWith) -> Iterator[None]:
    """Lends a model what the clone is to be compiled with, which is taken from the model.

    It is taken at once, before the clone is built: another replica, which builds meanwhile, may
    borrow and give back as well.
    """
    borrows = compiled.optimizer is not compiled.own_optimizer
    if borrows:
        model.optimizer = compiled.optimizer
    model._get_compile_args = lambda: dict(compiled.arguments)
    try:
        yield
    finally:
        vars(model).pop("_get_compile_args", None)
        if borrows:
            model.optimizer = compiled.own_optimizer


def make_eager_again(model: Any) -> None:
    """Undoes what building a model in a graph did to the classes of this one.

    tf_keras gives a class its older parent whenever one of its objects is made in a v1 graph, and
    the newer one in eager execution; objects made before do not work under the other parent.
    """
    if tf.executing_eagerly():
        for part in (model, *model.submodules):
            if isinstance(part, tf_keras.layers.Layer):
                kind: Any = type(part)
                kind.__new__(kind)


def to_legacy(optimizer: Any) -> Any:
    """Makes the older optimizer with the settings of a newer one; only tf_keras knows the pairs.

    Raises:
      AttributeError: If there is no older one.
    """
    return tf_keras.__internal__.optimizers.convert_to_legacy_optimizer(optimizer)


def learning_rate_as_given(optimizer: Any) -> Any:
    """Returns the learning rate of an optimizer: a variable, or the schedule it was made with.

    The public property has the schedule's value at this step in its place.
    """
    return optimizer._learning_rate


def has_known_graph(model: Any) -> bool:
    """Says whether the layers are connected already: functional, or sequential with a shape.

    No public name tells a functional model from a subclassed one.
    """
    return bool(model._is_graph_network)


def has_weights_to_keep(model: Any) -> bool:
    """Says whether the weights have values: always, but for models of a v1 graph.

    There Keras marks the weights that it has initialised.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return True
    return any(hasattr(w, "_keras_initialized") for layer in model.layers for w in layer.weights)


def compiled_metrics(model: Any) -> list[Any]:
    """Lists the metrics given to `compile`; `model.metrics` also has those of `add_metric`."""
    if not getattr(model, "_compile_metrics", None):
        return []
    return list(model._compile_metric_functions)


def weight_the_losses(model: Any, weights: list[Any]) -> None:
    """Weighs each output's loss by a tensor per example; only `fit` has a public argument."""
    model._compile_weights_loss_and_weighted_metrics(weights)


def name_layers_from_the_start() -> None:
    """Lets Keras 3 call the next layer without a name "dense" again, say, and not "dense_7".

    It counts in the process, not in the graph as tf_keras does, and so the variables of a model_fn
    would have other names at each call. Publicly, only all of Keras' state can be reset.
    """
    naming = sys.modules.get("keras.src.utils.naming")
    if naming is not None:  # Keras 3 is in use.
        naming.reset_uids()


def track(variable: tf.Variable) -> None:
    """Tells Keras of a variable that it did not make, so that its session leaves it alone."""
    tf_keras.__internal__.backend.track_variable(variable)
