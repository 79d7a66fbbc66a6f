"""Rules of RunConfig: pure checks of its settings, and the choice of the model_dir."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_that, is_flag, is_number, is_whole
from tfdist.cluster.environment import REPLACE
from tfdist.cluster.tf_config import TfConfig
from tfdist.estimator.config.arguments import argument_names
from tfdist.estimator.config.task_role import NO_SERVERS
from tfdist.training.precision import Precision


def decide_model_dir(model_dir: str | os.PathLike[str] | None, tf_config: TfConfig) -> str | None:
    """Returns the argument's model_dir, else TF_CONFIG's; ValueError if they contradict."""
    try:
        given = None if model_dir is None else os.fsdecode(model_dir)
    except TypeError:
        raise ValueError(f"model_dir must be a path, got {model_dir!r}.") from None
    from_tf_config = tf_config.values.get("model_dir")
    if given == "":
        raise ValueError("model_dir should be non-empty. Leave it out for a temporary folder.")
    if from_tf_config == "":
        raise ValueError("model_dir in TF_CONFIG should be non-empty. Leave it out.")
    if from_tf_config is None:
        return given
    if given is not None and given != from_tf_config:
        raise ValueError(
            "`model_dir` provided in RunConfig construct, if set, must have the same value as the "
            f"model_dir in TF_CONFIG. It is {given!r}, and TF_CONFIG has {from_tf_config!r}."
        )
    v1.logging.info("Using model_dir in TF_CONFIG: %s", from_tf_config)
    return str(from_tf_config)


def decide_save_interval(steps: Any, secs: Any, unset: object) -> tuple[Any, Any]:
    """Returns save_checkpoints_steps and _secs: the one that is given, else 600 seconds."""
    if steps is unset and secs is unset:
        return None, 600
    steps, secs = (None if steps is unset else steps), (None if secs is unset else secs)
    refuse_two_intervals(steps, secs)
    return steps, secs


def refuse_two_intervals(steps: Any, secs: Any) -> None:
    """Raises a ValueError if both are given."""
    if steps is not None and secs is not None:
        raise ValueError(
            "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set. They are "
            f"{steps} and {secs}: give one of them."
        )


def is_for_parameter_servers(strategy: object) -> bool:
    """Returns whether a strategy is a ParameterServerStrategy of TensorFlow, of any version."""
    return type(strategy).__name__.startswith("ParameterServerStrategy")


def decide_strategies(
    train: Any, evaluate: Any, experimental: Any, parameter_servers: str | None
) -> tuple[Any, Any]:
    """Returns the strategies for training and evaluating, from either way of giving them.

    Args:
      train: The argument train_distribute.
      evaluate: The argument eval_distribute.
      experimental: An object with the attributes train_distribute and eval_distribute, or None.
      parameter_servers: "replace" if strategies for parameter servers will be replaced, or None.

    Raises:
      ValueError: If a strategy is given twice, or cannot work here.
    """
    if experimental is not None:
        if not hasattr(experimental, "train_distribute"):
            raise ValueError(
                "experimental_distribute should be an object with train_distribute and "
                f"eval_distribute, got {experimental!r}."
            )
        if getattr(experimental, "remote_cluster", None):
            raise ValueError(
                "experimental_distribute.remote_cluster is not supported: there is no standalone "
                "client. Start the program on every worker with TF_CONFIG."
            )
        train = _either("train_distribute", train, experimental.train_distribute)
        evaluate = _either(
            "eval_distribute", evaluate, getattr(experimental, "eval_distribute", None)
        )
    for name, strategy in (("train_distribute", train), ("eval_distribute", evaluate)):
        if is_for_parameter_servers(strategy) and parameter_servers != REPLACE:
            raise ValueError(f"{name} is a {type(strategy).__name__}, and {NO_SERVERS}")
    return train, evaluate


def _either(name: str, plain: Any, experimental: Any) -> Any:
    if plain is not None and experimental is not None:
        raise ValueError(
            f"Either `{name}` or `experimental_distribute.{name}` can be set. Both are: give one."
        )
    return plain if plain is not None else experimental


def check_stochastic_rounding(value: object, precision: Precision) -> None:
    """Raises a ValueError unless a value is True or False with half weights, or None."""
    if value is None:
        return
    if not isinstance(value, bool):
        raise ValueError(f"stochastic_rounding must be True, False or None, got {value!r}.")
    if not precision.has_half_weights:
        raise ValueError(
            f"stochastic_rounding is {value}, and with precision {precision.name} all weights are "
            'float32. Leave it out, or set precision to "float16" or "bfloat16".'
        )


def check_setting(name: str, value: object) -> None:
    """Checks that RunConfig allows a value; None is always allowed.

    Raises:
      ValueError: If it does not; the message has the value found and the allowed values.
    """
    rule, allowed = _RULES.get(name, (None, ""))
    if rule is not None and value is not None:
        check_that(rule(value), name, value, allowed)


def _takes_op(function: object) -> bool:
    return callable(function) and set(argument_names(function)) == {"op"}


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


_Rule = tuple[Callable[[Any], bool], str]
_COUNT: _Rule = (
    lambda value: is_whole(value) and value >= 0,
    "should be >= 0 and a whole number",
)
_NUMBER: _Rule = (lambda value: is_number(value) and value > 0, "should be > 0 and a number")
_FLAG: _Rule = (is_flag, "should be True or False")

_RULES: dict[str, _Rule] = {
    "save_summary_steps": _COUNT,
    "save_checkpoints_steps": _COUNT,
    "save_checkpoints_secs": (
        lambda value: is_number(value) and value >= 0,
        "should be >= 0 and a number",
    ),
    "keep_checkpoint_max": (lambda value: _is_integer(value) and value >= 0, _COUNT[1]),
    "keep_checkpoint_every_n_hours": _NUMBER,
    "log_step_count_steps": (
        lambda value: is_whole(value) and value > 0,
        "should be > 0 and a whole number",
    ),
    "session_creation_timeout_secs": _NUMBER,
    "checkpoint_save_graph_def": _FLAG,
    "save_snapshot_steps": _COUNT,
    "save_input": _FLAG,
    "save_checkpoints_async": _FLAG,
    "session_config": (
        lambda value: isinstance(value, v1.ConfigProto),
        "must be instance of ConfigProto",
    ),
    "tf_random_seed": (_is_integer, "must be integer"),
    "experimental_max_worker_delay_secs": (_is_integer, "must be an integer if set"),
    "protocol": (
        lambda value: value in ("grpc", "grpc+verbs"),
        "should be grpc or grpc+verbs",
    ),
    "device_fn": (_takes_op, 'must be callable with exactly one argument "op"'),
    "parameter_servers": (lambda value: value == REPLACE, f'should be "{REPLACE}" or None'),
    "eval_distribute": (
        lambda value: isinstance(value, tf.distribute.Strategy | v1.distribute.Strategy),
        "should be a strategy",
    ),
}
