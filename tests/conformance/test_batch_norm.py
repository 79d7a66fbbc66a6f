"""Batch norm over replicas: every layout computes what one process with the whole batch does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.processes

Trained = dict[str, dict[str, Any]]  # what comes out of each training, by its name

# The trainings, and how each differs from the first. One start of workers makes several.
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {"evaluates": True},
    "loop of steps": {"iterations": 3},
    "mean 1000": {"layer": "v1", "offset": 1000.0},
    "synchronized": {"layer": "tf_keras"},
    "own": {"layer": "own"},
    "pairs": {"group_size": 2},
    "pair as one": {"group_size": 1, "sizes": (8, 8)},
}

# Engine, batch sizes of the replicas, replicas in a worker, trainings.
LAYOUTS: dict[str, tuple[str, tuple[int, ...], int, tuple[str, ...]]] = {
    "alone": ("none", (16,), 1, ("plain", "mean 1000")),
    "grpc": ("grpc", (11, 5), 1, ("plain", "mean 1000", "synchronized", "own")),
    "horovod": ("horovod", (11, 5), 1, ("plain",)),
    "2 x 2": ("grpc", (4, 4, 4, 4), 2, ("loop of steps",)),
    "4 workers": ("grpc", (4, 4, 4, 4), 1, ("pairs",)),
    "2 replicas": ("none", (8, 8), 2, ("pair as one",)),
}


@pytest.fixture(scope="module")
def trained_before() -> dict[str, list[Trained]]:
    """Returns the results of `train` so far, by layout."""
    return {}


@pytest.fixture
def train(
    fake_cluster: Any, tmp_path_factory: pytest.TempPathFactory, trained_before: dict[str, Any]
) -> Callable[[str], list[Trained]]:
    """Makes the trainings of a layout on its workers; the result is kept."""
    import norm_training

    def train(layout: str) -> list[Trained]:
        engine, sizes, num_replicas, names = LAYOUTS[layout]
        if layout not in trained_before:
            workers = fake_cluster.run(
                norm_training.train_all,
                engine,
                str(tmp_path_factory.mktemp("norm")),
                [{"sizes": sizes, **TRAININGS[name]} for name in names],
                num_replicas,
                engine=engine,
                num_workers=len(sizes) // num_replicas,
            )
            trained_before[layout] = [dict(zip(names, own, strict=True)) for own in workers]
        return trained_before[layout]

    return train


def _assert_equal(one: dict[str, Any], other: dict[str, Any], atol: float = 1e-6) -> None:
    assert one["values"].keys() == other["values"].keys()
    for name, value in one["values"].items():
        np.testing.assert_allclose(value, other["values"][name], atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("layout", "name"), [("grpc", "plain"), ("horovod", "plain"), ("2 x 2", "loop of steps")]
)
def test_workers_and_replicas_equal_one_process_with_the_whole_batch(
    train: Any, layout: str, name: str
) -> None:
    [alone] = train("alone")
    first, second = train(layout)
    _assert_equal(first[name], alone["plain"])
    for variable, value in first[name]["values"].items():
        np.testing.assert_array_equal(second[name]["values"][variable], value, err_msg=variable)


@pytest.mark.parametrize("layout", ["grpc", "horovod"])
def test_the_chief_evaluates_without_the_others(train: Any, layout: str) -> None:
    [alone] = train("alone")
    first, second = train(layout)
    assert second["plain"]["evaluated"] is None
    assert first["plain"]["evaluated"] == pytest.approx(alone["plain"]["evaluated"], abs=1e-6)
    assert first["plain"]["evaluated"] < 1.0


def test_inputs_of_mean_1000_keep_their_digits(train: Any) -> None:
    [alone], workers = train("alone"), train("grpc")
    values = {k: v for k, v in alone["mean 1000"]["values"].items() if k != "first/moving_mean"}
    found = workers[0]["mean 1000"]["values"]
    assert found.keys() - values.keys() == {"first/moving_mean"}
    for variable, value in values.items():
        np.testing.assert_allclose(found[variable], value, atol=1e-6, err_msg=variable)


def test_a_layer_sends_one_message_each_way(train: Any) -> None:
    messages = {name: result["messages"] for name, result in train("grpc")[0].items()}
    assert messages["plain"] == messages["own"] + 2 * 2  # Two layers.


def test_a_layer_of_tf_keras_sends_five_messages_and_has_the_same_numbers(train: Any) -> None:
    [alone], workers = train("alone"), train("grpc")
    messages = {name: result["messages"] for name, result in workers[0].items()}
    assert messages["synchronized"] == messages["own"] + 2 * 5
    _assert_equal(workers[0]["synchronized"], alone["plain"], atol=1e-5)
    with pytest.raises(AssertionError):  # Statistics of its own on each worker.
        _assert_equal(workers[0]["own"], alone["plain"], atol=1e-2)


def test_groups_of_two_of_four_workers_equal_pairs(train: Any) -> None:
    [alone], [pairs] = train("alone"), train("2 replicas")
    workers = [worker["pairs"] for worker in train("4 workers")]
    for worker in workers:
        _assert_equal(worker, pairs["pair as one"])
        for variable, value in workers[0]["values"].items():
            np.testing.assert_array_equal(worker["values"][variable], value, err_msg=variable)
    with pytest.raises(AssertionError):  # All four together are something else.
        _assert_equal(workers[0], alone["plain"], atol=1e-3)


def test_other_group_sizes_on_two_workers_are_refused_by_the_layers_name(
    fake_cluster: Any, tmp_path: Any
) -> None:
    import norm_training

    def train(folder: str) -> str:
        from tfdist.cluster import find_cluster
        from tfdist.estimator import ModelMismatchError

        _, task = find_cluster()
        options = {"sizes": (8, 8), "group_size": 2 - task.index}
        with pytest.raises(ModelMismatchError) as caught:
            norm_training.train_all("grpc", folder, [options])
        return str(caught.value)

    first, second = fake_cluster.run(train, str(tmp_path))
    assert first == second
    assert "only one of them reduces first over groups of 2 replicas (float32 (1, 16))" in first
