"""Initial values of TensorFlow 2's variables: worker 0's, in few messages, of the same model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import LocalStrategy
from tfdist.strategies.divided.tables import Tables
from tfdist.strategies.eager.replica_variable import AggregationError
from tfdist.strategies.eager.variables import EagerVariables, ModelsDifferError
from tfdist.strategies.placement import Placement
from tfdist.strategies.reductions.reducer import Reducer


class _Line:
    """An engine that keeps what worker 0 sends, and lets worker 1 receive it."""

    num_workers, worker_index = 2, 0
    bucket_size_bytes = threshold_bytes = 1 << 20

    def __init__(self) -> None:
        self.sent: list[tf.Tensor] = []

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        if self.worker_index == 0:
            self.sent.append(tensor)
            return tensor
        assert tensor.shape == self.sent[0].shape  # Or the engine would wait.
        return self.sent.pop(0)

    def gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        if self.worker_index == 0:
            self.sent.append(tensor)
            return tensor
        return tf.concat([self.sent.pop(0), tensor], axis=0)


Make = Callable[..., Any]


@pytest.fixture
def line() -> _Line:
    return _Line()


@pytest.fixture
def make(line: _Line) -> Make:
    """Makes a variable on one of the workers."""

    def make(worker: int, value: Any, name: str = "kernel", **options: Any) -> Any:
        line.worker_index = worker
        reducer = Reducer(line, 1, None)
        variables = EagerVariables(
            Placement(device="/device:CPU:0"), reducer, Tables(None, reducer)
        )
        return variables.create(lambda **_: None, initial_value=value, name=name, **options)

    return make


@pytest.mark.parametrize(
    "dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int64, tf.uint8, tf.bool]
)
@pytest.mark.parametrize(("shape", "messages"), [([], 1), ([3, 7], 1), ([0], 1), ([50, 100], 2)])
def test_worker_1_gets_the_bits_of_worker_0_and_a_small_value_is_one_message(
    line: _Line, make: Make, dtype: tf.DType, shape: list[int], messages: int
) -> None:
    random = np.random.RandomState(0)
    own, others = (tf.cast(random.randint(0, 2, shape) / 3 > 0.1, dtype) for _ in range(2))
    first = make(0, own)
    assert len(line.sent) == messages
    second = make(1, others)
    assert (second.dtype, second.shape) == (dtype, shape)
    assert second.numpy().tobytes() == first.numpy().tobytes() == own.numpy().tobytes()


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [
        (np.zeros([2], np.float32), "bias", r"bias, float32 \[2\]"),
        (np.zeros([3], np.float32), "kernel", r"kernel, float32 \[3\]"),
        (np.zeros([9000], np.float32), "kernel", r"kernel, float32 \[9000\]"),
        (np.zeros([2], np.int32), "kernel", r"kernel, int32 \[2\]"),
    ],
)
def test_another_variable_is_refused_with_both_descriptions(
    make: Make, value: Any, name: str, said: str
) -> None:
    make(0, np.zeros([2], np.float32))
    line = rf"worker 1 makes the variable {said}, and worker 0 makes kernel, float32 \[2\]\. All "
    with pytest.raises(ModelsDifferError, match=line):
        make(1, value, name)


def test_a_tensor_of_a_function_is_refused_as_tensorflow_refuses_it(
    line: _Line, make: Make
) -> None:
    @tf.function
    def function() -> Any:
        return make(0, tf.zeros([2]))

    with pytest.raises(ValueError, match="could not be lifted out of"):
        function()
    assert not line.sent


def test_rows_that_the_first_replica_adds_are_worker_0s(line: _Line, make: Make) -> None:
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    for worker, rows in ((0, {1: 5.0}), (1, {0: 3.0, 2: 7.0})):
        variable = make(worker, np.zeros([3], np.float32), aggregation=first)

        def add(variable: Any = variable, rows: dict[int, float] = rows) -> None:
            slices = tf.IndexedSlices(tf.constant([*rows.values()]), tf.constant([*rows]))
            variable.scatter_add(slices)

        LocalStrategy(1).run(add)
        np.testing.assert_array_equal(variable, [0, 5, 0])


@pytest.mark.parametrize("name", ["scatter_update", "scatter_max"])
def test_an_update_that_combines_no_values_is_refused_in_a_replica_alone(name: str) -> None:
    strategy = LocalStrategy(2)
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0], name="v", aggregation=tf.VariableAggregation.SUM)

    def update() -> None:
        getattr(variable, name)(tf.IndexedSlices(tf.constant([5.0]), tf.constant([1])))

    with pytest.raises(AggregationError, match=rf"v:0\.{name} in .* Call assign, .* outside str"):
        strategy.run(update)
    update()
    np.testing.assert_array_equal(variable, [1, 5])
