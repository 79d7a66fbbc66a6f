"""The features of tf.estimator's guides: over both engines and alone, and twice in a process."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Found = dict[str, Any]
Run = Callable[[str], list[Found]]


@pytest.fixture(scope="module")
def made_before() -> dict[str, list[Found]]:
    """The rounds of each engine so far."""
    return {}


@pytest.fixture
def run(
    fake_cluster: Any,
    made_before: dict[str, list[Found]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """A function that returns the numbers of each round on worker 0, over an engine.

    Over gRPC there are two rounds: TensorFlow's server lives as long as the process, and has the
    variables and tables of the first. Over Horovod a round has four trainings in turn.
    """
    from guide_twice import run_rounds

    def run(engine: str) -> list[Found]:
        if engine not in made_before:
            folder, is_twice = str(tmp_path_factory.mktemp(engine)), engine == "grpc"
            made_before[engine] = fake_cluster.run(
                run_rounds, folder, engine=engine, timeout_s=250, is_twice=is_twice
            )[0]
        return made_before[engine]

    return run


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_two_workers_have_the_numbers_of_one_process(engine: str, run: Run) -> None:
    found, [alone] = run(engine)[0], run("none")
    assert found["exported"] == 3
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


def test_a_second_round_in_the_process_gives_the_numbers_of_the_first(run: Run) -> None:
    first, second = run("grpc")
    assert len(second) > 40
    for name, value in second.items():
        np.testing.assert_allclose(first[name], value, atol=1e-6, err_msg=name)
