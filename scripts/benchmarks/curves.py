"""Trains the applications in several layouts at one global batch, and compares their losses.

    python scripts/benchmarks/curves.py [--only cnn,bert] [--steps 100] [--quick]

16 micro-batches of a step are spread over workers, replicas and accumulation. Between the runs only
the launcher's numbers and the accumulation change. Prints a line for each training; with all of
them it writes docs/curves.md. --quick runs 10 steps of two layouts, and writes
nothing. The exit code is 1 if a run failed or differs by more than is allowed, 2 after a wrong
call.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curve_figures import HEADER, Layout, Run, curve_line, missed
from report import markdown_table

from tfdist.launch.machine.mpi import horovod_problem

ROOT = Path(__file__).parents[2]
ENGINES = {"grpc": "gRPC", "horovod": "Horovod"}
ALLOWED_DIFFERENCE = 1e-5  # Of a step's loss, relative.
ALLOWED_POINTS = 0.2  # Of the accuracy at the end.
RUN_LIMIT_S = 1800.0
STOP_LIMIT_S = 30.0
SHOWN_LINES = 15  # Of the output of a run that failed.

LAYOUTS = tuple(
    Layout(workers=workers, replicas=replicas, accumulation=accumulation)
    for workers, replicas, accumulation in (
        (1, 1, 16),
        (1, 16, 1),
        (2, 8, 1),
        (2, 2, 4),
        (4, 4, 1),
    )
)
QUICK_LAYOUTS = (LAYOUTS[0], LAYOUTS[3])


class RunError(Exception):
    """A run that failed, with the end of its output."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training of an application.

    Attributes:
      title: Its title in the page.
      program: The command of the program, with the options that all layouts have.
      accumulation_option: The program's option for the number of micro-batches.
      steps_option: Its option for the number of steps.
      folder_option: Its option for the folder of checkpoints and tables.
      accuracy: Reads the accuracy at the end, in percent, from the folder and the output.
      layouts: The layouts to compare; the first one is the one to compare with.
    """

    title: str
    program: tuple[str, ...]
    accumulation_option: str
    steps_option: str
    folder_option: str
    accuracy: Callable[[Path, str], float | None]
    layouts: tuple[Layout, ...] = LAYOUTS


def _validated(folder: Path, output: str) -> float | None:
    [table] = folder.rglob("validation.csv")
    return float(_rows(table)[-1]["accuracy"])


def _held_out(folder: Path, output: str) -> float | None:
    return float(last_json(output)["held_out_mlm_acc"])


def last_json(output: str) -> dict[str, Any]:
    """Returns the last line of an output that is a JSON object."""
    *_, line = (line for line in output.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def _resnet(title: str, *options: str, layouts: tuple[Layout, ...] = LAYOUTS) -> Training:
    program = ("examples/cnn/train.py", "--config", "photos_resnet8", "--batch-size", "4")
    return Training(
        title=title,
        program=(*program, "--log-freq", "1", "--ckpts-per-epoch", "0.01", *options),
        accumulation_option="--gradient-accumulation-count",
        steps_option="--iterations",
        folder_option="--log-dir",
        accuracy=_validated,
        layouts=layouts,
    )


def _bert(title: str, *options: str, layouts: tuple[Layout, ...] = LAYOUTS) -> Training:
    program = ("examples/bert/run_pretraining.py", "--config", "sample_tiny")
    # The initial values of the original's presets.
    first = ("--initializer-range", "0.02", "--layer-norm-eps", "0.001")
    return Training(
        title=title,
        program=(*program, *first, "--micro-batch-size", "4", "--evaluate", *options),
        accumulation_option="--gradient-accumulation",
        steps_option="--training-steps",
        folder_option="--checkpoint-output-dir",
        accuracy=_held_out,
        layouts=layouts,
    )


def _all_of_16(*sizes: tuple[int, int]) -> tuple[Layout, ...]:
    return tuple(
        Layout(workers=workers, replicas=replicas, accumulation=16 // workers // replicas)
        for workers, replicas in sizes
    )


# With the preset's rate of 2**-10 a difference of 1e-7 grows to 1e-3 in 60 steps: batch norm over
# four images magnifies rounding.
_CALM = ("--base-learning-rate", "-13")

TRAININGS = {
    "cnn": _resnet("ResNet-8 on photos, momentum", *_CALM),
    "cnn-lars": _resnet(
        "ResNet-8 on photos, LARS, loss scale 128, recomputation, group norm",
        *("--optimiser", "LARS", "--loss-scaling", "128", "--enable-recomputation"),
        "--group-norm",
    ),
    # Groups of four neighbours have the same images only in these layouts.
    "cnn-batch-norm": _resnet(
        "ResNet-8 on photos, batch norm over 4 replicas",
        *("--BN-span", "4"),
        *_CALM,
        layouts=_all_of_16((1, 16), (2, 8), (4, 4)),
    ),
    "bert": _bert("BERT with 2 layers on the sample, AdamW"),
    "bert-lamb": _bert(
        "BERT with 2 layers on the sample, LAMB, loss scale 128, recomputation",
        *("--optimizer", "LAMB", "--loss-scaling", "128"),
        "--recompute-checkpoint-every-layer",
    ),
    # Three stages need at least five micro-batches.
    "bert-pipeline": _bert(
        "BERT with 2 layers on the sample, a pipeline of 3 devices",
        *("--layers-per-device", "0", "1", "1"),
        layouts=_all_of_16((1, 1), (1, 2), (2, 1)),
    ),
}


def main() -> int:
    """Measures, compares, and writes; returns the exit code."""
    arguments = read_arguments()
    failures: list[str] = []
    measured: dict[str, list[Run]] = {}
    for name in arguments.only or TRAININGS:
        try:
            measured[name] = measure(name, arguments)
        except RunError as error:
            failures.append(f"{name}: {error}")
            continue
        print(" | ".join(curve_line(TRAININGS[name].title, measured[name])), flush=True)
    if measured.keys() == TRAININGS.keys() and not arguments.quick:
        write_page(measured, arguments.docs)
    failures += missed(measured, difference=ALLOWED_DIFFERENCE, points=ALLOWED_POINTS)
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


def read_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(TRAININGS)
    parser.add_argument("--only", type=_names, metavar="A,B", help=f"some of {names}")
    parser.add_argument("--steps", type=int, help="of each run (default: 100; 10 with --quick)")
    parser.add_argument("--quick", action="store_true", help="few steps, and gRPC alone")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page")
    arguments = parser.parse_args(argv)
    arguments.steps = arguments.steps or (10 if arguments.quick else 100)
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps} is below 1: give at least 1")
    return arguments


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in TRAININGS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is none of {', '.join(TRAININGS)}: give some of these, with commas"
            )
    return names


def measure(name: str, arguments: argparse.Namespace) -> list[Run]:
    """Runs one training in its layouts, those with several workers over each engine.

    Raises:
      RunError: If a run failed.
    """
    training = TRAININGS[name]
    layouts = training.layouts
    if arguments.quick:
        layouts = tuple(x for x in layouts if x in QUICK_LAYOUTS) or layouts[:2]
    engines = list(ENGINES)[:1] if arguments.quick else list(ENGINES)
    if len(engines) > 1 and (problem := horovod_problem()):
        raise RunError(f"{problem} Run: tfdist horovod install")
    runs = []
    for layout in layouts:
        for engine in engines if layout.workers > 1 else engines[:1]:
            start = time.monotonic()
            runs.append(run_layout(training, layout, engine, arguments.steps))
            print(f"{name}, {runs[-1].name}: {time.monotonic() - start:.0f} s", flush=True)
    return runs


def run_layout(training: Training, layout: Layout, engine: str, steps: int) -> Run:
    """Runs a training in one layout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = _run(command(training, layout, engine, steps, folder), folder / "output")
        tables = list(folder.rglob("training.csv"))
        if len(tables) != 1:
            raise RunError(f"{layout}: the program wrote {len(tables)} tables training.csv, not 1")
        rows = _rows(tables[0])
        if len(rows) != steps:
            raise RunError(f"{layout}: training.csv has {len(rows)} rows for {steps} steps")
        return Run(
            layout=layout,
            engine=ENGINES[engine] if layout.workers > 1 else "one worker",
            losses=[float(row["loss"]) for row in rows],
            accuracy=training.accuracy(folder, output),
        )


