"""Checkpoints of a model_dir, and warm starts from another model's variables."""

from __future__ import annotations

import errno
import os
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph import checkpoint_fit
from tfdist.process.endings import OneLineError

# By name, and in the object-based checkpoints of converted Keras models.
_GLOBAL_STEP_NAMES = ("global_step", "estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE")

VocabInfo = v1.train.VocabInfo


class ModelDirError(OneLineError, PermissionError):
    """The model_dir cannot be written."""


def latest(model_dir: str) -> str | None:
    """Returns the newest checkpoint's path, or None."""
    return tf.train.latest_checkpoint(model_dir)


def newest_at(path: str) -> str | None:
    """Returns a checkpoint's path; for a folder, the path of its newest one, or None."""
    return latest(path) if tf.io.gfile.isdir(path) else path


def step_of(checkpoint: str) -> int:
    """Returns the global step that a checkpoint holds, 0 if it holds none."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
    except tf.errors.NotFoundError:
        return 0
    names = (name for name in _GLOBAL_STEP_NAMES if reader.has_tensor(name))
    return next((int(reader.get_tensor(name)) for name in names), 0)


def variable_names(model_dir: str) -> list[str]:
    """Names the variables of the newest checkpoint; ValueError if there is none."""
    return [name for name, _ in tf.train.list_variables(_required(model_dir))]


def variable_value(model_dir: str, name: str) -> Any:
    """Returns a variable's value in the newest checkpoint; ValueError if there is none."""
    return tf.train.load_variable(_required(model_dir), name)


def _required(model_dir: str) -> str:
    path = latest(model_dir)
    if path is None:
        raise ValueError(f"Could not find trained model in model_dir: {model_dir}. Train first.")
    return path


def is_remote(path: str) -> bool:
    """Whether TensorFlow alone can reach a path: one like gs://bucket/model."""
    return "://" in path


def require_writable(model_dir: str) -> None:
    """Refuses a model_dir that cannot be written, before anything is trained.

    A remote one is made, and nothing is tried: the first checkpoint comes soon.

    Raises:
      ModelDirError: One line that names the folder and the cause.
      OSError: If the disk is full.
    """
    if is_remote(model_dir):
        tf.io.gfile.makedirs(model_dir)
        return
    try:
        os.makedirs(model_dir, exist_ok=True)
        probe = os.path.join(model_dir, f".write-test-{os.getpid()}")
        with open(probe, "w"):
            pass
        os.remove(probe)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise ModelDirError(
            f"model_dir {model_dir!r} cannot be written: {error.strerror}. Choose another folder, "
            "or change its owner or mode."
        ) from None


class _WarmStartFields(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_WarmStartFields):
    """Which variables start from which checkpoint.

    Args:
      ckpt_to_initialize_from: A checkpoint's path, or a folder with checkpoints.
      vars_to_warm_start: A regular expression over trainable variables ('.*' is all of them), a
        list of expressions over all global variables, a list of variables, or None for only those
        in `var_name_to_vocab_info`.
      var_name_to_vocab_info: Variable name to `VocabInfo`, for rows that have moved.
      var_name_to_prev_var_name: Variable name to its name in the checkpoint.

    Raises:
      ValueError: If the checkpoint is empty.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: dict[str, Any] | None = None,
        var_name_to_prev_var_name: dict[str, str] | None = None,
    ) -> WarmStartSettings:
        if not ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings.")
        return super().__new__(
            cls,
            os.fspath(ckpt_to_initialize_from),
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def warm_start_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Accepts a path or settings; a path that holds a SavedModel means its variables.

    Raises:
      ValueError: For anything else.
    """
    if warm_start_from is None:
        return None
    if isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = os.fspath(warm_start_from)
        path = path.decode() if isinstance(path, bytes) else path
        variables = os.path.join(path, "variables", "variables")
        if os.path.exists(variables + ".index"):
            v1.logging.info("Warm-starting from a SavedModel")
            path = variables
        return WarmStartSettings(path)
    raise ValueError(
        "warm_start_from must be a string or a WarmStartSettings, instead got "
        f"{type(warm_start_from)}."
    )


def apply_warm_start(settings: WarmStartSettings | None) -> None:
    """Makes the current graph's variables start from the settings' checkpoint."""
    if settings is None:
        return
    v1.logging.info("Warm-starting with WarmStartSettings: %s", settings)
    v1.train.warm_start(*settings)
    checkpoint = newest_at(settings.ckpt_to_initialize_from)
    if checkpoint is not None:
        checkpoint_fit.check_initial_values(checkpoint)
