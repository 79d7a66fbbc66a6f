"""A batch of four examples, and running what heads build."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe


@pytest.fixture
def features() -> dict[str, Any]:
    """Weights for the examples, and a feature that no head looks at."""
    return {"weight": np.array([1, 2, 0.5, 1], np.float32), "x": np.ones([4, 1], np.float32)}


@pytest.fixture
def one_logit() -> np.ndarray:
    return np.array([[0.5], [-1.0], [2.0], [0.25]], np.float32)


@pytest.fixture
def two_logits() -> np.ndarray:
    return np.array([[1, 2], [0, -1], [3, 0.5], [-2, 1]], np.float32)


@pytest.fixture
def three_logits() -> np.ndarray:
    return np.array([[1, 0, -1], [0, 0.5, 2], [-0.5, 1.5, 0], [2, 0, 1]], np.float32)


@pytest.fixture
def fetch() -> Callable[[Any], Any]:
    """Runs tensors of the current graph once, with variables and tables initialised."""

    def fetch(tensors: Any, feed: dict[Any, Any] | None = None) -> Any:
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(v1.tables_initializer())
            return session.run(tensors, feed)

    return fetch


@pytest.fixture(params=["eagerly", "in a graph"])
def evaluate(request: pytest.FixtureRequest) -> Callable[..., tuple[float, dict[str, float]]]:
    """A function of a head's maker and a batch that returns the loss and the metrics."""

    def eagerly(
        make: Any, features: Any, logits: Any, labels: Any, penalties: Any = None
    ) -> tuple[float, dict[str, float]]:
        head = make()
        loss = head.loss(labels, logits, features, regularization_losses=penalties)
        metrics = head.metrics(regularization_losses=penalties)
        metrics = head.update_metrics(
            metrics, features, logits, labels, regularization_losses=penalties
        )
        return float(loss), {name: float(metric.result()) for name, metric in metrics.items()}

    def in_a_graph(
        make: Any, features: Any, logits: Any, labels: Any, penalties: Any = None
    ) -> tuple[float, dict[str, float]]:
        with tf.Graph().as_default(), v1.Session() as session:
            if isinstance(labels, tf.SparseTensor):
                parts = (labels.indices.numpy(), labels.values.numpy(), labels.dense_shape.numpy())
                labels = tf.SparseTensor(*parts)
            spec = make().create_estimator_spec(
                features, tfe.ModeKeys.EVAL, logits, labels, regularization_losses=penalties
            )
            assert spec.train_op is None and spec.export_outputs is None
            session.run([v1.local_variables_initializer(), v1.tables_initializer()])
            session.run([update for _, update in spec.eval_metric_ops.values()])
            values = {name: value for name, (value, _) in spec.eval_metric_ops.items()}
            loss, metrics = session.run([spec.loss, values])
            return float(loss), {name: float(value) for name, value in metrics.items()}

    return eagerly if request.param == "eagerly" else in_a_graph
