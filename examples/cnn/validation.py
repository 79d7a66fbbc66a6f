"""Validates the checkpoints of a run of train.py, or one of them.

    python examples/cnn/validation.py --restore-path logs/resnet8_digits_batch64_32.32
    python examples/cnn/validation.py --restore-path logs/resnet8_digits_batch64_32.32/model.ckpt-62

The options of the model and of the data come from the run's arguments.json. The lines go to the
run's log.txt and validation.csv, too.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[1] / "application"))

import options
from arguments import Settings
from datasets import Dataset, Facts
from options import UsageError, option, refusals
from plan import Plan, find_data, make_plan

from tfdist.cluster.instances import Instance

if TYPE_CHECKING:
    from run_log import RunLog

    from tfdist.estimator import Estimator

BATCH = 100  # Images that are validated at once.
LOOK_EVERY_S = 1.0  # For new checkpoints.


@dataclass(frozen=True, kw_only=True)
class What:
    """The options of this program."""

    restore_path: str = option("", str, "folder of a run, or a checkpoint")
    data_dir: str | None = option(None, str, "folder of the data, if it is elsewhere now")


def main() -> None:
    with refusals():
        what, _, _ = options.parse(What, sys.argv[1:])
        path = Path(what.restore_path)
        folder = path if path.is_dir() else path.parent
        file = folder / "arguments.json"
        if not what.restore_path or not file.exists():
            raise UsageError(
                f"--restore-path {what.restore_path!r} is not of a run of train.py: there is no "
                "arguments.json. Give a run's folder, or one of its checkpoints"
            )
        settings, global_batch = read_settings(file)
        settings = replace(settings, data_dir=what.data_dir or settings.data_dir)
        facts, dataset = find_data(settings)
        assert dataset is not None
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
        validator_alone(settings, global_batch, facts, dataset, folder).validate_all(path)


def read_settings(file: Path) -> tuple[Settings, int]:
    """Returns the options of a run, and its global batch, from its arguments.json."""
    values = json.loads(file.read_text(encoding="utf-8"))
    known = {one.name for one in fields(Settings)}
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }
    given["group_norm"] = values["norm"] == "group"
    return Settings(**given), values["global_batch"]


def validator_alone(
    settings: Settings, global_batch: int, facts: Facts, dataset: Dataset, folder: Path
) -> Validator:
    """Returns what validates a run in a process of its own: the whole model on one device."""
    import tensorflow.compat.v1 as v1
    from model import make_estimator
    from run_log import RunLog

    v1.logging.set_verbosity(v1.logging.WARN)
    settings = replace(
        settings,
        batch_size=global_batch,
        gradient_accumulation_count=1,
        replicas=1,
        pipeline=False,
        BN_span=1,
        init_path=None,
        evaluator=False,
    )
    plan = make_plan(settings, facts, Instance())
    estimator = make_estimator(settings, plan, dataset, folder)
    log = RunLog(folder, 0, writes=True)
    return Validator(estimator=estimator, settings=settings, plan=plan, dataset=dataset, log=log)


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Validates checkpoints of a run; each gets a line of the log and a row of validation.csv."""

    estimator: Estimator
    settings: Settings
    plan: Plan
    dataset: Dataset
    log: RunLog

    def validate_all(self, path: Path) -> None:
        """Validates every checkpoint of a folder and the means that the options ask for, or one."""
        from checkpoints import list_checkpoints

        checkpoints = list_checkpoints(path)
        if not checkpoints or not Path(f"{checkpoints[0]}.index").exists():
            raise UsageError(
                f"{path} has no checkpoint: give a run's folder, or one such as model.ckpt-100"
            )
        if path.is_dir():
            checkpoints += write_means(path, checkpoints, self.settings)
        for checkpoint in checkpoints:
            self.validate(checkpoint)

    def validate_beside(self, folder: Path) -> None:
        """Validates each checkpoint of a running training until its last one, then the means.

        Runs in the evaluator. One that was started again leaves out what is in validation.csv.
        """
        from checkpoints import list_checkpoints, step_of

        done = _validated(folder)
        is_last = False
        while not is_last:
            checkpoints = list_checkpoints(folder)
            is_last = bool(checkpoints) and step_of(checkpoints[-1]) >= self.plan.num_steps
            for checkpoint in checkpoints:
                if Path(checkpoint).name not in done:
                    self.validate(checkpoint)
                    done.add(Path(checkpoint).name)
            if not is_last:
                time.sleep(LOOK_EVERY_S)
        for mean in write_means(folder, checkpoints, self.settings):
            self.validate(mean)

    def validate(self, checkpoint: str) -> None:
        """Validates one checkpoint."""
        from run_log import VALIDATION_LINE

        eight_bit = self.settings.eight_bit_io
        input_fn = self.dataset.validation.evaluation_input_fn(batch=BATCH, eight_bit=eight_bit)
        metrics = self.estimator.evaluate(input_fn, checkpoint_path=checkpoint)
        iteration = int(metrics["global_step"])
        row = {
            "iteration": iteration,
            "checkpoint": Path(checkpoint).name,
            "epoch": iteration / self.plan.steps_per_epoch,
            "loss": float(metrics["loss"]),
            "accuracy": 100 * float(metrics["accuracy"]),
            "top_5_accuracy": 100 * float(metrics["top_5_accuracy"]),
        }
        self.log.say(VALIDATION_LINE.format(**row))
        self.log.add_row("validation", row)


def _validated(folder: Path) -> set[str]:
    """Returns the names of the checkpoints that are in validation.csv."""
    table = folder / "validation.csv"
    if not table.exists():
        return set()
    with open(table, encoding="utf-8") as file:
        return {row["checkpoint"] for row in csv.DictReader(file)}


def write_means(folder: Path, checkpoints: Sequence[str], settings: Settings) -> list[str]:
    """Writes the means of a run's checkpoints that the options ask for; returns their paths."""
    from checkpoints import exponential_mean, mean_of_last, write_mean

    count = len(checkpoints)
    means = {
        **{f"last_{number}": mean_of_last(number, count) for number in settings.weight_avg_N},
        **{f"exp_{x:g}": exponential_mean(x, count) for x in settings.weight_avg_exp},
    }
    paths = {name: str(folder / f"weight_avg_{name}") for name in means}
    for name, weights in means.items():
        write_mean(checkpoints, weights, paths[name])
    return list(paths.values())


if __name__ == "__main__":
    main()
