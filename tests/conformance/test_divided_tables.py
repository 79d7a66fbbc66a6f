"""Tables divided between the workers: equal numbers in all programs of TensorFlow 2.

Each layout of workers and replicas runs its programs in one set of processes.
"""

from collections.abc import Callable
from typing import Any

import divided_tables
import numpy as np
import pytest

pytestmark = pytest.mark.processes

PROGRAMS = "divided_tables"
# Engine, workers, replicas of each.
LAYOUTS = {
    "alone": ("none", 1, 1),
    "grpc": ("grpc", 3, 1),
    "horovod": ("horovod", 2, 1),
    "grpc 2 x 2": ("grpc", 2, 2),
}
# Each program in one layout, with both Kerases in each; the loop of one's own in all.
OF_NUMBERS = {
    "grpc": ["keras_sgd", "tf_keras_adam", "sparse_look_ups", "own_loop"],
    "horovod": [
        "keras_adam",
        "keras_global_clipnorm",
        "tf_keras_momentum",
        "tf_keras_ftrl",
        "masked_and_ragged",
        "own_loop",
    ],
    "grpc 2 x 2": ["keras_adagrad", "tf_keras_clipnorm", "own_loop"],
}
_OTHERS = ["refusals", "wrong_ids", "exports", "noted_gradients"]
NAMES = {
    **OF_NUMBERS,
    "grpc": [*OF_NUMBERS["grpc"], *_OTHERS],
    "alone": [name for name in divided_tables.CASES if name not in _OTHERS],
}


@pytest.mark.parametrize(
    ("layout", "name"),
    [(layout, name) for layout, names in OF_NUMBERS.items() for name in names],
)
def test_workers_with_a_part_of_the_table_have_what_one_process_has(
    compare_with_one_process: Callable[..., None], name: str
) -> None:
    compare_with_one_process(name, atol=1e-6)


def test_each_program_has_a_layout() -> None:
    made = {name for names in OF_NUMBERS.values() for name in names}
    assert made == set(NAMES["alone"])


@pytest.mark.parametrize("layout", ["grpc"])
def test_worker_0_exports_the_whole_table(
    found: Callable[[str], list[dict[str, Any]]],
) -> None:
    first, *others = found("exports")
    for name in ("keras", "tf_keras", "module"):
        np.testing.assert_array_equal(first[f"own_{name}"], first[f"{name}_predicted"], name)
        assert all(worker[f"own_{name}"] == [] for worker in others)
    np.testing.assert_array_equal(first["before"], first["module_predicted"])


@pytest.mark.parametrize("layout", ["grpc"])
def test_what_needs_the_whole_table_is_refused_in_one_line(
    found: Callable[[str], list[dict[str, Any]]],
) -> None:
    for worker in found("refusals"):
        for name, line in worker.items():
            assert line.startswith(("DividedTableError: ", "DenseGradientError: ")), (name, line)
            assert "\n" not in line
        for name in ("convert", "multiply", "numpy", "assign_add", "dense_gradient"):
            assert "divided between 3 workers" in worker[f"own_{name}"]
            assert "1,616 bytes" in worker[f"own_{name}"]


@pytest.mark.parametrize("layout", ["grpc"])
def test_every_optimizer_lets_the_strategy_see_whether_anything_is_divided(
    found: Callable[[str], list[dict[str, Any]]],
) -> None:
    for worker in found("noted_gradients"):
        assert worker == {"own_keras": 1, "own_tf_keras": 1, "own_v1": 1}


@pytest.mark.parametrize("layout", ["grpc"])
def test_an_id_out_of_range_is_named_with_table_and_rows(
    found: Callable[[str], list[dict[str, Any]]],
) -> None:
    for worker in found("wrong_ids"):
        assert "table has 101 rows" in worker["own_error"]
        assert "105" in worker["own_error"]
