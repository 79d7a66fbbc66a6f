"""The model_fn of a Keras model: the model rebuilt in the Estimator's graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator import private_keras
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.strategies.private_tensorflow import saver_of_checkpoint

_SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


@dataclass(frozen=True, kw_only=True)
class KerasModelFn:
    """The model_fn of a compiled Keras model.

    Attributes:
      model: The user's compiled model; only read.
      compiled: The arguments that it is compiled with.
      custom_objects: Classes and functions by name, for layers that are not Keras' own.
      saves_objects: Whether checkpoints are object-based.
      metric_names: A dict of Keras' metric name to the Estimator's; None keeps the names.
      export_outputs: A dict of output name to a class of ExportOutput.
    """

    model: Any
    compiled: private_keras.CompiledWith
    custom_objects: dict[str, Any] | None = None
    saves_objects: bool = False
    metric_names: Mapping[str, str] | None = None
    export_outputs: Mapping[str, Callable[[Any], Any]] | None = None

    def __call__(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        """Builds the model in the current graph, as every model_fn does.

        The optimizer counts its steps in the global step.

        Raises:
          KeyError: If the features or labels lack one of the model's names.
          ValueError: If metric_names does not have exactly the names of the metrics.
        """
        clone = self.build(features, labels, mode)
        predictions = dict(zip(clone.output_names, clone.outputs, strict=True))
        loss = metrics = train_op = None
        if mode != ModeKeys.PREDICT:
            # Keras divides by the number of replicas, since gradients are summed. A result is not.
            is_result = mode == ModeKeys.EVAL and tf.distribute.has_strategy()
            replicas = tf.distribute.get_strategy().num_replicas_in_sync if is_result else 1
            loss = clone.total_loss * replicas if replicas > 1 else clone.total_loss
            metrics = named_metrics(clone, self.metric_names)
        if mode == ModeKeys.TRAIN:
            train_op = add_training(clone)
        return EstimatorSpec(
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=metrics,
            export_outputs=_exports(self.export_outputs, predictions),
            scaffold=self.scaffold(clone),
        )

    def build(self, features: Any, labels: Any, mode: str) -> Any:
        """Rebuilds the model on these tensors, and compiles it unless it only predicts."""
        _set_learning_phase(mode == ModeKeys.TRAIN)
        features, weights = _without_weights(features)
        iterations = None
        if mode != ModeKeys.PREDICT:
            iterations = v1.train.get_or_create_global_step()
            private_keras.track(iterations)
        clone = private_keras.clone_and_build(
            self.model,
            _inputs(self.model, features),
            _targets(self.model, labels),
            compiled=self.compiled,
            custom_objects=self.custom_objects,
            iterations=iterations,
        )
        if weights is not None and mode != ModeKeys.PREDICT:
            private_keras.weight_the_losses(clone, weights_of_outputs(weights, clone.output_names))
        return clone

    def scaffold(self, clone: Any) -> v1.train.Scaffold | None:
        """Makes the scaffold that saves objects; None for the Estimator's own saver."""
        if not self.saves_objects:
            return None
        step = v1.train.get_global_step()
        with tf.init_scope():  # Saving is outside a loop of steps.
            saver = saver_of_checkpoint(clone, estimator_global_step=step)
        return v1.train.Scaffold(saver=saver)


def add_training(clone: Any) -> tf.Operation:
    """Adds the updates of the optimizer and of the layers; they increment the global step.

    The optimizer's variables are named training/<optimizer>/..., as under `fit`.
    """
    with v1.name_scope("training/"):
        updates = clone.optimizer.get_updates(params=clone.trainable_weights, loss=clone.total_loss)
    return tf.group(*updates, *clone.get_updates_for(None), *clone.get_updates_for(clone.inputs))


def _set_learning_phase(is_training: bool) -> None:
    """Sets the default of the argument `training` of all layers in this graph."""
    with warnings.catch_warnings():
        # Keras asks to set it at each call, but makes the calls itself.
        warnings.simplefilter("ignore")
        tf_keras.backend.set_learning_phase(is_training)


# Inputs.


def _without_weights(features: Any) -> tuple[Any, Any]:
    """Splits {"features": ..., "sample_weights": ...}; other features have no weights."""
    if isinstance(features, dict) and set(features) == {"features", "sample_weights"}:
        return features["features"], features["sample_weights"]
    return features, None


