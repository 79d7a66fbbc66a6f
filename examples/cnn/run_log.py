"""The log of a run: its folder, log.txt, tables, and the hook that reports on the training.

    logs/resnet8_digits_batch64_32.32/
      arguments.json     the options
      log.txt            what is printed
      training.csv       a row for each log line of the training
      validation.csv     a row for each validated checkpoint
      model.ckpt-...     checkpoints

Worker 0 prints and writes. With --log-all-instances others write log_N.txt and training_N.csv.
"""

import csv
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from arguments import Settings
from model import ACCURACY, LOSS
from optimization import Schedule
from plan import Plan

LINE = (
    "step: {step:6d}, iteration: {iteration:6d}, epoch: {epoch:6.2f}, lr: {lr:6.4g}, "
    "loss: {loss:6.3f}, top-1 accuracy: {accuracy:6.3f}%, img/sec: {img_per_sec:6.2f}, "
    "time: {time:8.6f}, total_time: {total_time:8.1f}"
)
VALIDATION_LINE = (
    "validation: iteration: {iteration:6d}, epoch: {epoch:6.2f}, loss: {loss:6.3f}, "
    "top-1 accuracy: {accuracy:6.3f}%, top-5 accuracy: {top_5_accuracy:6.3f}%"
)


class RunLog:
    """Prints lines, on worker 0, and writes them into the folder of a run, with rows of tables."""

    def __init__(self, folder: Path, worker: int, *, writes: bool) -> None:
        self._folder = folder
        self._suffix = f"_{worker}" if worker else ""
        self._prints = worker == 0
        self._writes = writes

    def say(self, text: str) -> None:
        if self._prints:
            print(text, flush=True)
        if self._writes:
            with open(self._folder / f"log{self._suffix}.txt", "a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    def add_row(self, table: str, row: Mapping[str, Any]) -> None:
        """Appends a row to a table, which gets a header with its first row."""
        if not self._writes:
            return
        path = self._folder / f"{table}{self._suffix}.csv"
        is_new = not path.exists()
        with open(path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def drop_rows_after(self, table: str, step: int) -> None:
        """Drops the rows of steps that a resumed training makes again."""
        path = self._folder / f"{table}{self._suffix}.csv"
        if not (self._writes and path.exists()):
            return
        header, *rows = path.read_text(encoding="utf-8").splitlines()
        kept = [row for row in rows if int(row.split(",")[0]) <= step]
        new = path.with_suffix(".new")
        new.write_text("\n".join([header, *kept, ""]), encoding="utf-8")
        os.replace(new, path)


def write_settings(folder: Path, settings: Settings, plan: Plan) -> None:
    """Writes the options, the norm and the global batch as arguments.json."""
    values = {**vars(settings), "norm": settings.norm, "global_batch": plan.layout.global_batch}
    text = json.dumps(values, indent=2, sort_keys=True)
    (folder / "arguments.json").write_text(f"{text}\n", encoding="utf-8")


class LogHook(v1.train.SessionRunHook):
    """Logs means over the last steps, every few steps: a line, and a row of training.csv.

    Loss and accuracy are means over all replicas of all workers.
    """

    def __init__(self, log: RunLog, plan: Plan, schedule: Schedule) -> None:
        self._log = log
        self._plan = plan
        self._schedule = schedule

    def begin(self) -> None:
        self._step_variable = v1.train.get_global_step()
        self._rate_at = v1.placeholder(tf.int64, [], name="step_of_learning_rate")
        self._rate = self._schedule(self._rate_at)

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        self._step = int(session.run(self._step_variable))
        if self._step:
            self._log.say(f"going on after step {self._step}")
        self._log.drop_rows_after("training", self._step)
        self._started_s = self._interval_started_s = time.monotonic()
        self._seen: list[Sequence[float]] = []

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs([f"{LOSS}:0", f"{ACCURACY}:0"])

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        self._step += 1
        self._seen.append(run_values.results)
        is_last = self._step == self._plan.num_steps
        if self._step % self._plan.log_interval_steps == 0 or is_last:
            self._report(run_context.session)

    def _report(self, session: v1.Session) -> None:
        now_s = time.monotonic()
        duration_s = (now_s - self._interval_started_s) / len(self._seen)
        loss, accuracy = (mean(values) for values in zip(*self._seen, strict=True))
        # The global step counts finished steps: during the first one it was 0.
        rate = session.run(self._rate, {self._rate_at: self._step - 1})
        values = {
            "step": self._step,
            "iteration": self._step,
            "epoch": self._step / self._plan.steps_per_epoch,
            "lr": float(rate),
            "loss": loss,
            "accuracy": 100 * accuracy,
            "img_per_sec": self._plan.layout.global_batch / duration_s,
            "time": duration_s,
            "total_time": now_s - self._started_s,
        }
        self._log.say(LINE.format(**values))
        self._log.add_row("training", values)
        self._interval_started_s = now_s
        self._seen = []


def mean(values: Sequence[float]) -> float:
    """Returns the mean of the finite values: a step that was skipped may have none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
