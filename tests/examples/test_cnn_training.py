"""Trainings of the example `cnn` in several layouts, interrupted, and validated afterwards."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cnn_program import (
    NORMS,
    SMALL,
    TRAIN,
    VALIDATE,
    assert_equal,
    read_rows,
    run_all,
    train_and_die,
)
from forking_launcher import FORKING_LAUNCHER

from tfdist.testing import WorkerFailedError

FEATURES = ["--label-smoothing", "0.1", "--eight-bit-io", "--warmup-epochs", "0.01"]
# Micro-batch, and options: all together have 24 images in a step.
DIVIDED = "--gradient-accumulation-count 3 --replicas 2 --enable-recomputation"
LAYOUTS = {
    "whole": (24, ""),
    "replicas": (4, f"{DIVIDED} --loss-scaling 128"),
    "pipelines": (4, f"{DIVIDED} --pipeline --shards 2 --pipeline-schedule grouped"),
}
EACH_THIRD = ["--ckpts-per-epoch", "50"]  # Saves after each third step, and after the last one.

LINE = re.compile(
    r"step: {6}3, iteration: {6}3, epoch: {3}0\.02, lr: {3}0\.05, loss: {2}\d\.\d{3}, "
    r"top-1 accuracy: [ \d]\d\.\d{3}%, img/sec: [ \d]*\d\.\d\d, time: \d\.\d{6}, "
    r"total_time: {6}\d\.\d"
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, fake_cluster_server: Any) -> dict[str, Any]:
    """The folder of the trainings in one process, and what each has printed."""
    from tfdist.testing.fake_cluster import FakeCluster

    folder, cluster = tmp_path_factory.mktemp("alone"), FakeCluster(fake_cluster_server)
    trainings = [
        [*SMALL, *NORMS["group"], *FEATURES, "--batch-size", str(batch), *options.split(),
         "--no-validation", "--log-dir", str(folder / layout)]
        for layout, (batch, options) in LAYOUTS.items()
    ]  # fmt: skip
    norm = [*SMALL, *NORMS["batch"], "--batch-size", "24", "--weight-avg-N", "2"]
    trainings.append([*norm, *EACH_THIRD, "--log-dir", str(folder / "norm")])
    try:
        [printed] = cluster.run(run_all, TRAIN, trainings, engine="none", timeout_s=240)
    finally:
        cluster.close()
    return {"folder": folder, "printed": dict(zip([*LAYOUTS, "norm"], printed, strict=True))}


@pytest.mark.parametrize("layout", ["replicas", "pipelines"])
def test_each_layout_has_the_losses_of_one_device_with_the_whole_batch(
    alone: dict[str, Any], layout: str
) -> None:
    assert_equal(read_rows(alone["folder"] / layout), read_rows(alone["folder"] / "whole"))


def test_the_log_has_the_plan_and_a_line_for_each_step(alone: dict[str, Any]) -> None:
    printed = alone["printed"]["whole"]
    lines = printed.splitlines()
    assert lines[0] == "model:        ResNet-8, group norm, 8 groups, 32.32"
    assert (
        "global batch: 24 = micro-batch 24 x accumulation 1 x 1 replica(s) x 1 worker(s)" in lines
    )
    assert LINE.fullmatch(lines[-3])
    [run] = (alone["folder"] / "whole").iterdir()
    assert (run / "log.txt").read_text() == printed
    assert json.loads((run / "arguments.json").read_text())["abs_learning_rate"] == 0.05


def test_checkpoints_and_their_mean_are_validated_after_the_training_and_later(
    alone: dict[str, Any], fake_cluster: Any
) -> None:
    [run] = (alone["folder"] / "norm").iterdir()
    printed = alone["printed"]["norm"]
    validations = [line for line in printed.splitlines() if line.startswith("validation: ")]
    assert [re.findall(r"iteration: +(\d+)", line) for line in validations] == [
        ["3"], ["5"], ["5"],
    ]  # fmt: skip
    [again] = fake_cluster.run(
        run_all, VALIDATE, [["--restore-path", f"{run}/model.ckpt-5"]], engine="none"
    )
    assert again == [f"{validations[1]}\n"]
    rows = (run / "validation.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == [
        "model.ckpt-3", "model.ckpt-5", "weight_avg_last_2", "model.ckpt-5",
    ]  # fmt: skip


# A run that saves after each second step.
SAVING = [*SMALL, *NORMS["batch"], "--ckpts-per-epoch", "70", "--no-validation"]
WHOLE = ["--batch-size", "24"]


def test_a_killed_run_goes_on_with_the_losses_of_an_undisturbed_one(
    alone: dict[str, Any], fake_cluster: Any, tmp_path: Path
) -> None:
    options = [*SAVING, "--log-dir", str(tmp_path)]
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        fake_cluster.run(train_and_die, [*options, *WHOLE], 3, engine="none")
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2, 3]
    [run] = tmp_path.iterdir()
    restored = tmp_path / "restored"
    shutil.copytree(run, restored / run.name)

    # By its option, and as `tfdist run --max-restarts` does it: over gRPC, with two workers.
    given = [
        *SAVING,
        *WHOLE,
        "--log-dir",
        str(restored),
        "--restore-path",
        f"{restored}/{run.name}",
    ]
    [[printed]] = fake_cluster.run(run_all, TRAIN, [given], engine="none")
    assert "going on after step 2\n" in printed
    assert read_rows(restored) == read_rows(alone["folder"] / "norm")
    started_again = {"TFDIST_RESTART_COUNT": "1"}
    halves = [*options, "--batch-size", "12", "--log-all-instances"]
    printed = fake_cluster.run(run_all, TRAIN, [halves], num_workers=2, env=started_again)
    assert "going on after step 2\n" in printed[0][0]
    assert printed[1] == [""]
    assert_equal(read_rows(tmp_path), read_rows(alone["folder"] / "norm"))
    assert read_rows(tmp_path, "training_1") == read_rows(tmp_path)[2:]


def test_a_run_from_a_checkpoint_has_the_losses_after_it(
    alone: dict[str, Any], fake_cluster: Any, tmp_path: Path
) -> None:
    [run] = (alone["folder"] / "norm").iterdir()
    options = [*SAVING, *WHOLE, "--log-dir", str(tmp_path), "--restore-path", f"{run}/model.ckpt-3"]
    [[printed]] = fake_cluster.run(run_all, TRAIN, [options], engine="none")
    assert "going on after step 3\n" in printed
    assert read_rows(tmp_path) == read_rows(alone["folder"] / "norm")[3:]


def test_a_checkpoint_of_another_model_is_refused_with_the_first_variable(
    alone: dict[str, Any], fake_cluster: Any, tmp_path: Path
) -> None:
    [run] = (alone["folder"] / "norm").iterdir()
    for file in run.glob("model.ckpt-5.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    options = [*SMALL, "--model-size", "14", "--restore-path", f"{tmp_path}/model.ckpt-5"]
    options[options.index("--iterations") + 1] = "6"
    with pytest.raises(WorkerFailedError, match=r"SystemExit: 2") as caught:
        fake_cluster.run(run_all, TRAIN, [[*options, "--log-dir", str(tmp_path)]], engine="none")
    assert "train.py: error: " in str(caught.value)
    assert "b1/1/conv1/kernel" in str(caught.value)


def _train_from(options: list[str], checkpoint: str) -> bool:
    """Trains, and returns whether the first weights were those of a checkpoint."""
    from pathlib import Path

    import numpy as np
    import tensorflow as tf
    from script_run import run_script

    run_script([TRAIN, *options, "--init-path", checkpoint])
    [run] = Path(options[-1]).iterdir()
    first, given = (
        tf.train.load_variable(path, "b3/0/conv2/kernel")
        for path in (f"{run}/model.ckpt-0", checkpoint)
    )
    return np.array_equal(first, given)


def test_a_run_begins_with_the_weights_of_another(
    alone: dict[str, Any], fake_cluster: Any, tmp_path: Path
) -> None:
    [run] = (alone["folder"] / "norm").iterdir()
    options = [*SMALL, "--optimiser", "LARS", "--no-validation", "--log-dir", str(tmp_path)]
    [is_equal] = fake_cluster.run(_train_from, options, f"{run}/model.ckpt-3", engine="none")
    assert is_equal
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2, 3, 4, 5]


def test_small_presets_train(fake_cluster: Any, tmp_path: Path) -> None:
    presets = {
        "mk2_resnet8_test": ["--generated-data"],  # Its data are files to be downloaded.
        "digits_resnet8": [],
        "photos_resnet8": ["--augment"],
    }
    few = ["--iterations", "2", "--batch-size", "2", "--log-freq", "1", "--no-validation"]
    trainings = [
        ["--config", name, *options, *few, "--log-dir", str(tmp_path / name)]
        for name, options in presets.items()
    ]
    fake_cluster.run(run_all, TRAIN, trainings, engine="none", timeout_s=120)
    for name in presets:
        rows = read_rows(tmp_path / name)
        assert [row["step"] for row in rows] == [1, 2]
        assert all(0 < row["loss"] < 10 for row in rows)


def test_an_evaluator_validates_in_place_of_worker_0(
    alone: dict[str, Any], fake_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = ["run", "--num-instances", "1", "--evaluator", "--log-dir", str(tmp_path / "logs")]
    options = [*SMALL, *NORMS["batch"], *EACH_THIRD, *WHOLE]
    options += ["--evaluator", "--weight-avg-N", "2", "--log-dir", str(tmp_path / "runs")]
    words = [FORKING_LAUNCHER, *launch, "--", sys.executable, TRAIN, *options]
    fake_cluster.run_script(words, engine="none", forked=True)
    validations = {
        log.stem: re.findall(r"^validation: iteration: +(\d+),", log.read_text(), re.MULTILINE)
        for log in (tmp_path / "logs").glob("*[0-9r].log")
    }
    assert validations == {"worker-0": [], "evaluator": ["3", "5", "5"]}
    names = ("iteration", "loss", "accuracy", "top_5_accuracy")
    validated = [
        read_rows(folder, "validation", names)[:3]
        for folder in (tmp_path / "runs", alone["folder"] / "norm")
    ]
    assert_equal(*validated)
