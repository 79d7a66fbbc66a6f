"""A table of scalars by step, as a CSV file."""

from __future__ import annotations

import csv
import os
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.monitoring.scalars import Chosen, ScalarsHook, own_worker_index


class CsvMetricsHook(ScalarsHook):
    """Appends a row "step, scalar, scalar..." to a file every n steps.

    An existing file is continued. Rows of steps after the one from which training resumes are
    dropped first, because those steps run again. Of several workers only worker 0 writes; the
    others may have the hook as well. Each row is in the file before the next step.

    Args:
      path: The file, also on a remote file system; its folder is created.
      scalars: Names of scalar summaries or of tensors, which become the columns after "step"; or a
        dict from column to name or tensor. "loss" is the loss that is reported.
      every_n_steps: Rows are written at multiples of it.

    Raises:
      ValueError: As in `ScalarsHook`; when training starts, if the file has other columns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        scalars: Chosen = ("loss",),
        every_n_steps: int = 100,
    ) -> None:
        super().__init__(scalars, every_n_steps)
        self._path = os.fspath(path)
        self._columns = ["step", *self.names]
        self._is_writer = own_worker_index() == 0

    def begin(self) -> None:
        super().begin()
        if self._is_writer:
            self._check_columns(read_rows(self._path))

    def start(self, step: int) -> None:
        if not self._is_writer:
            return
        rows = read_rows(self._path)
        kept = [row for row in rows[1:] if is_of_step_up_to(row, step)]
        dropped = max(0, len(rows) - 1 - len(kept))
        if dropped:
            v1.logging.info(
                "%s: %d row(s) of steps after %d are dropped, as training resumes there.",
                self._path,
                dropped,
                step,
            )
        write_rows(self._path, [self._columns, *kept])

    def report(self, step: int, scalars: dict[str, float]) -> None:
        if self._is_writer:
            with tf.io.gfile.GFile(self._path, "a") as file:
                csv.writer(file).writerow([step, *scalars.values()])

    def _check_columns(self, rows: list[list[str]]) -> None:
        if rows and rows[0] != self._columns:
            raise ValueError(
                f"{self._path} has the columns {', '.join(rows[0])}, and the hook writes "
                f"{', '.join(self._columns)}. Choose another file, or the same scalars in order."
            )


def read_rows(path: str) -> list[list[str]]:
    """Reads a file's rows, its header first; none if it does not exist.

    A last row whose end was not written, as by a process that was killed, is of no step.
    """
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        text = file.read()
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if len(rows) > 1 and not text.endswith("\n"):
        rows[-1][0] = ""
    return rows


def is_of_step_up_to(row: list[str], step: int) -> bool:
    """Returns whether a row is of a step up to the given one."""
    return row[0].isdecimal() and int(row[0]) <= step


def write_rows(path: str, rows: list[list[Any]]) -> None:
    """Replaces a file; a reader sees the old file or the new one."""
    tf.io.gfile.makedirs(os.path.dirname(path) or os.curdir)
    with tf.io.gfile.GFile(f"{path}.new", "w") as file:
        csv.writer(file).writerows(rows)
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)
