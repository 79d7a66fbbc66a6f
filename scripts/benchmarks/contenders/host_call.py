"""`tfdist`: an Estimator with host_call, over gRPC, over Horovod, or alone.

python host_call.py WORK WORKER_INDEX grpc|horovod|none [FEATURE]

FEATURE is a training feature: "plain", which is none; "loss-scale"; "accumulated" (8 micro-batches
a step) and "backward" (a forward and backward pass alone, whose gradients are thrown away);
"own-norm", "replica-norm" and "keras-norm" (batch norms of ResNet with a replica's own statistics,
with those of all replicas by tfdist, and by tf_keras); "hooks" (all of tfdist.monitoring, every 100
steps).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns

NUM_MICRO_BATCHES = 8
HOOK_INTERVAL_STEPS = 100


def main() -> None:
    name, index, engine = sys.argv[1:4]
    feature = sys.argv[4] if len(sys.argv) > 4 else "plain"
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", index))
    turns.pin_to_own_core(worker_index)
    import estimators
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    strategies: dict[str, Any] = {
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "none": lambda: None,
    }
    micro_batches = NUM_MICRO_BATCHES if feature == "accumulated" else 1
    device = tfe.DeviceConfig(gradient_accumulation=micro_batches)
    with tempfile.TemporaryDirectory() as folder:
        config = tfe.RunConfig(train_distribute=strategies[engine](), device=device)
        estimator = tfe.Estimator(_make_model_fn(name, feature), folder, config)
        hooks = _make_hooks(Path(folder)) if feature == "hooks" else []
        estimator.train(
            lambda: models.make_dataset(name, worker_index),
            hooks=[*hooks, estimators.TakeTurns(worker_index)],
        )


def _make_model_fn(name: str, feature: str) -> Callable[..., Any]:
    import estimators
    import tensorflow as tf

    from tfdist import training

    layers = tf.keras.layers
    norms: dict[str, Callable[[], Any]] = {
        "own-norm": lambda: training.BatchNormalization(group_size=1),
        "replica-norm": training.BatchNormalization,
        "keras-norm": lambda: layers.BatchNormalization(synchronized=True),
    }
    if feature == "backward":
        return _make_backward_fn(name)
    if feature == "loss-scale":
        return estimators.make_model_fn(name, wrap=training.LossScaleOptimizer)
    return estimators.make_model_fn(name, batch_norm=norms.get(feature))


def _make_backward_fn(name: str) -> Callable[..., Any]:
    """Makes a model_fn that computes gradients and updates no weight.

    The loss takes a value of each gradient, without which TensorFlow would leave them out; to wait
    for them is not enough.
    """
    import estimators
    import tensorflow as tf

    import tfdist.estimator as tfe

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        built = estimators.build(name, features, labels)
        found = built.optimizer.compute_gradients(built.loss, var_list=built.variables)
        taken = [tf.reshape(gradient, [-1])[0] for gradient, _ in found]
        loss = built.loss + 1e-9 * tf.add_n(taken)
        step = tf.compat.v1.train.get_or_create_global_step()
        with tf.control_dependencies(built.updates):
            train_op = step.assign_add(1, read_value=False)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _make_hooks(folder: Path) -> list[Any]:
    """Makes every hook of tfdist.monitoring; the profile's steps never come."""
    from tfdist import monitoring

    every = HOOK_INTERVAL_STEPS
    return [
        monitoring.StepProfileHook(folder / "profile", 10**9, 10**9 + 1),
        monitoring.CsvMetricsHook(folder / "metrics.csv", every_n_steps=every),
        monitoring.MemoryHook(every),
        monitoring.ProgressBarHook(every_n_steps=every),
        monitoring.PrometheusHook(0, every_n_steps=every, address="127.0.0.1"),
        monitoring.ThroughputHook(every, output_dir=folder / "throughput"),
    ]


if __name__ == "__main__":
    main()
