"""A training over gRPC begins like the first one of its process, whatever that has left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def found(fake_cluster: Any, made_before: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The findings of the first of two workers; the program is run once for all tests."""
    if "found" not in made_before:
        from second_trainings import run_all

        made_before["found"] = fake_cluster.run(run_all, str(tmp_path))
    return made_before["found"][0]  # type: ignore[no-any-return]


def test_averages_of_a_second_training_are_those_of_the_first(found: dict[str, Any]) -> None:
    first, second, _ = found["averages"]
    assert len(first) == 2
    np.testing.assert_array_equal(first, second)


def test_a_variable_may_have_another_shape_in_the_next_training(found: dict[str, Any]) -> None:
    assert len(found["averages"][2]) == 3


def test_a_table_has_the_words_that_its_file_has_now(found: dict[str, Any]) -> None:
    assert found["words"] == [[0, 1, 2, 3], [2, 0, 2, 1]]


def test_a_session_of_another_graph_finds_no_values(found: dict[str, Any]) -> None:
    assert found["value in the same graph"] == 1.0
    assert found["uninitialized in another one"] == [b"value"]
    assert found["iterator"] == "FailedPreconditionError"


def test_a_session_beside_another_one_has_its_own_variables(found: dict[str, Any]) -> None:
    assert found["each has its own"] == [2.0, 0, 1.0, 0]


def test_the_memory_of_a_closed_session_is_free_for_the_next_graph(found: dict[str, Any]) -> None:
    assert found["grown_mb"] < 4 * 32, "the last eight graphs have 32 MB each"
