"""Export outputs of a model; each becomes one signature of the exported model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

# TensorFlow has no public names for these two.
TRAIN_METHOD_NAME = "tensorflow/supervised/training"
EVAL_METHOD_NAME = "tensorflow/supervised/eval"

_SEPARATOR = "/"


class ExportOutput(ABC):
    """One output of a model, a value of `EstimatorSpec.export_outputs`.

    Any class with a method `as_signature_def` counts as one: TensorFlow has such classes as well,
    in `tensorflow.python.saved_model.model_utils`, which programs import.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        if cls is ExportOutput and callable(getattr(other, "as_signature_def", None)):
            return True
        return NotImplemented

    @abstractmethod
    def as_signature_def(self, receiver_tensors: Mapping[str, tf.Tensor]) -> Any:
        """Builds the SignatureDef of this output with the given inputs.

        Args:
          receiver_tensors: The tensors that a caller feeds, by name.

        Raises:
          ValueError: If the output cannot have these inputs.
        """


@dataclass(frozen=True, eq=False)
class ClassificationOutput(ExportOutput):
    """Class scores, class labels, or both; the signature takes serialized examples.

    Args:
      scores: A float tensor [batch, classes].
      classes: A string tensor [batch, classes] of labels. With `scores`, each label belongs to the
        score at the same position. Without `scores`, they are the top classes, the best one first.

    Raises:
      ValueError: If both are missing, or one is not a tensor of that type.
    """

    scores: tf.Tensor | None = None
    classes: tf.Tensor | None = None

    def __post_init__(self) -> None:
        if self.scores is not None and not _is_float(self.scores):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {self.scores}")
        if self.classes is not None and not _is_string(self.classes):
            raise ValueError(f"Classification classes must be a string Tensor; got {self.classes}")
        if self.scores is None and self.classes is None:
            raise ValueError(
                "Cannot create a ClassificationOutput with empty arguments. At least one of "
                "`scores` and `classes` must be defined."
            )

    def as_signature_def(self, receiver_tensors: Mapping[str, tf.Tensor]) -> Any:
        examples = _serialized_examples(receiver_tensors, "Classification")
        return v1.saved_model.classification_signature_def(examples, self.classes, self.scores)


@dataclass(frozen=True, eq=False)
class RegressionOutput(ExportOutput):
    """One number for each example; the signature takes serialized examples.

    Args:
      value: A float tensor [batch, 1] or [batch].

    Raises:
      ValueError: If `value` is not a float tensor.
    """

    value: tf.Tensor

    def __post_init__(self) -> None:
        if not _is_float(self.value):
            raise ValueError(f"Regression output value must be a float32 Tensor; got {self.value}")

    def as_signature_def(self, receiver_tensors: Mapping[str, tf.Tensor]) -> Any:
        examples = _serialized_examples(receiver_tensors, "Regression")
        return v1.saved_model.regression_signature_def(examples, self.value)


class PredictOutput(ExportOutput):
    """Tensors by name, of any type; the signature takes any inputs.

    Args:
      outputs: A tensor, which gets the name "output", or a dict of tensors. Keys are strings, or
        tuples of strings. Tuples are joined with "/".

    Raises:
      ValueError: If a key or a value has another type.
    """

    def __init__(self, outputs: Any) -> None:
        self.outputs = _named_tensors(outputs, "output", "Prediction")

    def as_signature_def(self, receiver_tensors: Mapping[str, tf.Tensor]) -> Any:
        return v1.saved_model.predict_signature_def(dict(receiver_tensors), self.outputs)


class _SupervisedOutput(ExportOutput):
    """Loss, predictions and metrics in one signature, which takes features and labels.

    Args:
      loss: A tensor or a dict of tensors; keys are prefixed with "loss/".
      predictions: A tensor or a dict of tensors; keys are prefixed with "predictions/".
      metrics: A dict of (value, update_op) tuples or Keras metric objects, or one such value. Each
        metric becomes "metrics/<name>/value" and "metrics/<name>/update_op".

    Raises:
      ValueError: If a key is not a string, or a value is not a tensor.
    """

    _method_name: str

    def __init__(self, loss: Any = None, predictions: Any = None, metrics: object = None) -> None:
        self.loss = _prefixed_tensors(loss, "loss")
        self.predictions = _prefixed_tensors(predictions, "predictions")
        self.metrics = None if metrics is None else _metric_tensors(metrics)

    def as_signature_def(self, receiver_tensors: Mapping[str, tf.Tensor]) -> Any:
        if not receiver_tensors:
            raise ValueError(f"{self._method_name} inputs cannot be None or empty.")
        outputs = {**(self.loss or {}), **(self.predictions or {}), **(self.metrics or {})}
        info = v1.saved_model.build_tensor_info
        return v1.saved_model.build_signature_def(
            {key: info(tensor) for key, tensor in receiver_tensors.items()},
            {key: info(tensor) for key, tensor in outputs.items()},
            self._method_name,
        )


