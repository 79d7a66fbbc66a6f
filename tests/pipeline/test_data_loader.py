"""Combined batches of arrays, of datasets with items and of tf.data.Datasets."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster.instance_variables import instance_environment
from tfdist.pipeline.data_loader import DataLoader
from tfdist.pipeline.options import Options


class Squares:
    """A dataset with items: (i, i * i, "odd" or "even") as a dict inside a tuple."""

    def __init__(self, length: int = 12) -> None:
        self.length = length
        self.threads: set[str] = set()
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.threads.add(threading.current_thread().name)
        self.read.append(index)
        return {"number": np.float32(index), "half": index / 2}, np.full([2], index * index)


def squares(kind: str, length: int = 12) -> Any:
    """The same samples, (i, [i * i, i * i]), in the way that `kind` says."""
    arrays = (np.arange(length), np.repeat(np.arange(length)[:, None] ** 2, 2, axis=1))
    return {
        "arrays": arrays,
        "items": [(np.asarray(a), b) for a, b in zip(*arrays, strict=True)],
        "stream": tf.data.Dataset.from_tensor_slices(arrays),
    }[kind]


KINDS = ["arrays", "items", "stream"]


def numbers(loader: Any) -> list[list[int]]:
    """The samples' numbers in each item, of an epoch; each with its own square."""
    items = list(loader)
    for number, square in items:
        np.testing.assert_array_equal(square[:, 1], number.numpy() ** 2)
    return [number.numpy().tolist() for number, _ in items]


