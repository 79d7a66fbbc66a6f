"""Receivers, the inputs of an exported model, and functions that make their placeholders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.arguments import InputFn
from tfdist.estimator.inputs.batches import make_input

# Names of single tensors in a signature.
_FEATURE = "feature"
_INPUT = "input"
_LABEL = "label"


class _ServingFields(NamedTuple):
    features: Any
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_ServingFields):
    """The return value of a serving_input_receiver_fn.

    Tensors may be dense, sparse or ragged.

    Args:
      features: The features for model_fn: a dict of tensors by name or integer. A single tensor
        becomes {"feature": tensor}. To pass a single tensor unchanged, use
        `TensorServingInputReceiver`.
      receiver_tensors: The tensors that a caller feeds by default: a dict by name, often with one
        placeholder for serialized tf.Example protos. A single tensor becomes {"input": tensor}.
      receiver_tensors_alternatives: Dicts of tensors that a caller may feed instead, by name. Each
        makes additional signatures, named "<name>:<output>".

    Raises:
      ValueError: If an argument is missing or of another type, or a key is not a string.
    """

    __slots__ = ()

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: dict[str, Any] | None = None,
    ) -> ServingInputReceiver:
        return super().__new__(
            cls,
            _named(features, "feature", _FEATURE, allow_int_keys=True),
            _named(receiver_tensors, "receiver_tensor", _INPUT),
            _named_alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_ServingFields):
    """The return value of a serving_input_receiver_fn if model_fn takes a single tensor.

    Args:
      features: The tensor for model_fn. It may be sparse or ragged.
      receiver_tensors: As in `ServingInputReceiver`.
      receiver_tensors_alternatives: As in `ServingInputReceiver`.

    Raises:
      ValueError: As in `ServingInputReceiver`, and if `features` is a dict.
    """

    __slots__ = ()

    def __new__(
        cls,
        features: Any,
        receiver_tensors: Any,
        receiver_tensors_alternatives: dict[str, Any] | None = None,
    ) -> TensorServingInputReceiver:
        if features is None:
            raise ValueError("features must be defined.")
        _check_tensor(features, "feature")
        return super().__new__(
            cls,
            features,
            _named(receiver_tensors, "receiver_tensor", _INPUT),
            _named_alternatives(receiver_tensors_alternatives),
        )


class UnsupervisedInputReceiver(ServingInputReceiver):
    """A receiver without labels, for exports in TRAIN or EVAL.

    It has no alternatives.

    Args:
      features: The features for model_fn: a dict of tensors by name or integer. A single tensor
        becomes {"feature": tensor}. To pass a single tensor unchanged, use
        `TensorServingInputReceiver`.
      receiver_tensors: The tensors that a caller feeds by default: a dict by name, often with one
        placeholder for serialized tf.Example protos. A single tensor becomes {"input": tensor}.
    """

    __slots__ = ()

    def __new__(cls, features: Any, receiver_tensors: Any) -> UnsupervisedInputReceiver:
        receiver = super().__new__(cls, features, receiver_tensors, None)
        assert isinstance(receiver, UnsupervisedInputReceiver)
        return receiver


class _SupervisedFields(NamedTuple):
    features: Any
    labels: Any
    receiver_tensors: dict[str, Any]


class SupervisedInputReceiver(_SupervisedFields):
    """A receiver with labels, for exports in TRAIN or EVAL.

    Args:
      features: The features for model_fn: a tensor or a dict of tensors, passed unchanged.
      labels: The labels for model_fn: a tensor or a dict of tensors, passed unchanged.
      receiver_tensors: The tensors that a caller feeds. A single tensor becomes {"input": tensor}.

    Raises:
      ValueError: As in `ServingInputReceiver`.
    """

    __slots__ = ()

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> SupervisedInputReceiver:
        _named(features, "feature", _FEATURE, allow_int_keys=True)
        _named(labels, "label", _LABEL, allow_int_keys=True)
        named = _named(receiver_tensors, "receiver_tensor", _INPUT)
        return super().__new__(cls, features, labels, named)


def build_parsing_serving_input_receiver_fn(
    feature_spec: dict[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a receiver function for serialized tf.Example protos.

    Args:
      feature_spec: Dict from feature name to `tf.io.FixedLenFeature`, `VarLenFeature` and so on.
      default_batch_size: Number of examples in a batch. None means any number.

    Returns:
      A function that returns a receiver. The receiver's only tensor, with the key "examples", is a
      string placeholder "input_example_tensor" [batch]. Its features are parsed from this tensor.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        # string [batch]
        examples = v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        features = v1.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: dict[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a receiver function for unserialized features.

    Args:
      features: Dict from name to tensor, symbolic or eager. The placeholders get the tensors'
        dtypes, op names and shapes after the first dimension.
      default_batch_size: The first dimension of the placeholders. None means any size.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = _placeholders_like(features, default_batch_size)
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Returns a receiver function for features and labels, for exports in TRAIN or EVAL.

    Args:
      features: A tensor, which is fed as "input", or a dict of tensors. See
        `build_raw_serving_input_receiver_fn`.
      labels: A tensor, which is fed as "label", or a dict of tensors.
      default_batch_size: The first dimension of the placeholders. None means any size.

    Raises:
      ValueError: If features and labels share a key.
    """
    both = _by_name(features, _INPUT).keys() & _by_name(labels, _LABEL).keys()
    if both:
        raise ValueError(
            f"Features and labels must have distinct keys. Found overlapping keys: {both}. Rename "
            "them."
        )

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        fed_features = _placeholders_like(features, default_batch_size)
        fed_labels = _placeholders_like(labels, default_batch_size)
        fed = {**_by_name(fed_features, _INPUT), **_by_name(fed_labels, _LABEL)}
        return SupervisedInputReceiver(fed_features, fed_labels, fed)

    return supervised_input_receiver_fn


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: InputFn, **input_fn_args: Any
) -> Callable[[], SupervisedInputReceiver]:
    """Returns a receiver function for the features and labels of an input_fn.

    Args:
      input_fn: Function that returns a `tf.data.Dataset` of (features, labels), or (features,
        labels). It is called once, in a graph that is then discarded.
      **input_fn_args: Arguments of `input_fn`.
    """
    with tf.Graph().as_default():
        features, labels, _ = make_input(input_fn(**input_fn_args)).next_batch()
    return build_raw_supervised_input_receiver_fn(features, labels)


