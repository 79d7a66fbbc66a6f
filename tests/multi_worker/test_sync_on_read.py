"""Variables that each worker updates alone, in an Estimator's training."""

from typing import Any

import pytest


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_hook_that_fetches_moving_statistics_gets_those_of_all_workers(
    fake_cluster: Any, engine: str
) -> None:
    def train(engine: str) -> list[float]:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

        strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
        index = strategy.extended.collectives.worker_index

        def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
            outputs = v1.layers.batch_normalization(features, training=True, momentum=0.5)
            updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            with tf.control_dependencies(updates):
                step = optimizer.minimize(tf.reduce_mean(outputs), v1.train.get_global_step())
            return tfe.EstimatorSpec(mode, loss=tf.reduce_mean(outputs), train_op=step)

        class Fetch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
            value: Any = None

            def begin(self) -> None:
                variables = v1.global_variables()
                self.mean = next(v for v in variables if "moving_mean" in v.name)

            # Not at the end: the workers' values are combined there, for the last checkpoint.
            def after_run(self, run_context: Any, run_values: Any) -> None:
                self.value = run_context.session.run(self.mean)

        def input_fn() -> Any:
            # Worker 0 sees a mean of 2, worker 1 of 6.
            rows = [[1.0 + 4 * index], [3.0 + 4 * index]]
            return tf.data.Dataset.from_tensors(tf.constant(rows)).repeat()

        fetch = Fetch()
        config = tfe.RunConfig(train_distribute=strategy)
        tfe.Estimator(model_fn, None, config).train(input_fn, steps=1, hooks=[fetch])
        return list(fetch.value)

    # Half of the mean of 2 and 6.
    assert fake_cluster.run(train, engine, engine=engine) == [[2.0], [2.0]]
