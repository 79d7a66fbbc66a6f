"""Large sums of tf.functions over gRPC: sessions exchange them directly."""

from typing import Any

import large_sums
import numpy as np
import pytest

pytestmark = pytest.mark.processes


# What the sums of each way are multiplied by.
WAYS = [("step", 1.0), ("retraced", 2.0), ("doubles", 1.0), ("loop", 6.0), ("checked", 1.0)]


@pytest.fixture(scope="module", params=[2, 3])
def workers(fake_cluster_server: Any, request: pytest.FixtureRequest) -> Any:
    from tfdist.testing import FakeCluster

    cluster = FakeCluster(fake_cluster_server)
    try:
        yield cluster.run(large_sums.run, num_workers=request.param, timeout_s=180)
    finally:
        cluster.close()


def _expected(workers: Any, factor: float) -> list[np.ndarray]:
    return [factor * sum(values) for values in zip(*[w["own"] for w in workers], strict=True)]


@pytest.mark.parametrize(("way", "factor"), WAYS)
def test_all_workers_get_the_same_bits_of_the_sums(workers: Any, way: str, factor: float) -> None:
    for worker in workers:
        for got, expected in zip(worker[way], _expected(workers, factor), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        for got, first in zip(worker[way], workers[0][way], strict=True):
            assert got.tobytes() == first.tobytes()


def test_gradients_of_variables_of_one_name_are_not_mixed(workers: Any) -> None:
    expected = _expected(workers, 1.0)[0]
    for worker in workers:
        first, second = worker["equal_names"]
        np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(second, 3 * expected, rtol=1e-5, atol=1e-5)


def test_only_the_small_sum_goes_around_the_ring(workers: Any) -> None:
    for worker in workers:
        assert worker["ops"]["QueueDequeueV2"] == len(large_sums.LARGE)
        assert worker["ops"]["CollectiveReduceV2"] == 1


def test_another_trace_of_a_function_has_the_same_exchange(workers: Any) -> None:
    assert [worker["groups_of_step"] for worker in workers] == [1] * len(workers)


def test_the_exchange_of_functions_that_are_gone_ends(workers: Any) -> None:
    assert [worker["groups_in_use"] for worker in workers] == [1] * len(workers)


def test_an_error_of_the_exchange_comes_out_of_the_function(workers: Any) -> None:
    for worker in workers:
        assert "no exchange today" in worker["error"]


def test_a_function_that_fails_before_it_sends_can_be_called_again(workers: Any) -> None:
    for worker in workers:
        assert "assertion failed" in worker["refused"]
        assert len(worker["checked"]) == len(worker["own"])


def test_after_an_error_no_gradient_of_a_failed_step_is_taken_for_one_of_the_next(
    workers: Any,
) -> None:
    for worker in workers:
        assert worker["later_call"].startswith("StepAbandonedError: a step has failed before")
        assert "QueueDequeueV2" not in worker["later_ops"]
        expected = _expected(workers, 1.0)[0]
        np.testing.assert_allclose(worker["later"][0], expected, rtol=1e-5, atol=1e-5)
