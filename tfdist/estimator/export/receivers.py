"""What an exported model is fed with: receivers, and functions that make their placeholders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.inputs.batches import make_input

# The names that single tensors get in a signature.
_FEATURE = "feature"
_INPUT = "input"
_LABEL = "label"


class _ServingFields(NamedTuple):
    features: Any
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_ServingFields):
    """What a serving_input_receiver_fn returns.

    Tensors may be sparse or ragged ones too.

    Args:
      features: What model_fn gets: a dict by name (or integer). A single tensor becomes
        {"feature": tensor}; to pass it as it is, use `TensorServingInputReceiver`.
      receiver_tensors: What a caller feeds by default: a dict by name, often of one placeholder
        for serialized tf.Example protos. A single tensor becomes {"input": tensor}.
      receiver_tensors_alternatives: Further dicts of what may be fed instead, by name; each gives
        signatures of its own, "<name>:<output>".

    Raises:
      ValueError: If something is missing, has another type, or a key that is not a string.
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
    """What a serving_input_receiver_fn returns for a model_fn whose features are one tensor.

    Args:
      features: The tensor, possibly sparse or ragged, that model_fn gets.
      receiver_tensors: As in `ServingInputReceiver`.
      receiver_tensors_alternatives: As in `ServingInputReceiver`.

    Raises:
      ValueError: As in `ServingInputReceiver`, and if features are a dict.
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
    """A receiver without labels, for exporting in TRAIN or EVAL; arguments as in its parent."""

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
    """A receiver with labels, for exporting in TRAIN or EVAL.

    Args:
      features: What model_fn gets: a tensor or a dict of tensors; left as they are.
      labels: The same for labels.
      receiver_tensors: What a caller feeds; a single tensor becomes {"input": tensor}.

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
    """Makes a receiver function that is fed serialized tf.Example protos.

    Args:
      feature_spec: Name to `tf.io.FixedLenFeature`, `VarLenFeature` and so on.
      default_batch_size: Examples in a batch; None leaves it open.

    Returns:
      A function whose receiver has one string placeholder "input_example_tensor" [batch] under
      the key "examples", and as features what is parsed from it.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        features = v1.io.parse_example(examples, feature_spec)
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: dict[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Makes a receiver function that is fed the features themselves.

    Args:
      features: Name to tensor (eager ones too), whose dtype, op name and shape behind the first
        dimension the placeholders get.
      default_batch_size: The first dimension; None leaves it open.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = _placeholders_like(features, default_batch_size)
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a receiver function that is fed features and labels, for exporting in TRAIN or EVAL.

    Args:
      features: A tensor, fed as "input", or a dict of tensors; see
        `build_raw_serving_input_receiver_fn`.
      labels: A tensor, fed as "label", or a dict of tensors.
      default_batch_size: The first dimension; None leaves it open.

    Raises:
      ValueError: If a key is in both.
    """
    both = set(_keys(features, _INPUT)) & set(_keys(labels, _LABEL))
    if both:
        raise ValueError(
            f"Features and labels must have distinct keys. Found overlapping keys: {both}. Rename "
            "them."
        )

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        fed_features = _placeholders_like(features, default_batch_size)
        fed_labels = _placeholders_like(labels, default_batch_size)
        receiver_tensors = {
            **(fed_features if isinstance(features, dict) else {_INPUT: fed_features}),
            **(fed_labels if isinstance(labels, dict) else {_LABEL: fed_labels}),
        }
        return SupervisedInputReceiver(fed_features, fed_labels, receiver_tensors)

    return supervised_input_receiver_fn


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: Callable[..., Any], **input_fn_args: Any
) -> Callable[[], SupervisedInputReceiver]:
    """Makes a receiver function that is fed what an input_fn would give.

    Args:
      input_fn: Returns a `tf.data.Dataset` of (features, labels), or (features, labels). It is
        called once, in a graph that is thrown away.
      **input_fn_args: Its arguments.
    """
    with tf.Graph().as_default():
        features, labels, _ = make_input(input_fn(**input_fn_args)).next_batch()
    return build_raw_supervised_input_receiver_fn(features, labels)


def _named(
    tensors: Any, kind: str, default_name: str, allow_int_keys: bool = False
) -> dict[Any, Any]:
    """Returns a dict of tensors as it is, and one tensor as a dict; checks keys and values."""
    if tensors is None:
        raise ValueError(f"{kind}s must be defined.")
    if not isinstance(tensors, dict):
        tensors = {default_name: tensors}
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
    if hasattr(tensor, "tensor"):  # A tensor with names for its axes, or the like.
        try:
            tf.convert_to_tensor(tensor)
            return
        except TypeError:
            pass
    raise ValueError(
        f"{what} must be a Tensor, SparseTensor, or RaggedTensor, got {type(tensor).__name__}."
    )


def _keys(tensors: Any, default_name: str) -> list[str]:
    return list(tensors) if isinstance(tensors, dict) else [default_name]


def _placeholders_like(tensors: Any, batch_size: int | None) -> Any:
    if isinstance(tensors, dict):
        return {name: _placeholder_like(t, batch_size) for name, t in tensors.items()}
    return _placeholder_like(tensors, batch_size)


def _placeholder_like(tensor: Any, batch_size: int | None) -> tf.Tensor:
    shape = tf.TensorShape([batch_size]).concatenate(tensor.get_shape()[1:])
    operation = getattr(tensor, "op", None)  # An eager tensor has none.
    return v1.placeholder(tensor.dtype, shape, name=operation.name if operation else None)
