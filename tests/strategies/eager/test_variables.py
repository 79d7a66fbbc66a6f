"""Initial values of TensorFlow 2's variables: worker 0's, in few messages, of the same model."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    """Two workers' ends of an engine: each call waits for the other worker's."""

    num_workers = 2
    bucket_size_bytes = threshold_bytes = 1 << 20

    def __init__(self) -> None:
        self.num_messages = 0
        self._given: dict[int, tf.Tensor] = {}
        self._barrier = threading.Barrier(2, timeout=60)
        self._thread = threading.local()

    @property
    def worker_index(self) -> int:
        return int(getattr(self._thread, "worker", 0))

    def on_both(self, function: Callable[[int], Any]) -> list[Any]:
        """Calls a function on both workers at once."""

        def call(worker: int) -> Any:
            self._thread.worker = worker
            return function(worker)

        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(call, range(2))]

    def _exchange(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        self._given[self.worker_index] = tensor
        if self._barrier.wait() == 0:
            self.num_messages += 1
        given = [self._given[0], self._given[1]]
        self._barrier.wait()
        return given

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._exchange(tensor)[0]

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        given = self._exchange(tensor)
        assert not same_rows or given[0].shape == given[1].shape  # Or the engine would wait.
        return tf.concat(given, axis=0)


Make = Callable[..., Any]


@pytest.fixture
def line() -> _Line:
    return _Line()


@pytest.fixture
def make(line: _Line) -> Make:
    """Makes a variable on a worker, which waits for the other one."""

    def make(value: Any, name: str = "kernel", **options: Any) -> Any:
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
    values = [tf.cast(random.randint(0, 2, shape) / 3 > 0.1, dtype) for _ in range(2)]
    first, second = line.on_both(lambda worker: make(values[worker]))
    assert line.num_messages == messages
    assert (second.dtype, second.shape) == (dtype, shape)
    assert second.numpy().tobytes() == first.numpy().tobytes() == values[0].numpy().tobytes()


def test_a_large_value_that_both_workers_have_is_not_sent(line: _Line, make: Make) -> None:
    first, second = line.on_both(lambda worker: make(np.zeros([50, 100], np.float32)))
    assert line.num_messages == 1
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("value", "name", "said"),
    [
        (np.zeros([2], np.float32), "bias", r"bias, float32 \[2\]"),
        (np.zeros([3], np.float32), "kernel", r"kernel, float32 \[3\]"),
        (np.zeros([9000], np.float32), "kernel", r"kernel, float32 \[9000\]"),
        (np.zeros([2], np.int32), "kernel", r"kernel, int32 \[2\]"),
    ],
)
def test_another_variable_is_refused_on_both_workers_with_both_descriptions(
    line: _Line, make: Make, value: Any, name: str, said: str
) -> None:
    text = rf"worker 1 makes the variable {said}, and worker 0 makes kernel, float32 \[2\]\. All "

    def make_own(worker: int) -> None:
        with pytest.raises(ModelsDifferError, match=text):
            make(*(value, name) if worker else (np.zeros([2], np.float32),))

    line.on_both(make_own)


def test_a_tensor_of_a_function_is_refused_as_tensorflow_refuses_it(
    line: _Line, make: Make
) -> None:
    @tf.function
    def function() -> Any:
        return make(tf.zeros([2]))

    with pytest.raises(ValueError, match="could not be lifted out of"):
        function()
    assert not line.num_messages


def test_rows_that_the_first_replica_adds_are_worker_0s(line: _Line, make: Make) -> None:
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA

    def add_rows(worker: int) -> Any:
        rows = ({1: 5.0}, {0: 3.0, 2: 7.0})[worker]
        variable = make(np.zeros([3], np.float32), aggregation=first)

        def add() -> None:
            slices = tf.IndexedSlices(tf.constant([*rows.values()]), tf.constant([*rows]))
            variable.scatter_add(slices)

        LocalStrategy(1).run(add)
        return variable

    for variable in line.on_both(add_rows):
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
