"""Prints the names of the tensors that hooks watch in the canned estimators of v1."""

# ruff: noqa: ANN001, ANN201 (as such programs are)

import json

import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.estimator import v1 as tfe1

v1 = tf.compat.v1
column = tf.feature_column
age = column.numeric_column("age")
word = column.categorical_column_with_vocabulary_list("word", ["a", "b"], num_oov_buckets=1)
deep = {"hidden_units": [4, 3], "feature_columns": [age, column.embedding_column(word, 2)]}
wide = {"feature_columns": [age, word]}
both = {"dnn_hidden_units": [3], "dnn_feature_columns": [age], "linear_feature_columns": [word]}
three = {"n_classes": 3}
words = {"n_classes": 3, "label_vocabulary": ["x", "y", "z"]}
weight = {"weight_column": "weight"}
mean = {"loss_reduction": v1.losses.Reduction.SUM_OVER_BATCH_SIZE}
ESTIMATORS = {
    "deep": lambda: tfe1.DNNClassifier(**deep),
    "deep, three classes": lambda: tfe1.DNNClassifier(**deep, **three, **weight),
    "deep, words": lambda: tfe1.DNNClassifier(**deep, **words),
    "deep, number": lambda: tfe1.DNNRegressor(**deep, batch_norm=True, dropout=0.5),
    "wide": lambda: tfe1.LinearClassifier(**wide, **weight),
    "wide, mean": lambda: tfe1.LinearClassifier(**wide, **three, **mean),
    "wide, number": lambda: tfe1.LinearRegressor(**wide, **weight),
    "both": lambda: tfe1.DNNLinearCombinedClassifier(**both),
    "both, numbers": lambda: tfe1.DNNLinearCombinedRegressor(**both, label_dimension=2),
    "neither": lambda: tfe1.BaselineClassifier(**three),
    "neither, number": lambda: tfe1.BaselineRegressor(),
}


def names(case, mode):
    """Lists the names of the loss, the labels, the predictions and what summaries show."""
    estimator = ESTIMATORS[case]()
    kinds = {"words": tf.string, "number": tf.float32, "numbers": tf.float32}
    kind = kinds.get(case.split(", ")[-1], tf.int64)
    with tf.Graph().as_default() as graph:
        v1.train.create_global_step()
        features = {
            "age": v1.placeholder(tf.float32, [None, 1]),
            "word": v1.placeholder(tf.string, [None, 1]),
            "weight": v1.placeholder(tf.float32, [None, 1]),
        }
        size = 2 if case.endswith("numbers") else 1
        labels = None if mode == "infer" else v1.placeholder(kind, [None, size])
        spec = estimator.model_fn(features, labels, mode, estimator.config)
        operations = graph.get_operations()
        return {
            "loss": None if spec.loss is None else spec.loss.name,
            "predictions": {key: value.name for key, value in sorted(spec.predictions.items())},
            "checked": [
                op.name for op in operations if op.name.endswith(("head/labels", "head/weights"))
            ],
            "summaries": {
                op.name: op.inputs[1].name
                for op in operations
                if op.type == "ScalarSummary" and op.name.endswith("loss")
            },
            "layers": sorted(
                op.name
                for op in operations
                if op.type in ("Relu", "BiasAdd") and "head/" not in op.name
            ),
        }


print(
    json.dumps(
        {
            f"{case} in {mode}": names(case, mode)
            for case in ESTIMATORS
            for mode in (tfe.ModeKeys.TRAIN, tfe.ModeKeys.EVAL, tfe.ModeKeys.PREDICT)
            if mode == tfe.ModeKeys.TRAIN or case in ("deep", "wide, number", "both", "neither")
        }
    )
)
