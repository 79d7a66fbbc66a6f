"""Training goes on from the newest whole checkpoint, whatever happened to newer ones."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.checkpoints import listing
from tfdist.estimator.checkpoints.recovery import Choice, choose, newest_whole
from tfdist.estimator.export import build_raw_serving_input_receiver_fn
from tfdist.estimator.train.evaluator import Evaluator
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError, damage

Make = Callable[..., Any]

DATA = "data-00000-of-00001"


@pytest.fixture(scope="module")
def six_steps(dense: Make, numbers: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("six_steps")
    config = tfe.RunConfig(save_checkpoints_steps=2)
    tfe.Estimator(dense("adam"), folder, config).train(numbers(), steps=6)
    return folder


@pytest.fixture
def trained(six_steps: Path, dense: Make, tmp_path: Path) -> tfe.Estimator:
    """An Estimator with checkpoints of the steps 0, 2, 4 and 6."""
    folder = shutil.copytree(six_steps, tmp_path / "model")
    return tfe.Estimator(dense("adam"), folder, tfe.RunConfig(save_checkpoints_steps=2))


def cut_short(folder: Path, step: int) -> str:
    file = folder / f"model.ckpt-{step}.{DATA}"
    content = file.read_bytes()
    file.write_bytes(content[:-3])
    return f"{file.name} has {len(content) - 3} of {len(content)} bytes"


def empty(folder: Path, step: int) -> str:
    (folder / f"model.ckpt-{step}.index").write_bytes(b"")
    return f"model.ckpt-{step}.index is empty"


def flip_a_bit(folder: Path, step: int) -> str:
    file = folder / f"model.ckpt-{step}.{DATA}"
    content = bytearray(file.read_bytes())
    content[12] ^= 1
    file.write_bytes(content)
    return f"in {file.name} the values of bias"


def remove_data(folder: Path, step: int) -> str:
    file = folder / f"model.ckpt-{step}.{DATA}"
    file.unlink()
    return f"{file.name} is missing"


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def warnings_in(logged: list[str]) -> list[str]:
    words = ("damaged", "newest whole", "lost")
    return [line for line in logged if any(word in line for word in words)]


# Training.


@pytest.mark.parametrize("harm", [cut_short, flip_a_bit])  # test_damage.py has the others.
def test_training_goes_on_from_the_newest_whole_one_and_sets_the_damaged_one_aside(
    trained: tfe.Estimator, numbers: Make, saved_steps: Make, logged: list[str], harm: Any
) -> None:
    folder = Path(trained.model_dir)
    what = harm(folder, 6)
    damaged = {name: text for name, text in contents_of(folder).items() if "ckpt-6." in name}
    logged.clear()
    trained.train(numbers(), max_steps=5)
    assert trained.get_variable_value("global_step") == 5
    assert saved_steps(folder) == [0, 2, 4, 5]
    first, second = warnings_in(logged)
    assert first.startswith(f"Checkpoint {folder}/model.ckpt-6 is damaged: {what}")
    assert first.endswith(". It is set aside as damaged-model.ckpt-6.*")
    assert second == f"The newest whole checkpoint is {folder}/model.ckpt-4."
    for name, text in damaged.items():
        assert (folder / f"damaged-{name}").read_bytes() == text
    logged.clear()
    trained.train(numbers(), max_steps=6)
    assert not warnings_in(logged)


def test_several_damaged_ones_are_passed_over_and_nothing_that_is_aside_is_lost(
    trained: tfe.Estimator, numbers: Make
) -> None:
    folder = Path(trained.model_dir)
    for steps in ((4, 6), (6,)):
        for step in steps:
            cut_short(folder, step)
        trained.train(numbers(), max_steps=6)
    names = {path.stem for path in folder.glob("damaged-*.index")}
    assert names == {"damaged-model.ckpt-4", "damaged-model.ckpt-6", "damaged-2-model.ckpt-6"}
    assert trained.get_variable_value("global_step") == 6  # A damaged one is no end of training.


def test_only_so_many_checkpoints_are_kept_after_a_recovery(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path
) -> None:
    estimator = make(save_checkpoints_steps=1, keep_checkpoint_max=3).train(numbers(), steps=5)
    cut_short(tmp_path, 5)
    estimator.train(numbers(), max_steps=7)
    assert saved_steps(tmp_path) == [5, 6, 7]


def test_without_a_whole_checkpoint_training_ends_with_the_list_and_changes_nothing(
    trained: tfe.Estimator, numbers: Make
) -> None:
    folder = Path(trained.model_dir)
    found = [cut_short(folder, 6), empty(folder, 4), remove_data(folder, 2), cut_short(folder, 0)]
    before = contents_of(folder)
    for _ in range(2):
        with pytest.raises(CheckpointDamagedError) as caught:
            trained.train(numbers(), steps=1)
        assert str(caught.value) == (
            f"No checkpoint in {folder} is whole ({'; '.join(found)}). Copy a whole one there, or "
            "use another model_dir to begin at step 0."
        )
        assert caught.value.exit_code == 2
    assert contents_of(folder) == before


# The file `checkpoint`.


@pytest.mark.parametrize("content", [None, b"\0" * 40, b"model: 3"])
def test_checkpoints_are_found_by_name_where_the_file_checkpoint_is_lost(
    trained: tfe.Estimator, numbers: Make, saved_steps: Make, logged: list[str], content: Any
) -> None:
    folder = Path(trained.model_dir)
    state = folder / "checkpoint"
    state.unlink()
    if content is not None:
        state.write_bytes(content)
    assert trained.latest_checkpoint() == f"{folder}/model.ckpt-6"
    assert trained.get_variable_value("global_step") == 6
    logged.clear()
    trained.train(numbers(), max_steps=7)
    assert warnings_in(logged) == [
        f"The file {state} is lost or unreadable: checkpoints are found by their names.",
        f"The newest whole checkpoint is {folder}/model.ckpt-6.",
    ]
    assert trained.get_variable_value("global_step") == 7
    assert saved_steps(folder) == [0, 2, 4, 6, 7]
    assert 'model_checkpoint_path: "model.ckpt-7"' in state.read_text()


def test_a_newest_one_that_is_gone_gives_way_to_the_one_before_also_for_early_stopping(
    trained: tfe.Estimator, numbers: Make
) -> None:
    for file in Path(trained.model_dir).glob("model.ckpt-6.*"):
        file.unlink()
    hook = tfe.experimental.make_early_stopping_hook(trained, lambda: False)
    trained.train(numbers(), max_steps=5, hooks=[hook])
    assert trained.get_variable_value("global_step") == 5


def test_an_older_one_that_somebody_named_is_taken(trained: tfe.Estimator, numbers: Make) -> None:
    state = Path(trained.model_dir) / "checkpoint"
    state.write_text('model_checkpoint_path: "model.ckpt-2"\n')
    assert trained.latest_checkpoint() == f"{trained.model_dir}/model.ckpt-2"
    trained.train(numbers(), max_steps=3)
    assert trained.get_variable_value("global_step") == 3
    assert not list(Path(trained.model_dir).glob("damaged*"))


def test_a_folder_without_checkpoints_begins_at_step_0(
    make: Make, numbers: Make, tmp_path: Path
) -> None:
    assert newest_whole(str(tmp_path)) is None
    assert newest_whole(str(tmp_path / "none")) is None
    (tmp_path / "checkpoint").write_text("")
    (tmp_path / "model.ckpt-7.meta").write_text("")
    assert listing.latest(str(tmp_path)) is None
    assert make().train(numbers(), steps=1).get_variable_value("global_step") == 1


# Those who look into the folder of a running training.


def evaluate(estimator: tfe.Estimator, numbers: Make, **options: Any) -> None:
    step = estimator.evaluate(numbers(), steps=1, **options)["global_step"]
    assert options or step == 4


def predict(estimator: tfe.Estimator, numbers: Make, **options: Any) -> None:
    next(estimator.predict(numbers(), **options))


def export(estimator: tfe.Estimator, numbers: Make, **options: Any) -> None:
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 2])})
    estimator.export_saved_model(f"{estimator.model_dir}/../export", receiver_fn, **options)


@pytest.mark.parametrize(
    ("use", "harm"), [(evaluate, cut_short), (predict, flip_a_bit), (export, cut_short)]
)
def test_who_does_not_train_uses_the_newest_whole_one_and_renames_nothing(
    trained: tfe.Estimator, numbers: Make, logged: list[str], use: Any, harm: Any
) -> None:
    folder = Path(trained.model_dir)
    what = harm(folder, 6)
    before = contents_of(folder)
    logged.clear()
    use(trained, numbers)
    first, second = warnings_in(logged)
    assert first.startswith(f"Checkpoint {folder}/model.ckpt-6 is damaged: {what}")
    assert first.endswith(". It is not used.")
    assert second == f"The newest whole checkpoint is {folder}/model.ckpt-4."
    assert contents_of(folder) == before


@pytest.mark.parametrize("use", [evaluate, predict, export])
def test_a_damaged_checkpoint_that_was_asked_for_is_an_error_in_one_line(
    trained: tfe.Estimator, numbers: Make, use: Any
) -> None:
    path = f"{trained.model_dir}/model.ckpt-6"
    what = remove_data(Path(trained.model_dir), 6)
    with pytest.raises(CheckpointDamagedError) as caught:
        use(trained, numbers, checkpoint_path=path)
    line = f"Checkpoint {path} is damaged: {what}. Use another checkpoint."
    assert str(caught.value) == line


def test_an_evaluator_waits_for_a_whole_checkpoint(trained: tfe.Estimator, numbers: Make) -> None:
    folder = Path(trained.model_dir)
    spec = tfe.EvalSpec(numbers(), steps=1)
    evaluator = Evaluator(trained, spec, max_steps=8)
    contents = contents_of(folder)
    cut_short(folder, 6)
    first = evaluator.evaluate()
    assert first is not None and first.metrics["global_step"] == 4
    assert evaluator.evaluate().metrics is None
    for name, content in contents.items():  # As if it had only not come through yet.
        (folder / name).write_bytes(content)
    second = evaluator.evaluate()
    assert second is not None and second.metrics["global_step"] == 6
    for step in (0, 2, 4, 6):
        empty(folder, step)
    (folder / "model.ckpt-6.index").write_bytes(b"x")
    assert Evaluator(trained, spec, max_steps=8).evaluate().metrics is None


# Starting from another model's variables.


def test_a_warm_start_uses_the_newest_whole_one(
    trained: tfe.Estimator, dense: Make, numbers: Make, tmp_path: Path
) -> None:
    folder = Path(trained.model_dir)
    kernel = v1.train.load_variable(f"{folder}/model.ckpt-4", "kernel")
    what = flip_a_bit(folder, 6)
    before = contents_of(folder)
    new = tfe.Estimator(dense("adam"), tmp_path / "new", warm_start_from=str(folder))
    new.train(numbers(batches=0))
    np.testing.assert_array_equal(new.get_variable_value("kernel"), kernel)
    path = f"{folder}/model.ckpt-6"
    other = tfe.Estimator(dense("adam"), tmp_path / "other", warm_start_from=path)
    with pytest.raises(CheckpointDamagedError, match=what):
        other.train(numbers(), steps=1)
    assert contents_of(folder) == before


# The choice.


def test_the_first_whole_one_is_chosen_and_no_other_is_read() -> None:
    read = []

    def find_damage(path: str) -> str | None:
        read.append(path)
        return None if path == "c" else f"{path} is empty"

    expected = Choice(path="c", damaged={"a": "a is empty", "b": "b is empty"})
    assert choose(["a", "b", "c", "d"], find_damage) == expected
    assert read == ["a", "b", "c"]
    assert choose([], find_damage) == Choice(path=None, damaged={})


def test_a_copied_folder_is_read_at_its_new_place(trained: tfe.Estimator, tmp_path: Path) -> None:
    old = Path(trained.model_dir)
    (old / "checkpoint").write_text(f'model_checkpoint_path: "{old}/model.ckpt-6"\n')
    new = tmp_path / "new"
    old.rename(new)
    assert newest_whole(str(new)) == f"{new}/model.ckpt-6"
    assert damage(f"{new}/model.ckpt-6") is None
