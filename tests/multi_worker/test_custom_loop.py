"""The strategies in a training loop of one's own, with a plain session, on three workers."""

from typing import Any

import custom_loops
import numpy as np
import pytest


@pytest.fixture(params=["grpc", "horovod"])
def fetched(
    request: pytest.FixtureRequest, fake_cluster: Any, made_before: dict[str, Any]
) -> list[dict[str, Any]]:
    """The values that each worker has fetched in each session."""
    engine = request.param
    if engine not in made_before:
        made_before[engine] = fake_cluster.run(custom_loops.run_all, engine=engine, num_workers=3)
    return made_before[engine]  # type: ignore[no-any-return]


Fetched = list[dict[str, Any]]


def test_every_worker_starts_with_worker_0s_values(fetched: Fetched) -> None:
    first, *others = [worker["initial_values"] for worker in fetched]
    assert first[:2] == [10.0, 20.0]  # Also where worker 1 makes them in another order.
    for values in others:
        for one, other in zip(first, values, strict=True):
            assert np.array_equal(one, other)


def test_reduce_gives_every_worker_the_sum_or_the_mean(fetched: Fetched) -> None:
    expected = {"sum": 3.0, "mean": 1.0, "half": np.float16(60000.0), "replicas": 3}
    assert [worker["reduced"] for worker in fetched] == [expected] * 3


def test_a_training_step_divides_by_the_global_batch_itself(fetched: Fetched) -> None:
    # Gradients 1/3, 2/3 and 3/3 are summed, three times.
    assert [worker["trained"] for worker in fetched] == pytest.approx([1 - 3 * 2.0] * 3)


def test_a_sync_on_read_variable_is_updated_alone_and_combined_when_read(fetched: Fetched) -> None:
    for index, worker in enumerate(fetched):
        values = dict(worker["assigned_alone"])
        assert values.pop("device").endswith(b"CPU:1")
        assert values == {"mean": 20.0, "sum": 60.0, "own": 10.0 * (index + 1)}


def test_a_dataset_of_global_batches_is_split_over_the_workers(fetched: Fetched) -> None:
    shares = [worker["global_batches"].tolist() for worker in fetched]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert sorted(row for share in shares for row in share) == list(range(6))


def test_values_reduced_in_another_order_are_paired_by_their_name_scopes(fetched: Fetched) -> None:
    assert [worker["in_another_order"] for worker in fetched] == [{"a": [3.0], "b": [300.0]}] * 3


def test_session_run_gives_a_sync_on_read_variables_combined_value(fetched: Fetched) -> None:
    expected = {"sum": 6.0, "mean": 2.0, "first": 1.0}
    assert [worker["combined_when_fetched"] for worker in fetched] == [expected] * 3


def test_a_worker_that_fetches_more_waits_for_no_reduction_of_a_constant(fetched: Fetched) -> None:
    for worker in fetched:
        size, ones, grouped_size, zeros = worker["known_before"][:4]
        assert size == grouped_size == 24.0
        assert (ones == 3.0).all()
        assert (zeros == 0.0).all()
