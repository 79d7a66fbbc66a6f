"""Variables that each worker updates alone, in an Estimator's training."""

from typing import Any


def test_a_hook_that_fetches_moving_statistics_gets_those_of_all_workers(
    fake_cluster: Any, train_briefly: Any
) -> None:
    # test_custom_loop.py has it over Horovod.
    def train() -> list[float]:
        fetched: list[Any] = []

        def loss(index: int, weight: Any, features: Any) -> Any:
            import tensorflow as tf
            import tensorflow.compat.v1 as v1

            outputs = v1.layers.batch_normalization(features, training=True, momentum=0.5)
            with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
                return tf.reduce_mean(outputs)

        def input_fn(index: int) -> Any:
            import tensorflow as tf

            # Worker 0 sees a mean of 2, worker 1 of 6.
            rows = [[1.0 + 4 * index], [3.0 + 4 * index]]
            return lambda: tf.data.Dataset.from_tensors(tf.constant(rows)).repeat()

        def hooks(index: int) -> list[Any]:
            from typing import Any  # a class's own names don't go to the workers by themselves

            import tensorflow.compat.v1 as v1

            class Fetch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
                def begin(self) -> None:
                    variables = v1.global_variables()
                    self.mean = next(v for v in variables if "moving_mean" in v.name)

                # Not at the end: the values are combined there, for the last checkpoint.
                def after_run(self, run_context: Any, run_values: Any) -> None:
                    fetched[:] = run_context.session.run(self.mean).tolist()

            return [Fetch()]

        options = {"loss": loss, "input_fn": input_fn, "hooks": hooks}
        train_briefly("grpc", limits=lambda index: {"steps": 1}, **options)
        return fetched

    # Half of the mean of 2 and 6.
    assert fake_cluster.run(train) == [[2.0], [2.0]]
