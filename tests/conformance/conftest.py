"""One small training program, run by every strategy."""

from collections.abc import Callable
from typing import Any

import pytest


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