def _named(
    tensors: Any, kind: str, default_name: str, allow_int_keys: bool = False
) -> dict[Any, Any]:
    """Checks keys and values, and returns a dict of tensors; one tensor becomes a dict."""
    if tensors is None:
        raise ValueError(f"{kind}s must be defined.")
    tensors = _by_name(tensors, default_name)
    for name, tensor in tensors.items():
        if not isinstance(name, (str, int) if allow_int_keys else str):
            allowed = "strings or ints" if allow_int_keys else "strings"
            raise ValueError(f"{kind} keys must be {allowed}: {name!r}.")
        _check_tensor(tensor, f"{kind} {name}")
    return tensors


def _named_alternatives(alternatives: Any) -> dict[str, dict[str, Any]] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, dict):
        raise ValueError(f"receiver_tensors_alternatives must be a dict: {alternatives!r}.")
    kind = "receiver_tensors_alternative"
    return {name: _named(tensors, kind, _INPUT) for name, tensors in alternatives.items()}


def _check_tensor(tensor: Any, what: str) -> None:
    if isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        return
    if hasattr(tensor, "tensor"):  # A wrapper, such as a tensor with named axes.
        try:
            tf.convert_to_tensor(tensor)
            return
        except TypeError:
            pass
    raise ValueError(
        f"{what} must be a Tensor, SparseTensor, or RaggedTensor, got {type(tensor).__name__}."
    )


def _by_name(tensors: Any, default_name: str) -> dict[Any, Any]:
    return tensors if isinstance(tensors, dict) else {default_name: tensors}


def _placeholders_like(tensors: Any, batch_size: int | None) -> Any:
    if isinstance(tensors, dict):
        return {name: _placeholder_like(t, batch_size) for name, t in tensors.items()}
    return _placeholder_like(tensors, batch_size)


def _placeholder_like(tensor: Any, batch_size: int | None) -> tf.Tensor:
    shape = tf.TensorShape([batch_size]).concatenate(tensor.get_shape()[1:])
    operation = getattr(tensor, "op", None)  # None for an eager tensor.
    return v1.placeholder(tensor.dtype, shape, name=operation.name if operation else None)
