"""Trains a ResNet-8 on real digits. A file to copy.

    tfdist run --num-instances 2 -- python examples/cnn/minimal.py

Without `tfdist run` it trains alone. `resnet.py` has the model, and `datasets.py` the input.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "application"))

from architecture import make_segments
from datasets import open_dataset
from layout import Layout

from tfdist.cluster.instances import find_instance


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a ResNet-8, alone or with others.")
    parser.add_argument("--num-steps", type=int, default=300, help="training steps")
    parser.add_argument("--batch-size", type=int, default=32, help="images in each worker")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the highest one")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a temporary one)")
    arguments = parser.parse_args()
    instance = find_instance()  # Reports a wrong TF_CONFIG before TensorFlow is imported.
    layout = Layout(
        micro_batch=arguments.batch_size, workers=instance.num_instances, worker=instance.index
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    train(arguments, layout)


def train(arguments: argparse.Namespace, layout: Layout) -> None:
    """Trains, evaluates on the test images, and prints the metrics."""
    import tensorflow as tf
    from resnet import Network

    import tfdist.estimator as tfe
    from tfdist import training
    from tfdist.strategies import strategy_for_run

    v1 = tf.compat.v1
    v1.logging.set_verbosity(v1.logging.INFO)
    images = open_dataset("digits", seed=0)  # Each worker reads its part of each step.

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        network = Network(
            segments=make_segments(8, image_channels=1, classes=10),
            is_training=mode == tfe.ModeKeys.TRAIN,
            num_groups=8,  # Group norms: the result does not depend on the size of a batch.
            span=None,
            decay=0.97,
            recomputes=False,
            seed=0,
            dtype=tf.float32,
        )
        logits = network(features)  # [batch, 10]
        # The mean over this worker's batch; the optimizer divides it by the number of workers.
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        if mode == tfe.ModeKeys.EVAL:
            accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, axis=-1))
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

        rate = training.cosine_decay(arguments.learning_rate, arguments.num_steps)
        optimizer = training.SGD(rate, 0.9)  # With momentum.
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, gradients))

    config = tfe.RunConfig(train_distribute=strategy_for_run())
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(images.training.input_fn(layout), max_steps=arguments.num_steps),
        tfe.EvalSpec(images.validation.evaluation_input_fn(batch=100), steps=None),
    )
    if metrics is not None and estimator.config.is_chief:
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


if __name__ == "__main__":
    main()