def joined(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


@pytest.fixture
def as_instance(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process one of several workers."""

    def as_instance(index: int, count: int) -> None:
        variables = instance_environment(
            index=index,
            num_instances=count,
            local_index=index,
            num_total_replicas=count,
            devices_per_replica=1,
        )
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return as_instance


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [one for one in threading.enumerate() if one.name.startswith("DataLoader")]


# What an item is.


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_is_what_one_call_of_the_model_takes(kind: str) -> None:
    options = Options().device_iterations(3).gradient_accumulation(2).replication_factor(2)
    loader = DataLoader(options, squares(kind, 50), batch_size=2)
    assert loader.combined_batch_size == 24
    assert len(loader) == 2
    assert numbers(loader) == [list(range(24)), list(range(24, 48))]


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_eager_tensors_on_the_host(kind: str) -> None:
    item = next(iter(DataLoader(Options(), squares(kind))))
    assert isinstance(item, tuple)
    assert [type(one).__name__ for one in item] == ["EagerTensor"] * 2
    assert [one.dtype for one in item] == [tf.int64, tf.int64]
    assert all(one.device.endswith("/device:CPU:0") for one in item)


def test_dicts_of_arrays_stay_dicts() -> None:
    dataset = {"x": np.zeros([4, 3], np.float32), "more": (np.arange(4), tf.range(4))}
    item = next(iter(DataLoader(Options(), dataset, batch_size=4)))
    assert item["x"].shape == (4, 3)
    assert item["more"][0].numpy().tolist() == item["more"][1].numpy().tolist() == [0, 1, 2, 3]


def test_structures_of_samples_are_stacked_with_tensorflows_types() -> None:
    features, square = next(iter(DataLoader(Options(), Squares(), batch_size=3)))
    assert {name: one.dtype for name, one in features.items()} == {
        "number": tf.float32,
        "half": tf.float32,
    }
    assert features["half"].numpy().tolist() == [0, 0.5, 1]
    assert square.numpy().tolist() == [[0, 0], [1, 1], [4, 4]]
    text, count = next(iter(DataLoader(Options(), [(b"a\0", 1), (b"b", 2)], batch_size=2)))
    assert text.numpy().tolist() == [b"a\0", b"b"]
    assert count.dtype == tf.int32


def test_one_array_gives_one_tensor_that_does_not_change_with_it() -> None:
    array = np.arange(4)
    items = list(DataLoader(Options(), array, batch_size=2))
    array[:] = 9
    assert [item.numpy().tolist() for item in items] == [[0, 1], [2, 3]]


# Epochs.


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_is_dropped_or_a_smaller_item(kind: str) -> None:
    dropped = DataLoader(Options(), squares(kind), batch_size=5)
    kept = DataLoader(Options(), squares(kind), batch_size=5, drop_last=False)
    assert len(dropped) == 2
    assert [len(one) for one in numbers(dropped)] == [5, 5]
    assert len(kept) == 3
    assert [len(one) for one in numbers(kept)] == [5, 5, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_the_same_unless_shuffled(kind: str) -> None:
    loader = DataLoader(Options(), squares(kind), batch_size=4)
    assert numbers(loader) == numbers(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("kind", KINDS)
def test_each_epoch_is_shuffled_anew_and_reproducibly(kind: str) -> None:
    def epochs(options: Options) -> list[list[int]]:
        loader = DataLoader(options, squares(kind, 40), batch_size=8, shuffle=True)
        return [joined(numbers(loader)) for _ in range(3)]

    ours = epochs(Options().random_seed(7))
    assert all(sorted(epoch) == list(range(40)) for epoch in ours)
    assert len({tuple(epoch) for epoch in [*ours, range(40)]}) == 4
    assert epochs(Options().random_seed(7)) == ours
    assert epochs(Options().random_seed(8)) != ours
    assert epochs(Options()) != epochs(Options())


def test_two_loops_at_a_time_do_not_disturb_each_other() -> None:
    loader = DataLoader(Options(), np.arange(6), batch_size=2)
    pairs = [(a.numpy()[0], b.numpy()[0]) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(0, 0), (2, 2), (4, 4)]


# In the background.


def test_items_are_read_in_advance_by_another_thread() -> None:
    dataset = Squares(100)
    items = iter(DataLoader(Options(), dataset, batch_size=2))
    next(items)
    limit = threading.Event()
    while len(dataset.read) < 6 and not limit.wait(0.01):
        pass
    items.close()
    assert dataset.read == list(range(6))  # Two items ahead, and no more.
    assert all(name.startswith("DataLoader") for name in dataset.threads)


def test_several_threads_keep_the_order() -> None:
    loader = DataLoader(Options(), squares("items", 200), batch_size=4, num_workers=4)
    assert joined(numbers(loader)) == list(range(200))


def test_without_workers_the_caller_reads() -> None:
    dataset = Squares()
    items = iter(DataLoader(Options(), dataset, num_workers=0))
    next(items)
    assert dataset.threads == {threading.current_thread().name}
    assert dataset.read == [0]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_loop_left_early_leaves_no_thread(num_workers: int) -> None:
    for _ in DataLoader(Options(), Squares(100), num_workers=num_workers):
        break  # no_thread_is_left looks.


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_error_of_the_dataset_reaches_the_loop_as_it_is(num_workers: int) -> None:
    class Broken(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise FileNotFoundError("no image 5")
            return index

    read = []
    with pytest.raises(FileNotFoundError, match=r"^no image 5$"):
        for item in DataLoader(Options(), Broken(), batch_size=2, num_workers=num_workers):
            read.append(item.numpy().tolist())
    assert read == [[0, 1], [2, 3]]


# Several workers.


@pytest.mark.parametrize("kind", KINDS)
def test_each_worker_reads_its_own_contiguous_part(kind: str, as_instance: Any) -> None:
    for index, expected in enumerate([[[0, 1], [2, 3]], [[4, 5], [6, 7]]]):
        as_instance(index, 2)
        loader = DataLoader(Options(), squares(kind, 9), batch_size=2)
        assert len(loader) == 2
        assert numbers(loader) == expected
        everything = DataLoader(
            Options(), squares(kind, 9), batch_size=9, auto_distributed_partitioning=False
        )
        assert numbers(everything) == [list(range(9))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_shuffled_epochs_do_not_overlap(kind: str, as_instance: Any) -> None:
    epochs: list[list[list[int]]] = []
    for index in range(3):
        as_instance(index, 3)
        options = Options().random_seed(0)
        loader = DataLoader(options, squares(kind, 30), batch_size=5, shuffle=True)
        epochs.append([joined(numbers(loader)) for _ in range(2)])
    for parts in zip(*epochs, strict=True):
        assert sorted(joined(parts)) == list(range(30))
    assert epochs[0][0] != epochs[0][1]


def test_without_dropping_every_sample_is_in_one_of_nearly_equal_parts(as_instance: Any) -> None:
    parts = []
    for index in range(3):
        as_instance(index, 3)
        loader = DataLoader(Options(), squares("arrays", 11), drop_last=False)
        parts.append(joined(numbers(loader)))
    assert joined(parts) == list(range(11))
    assert sorted(map(len, parts)) == [3, 4, 4]


def test_a_stream_of_unknown_length_is_dealt_out(as_instance: Any) -> None:
    as_instance(1, 2)
    stream = squares("stream", 8).filter(lambda a, b: True)
    assert numbers(DataLoader(Options(), stream, batch_size=2)) == [[1, 3], [5, 7]]


def test_shuffling_for_several_workers_needs_a_seed(as_instance: Any) -> None:
    as_instance(0, 2)
    with pytest.raises(ValueError, match=r"random_seed where 2 worker .* options.random_seed\(0\)"):
        DataLoader(Options(), np.arange(4), shuffle=True)
    DataLoader(Options(), np.arange(4), shuffle=True, auto_distributed_partitioning=False)


# tf.data.Datasets without a length.


def test_a_stream_of_unknown_length_has_none_and_is_shuffled_by_its_owner() -> None:
    stream = squares("stream").filter(lambda a, b: a > 1)
    loader = DataLoader(Options(), stream, batch_size=5)
    assert numbers(loader) == [[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
    assert numbers(loader) == [[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
    with pytest.raises(TypeError, match=r"^the length of this tf\.data\.Dataset is unknown"):
        len(loader)
    assert len(list(loader)) == 2  # Which asks for the length, too.
    with pytest.raises(ValueError, match=r"cannot be shuffled as a whole\. Write dataset\.shuffle"):
        DataLoader(Options(), stream, shuffle=True)


def test_an_endless_stream_goes_on() -> None:
    items = iter(DataLoader(Options(), squares("stream").repeat(), batch_size=8))
    assert [next(items)[0].numpy()[0] for _ in range(3)] == [0, 8, 4]


# What is refused.


def test_too_few_samples_for_one_item(as_instance: Any) -> None:
    options = Options().device_iterations(10).gradient_accumulation(10)
    with pytest.raises(ValueError) as caught:
        DataLoader(options, np.arange(300), batch_size=40)
    assert str(caught.value) == (
        "the dataset has 300 samples, and one item takes 4000 (batch_size 40 x "
        "gradient_accumulation 10 x device_iterations 10). Give more samples, lower one of these, "
        "or set drop_last=False."
    )
    as_instance(0, 2)
    with pytest.raises(ValueError, match="has 3500 samples of 7001 for each of 2 workers, and"):
        DataLoader(options, np.arange(7001), batch_size=40)
    with pytest.raises(ValueError, match="has 1 sample for 2 workers, and this one would get no"):
        DataLoader(options, np.arange(1), batch_size=40, drop_last=False)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_dataset(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^the dataset is empty"):
        DataLoader(Options(), squares(kind, 0), drop_last=False)


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        (([1, 2], [3, 4]), "got int"),
        ((np.zeros(3), np.zeros([])), "got one without dimensions"),
        ({"x": None}, "got NoneType"),
        ((i for i in range(3)), r"got generator\. Make one of a generator with tf\.data"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_dataset(dataset: Any, found: str) -> None:
    with pytest.raises(TypeError, match=found):
        DataLoader(Options(), dataset)


def test_arrays_of_different_lengths() -> None:
    with pytest.raises(ValueError, match=r"as many samples each, got 4 and 3\. Give arrays with"):
        DataLoader(Options(), (np.zeros([4, 2]), np.zeros(3)))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda: [np.zeros(4), np.zeros(5)],
            r"a value of sample 1 has shape \(5,\), and in sample 0 it",
        ),
        (
            lambda: [(1, 2), (1,)],
            r"sample 1 is \(int\) and sample 0 is \(int, int\)\. Give every sample",
        ),
        (lambda: [{"a": 1}, {"b": 1}], "sample 1 is {'b': int} and sample 0 is {'a': int}"),
        (lambda: [None, None], "a value of sample 0 is NoneType, which no tensor"),
        (
            lambda: tf.data.Dataset.range(1, 5).map(lambda i: tf.zeros([i])),
            r"do not stack: First element had shape \[1\] .* \[2\]\.",
        ),
        (
            lambda: squares("stream").filter(lambda a, b: a > 10),
            r"ended before one item, which takes 2 \(batch_size 2",
        ),
    ],
)
def test_samples_that_make_no_item(make: Callable[[], Any], error: str) -> None:
    loader = DataLoader(Options(), make(), batch_size=2)
    with pytest.raises((ValueError, TypeError), match=error):
        list(loader)


@pytest.mark.parametrize(
    ("kind", "arguments", "error"),
    [
        ("arrays", {"batch_size": 0}, r"^batch_size must be at least 1, got 0"),
        ("arrays", {"batch_size": 2.0}, r"^batch_size must be an integer, got 2\.0"),
        ("arrays", {"batch_size": True}, r"^batch_size must be an integer, got True"),
        ("arrays", {"shuffle": 1000}, r"^shuffle must be True or False, got 1000"),
        ("arrays", {"drop_last": None}, r"^drop_last must be True or False, got None"),
        ("arrays", {"num_workers": -1}, r"^num_workers must be an integer of at least 0, got -1"),
        ("stream", {"num_workers": 4}, r"num_workers is 4, but a tf\.data\.Dataset has threads"),
    ],
)
def test_arguments_that_are_not_allowed(kind: str, arguments: dict[str, Any], error: str) -> None:
    options = Options()
    with pytest.raises((TypeError, ValueError), match=error):
        DataLoader(options, squares(kind), **arguments)
    options.device_iterations(2)  # Not frozen by what never was.


def test_options_come_first_and_are_frozen() -> None:
    options = Options()
    with pytest.raises(TypeError, match=r"^options must be Options, got ndarray\. Write DataLo"):
        DataLoader(np.arange(4), options)  # type: ignore[arg-type]
    DataLoader(options, np.arange(4))
    with pytest.raises(AttributeError, match=r"in use by a DataLoader"):
        options.device_iterations(2)
