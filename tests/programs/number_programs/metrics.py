"""Metrics: each of Keras', and those of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from number_programs.bench import Bench, labels, numbers, one_hot, row_weights, sizes
from number_programs.table import BOTH, KERAS_3, TF_KERAS, Found, program, put


def _binary() -> Any:
    return (labels(2)[:, None] > 0).astype("float32")


def _trained(
    bench: Bench, width: int, activation: Any, y: Any, make: Callable[[], Any], **more: Any
) -> Found:
    """Trains a layer on rows of which some weigh more, and evaluates."""
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(width, activation)]),
        (numbers(), y, row_weights()),
        metrics=make,
        **{"evaluates": True, **more},
    )


# What a metric is compared with: the last layer's width and activation, and y.
_HEADS: dict[str, tuple[Any, ...]] = {
    "sizes": (2, None, lambda: sizes(2)),
    "counts": (2, "softplus", lambda: sizes(2) ** 2 + 0.1),
    "binary": (1, "sigmoid", _binary),
    "signs": (1, "tanh", lambda: 2 * _binary() - 1),
    "one_hot": (3, "softmax", one_hot),
    "classes": (3, "softmax", labels),
}
# Metrics by what they are compared with; each program has several, and each has its name.
_METRICS: dict[str, tuple[str, list[Any]]] = {
    "errors": (
        "sizes",
        ["MeanSquaredError", "MeanAbsoluteError", "RootMeanSquaredError", "LogCoshError"],
    ),
    "relative_errors": ("counts", ["MeanAbsolutePercentageError", "MeanSquaredLogarithmicError"]),
    "r2_score": ("sizes", ["R2Score"]),
    "cosine_similarity": ("sizes", ["CosineSimilarity"]),
    "poisson": ("counts", ["Poisson"]),
    "binary_accuracy": ("binary", ["BinaryAccuracy", "BinaryCrossentropy"]),
    "confusion_counts": (
        "binary",
        ["TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives"],
    ),
    "precision_and_recall": ("binary", ["Precision", "Recall"]),
    "auc": ("binary", ["AUC"]),
    "auc_of_precision": ("binary", [("AUC", {"curve": "PR", "num_thresholds": 20})]),
    "auc_of_labels": ("one_hot", [("AUC", {"multi_label": True, "num_thresholds": 20})]),
    "precision_at_recall": ("binary", [("PrecisionAtRecall", {"recall": 0.5})]),
    "recall_at_precision": ("binary", [("RecallAtPrecision", {"precision": 0.3})]),
    "sensitivity_at_specificity": ("binary", [("SensitivityAtSpecificity", {"specificity": 0.5})]),
    "specificity_at_sensitivity": ("binary", [("SpecificityAtSensitivity", {"sensitivity": 0.5})]),
    "binary_iou": ("binary", [("BinaryIoU", {"target_class_ids": [0, 1]})]),
    "f1_score": ("one_hot", [("F1Score", {"average": "macro"})]),
    "f_beta_score": ("one_hot", [("FBetaScore", {"average": "micro", "beta": 2.0})]),
    "one_hot_iou": (
        "one_hot",
        [
            ("OneHotIoU", {"num_classes": 3, "target_class_ids": [0, 1]}),
            ("OneHotMeanIoU", {"num_classes": 3}),
        ],
    ),
    "categorical_accuracy": (
        "one_hot",
        ["CategoricalAccuracy", "CategoricalCrossentropy", ("TopKCategoricalAccuracy", {"k": 2})],
    ),
    "kl_divergence": ("one_hot", ["KLDivergence"]),
    "categorical_hinge": ("one_hot", ["CategoricalHinge"]),
    "sparse_accuracy": (
        "classes",
        ["SparseCategoricalAccuracy", ("SparseTopKCategoricalAccuracy", {"k": 2})],
    ),
    "sparse_crossentropy": ("classes", ["SparseCategoricalCrossentropy"]),
    "iou_of_classes": (
        "classes",
        [
            ("IoU", {"num_classes": 3, "target_class_ids": [0, 2], "sparse_y_pred": False}),
            ("MeanIoU", {"num_classes": 3, "sparse_y_pred": False}),
        ],
    ),
    "hinge": ("signs", ["Hinge", "SquaredHinge"]),
}
_OF_KERAS_3: dict[str, tuple[str, list[Any]]] = {
    "pearson_correlation": ("sizes", ["PearsonCorrelation"]),
    "concordance_correlation": ("sizes", ["ConcordanceCorrelation"]),
}


def _of_metrics(head: str, kinds: list[Any]) -> Callable[[Bench], Found]:
    def run(bench: Bench) -> Found:
        width, activation, y = _HEADS[head]

        def make() -> list[Any]:
            pairs = [kind if isinstance(kind, tuple) else (kind, {}) for kind in kinds]
            return [getattr(bench.metrics, name)(**options) for name, options in pairs]

        loss = "sparse_categorical_crossentropy" if head == "classes" else "mse"
        return _trained(bench, width, activation, y(), make, loss=loss, evaluates=False)

    return run


for _name, (_head, _kinds) in {**_METRICS, **_OF_KERAS_3}.items():
    put(
        f"metric_{_name}",
        __name__,
        _of_metrics(_head, _kinds),
        KERAS_3 if _name in _OF_KERAS_3 else BOTH,
    )


# A metric of one's own.


@program()
def metric_of_the_guide(bench: Bench) -> Found:
    """A counter of true positives, by assign_add."""

    class TruePositives(bench.metrics.Metric):
        def __init__(self, name: str = "own_positives", **more: Any) -> None:
            super().__init__(name=name, **more)
            self.found = self.add_weight(name="tp", initializer="zeros")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            hits = tf.cast(y, "float32") * tf.cast(p > 0.4, "float32")
            self.found.assign_add(tf.reduce_sum(hits))

        def result(self) -> Any:
            return self.found

        def reset_state(self) -> None:
            self.found.assign(0.0)

    return _trained(bench, 1, "sigmoid", _binary(), lambda: [TruePositives()], fit={"epochs": 2})


def _maximum(bench: Bench) -> Any:
    class Maximum(bench.metrics.Metric):
        def __init__(self, name: str = "largest", **more: Any) -> None:
            super().__init__(name=name, **more)
            self.largest = self.add_weight(name="largest", initializer="zeros")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            off = tf.reduce_max(tf.concat([tf.reshape(tf.abs(y - p), [-1]), [0.0]], axis=0))
            self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), off))

        def result(self) -> Any:
            return tf.convert_to_tensor(self.largest)

        def reset_state(self) -> None:
            self.largest.assign(0.0)

    return Maximum()


@program(says="largest", differs=("history largest", "evaluate largest"))
def metric_of_a_maximum(bench: Bench) -> Found:
    """A variable that is no sum: assign(maximum)."""
    return _trained(bench, 2, None, sizes(2), lambda: [_maximum(bench)])


@program(says="batch_counter", differs=("history batch_counter", "evaluate batch_counter"))
def metric_that_counts_batches(bench: Bench) -> Found:
    class Counter(bench.metrics.Metric):
        def __init__(self, name: str = "batch_counter", **more: Any) -> None:
            super().__init__(name=name, **more)
            self.number = self.add_weight(name="number", initializer="zeros")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            self.number.assign_add(1.0)

        def result(self) -> Any:
            return tf.convert_to_tensor(self.number)

        def reset_state(self) -> None:
            self.number.assign(0.0)

    return _trained(bench, 2, None, sizes(2), lambda: [Counter()])


@program()
def metric_that_is_a_function(bench: Bench) -> Found:
    def far(y: Any, p: Any) -> Any:
        return tf.cast(tf.abs(y - p) > 0.5, "float32")

    return _trained(bench, 2, None, sizes(2), lambda: [far])


@program()
def metric_that_is_a_function_of_one_number(bench: Bench) -> Found:
    def mean_off(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.abs(y - p))

    return _trained(bench, 2, None, sizes(2), lambda: [mean_off])


@program()
def metric_of_a_mean(bench: Bench) -> Found:
    """MeanMetricWrapper around a function of rows."""

    def make() -> list[Any]:
        function = lambda y, p: tf.reduce_max(tf.abs(y - p), axis=-1)  # noqa: E731
        return [bench.metrics.MeanMetricWrapper(function, name="worst")]

    return _trained(bench, 2, None, sizes(2), make)


@program()
def metrics_by_their_names(bench: Bench) -> Found:
    return _trained(
        bench,
        3,
        "softmax",
        one_hot(),
        lambda: ["accuracy", "mse", "mae", "categorical_crossentropy"],
    )


@program()
def metrics_beside_weighted_metrics(bench: Bench) -> Found:
    return _trained(
        bench,
        1,
        "sigmoid",
        _binary(),
        lambda: ["accuracy"],
        weighted_metrics=lambda: ["accuracy", bench.metrics.AUC(name="auc", num_thresholds=20)],
    )


@program(TF_KERAS)
def metric_mean_tensor(bench: Bench) -> Found:
    class Means(bench.metrics.MeanTensor):
        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            super().update_state(tf.reduce_sum(p, axis=0))

        def result(self) -> Any:
            return tf.reduce_sum(self.total)

    def make() -> list[Any]:
        return [Means(name="sums", shape=(2,))]

    return _trained(bench, 2, None, sizes(2), make)


@program()
def metric_of_a_layer(bench: Bench) -> Found:
    """A layer that updates a metric of its own in each call."""

    class Watching(bench.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.size = bench.metrics.Mean(name="size")

        def call(self, x: Any) -> Any:
            self.size.update_state(tf.reduce_sum(tf.abs(x), axis=-1))
            return x

    return bench.train(
        lambda: bench.sequential(
            numbers(), [bench.layers.Dense(3), Watching(), bench.layers.Dense(1)]
        ),
        (numbers(), sizes()),
        evaluates=True,
        fit={"epochs": 2},
    )
