"""Micro-batches, replicas and workers give what one device computes from the whole batch."""

from typing import Any

import numpy as np
import pytest

# Each takes 16 rows a step with two workers, as one device does with local_batch=16. A worker's
# first training needs the most devices.
LAYOUTS = {
    "micro-batches": {"accumulation": 4, "local_batch": 2},
    "loop of replicas": {"accumulation": 2, "local_batch": 2, "num_replicas": 2, "iterations": 3},
    "train_op": {"accumulation": 4, "local_batch": 2, "uses_host_call": False},
}
MODELS = {
    "momentum": {"optimizer": "momentum"},
    "sparse": {"optimizer": "adam", "has_embedding": True},
    "keras": {"optimizer": "keras"},
    "weighted": {"optimizer": "adam", "is_weighted": True, "has_embedding": True},
}
CASES = {
    "grpc": [
        ("weighted", "loop of replicas"),
        ("momentum", "train_op"),
        ("keras", "micro-batches"),
        ("sparse", "micro-batches"),
    ],
    "horovod": [("weighted", "loop of replicas"), ("sparse", "micro-batches")],
}
# Of 39 batches, worker 0 has 20 and worker 1 has 19: enough for two steps, and for one.
TOO_FEW = {"accumulation": 10, "local_batch": 10}


def _train_all(engine: str, folder: str) -> list[dict[str, Any]]:
    """Trains every case of an engine, one after the other, on the workers that are running."""
    from small_training import train

    trainings = [{**MODELS[model], **LAYOUTS[layout]} for model, layout in CASES[engine]]
    return [
        train(engine, f"{folder}/{number}", **options)
        for number, options in enumerate([*trainings, TOO_FEW])
    ]


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Results of one device with the whole batch, for each model."""
    from small_training import train

    return {
        name: train("none", str(tmp_path_factory.mktemp("alone")), local_batch=16, **options)
        for name, options in MODELS.items()
    }


def _assert_equal(result: dict[str, Any], expected: dict[str, Any], case: Any) -> None:
    for name, value in expected["values"].items():
        close = np.allclose(result["values"][name], value, rtol=0, atol=1e-6)
        assert close, (case, name, result["values"][name], value)
    if len(result["reported"]) == len(expected["reported"]):  # Without a loop of steps.
        reported = expected["reported"]
        np.testing.assert_allclose(result["reported"], reported, atol=2e-6, err_msg=str(case))


@pytest.mark.parametrize("engine", CASES)
def test_workers_with_micro_batches_equal_one_device_with_the_whole_batch(
    fake_cluster: Any, expected: Any, tmp_path: Any, engine: str
) -> None:
    workers = fake_cluster.run(_train_all, engine, str(tmp_path), engine=engine)
    for number, (model, layout) in enumerate(CASES[engine]):
        one, other = (worker[number] for worker in workers)
        _assert_equal(one, expected[model], (model, layout))
        for name, value in one["values"].items():
            assert np.array_equal(value, other["values"][name]), (model, layout, name)
    # All workers leave what is too few for a step on one of them.
    assert [worker[-1]["values"]["global_step"] for worker in workers] == [1, 1]
