"""Keras' callbacks on two workers: files are written once, and all workers decide alike."""

import csv
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CASES = [("keras", "grpc"), ("tf_keras", "horovod")]


def _weights(backup: Path) -> Path:
    """Returns the file of the newest backup's weights."""
    return max([*backup.glob("*.data-*"), *backup.glob("*.h5")], key=lambda file: file.name)


def _flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


# What is done to the folder of a backup of each Keras, and what is said about it. In one process
# tests/strategies/keras/test_backups.py has each damage of each file.
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "keras": (lambda backup: _flip_a_bit(_weights(backup)), "has another checksum than"),
    "tf_keras": (lambda backup: (backup / "input.json").unlink(), "input.json is missing"),
}


@pytest.fixture
def keras_program() -> Any:
    """The module of the program that workers run."""
    import keras_training

    return keras_training


@pytest.fixture(scope="module")
def results() -> dict[Any, Any]:
    return {}


@pytest.fixture
def run(
    fake_cluster: Any, keras_program: Any, results: dict[Any, Any], tmp_path_factory: Any
) -> Any:
    """A function that runs the program with all callbacks, once for each engine and library."""

    def run(library: str, engine: str, num_workers: int = 2) -> tuple[list[Any], Path]:
        key = (library, engine, num_workers)
        if key not in results:
            folder = tmp_path_factory.mktemp("callbacks")
            workers = fake_cluster.run(
                keras_program.train_with_callbacks,
                library,
                str(folder),
                engine=engine,
                num_workers=num_workers,
            )
            results[key] = workers, folder
        return results[key]

    return run


@pytest.mark.parametrize(("library", "engine"), CASES)
def test_workers_end_with_the_weights_and_the_history_of_one_process(
    run: Any, library: str, engine: str
) -> None:
    (first, second), _ = run(library, engine)
    (alone,), _ = run(library, "none", 1)
    assert first["weights"] == second["weights"]
    assert first["history"] == second["history"]
    np.testing.assert_allclose(first["sums"], alone["sums"], atol=1e-5)
    for name, values in alone["history"].items():
        np.testing.assert_allclose(first["history"][name], values, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("library", "engine"), CASES)
def test_early_stopping_and_the_learning_rate_follow_all_workers(
    run: Any, library: str, engine: str
) -> None:
    (first, second), _ = run(library, engine)
    (alone,), _ = run(library, "none", 1)
    assert first["epochs"] == second["epochs"] == alone["epochs"] < 8
    assert first["rate"] == second["rate"] == alone["rate"]


@pytest.mark.parametrize(("library", "engine"), CASES)
def test_only_worker_0_writes_files(run: Any, library: str, engine: str) -> None:
    (first, second), folder = run(library, engine)
    assert sorted(path.name for path in folder.iterdir()) == sorted(first["wrote"])
    assert second["wrote"] == []
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == first["epochs"]
    np.testing.assert_allclose(
        [float(row["loss"]) for row in rows], first["history"]["loss"], rtol=1e-6
    )


@pytest.mark.parametrize(("library", "engine"), CASES)
def test_what_worker_0_has_saved_is_loaded_in_one_process(
    run: Any, fake_cluster: Any, keras_program: Any, library: str, engine: str
) -> None:
    (first, _), folder = run(library, engine)
    (loaded,) = fake_cluster.run(
        keras_program.load, library, str(folder), engine="none", num_workers=1
    )
    np.testing.assert_allclose(loaded["loss"], first["last_loss"], rtol=1e-5)


@pytest.mark.parametrize(("library", "engine"), [("keras", "grpc"), ("tf_keras", "horovod")])
def test_a_backup_of_worker_0_is_where_all_workers_go_on(
    fake_cluster: Any, keras_program: Any, tmp_path: Path, library: str, engine: str
) -> None:
    """In the middle of an epoch. Each worker has a folder of its own, as on several hosts.

    Worker 0 alone writes. If the newest backup is damaged, all go on from the one before.
    """
    train, folder = partial(fake_cluster.run, keras_program.train_until, library), str(tmp_path)
    interrupted = train(f"{folder}/whole", 13, engine=engine)
    assert [one["steps"] for one in interrupted] == [13, 13]
    assert os.listdir(tmp_path / "whole") == ["worker_0"]
    inside = Path("worker_0", "backup", "chief" if library == "tf_keras" else "")
    damage, words = DAMAGES[library]
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    damage(tmp_path / "damaged" / inside)
    arguments = [library, folder, ["whole", "damaged"]]
    resumed = fake_cluster.run(keras_program.go_on_in, *arguments, engine=engine)
    (alone,) = train(f"{folder}/alone", None, engine="none")
    whole = resumed[0]["whole"]
    np.testing.assert_allclose(whole["sums"], alone["sums"], atol=1e-5)
    for worker in resumed:
        steps = {kind: end["steps"] for kind, end in worker.items()}
        assert steps == {"whole": 8, "damaged": 12}  # Of 20; the backups are of steps 8 and 12.
        assert {end["weights"] for end in worker.values()} == {whole["weights"]}
    said, of_others = (worker["damaged"]["said"] for worker in resumed)
    [line] = [one for one in said if "The one before is taken." in one]
    assert words in line
    assert not any("is damaged" in one for one in of_others)


@pytest.mark.parametrize(
    ("library", "saving", "engine", "replicas"),
    [("keras", "none", "horovod", 1), ("tf_keras", "grpc", "none", 2)],
)
def test_a_saved_state_is_restored_with_other_workers_engines_and_replicas(
    fake_cluster: Any,
    keras_program: Any,
    tmp_path: Path,
    library: str,
    saving: str,
    engine: str,
    replicas: int,
) -> None:
    """Also in a program without a strategy. All go on with the same losses and weights."""
    arguments = [library, str(tmp_path)]
    fake_cluster.run(keras_program.save_states, *arguments, engine=saving)
    (plain,) = fake_cluster.run(keras_program.go_on, *arguments, None, engine="none")
    assert plain["weights"]["history"] != plain["checkpoint"]["history"]  # The momentum is lost.
    workers = fake_cluster.run(keras_program.go_on, *arguments, replicas, engine=engine)
    for way, expected in plain.items():
        first = workers[0][way]
        assert first["history"]["loss"] == pytest.approx(expected["history"]["loss"], abs=1e-6)
        np.testing.assert_allclose(first["sums"], expected["sums"], atol=1e-5, err_msg=way)
        for worker in workers[1:]:
            assert worker[way] == first
