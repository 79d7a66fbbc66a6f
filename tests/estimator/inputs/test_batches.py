"""The arguments and results of an input_fn, and the end of its data."""

import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.inputs.batches import Input, call_input_fn, make_input

pytestmark = pytest.mark.usefixtures("graph")

Named = namedtuple("Named", ["first", "second"])


def _read(given: Input) -> list[Any]:
    """Reads (features, labels, has_more) to the end; what is None stays so."""
    return _read_with_start(given)[1]


def _read_with_start(given: Input) -> tuple[float | None, list[Any]]:
    """Reads is_enough, as it must be before the first batch, then all batches."""
    known = {i: x for i, x in enumerate(given.next_batch()) if x is not None}
    is_enough, rows = None, []
    with v1.train.SingularMonitoredSession(hooks=given.hooks) as session:
        if given.is_enough is not None:
            is_enough = float(session.run(given.is_enough))
        while not session.should_stop():
            values = session.run(known)
            rows.append(tuple(values.get(i) for i in range(3)))
    return is_enough, rows


# Arguments of an input_fn.

CONTEXT = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1)
ALL = {"mode": "train", "params": {"a": 1}, "config": "config", "input_context": CONTEXT}


def _call(input_fn: Callable[..., Any], **changed: Any) -> Any:
    return call_input_fn(input_fn, **{**ALL, **changed})


def test_an_input_fn_gets_the_arguments_that_it_names() -> None:
    assert _call(lambda: "none") == "none"
    assert _call(lambda params: params) == {"a": 1}
    assert _call(lambda config, mode: (config, mode)) == ("config", "train")
    assert _call(lambda input_context: input_context) is CONTEXT
    assert _call(lambda mode, params, config, input_context: 4) == 4


def test_a_bound_method_and_a_callable_object_get_them_too() -> None:
    class Reader:
        def read(self, params: Any) -> Any:
            return params

        def __call__(self, mode: str) -> str:
            return mode

    assert _call(Reader().read) == {"a": 1}
    assert _call(Reader()) == "train"


def test_arguments_that_a_partial_has_bound_are_left_alone() -> None:
    def input_fn(path: str, batch_size: int, mode: str, params: Any = None) -> Any:
        return path, batch_size, mode, params

    bound = functools.partial(input_fn, "path", batch_size=3, params="own")
    assert _call(bound) == ("path", 3, "train", "own")


def test_without_a_strategy_an_optional_input_context_keeps_its_default() -> None:
    assert _call(lambda input_context="own": input_context, input_context=None) == "own"
    assert _call(lambda input_context: input_context, input_context=None) is None


def test_an_input_fn_runs_on_the_host() -> None:
    with tf.device("/device:CPU:1"):
        assert _call(lambda: tf.constant(1.0)).device == "/device:CPU:0"


# What it may return.


@pytest.mark.parametrize(
    ("element", "batch"),
    [
        (([1], [3]), (1, 3)),
        ([1], (1, None)),
        ({"a": [1], "b": [3]}, ({"a": 1, "b": 3}, None)),
        (([1],), (1, None)),
        (
            ({"a": {"b": [1]}, "c": ([2], [3])}, {"d": [4]}),
            ({"a": {"b": 1}, "c": (2, 3)}, {"d": 4}),
        ),
        (Named([1], [2]), (1, 2)),
    ],
    ids=["pair", "tensor", "dict", "one_tuple", "nested", "named_tuple"],
)
@pytest.mark.parametrize("api", [tf, v1])
def test_the_elements_of_a_dataset_are_features_or_a_pair(
    element: Any, batch: tuple[Any, Any], api: Any
) -> None:
    dataset = api.data.Dataset.from_tensor_slices(element)
    assert _read(make_input(dataset)) == [(*batch, None)]


def test_what_a_users_own_iterator_gets_has_an_end() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(({"a": [1]}, [2]))
    features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
    given = make_input((features, labels))
    assert given.next_batch() == (features, labels, None)
    assert not given.is_endless


def test_what_a_queue_gives_has_an_end() -> None:
    features = v1.train.batch([v1.train.limit_epochs(tf.constant(1.0), 2)], 1)
    assert not make_input(features).is_endless


