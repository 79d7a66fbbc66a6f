"""Trains a two-headed network on 178 wines with train_and_evaluate, keeping the best as SavedModel.

    python examples/estimator/wine_train_and_evaluate.py

One head names the cultivar, the other one estimates the alcohol. Training ends early when the loss
of the evaluations no longer falls. The last line is the last evaluation, as JSON. With `import
tensorflow.estimator as tfe` the same program runs in TensorFlow 2.15.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from mlxtend.data import wine_data

import tfdist.estimator as tfe


def load_wines() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns 12 standardised measures a wine, cultivars [178, 1], alcohol [178, 1], mixed."""
    measures, cultivars = wine_data()
    order = np.random.RandomState(0).permutation(len(cultivars))
    measures = (measures - measures.mean(axis=0)) / measures.std(axis=0)
    measures = measures[order].astype(np.float32)
    return measures[:, 1:], cultivars[order, None].astype(np.int64), measures[:, :1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge wines.")
    parser.add_argument("--model-dir", default=None, help="where checkpoints go")
    parser.add_argument("--num-steps", type=int, default=400, help="training steps at most")
    parser.add_argument("--steps-between", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--patience", type=int, default=3, help="evaluations without a better loss")
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    measures, cultivars, alcohol = load_wines()

    def make_input_fn(part: slice, *, training: bool) -> Callable[[], tf.data.Dataset]:
        def input_fn() -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices(
                (
                    {"measures": measures[part]},
                    {"cultivar": cultivars[part], "alcohol": alcohol[part]},
                )
            )
            if training:
                dataset = dataset.shuffle(200, seed=1).repeat()
            return dataset.batch(32)

        return input_fn

    head = tfe.MultiHead(
        [tfe.MultiClassHead(3, name="cultivar"), tfe.RegressionHead(name="alcohol")], [1.0, 0.5]
    )
    column = tf.feature_column.numeric_column("measures", shape=[12])
    estimator = tfe.DNNEstimator(
        head,
        hidden_units=[16],
        feature_columns=[column],
        optimizer=lambda: tf.keras.optimizers.legacy.Adam(0.1),
        config=tfe.RunConfig(
            model_dir=arguments.model_dir or tempfile.mkdtemp(),
            save_checkpoints_steps=arguments.steps_between,
            keep_checkpoint_max=None,
            tf_random_seed=1,
        ),
    )
    early = tfe.experimental.stop_if_no_decrease_hook(
        estimator,
        "loss",
        max_steps_without_decrease=arguments.patience * arguments.steps_between,
        run_every_secs=None,
        run_every_steps=arguments.steps_between,
    )
    receiver_fn = tfe.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec([column])
    )
    best = tfe.BestExporter("best", receiver_fn, exports_to_keep=1)
    metrics, exports = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(
            make_input_fn(slice(0, 130), training=True), arguments.num_steps, hooks=[early]
        ),
        tfe.EvalSpec(
            make_input_fn(slice(130, None), training=False),
            steps=None,
            exporters=best,
            throttle_secs=0,
        ),
    )
    result = {name: float(value) for name, value in metrics.items()}
    kept = os.listdir(os.path.join(estimator.model_dir, "export", "best"))
    result["exports_kept"] = len([name for name in kept if name.isdigit()])
    result["last_exported"] = bool(exports[0])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
