"""Warm starts: initial values of variables from another model's checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints import fit, warm_tables
from tfdist.estimator.checkpoints.recovery import whole_at
from tfdist.strategies.graph_walks import descendants
from tfdist.strategies.private_tensorflow import replace_input

_IS_INITIALIZED = {"VarIsInitializedOp", "IsVariableInitialized"}
# The operations of `tf.cond`, new and old.
_BRANCHES = {"If", "StatelessIf", "Identity", "Switch", "RefSwitch"}

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
    before = [(variable, variable.initializer) for variable in v1.global_variables()]
    _start_variables(settings)
    _start_averages(before)
    if checkpoint is not None:
        fit.check_initial_values(checkpoint)


def _start_variables(settings: WarmStartSettings) -> None:
    """Makes the chosen variables begin at the checkpoint's values."""
    path, chosen, vocabularies, renamed = settings
    tables = warm_tables.chosen_tables(chosen)
    warm_tables.refuse_vocabularies([*vocabularies])
    if isinstance(chosen, list):
        chosen = [one for one in chosen if not any(one is table for table in tables.values())]
    others = {name: old for name, old in renamed.items() if name not in tables}
    with warm_tables.hidden_tables():
        v1.train.warm_start(path, chosen, vocabularies, others)
    warm_tables.start_tables(tables, path, renamed)


def _start_averages(before: Sequence[tuple[Any, tf.Operation]]) -> None:
    """Makes what begins at a variable, as its moving average does, begin at the warm value.

    The initial value of an average is `variable if is_initialized(variable) else initial_value`,
    and which of both it gets depends on the order of the initializers. A warm start replaces the
    variable's initializer; here it replaces the other branch's value as well.

    Args:
      before: Each variable, and its initializer before the warm start.
    """
    checks: dict[tf.Operation, list[tf.Operation]] = {}
    for op in v1.get_default_graph().get_operations():
        if op.type in _IS_INITIALIZED:
            checks.setdefault(op.inputs[0].op, []).append(op)
    for variable, initializer in before:
        warm = variable.initializer
        if warm is initializer or variable.op not in checks or len(initializer.inputs) != 2:
            continue  # Without a warm start, or an average; or it has a value on each replica.
        warm = getattr(warm, "op", warm)  # With a new vocabulary it is a variable's new value.
        (_, old), (_, new) = initializer.inputs, warm.inputs
        is_passed_on = descendants(checks[variable.op], is_inside=lambda op: op.type in _BRANCHES)
        for op in is_passed_on:
            replace_input(op, old, new)
