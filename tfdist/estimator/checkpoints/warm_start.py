"""Warm starts: initial values of variables from another model's checkpoint."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints import fit
from tfdist.estimator.checkpoints.recovery import whole_at

VocabInfo = v1.train.VocabInfo


class _WarmStartFields(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_WarmStartFields):
    """The variables of a warm start, and the checkpoint with their initial values.

    Args:
      ckpt_to_initialize_from: A checkpoint's path, or a folder with checkpoints.
      vars_to_warm_start: A regular expression over trainable variables ('.*' is all of them), a
        list of expressions over all global variables, a list of variables, or None for only those
        in `var_name_to_vocab_info`.
      var_name_to_vocab_info: A dict of variable name to `VocabInfo`, for rows that have moved.
      var_name_to_prev_var_name: A dict of variable name to its name in the checkpoint.

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


WarmStartFrom = str | os.PathLike[str] | WarmStartSettings | None


def warm_start_settings(warm_start_from: WarmStartFrom) -> WarmStartSettings | None:
    """Returns settings, given a path or settings; the path of a SavedModel means its variables.

    Raises:
      ValueError: For anything else.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = os.fspath(warm_start_from)
        path = path.decode() if isinstance(path, bytes) else path
        variables = os.path.join(path, "variables", "variables")
        if tf.io.gfile.exists(variables + ".index"):
            v1.logging.info("Warm-starting from a SavedModel")
            path = variables
        return WarmStartSettings(path)
    raise ValueError(
        "warm_start_from must be a string or a WarmStartSettings, instead got "
        f"{type(warm_start_from)}."
    )


def apply_warm_start(settings: WarmStartSettings | None) -> None:
    """Initialises the current graph's variables from the settings' checkpoint."""
    if settings is None:
        return
    v1.logging.info("Warm-starting with WarmStartSettings: %s", settings)
    checkpoint = whole_at(tf.compat.as_str(settings.ckpt_to_initialize_from))
    if checkpoint is not None:
        settings = settings._replace(ckpt_to_initialize_from=checkpoint)
    v1.train.warm_start(*settings)
    if checkpoint is not None:
        fit.check_initial_values(checkpoint)
