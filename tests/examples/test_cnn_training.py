"""Trainings of the example `cnn` in several layouts, interrupted, and validated afterwards."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cnn"
TRAIN, VALIDATE = str(EXAMPLE / "train.py"), str(EXAMPLE / "validation.py")

SMALL = ["--generated-data", "--iterations", "5", "--log-freq", "1", "--abs-learning-rate", "0.05"]
NORMS = {"group": ["--group-norm"], "batch": ["--BN-span", "all"]}
FEATURES = ["--label-smoothing", "0.1", "--eight-bit-io", "--warmup-epochs", "0.01"]
# Micro-batch, and options: all together have 24 images in a step.
LAYOUTS: dict[str, tuple[int, list[str]]] = {
    "whole": (24, []),
    "replicas": (12, ["--replicas", "2"]),
    "accumulation": (8, ["--gradient-accumulation-count", "3"]),
    "features": (
        12,
        ["--replicas", "2", "--optimiser", "LARS", "--loss-scaling", "128", *FEATURES],
    ),
    "features of one": (24, ["--optimiser", "LARS", *FEATURES]),
    "recomputation": (24, ["--enable-recomputation"]),
    "pipeline": (8, ["--gradient-accumulation-count", "3", "--pipeline", "--shards", "2"]),
    "pipelines": (
        4,
        [
            "--gradient-accumulation-count",
            "3",
            "--pipeline",
            "--shards",
            "2",
            "--replicas",
            "2",
            "--pipeline-schedule",
            "grouped",
            "--enable-recomputation",
        ],
    ),
}

LINE = re.compile(
    r"step: {6}1, iteration: {6}1, epoch: {3}0\.01, lr: {3}0\.05, loss: {2}\d\.\d{3}, "
    r"top-1 accuracy: [ \d]{2}\d\.\d{3}%, img/sec: [ \d]*\d\.\d\d, time: \d\.\d{6}, "
    r"total_time: {6}\d\.\d"
)


def _train_all(script: str, trainings: list[list[str]]) -> list[str]:
    """Makes trainings in turn in this process; returns what each printed."""
    from script_run import run_script

    return [run_script([script, *options]) for options in trainings]


def _rows(folder: Path, table: str = "training") -> list[dict[str, float]]:
    """Returns a table of the only run in a folder of runs, without the times."""
    [path] = folder.glob(f"*/{table}.csv")
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{name: float(row[name]) for name in ("step", "lr", "loss", "accuracy")} for row in rows]


def _assert_equal(some: list[dict[str, float]], others: list[dict[str, float]]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, fake_cluster_server: Any) -> dict[str, Any]:
    """The folder of the trainings in one process, and what each has printed."""
    from tfdist.testing.fake_cluster import FakeCluster

    folder, cluster = tmp_path_factory.mktemp("alone"), FakeCluster(fake_cluster_server)
    trainings = [
        [*SMALL, *NORMS["group"], "--batch-size", str(batch), *options, "--no-validation",
         "--log-dir", str(folder / layout)]
        for layout, (batch, options) in LAYOUTS.items()
    ]  # fmt: skip
    norm = [*SMALL, *NORMS["batch"], "--batch-size", "24", "--weight-avg-N", "2"]
    trainings.append([*norm, "--ckpts-per-epoch", "70", "--log-dir", str(folder / "norm")])
    try:
        [printed] = cluster.run(_train_all, TRAIN, trainings, engine="none", timeout_s=240)
    finally:
        cluster.close()
    return {"folder": folder, "printed": dict(zip([*LAYOUTS, "norm"], printed, strict=True))}


@pytest.mark.parametrize(
    "layout", ["replicas", "accumulation", "recomputation", "pipeline", "pipelines"]
)
def test_each_layout_has_the_losses_of_one_device_with_the_whole_batch(
    alone: dict[str, Any], layout: str
) -> None:
    _assert_equal(_rows(alone["folder"] / layout), _rows(alone["folder"] / "whole"))


def test_large_batch_features_keep_the_losses(alone: dict[str, Any]) -> None:
    _assert_equal(_rows(alone["folder"] / "features"), _rows(alone["folder"] / "features of one"))


def test_the_log_has_the_plan_and_a_line_for_each_step(alone: dict[str, Any]) -> None:
    printed = alone["printed"]["whole"]
    lines = printed.splitlines()
    assert lines[0] == "model:        ResNet-8, group norm, 8 groups, 32.32"
    assert (
        "global batch: 24 = micro-batch 24 x accumulation 1 x 1 replica(s) x 1 worker(s)" in lines
    )
    assert LINE.fullmatch(lines[-5])
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
        ["2"], ["4"], ["5"], ["5"],
    ]  # fmt: skip
    [again] = fake_cluster.run(
        _train_all, VALIDATE, [["--restore-path", f"{run}/model.ckpt-5"]], engine="none"
    )
    assert again == [f"{validations[2]}\n"]
    rows = (run / "validation.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == [
        "model.ckpt-2", "model.ckpt-4", "model.ckpt-5", "weight_avg_last_2", "model.ckpt-5",
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_two_workers_have_the_losses_of_one_with_the_whole_batch(
    alone: dict[str, Any], fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    trainings = [
        [*SMALL, *NORMS[norm], "--batch-size", "6", "--replicas", "2", "--no-validation",
         "--log-all-instances", "--log-dir", str(tmp_path / norm)]
        for norm in NORMS
    ]  # fmt: skip
    printed = fake_cluster.run(
        _train_all, TRAIN, trainings, engine=engine, num_workers=2, timeout_s=240
    )
    assert printed[1] == ["", ""]
    for norm, whole in {"group": "whole", "batch": "norm"}.items():
        _assert_equal(_rows(tmp_path / norm), _rows(alone["folder"] / whole))
        assert _rows(tmp_path / norm) == _rows(tmp_path / norm, "training_1")
