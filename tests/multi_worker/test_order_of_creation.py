"""Workers whose model_fn creates its variables in different orders are refused."""

from typing import Any

import pytest

FIX = (
    "Create the variables in the same order on every worker: iterate over sorted(names), for "
    "example, where model_fn iterates over a set."
)

NAMED = "variable 3 is a/kernel on worker 0 and b/kernel"
NUMBERED = "variable dense/kernel is combined with features a on worker 0 and with features b"


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
    [("horovod", 1, named_tower, NAMED), ("grpc", 2, numbered_tower, NUMBERED)],
)
def test_variables_created_in_another_order_are_refused(
    fake_cluster: Any,
    train_briefly: Any,
    engine: str,
    iterations: int,
    tower: Any,
    difference: str,
) -> None:
    def loss(index: int, weight: Any, features: Any) -> Any:
        import tensorflow as tf

        outputs = [tower(name, features) for name in ("abc", "bca")[index]]
        return tf.add_n([tf.reduce_mean(tf.square(output - 1.0)) for output in outputs])

    def input_fn(index: int) -> Any:
        import tensorflow as tf

        rows = {"a": [[1.0, 2.0]], "b": [[-3.0, 0.5]], "c": [[0.25, 4.0]]}
        return lambda: tf.data.Dataset.from_tensors(rows).repeat(20)

    of_all = {"iterations": lambda index: iterations, "engine": engine}
    ends = fake_cluster.run(train_briefly, engine, loss=loss, input_fn=input_fn, **of_all)
    message = f"ModelMismatchError: The workers' models differ: {difference} on worker 1. {FIX}"
    assert [end["error"] for end in ends] == [message, message]
