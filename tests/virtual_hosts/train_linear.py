"""Trains a line through twelve points with host_call: alone, over gRPC or over Horovod.

All workers together see all points in every step, so that any number of them trains the same; with
--shuffle each takes two of its own. Each leaves its weights in OUT, under its own index.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # Not in the tests' own process.
    # TensorFlow does without these and without Keras 3, and starts faster.
    sys.modules.update(dict.fromkeys(("h5py", "pandas", "PIL", "scipy")))
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.cluster.rendezvous import sockets
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

v1 = tf.compat.v1
POINTS = np.linspace(-1.0, 1.0, 12, dtype=np.float32)[:, None]


def main() -> None:
    arguments = parse_arguments()
    v1.logging.set_verbosity(v1.logging.INFO)
    if arguments.unreachable_after_s is not None:
        sockets._UNREACHABLE_S = arguments.unreachable_after_s
    strategies = {"none": lambda: None, "grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}
    strategy = strategies[arguments.strategy]()
    train(arguments, strategy)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=["none", "grpc", "horovod"], default="none")
    parser.add_argument("--num-steps", type=int, default=20)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--seconds-per-step", type=float, default=0.0)
    parser.add_argument("--unreachable-after-s", type=int)
    parser.add_argument("--model-dir")
    parser.add_argument("--out")
    return parser.parse_args(words)


def train(arguments: argparse.Namespace, strategy: tf.compat.v1.distribute.Strategy | None) -> None:
    collectives = None if strategy is None else strategy.extended.collectives
    index, workers = (
        (0, 1) if collectives is None else (collectives.worker_index, collectives.num_workers)
    )

    def input_fn() -> tf.data.Dataset:
        own = POINTS[index::workers]
        examples = tf.data.Dataset.from_tensor_slices((own, 3.0 * own - 1.0)).repeat()
        if arguments.shuffle:
            return examples.shuffle(len(own), seed=5).batch(2)
        return examples.batch(len(own))

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        weights = [v1.get_variable(name, [1, 1]) for name in ("slope", "offset")]
        line = tf.matmul(features, weights[0]) + weights[1]
        loss = tf.reduce_mean(tf.square(line - labels))
        optimizer = v1.train.MomentumOptimizer(0.05, 0.9)
        gradients = [gradient for gradient, _ in optimizer.compute_gradients(loss, weights)]

        def apply(*values: tf.Tensor) -> tf.Operation:
            return optimizer.apply_gradients(zip(values, weights, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply, gradients))

    class Watch(v1.train.SessionRunHook):
        def after_run(self, context: object, values: object) -> None:
            time.sleep(arguments.seconds_per_step)

        def end(self, session: tf.compat.v1.Session) -> None:
            if arguments.out is not None:
                found = {v.name: session.run(v).item() for v in v1.trainable_variables()}
                Path(arguments.out, str(index)).write_text(json.dumps(found))

    config = tfe.RunConfig(train_distribute=strategy, tf_random_seed=1, log_step_count_steps=5)
    tfe.Estimator(model_fn, arguments.model_dir, config).train(
        input_fn, hooks=[Watch()], max_steps=arguments.num_steps
    )
    # In one piece: without a buffer, `print` lets another rank write before the end of the line.
    sys.stdout.write(f"worker {index} of {workers} on {os.uname().nodename} is done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
