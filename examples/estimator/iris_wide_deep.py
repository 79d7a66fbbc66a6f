"""Trains a canned wide-and-deep classifier on a CSV file of irises, then exports it.

    python examples/estimator/iris_wide_deep.py

The last line is the evaluation of every fifth flower, as JSON. With `import tensorflow.estimator as
tfe` the same program runs in TensorFlow 2.15.
"""

import argparse
import csv
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from mlxtend.data import iris_data

import tfdist.estimator as tfe

SPECIES = ["setosa", "versicolor", "virginica"]
MEASURES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
COLUMNS = [*MEASURES, "species"]


def write_csv(folder: str) -> list[str]:
    """Writes train.csv and test.csv: 120 flowers, and every fifth of the 150."""
    features, labels = iris_data()
    paths = [os.path.join(folder, name) for name in ("train.csv", "test.csv")]
    with open(paths[0], "w", newline="") as train, open(paths[1], "w", newline="") as test:
        writers = [csv.writer(train), csv.writer(test)]
        for writer in writers:
            writer.writerow(COLUMNS)
        for i in range(len(labels)):
            writers[i % 5 == 0].writerow([*features[i], SPECIES[int(labels[i])]])
    return paths


def make_input_fn(path: str, *, training: bool) -> Callable[[], tf.data.Dataset]:
    def parse(line: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        fields = tf.io.decode_csv(line, [[0.0]] * 4 + [[""]])
        return dict(zip(MEASURES, fields[:4])), fields[4]  # noqa: B905 (Python 3.9 knows no strict)

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.TextLineDataset(path).skip(1).map(parse)
        if training:
            dataset = dataset.shuffle(150, seed=1).repeat()
        return dataset.batch(30)

    return input_fn


def make_columns() -> tuple[list[Any], list[Any]]:
    column = tf.feature_column
    deep = [
        column.numeric_column(name, normalizer_fn=lambda x: (x - 3.5) / 2.0) for name in MEASURES
    ]
    bounds = {"petal_length": [2.0, 4.5, 5.0], "petal_width": [0.8, 1.4, 1.8]}
    wide = [column.bucketized_column(column.numeric_column(n), bounds[n]) for n in bounds]
    wide.append(column.crossed_column(wide[:], hash_bucket_size=50))
    return wide, deep


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell irises apart.")
    parser.add_argument("--model-dir", default=None, help="where checkpoints go")
    parser.add_argument("--num-steps", type=int, default=200, help="training steps")
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)

    wide, deep = make_columns()
    classifier = tfe.DNNLinearCombinedClassifier(
        model_dir=arguments.model_dir,
        config=tfe.RunConfig(tf_random_seed=1),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[16, 8],
        dnn_optimizer="Adam",
        n_classes=len(SPECIES),
        label_vocabulary=SPECIES,
    )
    with tempfile.TemporaryDirectory() as folder:
        train_csv, test_csv = write_csv(folder)
        classifier.train(make_input_fn(train_csv, training=True), steps=arguments.num_steps)
        metrics = classifier.evaluate(make_input_fn(test_csv, training=False))
        flowers = list(classifier.predict(make_input_fn(test_csv, training=False)))

    # A server sends serialized tf.train.Examples.
    spec = tf.feature_column.make_parse_example_spec([*wide, *deep])
    receiver_fn = tfe.export.build_parsing_serving_input_receiver_fn(spec)
    exported = classifier.export_saved_model(
        os.path.join(classifier.model_dir, "export"), receiver_fn
    )
    result = {name: float(value) for name, value in metrics.items()}
    result["first"] = [flower["classes"][0].decode() for flower in flowers[:30:10]]
    result["probabilities"] = flowers[10]["probabilities"].tolist()
    result["exported"] = sorted(os.listdir(exported.decode()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
