"""The settings of a RunConfig, and what follows from them and from TF_CONFIG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import REPLACE, read_snapshot_steps, replaces_parameter_servers
from tfdist.cluster.tasks import TaskType
from tfdist.cluster.tf_config import TfConfig
from tfdist.estimator.config import run_config_rules as rules
from tfdist.estimator.config.device_config import DeviceConfig
from tfdist.estimator.config.task_role import TaskRole, device_filters, find_role
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.grpc.strategy import from_multi_worker_mirrored, in_place_of_servers

UNSET: Any = object()  # An argument that is not given, where None means something.

_MULTI_WORKER = (
    tf.distribute.MultiWorkerMirroredStrategy,
    v1.distribute.experimental.MultiWorkerMirroredStrategy,
)
_LOCAL = (
    tf.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    v1.distribute.MirroredStrategy,
    v1.distribute.OneDeviceStrategy,
)
_STRATEGIES = (
    "a strategy of tfdist.strategies (MultiWorkerStrategy or HorovodStrategy for several workers), "
    "or tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """The arguments of a `RunConfig`, whose docstring describes them."""

    model_dir: Any
    tf_random_seed: int | None
    save_summary_steps: int | None
    save_checkpoints_steps: Any
    save_checkpoints_secs: Any
    session_config: v1.ConfigProto | None
    keep_checkpoint_max: int | None
    keep_checkpoint_every_n_hours: float | None
    log_step_count_steps: int | None
    train_distribute: Any
    device_fn: Callable[..., str] | None
    protocol: str | None
    eval_distribute: Any
    experimental_distribute: Any
    experimental_max_worker_delay_secs: int | None
    session_creation_timeout_secs: float
    checkpoint_save_graph_def: bool
    device: Any
    save_checkpoints_async: bool
    parameter_servers: str | None
    save_input: bool
    save_snapshot_steps: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Resolved:
    """The settings that apply in this process, and its role.

    Attributes:
      settings: The settings; strategies of TensorFlow for several workers are replaced by tfdist's.
      role: The role of this process.
      tf_config: The TF_CONFIG that decided it.
      service: The "service" of TF_CONFIG, or None.
      replaced_servers: The addresses of the ps tasks that the workers replace.
    """

    settings: Settings
    role: TaskRole
    tf_config: TfConfig
    service: Any = None
    replaced_servers: tuple[str, ...] = ()


SETTINGS = [field.name for field in fields(Settings)]
ROLE = [field.name for field in fields(TaskRole)]


def with_defaults(given: Settings, tf_config: TfConfig) -> Settings:
    """Fills in what depends on other arguments, on TF_CONFIG or on environment variables."""
    steps, secs = rules.decide_save_interval(
        given.save_checkpoints_steps, given.save_checkpoints_secs, UNSET
    )
    servers = given.parameter_servers
    if servers is None and replaces_parameter_servers():
        servers = REPLACE
    train, evaluate = rules.decide_strategies(
        given.train_distribute, given.eval_distribute, given.experimental_distribute, servers
    )
    snapshot_steps = given.save_snapshot_steps
    if snapshot_steps is None:
        snapshot_steps = read_snapshot_steps() or 0
    return replace(
        given,
        model_dir=rules.decide_model_dir(given.model_dir, tf_config),
        save_checkpoints_steps=steps,
        save_checkpoints_secs=secs,
        train_distribute=train,
        eval_distribute=evaluate,
        device=DeviceConfig() if given.device is None else given.device,
        parameter_servers=servers,
        save_snapshot_steps=snapshot_steps,
    )


def resolve(settings: Settings, tf_config: TfConfig) -> Resolved:
    """Returns the settings that apply in the process with this TF_CONFIG, and its role.

    Raises:
      ValueError: If a setting has a value that is not allowed.
      ClusterError: If TF_CONFIG describes no usable cluster.
    """
    if not isinstance(settings.device, DeviceConfig):
        raise ValueError(f"device should be a DeviceConfig, got {settings.device!r}.")
    replaced_servers: tuple[str, ...] = ()
    if settings.parameter_servers == REPLACE:
        settings = _without_parameter_servers(settings, tf_config)
        if settings.train_distribute is not None:
            replaced_servers = tf_config.jobs.get(TaskType.PS, ())
    settings = _with_own_strategies(settings)
    for name in SETTINGS:
        rules.check_setting(name, getattr(settings, name))
    strategy = settings.train_distribute
    if strategy is not None and not is_usable(strategy):
        raise ValueError(f"train_distribute should be {_STRATEGIES}, got {strategy!r}.")
    role = find_role(strategy, tf_config, replaces_servers=settings.parameter_servers == REPLACE)
    filters = device_filters(role)
    if settings.session_config is None and strategy is None and role.cluster_spec and filters:
        session_config = default_session_config()  # A strategy sets its own filters.
        session_config.device_filters.extend(filters)
        settings = replace(settings, session_config=session_config)
    return Resolved(
        settings=settings,
        role=role,
        tf_config=tf_config,
        service=tf_config.service,
        replaced_servers=replaced_servers,
    )


def _without_parameter_servers(settings: Settings, tf_config: TfConfig) -> Settings:
    """Takes MultiWorkerStrategy where the variables would be on parameter servers."""
    train, evaluate = settings.train_distribute, settings.eval_distribute
    if rules.is_for_parameter_servers(evaluate):
        evaluate = None  # Evaluation has no other tasks here.
    if tf_config.task_type == TaskType.PS:
        train = None
    elif rules.is_for_parameter_servers(train) or (
        train is None
        and tf_config.jobs.get(TaskType.PS)
        and tf_config.task_type != TaskType.EVALUATOR
    ):
        on_host = settings.device.variables_on_host
        train = in_place_of_servers(train, variables_on_host=on_host)
    return replace(settings, train_distribute=train, eval_distribute=evaluate)


def _with_own_strategies(settings: Settings) -> Settings:
    """Takes tfdist's for TensorFlow's strategy for several workers; the same one for both uses."""
    train, evaluate = settings.train_distribute, settings.eval_distribute
    own = train
    if isinstance(train, _MULTI_WORKER):
        on_host = settings.device.variables_on_host
        own = from_multi_worker_mirrored(train, variables_on_host=on_host)
    if isinstance(evaluate, _MULTI_WORKER):
        # Evaluation has no other workers here.
        evaluate = own if evaluate is train else None
    return replace(settings, train_distribute=own, eval_distribute=evaluate)


def is_usable(strategy: object) -> bool:
    """Returns whether a RunConfig accepts a strategy: ours, and TensorFlow's for one machine."""
    return is_tfdist_strategy(strategy) or isinstance(strategy, _LOCAL) or is_default(strategy)


def is_default(strategy: object) -> bool:
    """Returns whether a strategy is the default that `tf.distribute.get_strategy()` returns."""
    return not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy()


def default_session_config() -> v1.ConfigProto:
    """Returns tf.estimator's config of a session: soft placement, one pass of optimisation."""
    config = v1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.meta_optimizer_iterations = 1  # ONE
    return config


def without_fusion(config: v1.ConfigProto) -> v1.ConfigProto:
    """Returns a copy of a session's config in which ops are not fused.

    On a CPU with one thread TensorFlow makes a fused convolution in bfloat16 that it does not have.
    """
    copied = v1.ConfigProto()
    copied.CopyFrom(config)
    copied.graph_options.rewrite_options.remapping = 2  # OFF
    return copied
