"""Small programs, run by every strategy: one with an Estimator, and those of TensorFlow 2."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

Results = list[dict[str, dict[str, Any]]]  # Of each worker, by the program's name.


@pytest.fixture
def train() -> Callable[..., dict[str, Any]]:
    """A function that trains a small network in the process that calls it."""
    import small_training

    return small_training.train


@pytest.fixture(scope="session")
def trained_before() -> dict[Any, Any]:
    """The results of `train_once` and `train_alone` so far."""
    return {}


@pytest.fixture
def train_once(
    fake_cluster: Any,
    train: Callable[..., dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    trained_before: dict[Any, Any],
) -> Callable[..., list[dict[str, Any]]]:
    """Trains on workers; what comes out of the same options again is what came out before.

    Each worker also tells its `model_dir`.
    """

    def train_once(engine: str, num_workers: int = 2, **options: Any) -> list[dict[str, Any]]:
        key = (engine, num_workers, *sorted(options.items()))
        if key not in trained_before:
            folder = str(tmp_path_factory.mktemp("trained"))
            workers = fake_cluster.run(
                train, engine, folder, engine=engine, num_workers=num_workers, **options
            )
            trained_before[key] = [{**worker, "model_dir": folder} for worker in workers]
        return trained_before[key]

    return train_once


@pytest.fixture
def train_alone(train_once: Callable[..., list[dict[str, Any]]]) -> Callable[..., dict[str, Any]]:
    """Trains in one process that is part of nothing."""

    def train_alone(**options: Any) -> dict[str, Any]:
        return train_once("none", 1, **options)[0]

    return train_alone


# Programs of TensorFlow 2: a module runs all of its programs in one set of processes per layout.


@pytest.fixture(scope="module")
def results_of(
    request: pytest.FixtureRequest, fake_cluster_server: Any
) -> Iterator[Callable[[str], Results]]:
    """Runs all programs in a layout; what came out is kept.

    The test module names the programs' module, `PROGRAMS`, and its `LAYOUTS`: engine, workers and
    replicas of each. Where it has `NAMES`, they are the programs of each layout.
    """
    from tfdist.testing.fake_cluster import FakeCluster

    programs: str = request.module.PROGRAMS
    made_before: dict[str, Results] = {}
    cluster = FakeCluster(fake_cluster_server)

    def run_all(num_replicas: int, names: list[str]) -> Any:
        # By name: AutoGraph reads the source of its functions.
        return importlib.import_module(programs).run_all(num_replicas, names)

    def results_of(layout: str) -> Results:
        if layout not in made_before:
            engine, num_workers, num_replicas = request.module.LAYOUTS[layout]
            names = getattr(request.module, "NAMES", {}).get(layout, [])
            made_before[layout] = cluster.run(
                run_all, num_replicas, names, engine=engine, num_workers=num_workers, timeout_s=400
            )
        return made_before[layout]

    yield results_of
    cluster.close()


@pytest.fixture
def found(
    results_of: Callable[[str], Results], layout: str
) -> Callable[[str], list[dict[str, Any]]]:
    """Returns what a program gives on each worker of a layout; its error fails the test."""

    def found(name: str) -> list[dict[str, Any]]:
        own = [worker[name] for worker in results_of(layout)]
        for worker in own:
            assert "error" not in worker, worker["error"]
        return own

    return found


@pytest.fixture
def compare_with_one_process(
    results_of: Callable[[str], Results], found: Callable[[str], list[dict[str, Any]]]
) -> Callable[..., None]:
    """Compares what all workers of a layout have with what one process has.

    Names that begin with "own_" are of a worker and left out.
    """

    def compare(name: str, *, atol: float) -> None:
        alone = results_of("alone")[0][name]
        assert "error" not in alone, alone["error"]
        workers = found(name)
        for key, value in workers[0].items():
            if key.startswith("own_"):
                continue
            np.testing.assert_allclose(value, alone[key], atol=atol, err_msg=key)
            for worker in workers[1:]:
                np.testing.assert_array_equal(value, worker[key], err_msg=key)

    return compare
