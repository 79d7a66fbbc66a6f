"""Refusals of heads: when they are made, when a graph is built, and when it runs."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe

REFUSED: dict[str, Callable[[], Any]] = {
    r"thresholds not in \(0, 1\)": lambda: tfe.BinaryClassHead(thresholds=(0.0, 0.5)),
    r"thresholds must be in \(0, 1\) range. Given: 1.0": lambda: tfe.MultiLabelHead(
        2, thresholds=[0.5, 1.0]
    ),
    "Invalid loss_reduction: other": lambda: tfe.RegressionHead(loss_reduction="other"),
    "Invalid loss_reduction: none": lambda: tfe.MultiClassHead(3, loss_reduction="none"),
    r"loss_fn must contain argument: labels. Given arguments: \('logits',\)": (
        lambda: tfe.BinaryClassHead(loss_fn=lambda logits: logits)
    ),
    r"loss_fn must contain argument: logits. Given arguments: \('labels',\)": (
        lambda: tfe.MultiLabelHead(2, loss_fn=lambda labels: labels)
    ),
    r"loss_fn has unexpected args: \['name'\]": (
        lambda: tfe.RegressionHead(loss_fn=lambda labels, logits, name=None: labels)
    ),
    "label_vocabulary should be a list or a tuple. Given type: <class 'str'>": (
        lambda: tfe.BinaryClassHead(label_vocabulary="ab")
    ),
    '"label_vocabulary" does not have "n_classes" items': (
        lambda: tfe.MultiClassHead(3, label_vocabulary=["a"])
    ),
    r"len\(label_vocabulary\)=1, n_classes=3": (
        lambda: tfe.MultiLabelHead(3, label_vocabulary=["a"])
    ),
    "n_classes cannot be None": lambda: tfe.MultiClassHead(None),
    "n_classes must be > 2: 2": lambda: tfe.MultiClassHead(2),
    "n_classes must be > 1 for multi-label classification. Given: 1": (
        lambda: tfe.MultiLabelHead(1)
    ),
    "n_classes must be > 1 for multi-label classification. Given: None": (
        lambda: tfe.MultiLabelHead(None)  # type: ignore[arg-type]
    ),
    r"All classes_for_class_based_metrics must be in range \[0, 2\]. Given: -1": (
        lambda: tfe.MultiLabelHead(3, classes_for_class_based_metrics=[2, -1])
    ),
    "label_vocabulary must be provided when classes_for_class_based_metrics are strings": (
        lambda: tfe.MultiLabelHead(3, classes_for_class_based_metrics=["a"])
    ),
    r"must be in label_vocabulary \['a', 'b'\]. Given: z": lambda: tfe.MultiLabelHead(
        2, label_vocabulary=["a", "b"], classes_for_class_based_metrics=["a", "z"]
    ),
    r"must be in range \[0, 1\]. Given: 0.5": lambda: tfe.MultiLabelHead(
        2,
        classes_for_class_based_metrics=[0.5],  # type: ignore[list-item]
    ),
    "Invalid label_dimension 0": lambda: tfe.RegressionHead(0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_unusable_arguments_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_head_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        tfe.Head()  # type: ignore[abstract]


def test_a_head_of_ones_own_must_make_the_spec_itself() -> None:
    own: Any = type("Own", (tfe.Head,), dict.fromkeys(tfe.Head.__abstractmethods__))
    with pytest.raises(NotImplementedError, match=r"must implement `create_estimator_spec\(\)`"):
        own().create_estimator_spec(None, None, None)


def _classes(labels: Any, **arguments: Any) -> Any:
    return tfe.MultiClassHead(3, **arguments).loss(labels, np.ones([2, 3], np.float32), {})


def _binary(labels: Any, weights: Any = None, **arguments: Any) -> Any:
    if weights is not None:
        arguments["weight_column"] = "weight"
    logits = np.array([[0.5], [-0.3]], np.float32)
    return tfe.BinaryClassHead(**arguments).loss(labels, logits, {"weight": weights})


def _several(labels: Any) -> Any:
    return tfe.MultiLabelHead(3).loss(labels, np.ones([2, 3], np.float32), {})


def _sparse(values: Any) -> tf.SparseTensor:
    return tf.SparseTensor([[0, 0]], values, [2, 1])


ALWAYS: dict[str, Callable[[], Any]] = {
    r"logits shape must be \[D0, D1, ... DN, logits_dimension\], got \(2, 2\)": (
        lambda: tfe.BinaryClassHead().predictions(np.ones([2, 2]))
    ),
    r"logits must have rank at least 2.  Received rank 1, shape \(2,\)": (
        lambda: tfe.BinaryClassHead().predictions(np.ones([2]))
    ),
    "Prediction key must be in PredictionKeys, given: other": (
        lambda: tfe.BinaryClassHead().predictions(np.ones([2, 1]), ["other"])
    ),
    "You must provide a labels Tensor. Given: None.": lambda: _classes(None),
    r"You must provide a labels Tensor. Given: None. ": lambda: _several(None),
    "Mismatched label shape. Expected .*dimension=1.  Received 2": lambda: _binary(np.ones([2, 2])),
    "Expected labels dimension=3.  Received 2.": lambda: _several(np.ones([2, 2], np.int64)),
    "SparseTensor labels are not supported": lambda: _classes(_sparse([1])),
    "RaggedTensor labels are not supported": lambda: _several(tf.ragged.constant([[1], [0, 2]])),
    "dtype should be integer. Instead got <dtype: 'float": lambda: _classes(np.array([1.0, 0.0])),
    "dtype should be integer. Instead got <dtype: 'string'>": lambda: _several(_sparse(["a"])),
    "Labels dtype should be string if there is a vocabulary": (
        lambda: _classes(np.array([1, 2]), label_vocabulary=["a", "b", "c"])
    ),
    "Labels are strings: give label_vocabulary": lambda: _binary(np.array(["a", "b"])),
    "Feature miss is not in features dictionary": lambda: _binary(np.ones(2), weight_column="miss"),
    "castable to float. Given dtype: <dtype: 's": lambda: _binary(np.ones(2), np.array(["a", "b"])),
    "Weights must be a dense Tensor": lambda: _binary(np.ones(2), _sparse([1.0])),
    "cannot have rank 0": lambda: _binary(np.ones(2), 1.0),
}


@pytest.mark.parametrize("way", ["eagerly", "in a graph"])
@pytest.mark.parametrize("message", ALWAYS)
def test_what_is_seen_when_a_graph_is_built_is_refused_there(message: str, way: str) -> None:
    graph = nullcontext() if way == "eagerly" else tf.Graph().as_default()
    with graph, pytest.raises(ValueError, match=message):
        ALWAYS[message]()


def test_a_weight_column_is_a_name_or_a_column() -> None:
    with pytest.raises(TypeError, match=r"must be either a string or NumericColumn\. .*'int'"):
        _binary(np.ones(2), weight_column=3)


# What depends on values, or on dimensions other than the last one: ValueError eagerly, an
# InvalidArgumentError from the session.

LATER: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "labels of another batch size": (
        r"labels shape must be \[D0, D1, ... DN, 1\].*expected_labels_shape: \(2, 1\)",
        r"\[expected_labels_shape: \] \[2 1\] \[labels_shape: \] \[3 1\]",
        lambda: _binary(_unknown(np.ones([3, 1]))),
    ),
    "logits of another size": (
        "logits shape must be",
        "logits shape must be",
        lambda: tfe.BinaryClassHead().predictions(_unknown(np.ones([2, 2])))["logits"],
    ),
    "flat logits": (
        "logits must have rank at least 2",
        "logits shape must be",
        lambda: tfe.BinaryClassHead().predictions(_unknown(np.ones([2])))["logits"],
    ),
    "flat labels of two classes": (
        "Expected labels dimension=3",
        r"labels shape must be \[D0, D1, ... DN, 3\]\..*\[Received shape: \] \[2\]",
        lambda: _several(_unknown(np.ones([2], np.int64))),
    ),
    "too large a fraction": (
        "Labels must be <= 2 - 1",
        "Labels must be <= n_classes - 1",
        lambda: _binary(_unknown(np.array([[1.2], [0.4]]))),
    ),
    "a label that is nan": (
        "Labels must be <= 2 - 1",
        "Labels must be (<= n_classes - 1|>= 0)",  # Neither holds; the first check to run says so.
        lambda: _binary(_unknown(np.array([[np.nan], [0.4]]))),
    ),
    "a negative class": (
        "Labels must be >= 0",
        "Labels must be >= 0",
        lambda: _classes(_unknown(np.array([[-1], [0]]))),
    ),
    "too large a class": (
        "Labels must be <= 3 - 1",
        "Labels must be <= n_classes - 1",
        lambda: _classes(_unknown(np.array([[3], [0]]))),
    ),
    "a word outside the vocabulary": (
        "Labels must be >= 0",
        "Labels must be >= 0",
        lambda: _classes(_unknown(np.array([["q"], ["a"]])), label_vocabulary=["a", "b", "c"]),
    ),
    "an indicator of 2": (
        r"labels must be an integer indicator Tensor with values in \[0, 1\]",
        r"labels must be an integer indicator Tensor with values in \[0, 1\]",
        lambda: _several(_unknown(np.array([[1, 0, 2], [1, 1, 1]]))),
    ),
    "too large a sparse class": (
        r"labels must be an integer SparseTensor with values in \[0, 3\)",
        r"labels must be an integer SparseTensor with values in \[0, 3\)",
        lambda: _several(_sparse(_unknown(np.array([3])))),
    ),
    "a logistic label above 1": (
        r"Labels must be in range \[0, 1\]",
        r"Labels must be in range \[0, 1\]",
        lambda: tfe.LogisticRegressionHead().loss(
            _unknown(np.array([[2.0], [0.0]])), np.ones([2, 1], np.float32)
        ),
    ),
    "weights for each class": (
        r"weights shape must be \[D0, D1, ... DN\] or \[D0, D1, ... DN, 1\]",
        r"\[logits_shape: \] \[2 1\] \[weights_shape: \] \[2 3\]",
        lambda: _binary(np.ones(2), _unknown(np.ones([2, 3]))),
    ),
    "weights of another size": (
        r"weights shape must be .*\[D0, D1, ... DN, logits_dimension\]",
        r"\[logits_shape: \] \[2 2\] \[weights_shape: \] \[2 3\]",
        lambda: tfe.RegressionHead(2, "weight").loss(
            np.ones([2, 2]), np.ones([2, 2], np.float32), {"weight": _unknown(np.ones([2, 3]))}
        ),
    ),
    "weights without the last dimension, of another size": (
        "weights shape must be",
        r"\[logits_shape: \] \[2 2 2\] \[weights_shape: \] \[2 1\]",
        lambda: tfe.RegressionHead(2, "weight").loss(
            np.ones([2, 2, 2]), np.ones([2, 2, 2], np.float32), {"weight": np.ones([2, 1])}
        ),
    ),
    "a loss_fn that squeezes": (
        r"loss_fn must return Tensor of shape \[D0, D1, ... DN, 1\].*loss_shape: \(2,\)",
        r"\[loss_fn must return Tensor of shape \[D0, D1, ... DN, 1\]\. \] "
        r"\[logits_shape: \] \[2 1\] \[loss_shape: \] \[2\]",
        lambda: _binary(np.ones(2), loss_fn=lambda labels, logits: tf.constant([1.0, 2.0])),
    ),
}


def _unknown(value: np.ndarray) -> Any:
    """In a graph, a tensor of unknown shape."""
    if tf.executing_eagerly():
        return tf.constant(value)
    return v1.placeholder_with_default(tf.constant(value), shape=None)


@pytest.mark.parametrize("case", LATER)
def test_what_depends_on_values_is_refused_eagerly_and_when_a_graph_runs(
    case: str, fetch: Any
) -> None:
    eagerly, in_a_graph, call = LATER[case]
    with pytest.raises(ValueError, match=eagerly):
        call()
    with tf.Graph().as_default():
        tensor = call()
        with pytest.raises(tf.errors.InvalidArgumentError, match=in_a_graph):
            fetch(tensor)


def test_shapes_that_are_not_known_before_the_run_may_fit(graph: tf.Graph, fetch: Any) -> None:
    logits, labels, weights = (v1.placeholder(tf.float32) for _ in range(3))
    loss = tfe.BinaryClassHead("weight").loss(labels, logits, {"weight": weights})
    for of_weights in ([2], [2, 1]):
        feed = {logits: np.zeros([2, 1]), labels: np.ones([2, 1]), weights: np.ones(of_weights)}
        assert fetch(loss, feed) == pytest.approx(np.log(2), rel=1e-5)
