"""The features of tf.estimator's guides, twice in a process over both engines, and once alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Found = dict[str, Any]
Run = Callable[[str, bool], list[Found]]
_ALONE: list[Found] = []


@pytest.fixture
def run(fake_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A function that returns the numbers of each round on worker 0, over an engine."""
    from guide_twice import run_rounds

    def run(engine: str, is_twice: bool) -> list[Found]:
        folder = str(tmp_path_factory.mktemp(engine))
        workers = fake_cluster.run(
            run_rounds, folder, engine=engine, timeout_s=250, is_twice=is_twice
        )
        rounds: list[Found] = workers[0]
        return rounds

    return run


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_second_round_in_the_process_gives_the_numbers_of_the_first_and_those_of_one_process(
    engine: str, run: Run
) -> None:
    if not _ALONE:
        _ALONE.extend(run("none", False))
    first, second = run(engine, True)
    assert first["exported"] == second["exported"] == 3
    assert len(second) > 40
    for name, value in second.items():
        np.testing.assert_allclose(first[name], value, atol=1e-6, err_msg=name)
    assert first.keys() == _ALONE[0].keys()
    for name, value in _ALONE[0].items():
        np.testing.assert_allclose(first[name], value, rtol=1e-5, atol=2e-6, err_msg=name)