class TrainOutput(_SupervisedOutput):
    """The signature 'train' of a model exported in TRAIN.

    Args:
      loss: A tensor or a dict of tensors; keys are prefixed with "loss/".
      predictions: A tensor or a dict of tensors; keys are prefixed with "predictions/".
      metrics: A dict of (value, update_op) tuples or Keras metric objects, or one such value. Each
        metric becomes "metrics/<name>/value" and "metrics/<name>/update_op".
    """

    _method_name = TRAIN_METHOD_NAME


class EvalOutput(_SupervisedOutput):
    """The signature 'eval' of a model exported in EVAL.

    Args:
      loss: A tensor or a dict of tensors; keys are prefixed with "loss/".
      predictions: A tensor or a dict of tensors; keys are prefixed with "predictions/".
      metrics: A dict of (value, update_op) tuples or Keras metric objects, or one such value. Each
        metric becomes "metrics/<name>/value" and "metrics/<name>/update_op".
    """

    _method_name = EVAL_METHOD_NAME


def with_serving_default(export_outputs: Any, predictions: Any) -> dict[str, ExportOutput]:
    """Returns the given outputs for serving, with one named "serving_default".

    A single output gets this name in addition to its own. None means one `PredictOutput` of the
    predictions.

    Raises:
      TypeError: If `export_outputs` is not a dict of `ExportOutput`.
      ValueError: If there are several outputs and none is named "serving_default".
    """
    default = v1.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    if export_outputs is None:
        export_outputs = {default: PredictOutput(predictions)}
    if not isinstance(export_outputs, dict):
        raise TypeError(f"`export_outputs` must be dict, given: {export_outputs}")
    for output in export_outputs.values():
        if not isinstance(output, ExportOutput):
            raise TypeError(
                f"Values in `export_outputs` must be ExportOutput objects. Given: {export_outputs}"
            )
    if len(export_outputs) == 1:
        export_outputs.setdefault(default, next(iter(export_outputs.values())))
    if len(export_outputs) > 1 and default not in export_outputs:
        raise ValueError(
            "Multiple `export_outputs` were provided, but none of them are specified as the "
            f"default: {sorted(export_outputs)}. Call one of them {default!r}."
        )
    return export_outputs


def _is_float(value: object) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def _is_string(value: object) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.base_dtype == tf.string


def _serialized_examples(receiver_tensors: Mapping[str, tf.Tensor], kind: str) -> Any:
    """Returns the only input; ValueError unless there is one, a string tensor."""
    tensors = list(receiver_tensors.values())
    if len(tensors) != 1 or tensors[0].dtype != tf.string:
        raise ValueError(
            f"{kind} signatures can only accept a single tensor input of type tf.string, got "
            f"{dict(receiver_tensors)}. Feed serialized tf.Example protos through one string "
            "placeholder and take them apart with tf.io.parse_example."
        )
    return tensors[0]


def _checked_key(key: Any, label: str) -> str:
    if isinstance(key, tuple):  # `MultiHead` names an output by (head name, key).
        key = _SEPARATOR.join(key)
    if not isinstance(key, str):
        raise ValueError(f"{label} output key must be a string; got {key}.")
    return key


def _named_tensors(outputs: Any, default_name: str, label: str) -> dict[str, Any]:
    if not isinstance(outputs, dict):
        outputs = {default_name: outputs}
    named = {_checked_key(key, label): value for key, value in outputs.items()}
    for value in named.values():
        if not isinstance(value, tf.Tensor):
            raise ValueError(f"{label} output value must be a Tensor; got {value}.")
    return named


def _prefixed(key: str, prefix: str) -> str:
    return key if key.startswith(prefix) else f"{prefix}{_SEPARATOR}{key}"


def _prefixed_tensors(outputs: Any, name: str) -> dict[str, Any] | None:
    if outputs is None:
        return None
    named = _named_tensors(outputs, name, name)
    return {_prefixed(key, name): value for key, value in named.items()}


def _metric_tensors(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, dict):
        metrics = {"metrics": metrics}
    tensors: dict[str, Any] = {}
    for key, metric in metrics.items():
        is_pair = isinstance(metric, tuple)
        value, update = metric if is_pair else (metric.result(), metric.updates[0])
        key = _prefixed(_checked_key(key, "metrics"), "metrics")
        if not isinstance(value, tf.Tensor):
            raise ValueError(f"{key} output value must be a Tensor; got {value}.")
        if not (tf.is_tensor(update) or isinstance(update, tf.Operation)):
            raise ValueError(f"{key} update_op must be a Tensor or Operation; got {update}.")
        tensors[f"{key}{_SEPARATOR}value"] = value
        tensors[f"{key}{_SEPARATOR}update_op"] = _as_tensor(update)
    return tensors


def _as_tensor(update: Any) -> tf.Tensor:
    """Returns an update as a tensor; an op becomes an empty one that depends on it."""
    if isinstance(update, tf.Tensor):
        return update
    with tf.control_dependencies([update]):
        return tf.constant([], name="metric_op_wrapper")
