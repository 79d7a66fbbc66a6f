"""tfdist: an Estimator with host_call, over gRPC, over Horovod, or alone.

python host_call.py WORK WORKER_INDEX grpc|horovod|none
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import turns


def main() -> None:
    name, engine = sys.argv[1], sys.argv[3]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", sys.argv[2]))
    turns.pin_to_own_core(worker_index)
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    v1 = tf.compat.v1
    v1.logging.set_verbosity(v1.logging.INFO)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        model = models.make_model(name)
        loss = models.loss_of(model, features, labels)
        optimizer = models.make_optimizer(name)
        variables = model.trainable_variables
        gradients = [g for g, _ in optimizer.compute_gradients(loss, var_list=variables)]
        updates = model.get_updates_for(None) + model.get_updates_for(features)

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        with tf.control_dependencies(updates):
            train_op = tf.identity(loss)
        return tfe.EstimatorSpec(
            mode, loss=loss, train_op=train_op, host_call=(apply_on_host, gradients)
        )

    class TakeTurns(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            self.turns = turns.Turns(worker_index)
            self.turns.goes_on()

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if not self.turns.goes_on():
                run_context.request_stop()

    strategies: dict[str, Any] = {
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "none": lambda: None,
    }
    with tempfile.TemporaryDirectory() as folder:
        config = tfe.RunConfig(train_distribute=strategies[engine]())
        estimator = tfe.Estimator(model_fn, folder, config)
        estimator.train(lambda: models.make_dataset(name, worker_index), hooks=[TakeTurns()])


if __name__ == "__main__":
    main()
