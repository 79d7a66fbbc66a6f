"""`tfdist` with a computation that only waits: what is left of a step is the reduction.

python waiting.py WAIT_MS BYTES:STEPS[,BYTES:STEPS...] WORKER_INDEX grpc|horovod

Trains one model after the other: with so many bytes of gradients, for so many steps.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from typing import Any

import turns

# Gradients come in several tensors of equal size, as a model's do, which fit into the buckets.
MIN_VARIABLES = 8
MAX_VARIABLE_BYTES = 1_000_000
FLOAT_BYTES = 4


def main() -> None:
    wait_s, engine = 1e-3 * float(sys.argv[1]), sys.argv[4]
    plan = [tuple(map(int, one.split(":"))) for one in sys.argv[2].split(",")]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", sys.argv[3]))
    turns.pin_to_own_core(worker_index)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import numpy as np
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    v1 = tf.compat.v1

    def wait() -> np.ndarray:
        time.sleep(wait_s)
        return np.float32(0)

    def model_fn(features: tf.Tensor, labels: Any, mode: str) -> tfe.EstimatorSpec:
        """Has its features as gradients, when the wait is over."""
        loss = tf.numpy_function(wait, [], tf.float32)
        loss.set_shape([])
        with tf.control_dependencies([loss]):
            gradients = [tf.identity(features[name]) for name in sorted(features)]
        variables = [
            v1.get_variable(f"weights_{number}", gradient.shape, initializer=v1.zeros_initializer())
            for number, gradient in enumerate(gradients)
        ]
        optimizer = v1.train.GradientDescentOptimizer(0.001)

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(
            mode, loss=loss, train_op=tf.identity(loss), host_call=(apply_on_host, gradients)
        )

    my_turns = turns.Turns(worker_index)

    class TakeTurns(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        """Asks for the next turn after a step; what comes between two models is in a warm-up."""

        def __init__(self) -> None:
            self.goes_on = my_turns.goes_on()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.goes_on = my_turns.goes_on()
            if not self.goes_on:
                run_context.request_stop()

    hook = TakeTurns()
    strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
    for num_bytes, num_steps in plan:
        if not hook.goes_on:
            break
        count = max(MIN_VARIABLES, math.ceil(num_bytes / MAX_VARIABLE_BYTES))
        zeros = np.zeros(num_bytes // count // FLOAT_BYTES, np.float32)
        batch = {f"gradient_{number}": zeros for number in range(count)}
        with tempfile.TemporaryDirectory() as folder:
            config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=10**9)
            estimator = tfe.Estimator(model_fn, folder, config)
            estimator.train(
                lambda batch=batch: tf.data.Dataset.from_tensors(batch).repeat(),
                hooks=[hook],
                steps=num_steps,
            )


if __name__ == "__main__":
    main()