def _inputs(model: Any, features: Any) -> Any:
    """Converts features to the structure on which the model is rebuilt."""
    if not isinstance(features, dict):
        return _ordered(features, [], "features", "inputs")
    if isinstance(model.inputs, dict):
        return {name: _tensor(features[name]) for name in model.inputs}
    if model.inputs is None:
        return {name: _tensor(value) for name, value in features.items()}
    names = model.input_names if private_keras.has_known_graph(model) else None
    return _ordered(features, names or _numbered("input", features), "features", "inputs")


def _targets(model: Any, labels: Any) -> list[Any] | None:
    names: Sequence[str] = []
    if isinstance(labels, dict):
        known = private_keras.has_known_graph(model)
        names = model.output_names if known else _numbered("output", labels)
    return _ordered(labels, names, "labels", "outputs")


def _numbered(word: str, values: Mapping[str, Any]) -> list[str]:
    return [f"{word}_{i + 1}" for i in range(len(values))]


def _ordered(values: Any, names: Sequence[str], given: str, kind: str) -> list[Any] | None:
    """Returns a list of tensors, from a dict in the order of these names, without other entries."""
    if values is None:
        return None
    if isinstance(values, (list, tuple)):
        return [_tensor(value) for value in values]
    if not isinstance(values, dict):
        return [_tensor(values)]
    missed = set(names) - set(values)
    if missed:
        raise KeyError(
            f"The dictionary passed into {given} does not cover requested {kind} keys defined in "
            f"the keras model. Expected keys: {set(names)}, {given} keys: {set(values)}, "
            f"Missed keys: {missed}"
        )
    return [_tensor(values[name]) for name in names]


def _tensor(value: object) -> Any:
    return value if tf.is_tensor(value) else v1.convert_to_tensor_or_sparse_tensor(value)


def weights_of_outputs(weights: Any, outputs: Sequence[str]) -> list[Any]:
    """Returns the weights per example, [batch], of each output, or None for an output.

    Weights are a tensor for the only output, a list with one entry per output, or a dict by name.
    Others raise ValueError, one tensor for several outputs TypeError.
    """
    if isinstance(weights, Mapping) and set(weights) & set(outputs) == set(weights):
        return [weights.get(name) for name in outputs]
    if isinstance(weights, Mapping) and len(outputs) > 1:
        raise ValueError(
            f"Unknown entries in sample_weights dictionary: {sorted(set(weights) - set(outputs))}. "
            f"Only expected following keys: {list(outputs)}."
        )
    if isinstance(weights, (list, tuple)):
        if not weights:
            return [None] * len(outputs)
        if len(weights) != len(outputs):
            raise ValueError(
                f"Provided `sample_weights` was a list of {len(weights)} elements, but the model "
                f"has {len(outputs)} outputs. Give one for each."
            )
        return list(weights)
    if len(outputs) > 1:
        raise TypeError(
            "The model has multiple outputs, so `sample_weights` should be either a list or a "
            f"dict. Provided `sample_weights` type not understood: {weights!r}."
        )
    return [weights]


# Outputs.


def named_metrics(clone: Any, names: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Returns the metrics given to `compile`, by their new names if `names` has such.

    Returns None if there are no metrics. Raises ValueError if `names` has not exactly theirs.
    """
    metrics = {metric.name: metric for metric in private_keras.compiled_metrics(clone)}
    if not metrics:
        return None
    if not names:
        return metrics
    unknown = sorted(set(metrics) - set(names))
    if unknown:
        raise ValueError(
            f"Invalid `metric_names_map`. The following keras model metric names:{unknown} do not "
            "exist in the `metric_names_map` dictionary. Add them."
        )
    extra = sorted(set(names) - set(metrics))
    if extra:
        raise ValueError(
            "Invalid `metric_names_map`. There are unexpected keys in the `metric_names_map` "
            f"dictionary. Expected keys: {sorted(metrics)}, Received: {extra}"
        )
    return {names[name]: metric for name, metric in metrics.items()}


def _exports(
    wanted: Mapping[str, Callable[[Any], Any]] | None, predictions: dict[str, Any]
) -> dict[str, Any] | None:
    """Returns the user's export outputs and the default one; None leaves it to EstimatorSpec."""
    if wanted is None:
        return None
    from tfdist.estimator.export import PredictOutput

    missed = set(wanted) - set(predictions)
    if missed:
        raise KeyError(
            f"The list passed into {list(predictions)} does not cover requested export_outputs "
            f"keys. Expected keys: {set(wanted)}, the keras model's outputs: {set(predictions)}, "
            f"Missed keys: {missed}"
        )
    return {
        _SERVING: PredictOutput(predictions),
        **{name: make(predictions[name]) for name, make in wanted.items()},
    }
