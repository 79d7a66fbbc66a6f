"""PopDistStrategy in TensorFlow 2: the original's contract for data, and its numbers."""

from typing import Any

import numpy as np
import pytest

CASES = [("keras", "grpc", 2), ("tf_keras", "horovod", 1)]
IDS = ["keras-grpc-2-replicas", "tf_keras-horovod"]


@pytest.fixture(scope="module")
def results() -> dict[Any, Any]:
    return {}


@pytest.fixture(params=CASES, ids=IDS)
def instances(
    request: Any, fake_cluster: Any, results: dict[Any, Any], tmp_path_factory: Any
) -> list[dict[str, Any]]:
    """The results of `popdist_training` on two instances."""
    import popdist_training

    library, engine, replicas = request.param
    if request.param not in results:
        results[request.param] = fake_cluster.run(
            popdist_training.run_all,
            library,
            str(tmp_path_factory.mktemp("popdist")),
            engine=engine,
            num_workers=2,
            timeout_s=150,
            env={"TFDIST_NUM_LOCAL_REPLICAS": str(replicas)},
        )
    found: list[dict[str, Any]] = results[request.param]
    assert [one["replicas"] for one in found] == [2 * replicas] * 2
    return found


def test_initial_values_are_those_of_instance_0(instances: list[dict[str, Any]]) -> None:
    assert [one["initial"] for one in instances] == [[0.0, 2.0]] * 2


def test_a_loop_sums_gradients_and_losses_over_the_replicas(
    instances: list[dict[str, Any]],
) -> None:
    replicas, w = instances[0]["replicas"], 2.0
    expected = []
    for x in range(10):
        loss, w = replicas * w * x, w - 0.5 * replicas * x
        expected.append((loss, w))
    for one in instances:
        assert one["loop"] == expected


def test_arrays_are_an_instances_own(instances: list[dict[str, Any]]) -> None:
    from popdist_training import _data

    x, y = _data()
    for one in instances:
        assert one["numpy"]["is_own"]
        assert one["numpy"]["loss"] == pytest.approx(((x.sum(1) - y[:, 0]) ** 2).mean(), rel=1e-5)


def test_a_loop_and_fit_of_arrays_give_the_same_losses_and_weights(
    instances: list[dict[str, Any]],
) -> None:
    (losses, weights), (fit_losses, fit_weights) = instances[0]["two_ways"]
    np.testing.assert_allclose(fit_losses, losses, rtol=1e-4)
    np.testing.assert_allclose(fit_weights, weights, rtol=1e-5)
    assert instances[1]["two_ways"] == instances[0]["two_ways"]


def test_a_program_trains_saves_loads_and_evaluates(instances: list[dict[str, Any]]) -> None:
    first, second = (one["training"] for one in instances)
    assert first == second
    assert first["history"]["loss"][2] < first["history"]["loss"][0]
    assert first["mae"] == pytest.approx(first["expected"], rel=1e-5)


def test_instances_with_unequal_shards_end_after_the_same_step(
    instances: list[dict[str, Any]],
) -> None:
    first, second = (one["uneven"] for one in instances)
    assert first["losses"] == second["losses"]
    assert first["predicted"] == second["predicted"] == 0


def test_keras_3_refuses_unequal_steps_per_execution(instances: list[dict[str, Any]]) -> None:
    for one in instances:
        assert one["library"] == "tf_keras" or one["steps"].startswith(
            "steps_per_execution is 1 on worker 0 and 2 on worker 1: it must be equal on all."
        )


def test_host_collectives_work_eagerly(instances: list[dict[str, Any]]) -> None:
    for one in instances:
        assert one["collectives"] == [*[[[0, 2], 2, 1, 1]] * 6, [1, 5]]


def test_gradient_accumulation_of_a_model_is_refused_by_name(
    instances: list[dict[str, Any]],
) -> None:
    for one in instances:
        assert one["accumulation"].startswith(
            "set_gradient_accumulation_options of a Keras model is not supported; give Keras 3's"
        )