def _aligned(values: np.ndarray) -> np.ndarray:
    """Returns a copy at an address whose memory TensorFlow takes for a tensor."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


def _own_iterator(dataset: tf.data.Dataset) -> Any:
    iterator = v1.data.make_initializable_iterator(dataset)
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


@pytest.mark.parametrize("look_ahead", [None, 1])
@pytest.mark.parametrize("give", [lambda dataset: dataset, _own_iterator])
def test_a_step_leaves_the_arrays_of_a_generator_as_they_are(
    give: Callable[[Any], Any], look_ahead: int | None
) -> None:
    # Whether TensorFlow computes in place differs from one to the next.
    arrays = [_aligned(np.full([4, 16], number, np.float32)) for number in range(20)]
    dataset = tf.data.Dataset.from_generator(
        lambda: arrays, output_signature=tf.TensorSpec([None, 16], tf.float32)
    )
    given = make_input(give(dataset.rebatch(2).repeat(2)), look_ahead=look_ahead)
    features = given.next_batch()[0]
    is_read = tf.reduce_sum(1.0 - features)  # In place, if nothing else reads the features.
    with v1.train.SingularMonitoredSession(hooks=given.hooks) as session:
        if given.is_enough is not None:
            session.run(given.is_enough)
        sums = []
        while not session.should_stop():
            sums.append(session.run(is_read))
    assert [array.max() for array in arrays] == [array.min() for array in arrays] == [*range(20)]
    assert sums[:80] == [32.0 * (1 - number) for number in range(20) for _ in range(2)] * 2


def test_tensors_are_an_input_without_an_end() -> None:
    features, labels = tf.constant(1), tf.constant(2)
    for pair in ((features, labels), [features, labels]):
        given = make_input(pair)
        assert given.next_batch() == (features, labels, None)
        assert given.is_endless
    assert make_input({"a": features}).next_batch() == ({"a": features}, None, None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tf.data.Dataset.from_tensor_slices(([1], [2], [3])), "tuple of 3.*dict"),
        (lambda: [tf.constant(1)] * 3, r"\(features, labels\) as a len 2 tuple, got a tuple of 3"),
        (lambda: None, "input_fn returned None"),
    ],
    ids=["dataset of triples", "three tensors", "nothing"],
)
def test_other_results_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_input(make())


# Tensors where a session call takes several batches, or workers must agree on the end.


def _numbers_of_iterator(count: int) -> Any:
    dataset = tf.data.Dataset.range(count).map(lambda i: ({"a": i, "b": [i, i]}, -i))
    return v1.data.make_one_shot_iterator(dataset).get_next()


@pytest.mark.parametrize("distance", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_tensors_are_looked_ahead_as_a_dataset_is(count: int, distance: int) -> None:
    is_enough, rows = _read_with_start(make_input(_numbers_of_iterator(count), look_ahead=distance))
    assert is_enough == float(count >= distance)
    if is_enough:
        assert [row[1] for row in rows] == [-i for i in range(count)]
        assert [row[0]["b"].tolist() for row in rows] == [[i, i] for i in range(count)]
        assert [row[2] for row in rows] == [float(i + distance < count) for i in range(count)]


def test_keys_of_several_types_sparse_features_and_constants_are_passed_on() -> None:
    sparse = tf.sparse.from_dense([[0, 7]])
    given = make_input({3: tf.constant([1.0]), "a": {"b": sparse}}, look_ahead=1)
    features, labels, has_more = given.next_batch()
    assert features[3].shape == [1] and labels is None and given.is_endless
    with v1.train.SingularMonitoredSession(hooks=given.hooks) as session:
        assert session.run(given.is_enough) == 1.0
        for _ in range(3):
            row = session.run([features[3], features["a"]["b"], has_more])
            assert (row[0].tolist(), row[1].values.tolist(), row[2]) == ([1.0], [7], 1.0)


def test_a_queue_ends_where_a_call_takes_several_batches() -> None:
    features = v1.train.batch([v1.train.limit_epochs(tf.constant(1.0), 3)], 1)
    rows = _read(make_input(features, many_per_call=True))
    assert [row[0].tolist() for row in rows[:3]] == [[1.0]] * 3 and len(rows) == 3


def test_a_failure_of_the_input_ends_the_step_that_waits_for_it() -> None:
    dataset = tf.data.Dataset.from_tensors("x").map(tf.strings.to_number)
    tensors = v1.data.make_one_shot_iterator(dataset).get_next()
    given = make_input(tensors, many_per_call=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"the input failed.*could not correctly convert"
    ):
        _read(given)


def test_what_cannot_be_passed_on_is_refused_and_the_advice_helps() -> None:
    fed = v1.placeholder(tf.float32, [2], name="fed")
    advice = (
        r"Return a tf.data.Dataset, such as tf.data.Dataset.from_tensor_slices\(\(features, "
        r"labels\)\)\.batch\(size\)"
    )
    with pytest.raises(ValueError, match=f"placeholder 'fed'.*{advice}"):
        make_input({"a": fed * 2}, look_ahead=1)
    with pytest.raises(ValueError, match=f"got a float among them. {advice}"):
        make_input({"a": 1.0}, look_ahead=1)
    features, labels, size = [1.0, 2.0], [3.0, 4.0], 1
    advised = tf.data.Dataset.from_tensor_slices((features, labels)).batch(size)
    assert len(_read(make_input(advised, look_ahead=1))) == 2


# The look-ahead.


def _end_is_seen(dataset: tf.data.Dataset, distance: int, *, count: int) -> list[Any]:
    """Reads `count` batches with a look-ahead, checks what it says, returns the rest."""
    is_enough, rows = _read_with_start(make_input(dataset, look_ahead=distance))
    assert is_enough == float(count >= distance)
    assert [row[2] for row in rows] == [float(count - 1 - i >= distance) for i in range(count)]
    return [row[:2] for row in rows]


@pytest.mark.parametrize("distance", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9])
def test_has_more_says_whether_as_many_batches_follow(distance: int, count: int) -> None:
    rows = _end_is_seen(tf.data.Dataset.range(count), distance, count=count)
    assert rows == [(i, None) for i in range(count)]


@pytest.mark.parametrize("shape", [None, [None, None], [None, 2]])
def test_the_end_of_tensors_of_unknown_shape_is_seen(shape: Any) -> None:
    def generate() -> Any:
        for i in range(1, 4):
            yield np.full([i, 2], i, np.float32)

    signature = tf.TensorSpec(shape, tf.float32)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    given = make_input(dataset, look_ahead=2)
    assert given.next_batch()[0].shape.rank == (None if shape is None else 2)
    rows = _end_is_seen(dataset, 2, count=3)
    assert [row[0].shape for row in rows] == [(1, 2), (2, 2), (3, 2)]


def test_a_far_look_ahead_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def scan(
        self: Any, state: Any, function: Callable[..., Any], scan: Any = tf.data.Dataset.scan
    ) -> Any:
        def noted(*args: Any) -> Any:
            traced.append(args)
            return function(*args)

        return scan(self, state, tf.autograph.experimental.do_not_convert(noted))

    monkeypatch.setattr(tf.data.Dataset, "scan", scan)
    _end_is_seen(
        tf.data.Dataset.range(40).batch(2), 16, count=20
    )  # Of unknown size, to TensorFlow.
    assert len(traced) == 1


def test_static_shapes_survive_the_look_ahead() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.ones([4, 7]), [1, 2, 3, 4])).batch(
        2, drop_remainder=True
    )
    features, labels, has_more = make_input(dataset, look_ahead=1).next_batch()
    assert has_more is not None
    assert (features.shape, labels.shape, has_more.shape) == ((2, 7), (2,), ())


def _words() -> tf.data.Dataset:
    words = np.array(["a", "b", "c"])
    return tf.data.Dataset.from_tensor_slices(({"word": words, "n": [1, 2, 3]}, [4, 5, 6]))


def _sparse() -> tf.data.Dataset:
    sparse = tf.sparse.from_dense(np.diag([1.0, 2.0, 3.0]))
    return tf.data.Dataset.from_tensor_slices(sparse).batch(1)


def _ragged() -> tf.data.Dataset:
    ragged = tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 0, 2])
    return tf.data.Dataset.from_tensor_slices(ragged).batch(1)


def _plain(value: Any) -> Any:
    lists = getattr(value, "to_list", None) or getattr(value, "tolist", None)
    return value if lists is None else lists()


def _elements(element: Any) -> Callable[[], tf.data.Dataset]:
    return lambda: tf.data.Dataset.from_tensor_slices(element)


@pytest.mark.parametrize(
    ("make", "distance", "count"),
    [
        (_words, 2, 3),
        (lambda: tf.data.Dataset.range(5).batch(2), 1, 3),
        (_sparse, 2, 3),
        (_ragged, 1, 3),
        (_elements(([1, 2],)), 1, 2),
        (_elements(Named([1, 2], [3, 4])), 1, 2),
        (_elements((([1, 2], [3, 4]), [5, 6])), 1, 2),
        (_elements({"a": [True, False]}), 1, 2),
        (_elements(([1, 2], None)), 1, 2),
    ],
    ids=[
        "strings", "smaller_last", "sparse", "ragged", "one_tuple", "named_tuple", "nested",
        "booleans", "none",
    ],
)  # fmt: skip
def test_the_end_is_seen_whatever_the_structure(
    make: Callable[[], tf.data.Dataset], distance: int, count: int
) -> None:
    with_look_ahead = _end_is_seen(make(), distance, count=count)
    without = [row[:2] for row in _read(make_input(make()))]
    assert tf.nest.map_structure(_plain, with_look_ahead) == tf.nest.map_structure(_plain, without)
