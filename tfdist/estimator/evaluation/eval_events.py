"""Event files of evaluations: writing them for TensorBoard, and reading them."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1


def write_results(folder: str, results: dict[str, Any], checkpoint_path: str | None) -> None:
    """Writes the results for TensorBoard at the evaluated step, and logs them."""
    step = int(results["global_step"])
    shown = ", ".join(f"{name} = {value!s}" for name, value in sorted(results.items()))
    v1.logging.info("Saving dict for global step %d: %s", step, shown)
    summary = v1.Summary()
    for name, value in results.items():
        if name != "global_step" and value is not None:
            _add_value(summary, name, value)
    # It stays open: another writer made within the same second would overwrite its file.
    writer = v1.summary.FileWriterCache.get(folder)
    writer.add_summary(summary, step)
    if checkpoint_path:
        path = v1.Summary()
        path.value.add(
            tag="checkpoint_path",
            tensor=tf.make_tensor_proto(checkpoint_path, dtype=tf.string, shape=[]),
            metadata=v1.SummaryMetadata(data_class=3),  # DATA_CLASS_BLOB_SEQUENCE is 3.
        )
        v1.logging.info(
            "Saving 'checkpoint_path' summary for global step %d: %s", step, checkpoint_path
        )
        writer.add_summary(path, step)
    writer.flush()


def _add_value(summary: v1.Summary, name: str, value: object) -> None:
    if isinstance(value, (np.floating, np.integer, float, int)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
        v1.logging.info(
            "Summary for np.ndarray is not visible in Tensorboard by default (%s): it needs a "
            "plugin that shows tensors.",
            name,
        )
    elif isinstance(value, bytes):
        parsed = v1.Summary()
        try:
            parsed.ParseFromString(value)
        except Exception:
            v1.logging.warning("Skipping summary for %s, cannot parse string to Summary.", name)
            return
        for i, part in enumerate(parsed.value):
            part.tag = f"{name}/{i}"
            summary.value.add().CopyFrom(part)
    else:
        v1.logging.warning(
            "Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int or "
            "np.ndarray or a serialized string of Summary.",
            name,
        )


def is_first_number(value: float, best: float) -> bool:
    """Returns whether a value is better than the best one because that is NaN."""
    return math.isnan(best) and not math.isnan(value)


def read_eval_metrics(eval_dir: Any) -> OrderedDict[int, dict[str, float]]:
    """Reads the metrics of all evaluations in a folder.

    Args:
      eval_dir: A folder such as `Estimator.eval_dir()`; it need not exist.

    Returns:
      A dict of global step, ascending, to a dict of metric name to value. It contains numbers only.
      If two evaluations of a step have the same metric, the later value is used. A corrupt file is
      read up to the error, with a warning.
    """
    found: dict[int, dict[str, float]] = {}
    folder = os.fspath(eval_dir)
    if tf.io.gfile.exists(folder):
        for step, _, values in results_in(os.path.join(folder, "events.out.tfevents.*")):
            found.setdefault(step, {}).update(values)
    return OrderedDict(sorted(found.items()))


def results_in(pattern: str) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yields (global step, time in s, metrics) of each evaluation in files that match a pattern.

    A corrupt file is read up to the error, with a warning.
    """
    for path in tf.io.gfile.glob(pattern):
        try:
            for event in v1.train.summary_iterator(path):
                summary = event.summary.value  # Empty in events without a summary.
                values = {v.tag: v.simple_value for v in summary if v.HasField("simple_value")}
                if values:
                    yield event.step, event.wall_time, values
        except tf.errors.DataLossError as error:
            v1.logging.warning("The rest of event file %s is corrupt and left out: %s", path, error)
