"""Optimizers and training features, each alone and all at once: every layout gives the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ROWS, STEPS = 48, 4  # Rows of a step in all workers.

# A row of the third step makes the loss overflow, and with it the gradients.
OVERFLOW = {"is_scaled": True, "bad_row": 2 * ROWS + 20}
SHARED = {"has_embedding": True, **OVERFLOW}

# The features of a training, and those of the one device that it is compared to. Statistics are
# those of a micro-batch of all replicas: with a batch norm the one device has micro-batches, too.
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clipped": ({"is_clipped": True}, {"is_clipped": True}),
    "accumulated": ({"accumulation": 4}, {}),
    "accumulated by the optimizer": ({"accumulation": 4, "uses_host_call": False}, {}),
    "together": (
        {**SHARED, "is_clipped": True, "recomputes": True, "accumulation": 4, "normalizes": True},
        {**SHARED, "is_clipped": True, "accumulation": 4, "normalizes": True},
    ),
    "weighted": (
        {**SHARED, "recomputes": True, "accumulation": 4, "is_weighted": True, "reports": True},
        {**SHARED, "is_weighted": True, "reports": True},
    ),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "workers": {},
    "replicas": {"num_replicas": 2},
    "loop of replicas": {"num_replicas": 2, "iterations": 2},
}
# Optimizer, features and layout of each training on so many workers. Those with the most devices
# come first. Clipping and trust ratios hide a gradient's scale: SGD has neither.
CASES: dict[tuple[str, int], list[tuple[str, str, str]]] = {
    ("grpc", 2): [
        ("LAMB", "together", "replicas"),
        ("SGD", "weighted", "loop of replicas"),
        ("keras", "accumulated", "workers"),
        ("momentum", "accumulated by the optimizer", "workers"),
    ],
    ("horovod", 2): [
        ("AdamW", "together", "loop of replicas"),
        ("SGD", "weighted", "workers"),
    ],
    ("grpc", 3): [("LARS", "clipped", "workers")],
}
# Of 39 batches, worker 0 has 20 and worker 1 has 19: enough for two steps, and for one.
TOO_FEW = {"accumulation": 10, "local_batch": 10}


def _train_all(engine: str, folder: str, trainings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Makes each training, one after the other, on the workers that are running."""
    from small_training import train

    return [
        train(engine, f"{folder}/{options.get('folder', number)}", **_without_folder(options))
        for number, options in enumerate(trainings)
    ]


def _without_folder(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "folder"}


def _options(optimizer: str, features: dict[str, Any], num_workers: int = 1) -> dict[str, Any]:
    shares = num_workers * features.get("num_replicas", 1) * features.get("accumulation", 1)
    return {"optimizer": optimizer, "steps": STEPS, "local_batch": ROWS // shares, **features}


@pytest.fixture(scope="module")
def trained_alone() -> dict[Any, dict[str, Any]]:
    """Returns the results of one device so far, by what was trained."""
    return {}


@pytest.fixture
def train_alone(
    fake_cluster: Any, tmp_path: Any, trained_alone: dict[Any, dict[str, Any]]
) -> Callable[..., list[dict[str, Any]]]:
    """Makes trainings on one device; what was made before is not made again."""

    def train_alone(cases: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
        trainings = [_options(optimizer, FEATURES[features][1]) for optimizer, features, _ in cases]
        keys = [tuple(sorted(options.items())) for options in trainings]
        new = {k: o for k, o in zip(keys, trainings, strict=True) if k not in trained_alone}
        folder = str(tmp_path / "alone")
        [made] = fake_cluster.run(_train_all, "none", folder, [*new.values()], engine="none")
        trained_alone.update(zip(new, made, strict=True))
        return [trained_alone[key] for key in keys]

    return train_alone


@pytest.mark.parametrize(("engine", "num_workers"), CASES)
def test_each_layout_trains_as_one_device_with_the_whole_batch(
    fake_cluster: Any, train_alone: Any, tmp_path: Any, engine: str, num_workers: int
) -> None:
    cases = CASES[engine, num_workers]
    trainings = [
        _options(optimizer, {**FEATURES[features][0], **LAYOUTS[layout]}, num_workers)
        for optimizer, features, layout in cases
    ]
    arguments = (_train_all, engine, str(tmp_path), trainings)
    workers = fake_cluster.run(*arguments, engine=engine, num_workers=num_workers, timeout_s=240)
    for number, (case, alone) in enumerate(zip(cases, train_alone(cases), strict=True)):
        one, *others = (worker[number] for worker in workers)
        assert one["unordered"] == [], case
        if FEATURES[case[1]][0].get("is_scaled"):
            # Doubled by two good steps, halved by the third, which is skipped, and kept.
            assert alone["scales"] == [2.0**n for n in (15, 16, 15, 15)], case
            loops = LAYOUTS[case[2]].get("iterations", 1)
            assert one["scales"] == alone["scales"][loops - 1 :: loops], case
            assert one["values"]["loss_scale/skipped_steps"] == 1, case
        for name, value in alone["values"].items():
            assert np.isfinite(value).all(), (case, name)
            close = np.allclose(one["values"][name], value, rtol=1e-6, atol=1e-6)
            assert close, (case, name, one["values"][name], value)
        if len(one["reported"]) == len(alone["reported"]):  # Without a loop of steps.
            loss = alone["reported"]
            np.testing.assert_allclose(one["reported"], loss, atol=2e-6, err_msg=str(case))
            metrics = alone["metrics"]
            np.testing.assert_allclose(one["metrics"], metrics, atol=2e-6, err_msg=str(case))
        for name, value in one["values"].items():
            for other in others:
                assert np.array_equal(value, other["values"][name]), (case, name)


def test_all_workers_leave_what_is_too_few_for_a_step_on_one(
    fake_cluster: Any, tmp_path: Any
) -> None:
    workers = fake_cluster.run(_train_all, "grpc", str(tmp_path), [TOO_FEW])
    assert [result["values"]["global_step"] for [result] in workers] == [1, 1]


def test_a_run_with_everything_on_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    fake_cluster: Any, tmp_path: Any
) -> None:
    """The first step after the resume overflows. The weights are rounded by chance."""
    features = {**FEATURES["together"][0], "num_replicas": 2, "weights": "bfloat16"}
    whole = {**_options("LAMB", features), "iterations": 2}
    stopped = {**whole, "folder": "stopped"}
    trainings = [whole, {**stopped, "stop_at": 2}, {**stopped, "resume_at": 2}]
    [results] = fake_cluster.run(_train_all, "none", str(tmp_path), trainings, engine="none")
    undisturbed, _, resumed = (one["values"] for one in results)
    assert undisturbed["loss_scale/skipped_steps"] == 1
    assert undisturbed.keys() == resumed.keys()
    for name, value in undisturbed.items():
        np.testing.assert_array_equal(value, resumed[name], err_msg=name)


def test_a_loss_weight_with_statistics_over_replicas_is_refused(
    fake_cluster: Any, tmp_path: Any
) -> None:
    def train(folder: str, options: dict[str, Any]) -> str:
        import small_training

        with pytest.raises(ValueError, match="loss_weight") as caught:
            small_training.train("none", folder, **options)
        return str(caught.value)

    features = {"is_weighted": True, "normalizes": True, "num_replicas": 2}
    [message] = fake_cluster.run(train, str(tmp_path), _options("SGD", features), engine="none")
    assert message.endswith("Set group_size=1, or leave loss_weight out.")