def command(training: Training, layout: Layout, engine: str, steps: int, folder: Path) -> list[str]:
    """Returns the command of a run."""
    return [
        *(sys.executable, "-m", "tfdist", "run", "--engine", engine, "--progress", "none"),
        *("--num-instances", str(layout.workers)),
        *("--num-replicas", str(layout.workers * layout.replicas), "--tag-output", "no"),
        *("--log-dir", str(folder / "logs"), "--"),
        *(sys.executable, str(ROOT / training.program[0]), *training.program[1:]),
        *(training.accumulation_option, str(layout.accumulation)),
        *(training.steps_option, str(steps), training.folder_option, str(folder)),
    ]


def _run(argv: Sequence[str], output: Path) -> str:
    """Runs a command, and returns its standard output; what it logs goes there as well."""
    with output.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            code = process.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                process.terminate()  # The launcher then stops its workers.
                process.wait(STOP_LIMIT_S)
    text = output.read_text(errors="replace")
    if code != 0:
        ended = f"did not end in {RUN_LIMIT_S:g} s" if code is None else f"ended with code {code}"
        last = "\n".join(text.splitlines()[-SHOWN_LINES:])
        raise RunError(f"{' '.join(argv)}\n{ended}; the end of its output:\n{last}")
    return text


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


PAGE = """\
# Equal curves

This page shows that the number of workers, replicas and accumulation steps does not change a
training. A step's gradient is a mean over 16 micro-batches. `scripts/benchmarks/curves.py` divides
them in different ways and compares the loss of each step:

```bash
python scripts/benchmarks/curves.py
```

A run is a layout, "workers x replicas x accumulation", and for several workers an engine: 1 x 1 x
16, 1 x 16 x 1, and 2 x 8 x 1, 2 x 2 x 4 and 4 x 4 x 1 over gRPC and over Horovod. The pipeline, and
batch norm over 4 replicas, have the layouts that they allow. Between the runs only the launcher's
numbers and the accumulation change. Differences are those of a step's loss from the first run's;
the accuracy at the end is the same in all runs, or all are listed.

"""

NOTE = """

float32 sums of a different order differ by about 1e-7, and training makes such a difference grow
where the loss is not smooth: with the preset's own rate (2**-10 times the batch) the losses of
ResNet-8 with batch norm over 4 images differ by 1.3e-3 after 60 steps. So the ResNet is trained
with 2**-13 here, where it learns little in 100 steps. [ResNet](resnet.md) has the accuracies of
whole trainings.
"""


def write_page(curves: Mapping[str, Sequence[Run]], folder: Path) -> None:
    """Writes the page."""
    lines = [curve_line(TRAININGS[name].title, runs) for name, runs in curves.items()]
    (folder / "curves.md").write_text(f"{PAGE}{markdown_table(HEADER, lines)}{NOTE}")


if __name__ == "__main__":
    sys.exit(main())
