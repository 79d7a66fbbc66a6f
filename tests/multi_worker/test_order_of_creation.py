"""Workers whose model_fn creates its variables in different orders are refused."""

from collections.abc import Callable
from typing import Any

import pytest

ENGINES = ["grpc", "horovod"]
FIX = (
    "Create the variables in the same order on every worker: iterate over sorted(names), for "
    "example, where model_fn iterates over a set."
)

NAMED = "variable 2 is a/kernel on worker 0 and b/kernel"
NUMBERED = "variable dense/kernel is combined with features a on worker 0 and with features b"


@pytest.fixture
def train_towers() -> Callable[..., str | None]:
    """A function that trains one tower for each name, in an order that depends on the worker.

    `order(index)` gives the towers' names in this worker's order of creation, `build(name, inputs)`
    makes a tower's output: `inputs` maps names to features, [batch, 2]. Returns the error
    ("Type: message" or None).
    """

    def train_towers(engine: str, order: Any, build: Any, iterations: int = 1) -> str | None:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

        def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
            outputs = [build(name, features) for name in order(index)]
            loss = tf.add_n([tf.reduce_mean(tf.square(output - 1.0)) for output in outputs])
            train_op = v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step())
            return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

        def input_fn() -> Any:
            rows = {"a": [[1.0, 2.0]], "b": [[-3.0, 0.5]], "c": [[0.25, 4.0]]}
            return tf.data.Dataset.from_tensors(rows).repeat(20)

        try:
            kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}
            strategy = kinds[engine]()
            index = strategy.extended.collectives.worker_index
            config = tfe.RunConfig(
                train_distribute=strategy, device=tfe.DeviceConfig(iterations_per_loop=iterations)
            )
            tfe.Estimator(model_fn, None, config).train(input_fn, steps=4)
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"
        return None

    return train_towers


def named_tower(name: str, inputs: Any) -> Any:
    """A layer whose variable says which it is."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    with v1.variable_scope(name):
        return tf.matmul(inputs[name], v1.get_variable("kernel", [2, 2]))


def numbered_tower(name: str, inputs: Any) -> Any:
    """A layer whose variable's name tells only when it was created."""
    import tf_keras

    return tf_keras.layers.Dense(2)(inputs[name])


@pytest.mark.parametrize(
    ("engine", "iterations", "tower", "difference"),
    [
        ("grpc", 1, named_tower, NAMED),
        ("horovod", 2, named_tower, NAMED),
        ("grpc", 2, numbered_tower, NUMBERED),
        ("horovod", 1, numbered_tower, NUMBERED),
    ],
)
def test_variables_created_in_another_order_are_refused(
    fake_cluster: Any,
    train_towers: Any,
    engine: str,
    iterations: int,
    tower: Any,
    difference: str,
) -> None:
    ends = fake_cluster.run(
        train_towers,
        engine,
        lambda index: ["abc", "bca"][index],
        tower,
        iterations,
        engine=engine,
    )
    message = f"ModelMismatchError: The workers' models differ: {difference} on worker 1. {FIX}"
    assert ends == [message, message]
