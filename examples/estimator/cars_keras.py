"""Turns a compiled Keras model into an Estimator, trains it on 392 cars, serves it as SavedModel.

    python examples/estimator/cars_keras.py

The model estimates miles per gallon. The last line is the evaluation of every fifth car, as JSON.
With the two imports of tfdist.estimator changed to `import tensorflow.estimator as tfe` and `from
tensorflow.keras.estimator import model_to_estimator` the same program runs in TensorFlow 2.15.
"""

import argparse
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf
from mlxtend.data import autompg_data

import tfdist.estimator as tfe
from tfdist.estimator import model_to_estimator

NUM_MEASURES = 7  # Cylinders, displacement, horsepower, weight, acceleration, year, origin.


def load_cars() -> tuple[np.ndarray, np.ndarray]:
    """Returns standardised measures [392, 7] and miles per gallon [392, 1], in a mixed order."""
    measures, miles = autompg_data()
    measures = measures[:, :NUM_MEASURES].astype(np.float32)
    measures = (measures - measures.mean(axis=0)) / measures.std(axis=0)
    order = np.random.RandomState(0).permutation(len(miles))
    return measures[order], miles[order, None].astype(np.float32)


def make_model() -> Any:
    layers = tf.keras.layers
    measures = tf.keras.Input([NUM_MEASURES], name="measures")
    penalty = tf.keras.regularizers.l2(1e-3)
    x = layers.Dense(32, activation="relu", kernel_regularizer=penalty)(measures)
    x = layers.BatchNormalization(momentum=0.9)(x)
    model = tf.keras.Model(measures, layers.Dense(1, name="miles_per_gallon")(x))
    model.compile(tf.keras.optimizers.legacy.Adam(0.02), loss="mse", metrics=["mae"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate what cars need.")
    parser.add_argument("--model-dir", default=None, help="where checkpoints go")
    parser.add_argument("--num-steps", type=int, default=600, help="training steps")
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    tf.keras.utils.set_random_seed(1)
    measures, miles = load_cars()
    is_test = np.arange(len(miles)) % 5 == 0

    def train_input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(
            ({"measures": measures[~is_test]}, miles[~is_test])
        )
        return dataset.shuffle(400, seed=1).repeat().batch(32)

    def eval_input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(
            ({"measures": measures[is_test]}, miles[is_test])
        )
        return dataset.batch(32)

    def serving_fn() -> Any:
        placeholder = tf.compat.v1.placeholder(tf.float32, [None, NUM_MEASURES], name="measures")
        received = {"measures": placeholder}
        return tfe.export.ServingInputReceiver(received, received)

    estimator = model_to_estimator(make_model(), model_dir=arguments.model_dir)
    estimator.train(train_input_fn, steps=arguments.num_steps)
    metrics = estimator.evaluate(eval_input_fn)

    folder = estimator.export_saved_model(os.path.join(estimator.model_dir, "export"), serving_fn)
    serve = tf.saved_model.load(folder.decode()).signatures["serving_default"]
    served = serve(measures=tf.constant(measures[is_test][:3]))["miles_per_gallon"]
    result = {name: float(value) for name, value in metrics.items()}
    result["served"] = served.numpy()[:, 0].tolist()
    result["true"] = miles[is_test][:3, 0].tolist()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
