"""Recovery of all workers from the same older checkpoint if worker 0's newest is damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def train(fake_cluster: Any, train_briefly: Any) -> Callable[..., list[dict[str, Any]]]:
    """Trains with a model_dir for each worker, and a checkpoint after every second step."""

    def train(folder: Path, max_steps: int) -> list[dict[str, Any]]:
        return fake_cluster.run(  # type: ignore[no-any-return]
            train_briefly,
            "grpc",
            limits=lambda index: {"max_steps": max_steps},
            model_dir=lambda index: f"{folder}/{index}",
            save_steps=2,
        )

    return train


@pytest.fixture
def trained(
    train: Any,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    made_before: dict[str, tuple[Path, Any]],
) -> tuple[Path, Any]:
    """A folder with the checkpoints of steps 0, 2, 4 and 6, and the last weights."""
    if not made_before:
        folder = tmp_path_factory.mktemp("whole")
        made_before["trained"] = folder, train(folder, 6)[0]["values"]["weight"]
    folder, weights = made_before["trained"]
    shutil.copytree(folder / "0", tmp_path / "0")
    return tmp_path, weights


def test_all_workers_go_on_from_the_newest_whole_checkpoint_of_worker_0(
    train: Any, trained: tuple[Path, Any]
) -> None:
    folder, weights = trained
    (folder / "0" / "model.ckpt-6.index").write_bytes(b"")
    answers = train(folder, 6)
    assert [answer["first_step"] for answer in answers] == [4, 4]
    for answer in answers:
        np.testing.assert_array_equal(answer["values"]["weight"], weights)
    assert (folder / "0" / "damaged-model.ckpt-6.index").exists()


def test_every_worker_ends_with_the_list_where_none_is_whole(
    train: Any, trained: tuple[Path, Any]
) -> None:
    folder, _ = trained
    names = [f"model.ckpt-{step}.index" for step in (6, 4, 2, 0)]
    for name in names:
        (folder / "0" / name).write_bytes(b"")
    damaged = "; ".join(f"{name} is empty" for name in names)
    expected = (
        f"CheckpointDamagedError: No checkpoint in {folder}/0 is whole ({damaged}). Copy a whole "
        "one there, or use another model_dir to begin at step 0."
    )
    assert [answer["error"] for answer in train(folder, 8)] == [expected, expected]
