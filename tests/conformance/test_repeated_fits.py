"""Short trainings again and again in one process: all end, with equal bits."""

from typing import Any

import pytest

pytestmark = pytest.mark.processes

_LIMIT_S = 120.0  # Of one training.
# Those that have the most kinds of messages, variables and random numbers.
_KINDS = (
    "embedding_with_accumulation_and_average",
    "convolution_with_norm",
    "dropout",
    "own_loop",
)


@pytest.mark.parametrize(
    ("engine", "num_workers", "num_replicas"), [("none", 1, 2), ("grpc", 2, 1)]
)
def test_a_training_has_the_same_bits_in_each_of_its_turns(
    fake_cluster: Any, engine: str, num_workers: int, num_replicas: int
) -> None:
    def repeat() -> Any:
        import repeated_fits

        return repeated_fits.repeat(num_replicas, 2 * len(_KINDS), _LIMIT_S, _KINDS)

    workers = fake_cluster.run(repeat, engine=engine, num_workers=num_workers, timeout_s=280)
    for worker in workers:
        assert worker["fits"] == 2 * len(_KINDS)
        assert worker["differing"] == []
        assert worker["bits"] == workers[0]["bits"]
