"""Receivers, and the functions that make their placeholders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.experimental import build_raw_supervised_input_receiver_fn
from tfdist.estimator.export import (
    ServingInputReceiver,
    SupervisedInputReceiver,
    TensorServingInputReceiver,
    UnsupervisedInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
    build_supervised_input_receiver_fn_from_input_fn,
)

pytestmark = pytest.mark.usefixtures("graph")


def fed(dtype: tf.DType = tf.float32) -> tf.Tensor:
    return v1.placeholder(dtype, [None])


def test_single_tensors_get_names() -> None:
    features, inputs, other = fed(), fed(tf.string), fed()
    receiver = ServingInputReceiver(features, inputs, {"raw": other})
    assert receiver == ({"feature": features}, {"input": inputs}, {"raw": {"input": other}})
    assert receiver._fields == ("features", "receiver_tensors", "receiver_tensors_alternatives")


def test_dicts_stay_as_they_are() -> None:
    features, inputs = {"a": fed(), 3: v1.sparse_placeholder(tf.float32)}, {"b": fed()}
    receiver = ServingInputReceiver(features=features, receiver_tensors=inputs)
    assert receiver.features is features
    assert receiver.receiver_tensors is inputs
    assert receiver.receiver_tensors_alternatives is None


def test_features_may_be_ragged_or_carry_their_tensor() -> None:
    ragged = v1.ragged.placeholder(tf.float32, 1)
    assert ServingInputReceiver(ragged, fed()).features == {"feature": ragged}

    class Labelled:
        tensor = np.zeros(2)

        def __array__(self, *_: Any, **__: Any) -> Any:
            return self.tensor

    labelled = Labelled()
    assert ServingInputReceiver({"a": labelled}, fed()).features == {"a": labelled}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ServingInputReceiver(None, fed()), "features must be defined"),
        (lambda: ServingInputReceiver(fed(), None), "receiver_tensors must be defined"),
        (lambda: ServingInputReceiver({1.5: fed()}, fed()), "feature keys must be strings or ints"),
        (
            lambda: ServingInputReceiver({"a": [1]}, fed()),
            "feature a must be a Tensor, SparseTensor, or RaggedTensor",
        ),
        (lambda: ServingInputReceiver(fed(), {1: fed()}), "receiver_tensor keys must be strings"),
        (lambda: ServingInputReceiver(fed(), {"x": 1}), "receiver_tensor x must be a Tensor"),
        (lambda: ServingInputReceiver(fed(), fed(), [fed()]), "alternatives must be a dict"),
        (
            lambda: ServingInputReceiver(fed(), fed(), {"x": {1: fed()}}),
            "receiver_tensors_alternative keys must be strings",
        ),
        (
            lambda: ServingInputReceiver(fed(), fed(), {"x": {"y": 1}}),
            "receiver_tensors_alternative y must be a Tensor",
        ),
        (lambda: TensorServingInputReceiver(None, fed()), "features must be defined"),
        (lambda: TensorServingInputReceiver({"a": fed()}, fed()), "feature must be a Tensor"),
        (lambda: SupervisedInputReceiver(fed(), None, fed()), "labels must be defined"),
        (
            lambda: SupervisedInputReceiver(fed(), {1.5: fed()}, fed()),
            "label keys must be strings or ints",
        ),
        (lambda: SupervisedInputReceiver(fed(), {"l": 1}, fed()), "label l must be a Tensor"),
        (lambda: UnsupervisedInputReceiver({"a": 1}, fed()), "feature a must be a Tensor"),
    ],
)
def test_wrong_parts_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_tensor_receiver_leaves_the_feature_alone() -> None:
    feature, inputs = fed(), fed(tf.string)
    receiver = TensorServingInputReceiver(feature, inputs, {"raw": feature})
    assert receiver == (feature, {"input": inputs}, {"raw": {"input": feature}})


def test_a_supervised_receiver_leaves_features_and_labels_alone() -> None:
    features, labels, inputs = fed(), {"y": fed(), 2: fed()}, fed()
    receiver = SupervisedInputReceiver(features, labels, inputs)
    assert receiver == (features, labels, {"input": inputs})
    assert receiver._fields == ("features", "labels", "receiver_tensors")


def test_an_unsupervised_receiver_is_a_serving_one_without_alternatives() -> None:
    receiver = UnsupervisedInputReceiver(fed(), fed())
    assert isinstance(receiver, ServingInputReceiver)
    assert receiver.receiver_tensors_alternatives is None


def test_examples_are_parsed() -> None:
    spec = {"x": tf.io.FixedLenFeature([2], tf.int64), "words": tf.io.VarLenFeature(tf.string)}
    receiver = build_parsing_serving_input_receiver_fn(spec)()
    examples = receiver.receiver_tensors["examples"]
    assert (examples.name, examples.shape.as_list()) == ("input_example_tensor:0", [None])
    example = tf.train.Example()
    example.features.feature["x"].int64_list.value[:] = [7, 8]
    example.features.feature["words"].bytes_list.value[:] = [b"a", b"b"]
    with v1.Session() as session:
        found = session.run(receiver.features, {examples: [example.SerializeToString()]})
    assert found["x"].tolist() == [[7, 8]]
    assert found["words"].values.tolist() == [b"a", b"b"]


def test_a_batch_size_may_be_given() -> None:
    spec = {"x": tf.io.FixedLenFeature([2], tf.int64)}
    parsing = build_parsing_serving_input_receiver_fn(spec, default_batch_size=5)()
    assert parsing.receiver_tensors["examples"].shape.as_list() == [5]
    assert parsing.features["x"].shape.as_list() == [5, 2]
    raw = build_raw_serving_input_receiver_fn({"a": tf.zeros([4, 3])}, default_batch_size=7)()
    assert raw.features["a"].shape.as_list() == [7, 3]


def test_raw_features_are_fed_through_placeholders_like_them() -> None:
    with tf.Graph().as_default():
        features = {
            "a": v1.placeholder(tf.float32, [4, 3], "first"),
            "b": v1.placeholder(tf.string, [None], "scope/second"),
            "c": v1.placeholder(tf.int64, None, "third"),
        }
    receiver = build_raw_serving_input_receiver_fn(features)()
    assert receiver.features == receiver.receiver_tensors
    described = {
        key: (t.name, t.dtype, t.shape.rank and t.shape.as_list(), t.op.type)
        for key, t in receiver.features.items()
    }
    assert described == {
        "a": ("first:0", tf.float32, [None, 3], "Placeholder"),
        "b": ("scope/second:0", tf.string, [None], "Placeholder"),
        "c": ("third:0", tf.int64, None, "Placeholder"),
    }


def test_raw_features_may_be_eager_tensors() -> None:
    with tf.init_scope():
        features = {"a": tf.zeros([4, 3])}
        labels = tf.zeros([4])
    receiver = build_raw_supervised_input_receiver_fn(features, labels)()
    assert receiver.features["a"].shape.as_list() == [None, 3]
    assert receiver.labels.shape.as_list() == [None]


def test_raw_features_and_labels_are_fed_by_their_keys() -> None:
    receiver = build_raw_supervised_input_receiver_fn(
        {"a": fed(), "b": fed()}, {"y": fed(tf.int64)}
    )()
    assert set(receiver.receiver_tensors) == {"a", "b", "y"}
    assert receiver.labels == {"y": receiver.receiver_tensors["y"]}
    assert receiver.features["a"] is receiver.receiver_tensors["a"]


def test_a_single_feature_and_label_are_fed_as_input_and_label() -> None:
    receiver = build_raw_supervised_input_receiver_fn(fed(), fed(tf.int64), 3)()
    assert receiver.receiver_tensors == {"input": receiver.features, "label": receiver.labels}
    assert receiver.features.shape.as_list() == [3]
    assert receiver.labels.dtype == tf.int64


@pytest.mark.parametrize(
    ("features", "labels"), [({"a": 1, "b": 2}, {"b": 3}), ({"label": 1}, 2), (1, {"input": 2})]
)
def test_a_key_of_both_features_and_labels_is_refused_at_once(features: Any, labels: Any) -> None:
    with pytest.raises(ValueError, match="Features and labels must have distinct keys"):
        build_raw_supervised_input_receiver_fn(features, labels)


def test_an_input_fn_says_what_is_fed(graph: tf.Graph) -> None:
    def input_fn(batch: int) -> tf.data.Dataset:
        data = ({"x": np.zeros([6, 2], np.float32)}, np.zeros([6], np.int64))
        return tf.data.Dataset.from_tensor_slices(data).batch(batch)

    make = build_supervised_input_receiver_fn_from_input_fn(input_fn, batch=3)
    assert graph.get_operations() == []
    receiver = make()
    assert set(receiver.receiver_tensors) == {"x", "label"}
    assert receiver.features["x"].shape.as_list() == [None, 2]
    assert (receiver.labels.dtype, receiver.labels.shape.as_list()) == (tf.int64, [None])
