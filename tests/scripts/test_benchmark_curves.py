"""The benchmark that compares the losses of one training in several layouts."""

import math
import sys
from pathlib import Path

import curves
import pytest
from curve_figures import (
    Layout,
    Run,
    curve_line,
    largest_difference,
    missed,
)

# Stands for an application: its losses depend on the launcher's numbers as SHIFT says.
PROGRAM = """
import argparse, csv, os
parser = argparse.ArgumentParser()
for name in ("folder", "steps", "accumulation"):
    parser.add_argument(f"--{name}")
options = parser.parse_args()
from tfdist.cluster.instances import find_instance
instance = find_instance()
sizes = instance.num_instances, instance.num_local_replicas, int(options.accumulation)
if instance.index == 0:
    with open(f"{options.folder}/training.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        for step in range(1, int(options.steps) + 1):
            writer.writerow([step, 2 / step + (1e-3 if sizes == (2, 1, 2) and step == 3 else 0)])
    print('{"accuracy": 93.5}')
"""


def layout(workers: int, replicas: int, accumulation: int) -> Layout:
    return Layout(workers=workers, replicas=replicas, accumulation=accumulation)


def run(losses: list[float], accuracy: float | None = None, workers: int = 1) -> Run:
    engine = "gRPC" if workers > 1 else "one worker"
    sizes = layout(workers, 1, 4 // workers)
    return Run(layout=sizes, engine=engine, losses=losses, accuracy=accuracy)


def test_losses_are_compared_step_by_step_with_those_of_the_first_run() -> None:
    assert largest_difference([4.0, 1.02, 1.0], [4.0, 1.0, 1.0]) == (pytest.approx(0.02), 2)
    assert largest_difference([math.nan, 0.5], [1.0, 0.0]) == (math.inf, 1)
    with pytest.raises(ValueError, match=r"the runs have 3 and 2 steps.* Measure the training"):
        largest_difference([1.0, 1.0], [1.0, 1.0, 1.0])


def test_a_line_has_the_largest_difference_of_all_runs_and_every_accuracy() -> None:
    runs = [run([2.0, 1.0], 95.0), run([2.0, 1.001], 95.5, 2), run([2.0, 1.0], 95.0, 4)]
    assert curve_line("ResNet", runs) == [
        "ResNet",
        "3",
        "2.0000 to 1.0000",
        "1.0e-03 (2 x 1 x 2, gRPC, step 2)",
        "95.00, 95.50",
    ]


def test_what_differs_by_too_much_is_named() -> None:
    found = {"cnn": [run([2.0, 1.0], 95.0), run([2.0, 1.001], 95.3, 2), run([2.0, 1.0], 95.1, 4)]}
    assert missed(found, difference=1e-5, points=0.2) == [
        "cnn, 2 x 1 x 2, gRPC: the loss of step 2 differs by 1.0e-03, more than 1e-05",
        "cnn, 2 x 1 x 2, gRPC: the accuracy differs by 0.30 points, more than 0.2",
    ]


def test_all_layouts_of_a_training_have_the_same_global_batch() -> None:
    for training in curves.TRAININGS.values():
        assert {one.num_micro_batches for one in training.layouts} == {16}
        assert (curves.ROOT / training.program[0]).parent.parent.name == "examples"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has `PROGRAM` as the only training, in two layouts; returns its file."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    training = curves.Training(
        title="Small",
        program=(str(program),),
        accumulation_option="--accumulation",
        steps_option="--steps",
        folder_option="--folder",
        accuracy=lambda folder, output: float(curves.last_json(output)["accuracy"]),
        layouts=(layout(1, 4, 1), layout(2, 1, 2)),
    )
    monkeypatch.setattr(curves, "TRAININGS", {"small": training})
    monkeypatch.setattr(curves, "ENGINES", {"grpc": "gRPC"})
    return program


@pytest.mark.processes
def test_a_training_is_run_in_its_layouts_and_the_page_is_written(
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["curves.py", "--steps", "4", "--docs", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    assert curves.main() == 1  # The difference at step 3.
    page = (tmp_path / "curves.md").read_text()
    assert "2.0000 to 0.5000" in page and "1.5e-03 (2 x 1 x 2, gRPC, step 3)" in page
    assert "93.50" in page
    shown = capsys.readouterr()
    assert "small, 2 x 1 x 2, gRPC: the loss of step 3 differs by 1.5e-03" in shown.err

    small.write_text("raise SystemExit('broken')")
    assert curves.main() == 1
    assert "broken" in capsys.readouterr().err
    assert (tmp_path / "curves.md").read_text() == page  # As it was.
