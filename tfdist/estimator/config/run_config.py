"""RunConfig and DeviceConfig: settings of an Estimator, and the strategies that it accepts."""

from __future__ import annotations

import copy
import inspect
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_flag
from tfdist.cluster.environment import (
    REPLACE,
    read_snapshot_steps,
    replaces_parameter_servers,
)
from tfdist.cluster.tasks import TaskType as TaskType
from tfdist.cluster.tasks import checked_count
from tfdist.cluster.tf_config import TfConfig, read_tf_config
from tfdist.estimator.config import run_config_rules as rules
from tfdist.estimator.config.task_role import TaskRole, device_filters, find_role
from tfdist.process import endings
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.grpc.strategy import from_multi_worker_mirrored, in_place_of_servers
from tfdist.strategies.placement import count_replicas
from tfdist.training.precision import find_precision

_UNSET = object()

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


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Settings of the device of one worker.

    Attributes:
      device: The device that computes model_fn while training without a strategy, for example
        "/device:GPU:0". None is the first GPU, or a second logical CPU. A strategy has its own
        device.
      variables_on_host: Whether variables live on the host while training without a strategy.
      iterations_per_loop: Steps in one session call. The reported loss is the mean over them.
        `steps` must be a multiple of it, and `max_steps` is rounded up. Hooks run once a call.
        Summaries made inside model_fn are not written if it is above 1.
      num_replicas: Copies of the model in this process without a strategy. Each has its own device,
        or as many as a pipeline needs (`device` and the ones after it), and reads separate batches.
        They share the variables; gradients are averaged on the host. A strategy has its own number.
        None takes the number of `tfdist run`, else 1. A number given to `tfdist run` takes
        precedence.
      gradient_accumulation: Micro-batches that each replica takes in a step, for a model with
        `host_call`. The input gives micro-batches. Their gradients are added on the device, in
        float32; only the last micro-batch's session call runs hooks and `host_call`, and reduces.
        Steps count weight updates, and the reported loss is the mean over the micro-batches.
      accumulation_reduction: Whether `host_call` gets the "mean" or the "sum" of the gradients.
      precision: "float32"; "mixed_float16" or "mixed_bfloat16", which compute in half precision
        with weights in float32; "float16" or "bfloat16", with weights in half precision as well.
        "32.32", "16.32" and "16.16" are float32, mixed_float16 and float16. It holds for layers of
        tf_keras that have no dtype of their own and for weights of `get_variable` (and of
        `tf.compat.v1.layers`, if their inputs are in half precision), in training, evaluation,
        prediction and export alike. float32 leaves the policy of tf_keras as the program sets it.
      stochastic_rounding: With weights in half precision, whether optimizers of `tfdist.training`
        round new weights up or down by chance; False rounds to the nearest value. None is this
        process's setting, which is True unless `tfdist.ipu` has changed it.
    """

    device: str | None = None
    variables_on_host: bool = True
    iterations_per_loop: int = 1
    num_replicas: int | None = None
    gradient_accumulation: int = 1
    accumulation_reduction: Literal["mean", "sum"] = "mean"
    precision: str = "float32"
    stochastic_rounding: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_replicas", count_replicas(self.num_replicas).number)
        for name, of_one in (
            ("iterations_per_loop", "a session call"),
            ("gradient_accumulation", "a micro-batch"),
        ):
            checked_count(name, getattr(self, name), more=f" 1 is {of_one} for each step.")
        if self.accumulation_reduction not in ("mean", "sum"):
            found = self.accumulation_reduction
            raise ValueError(f'accumulation_reduction must be "mean" or "sum", got {found!r}.')
        check_flag("variables_on_host", self.variables_on_host)
        if self.device is not None and not isinstance(self.device, str):
            raise ValueError(
                f"device must be a name such as '/device:GPU:0', or None, got {self.device!r}."
            )
        precision = find_precision(self.precision)
        object.__setattr__(self, "precision", precision.name)
        rules.check_stochastic_rounding(self.stochastic_rounding, precision)


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


@dataclass(frozen=True, eq=False, repr=False)
class RunSettings:
    """The arguments of `RunConfig`; a base class, so that that may have other attributes as well.

    Attributes:
      service: The "service" of TF_CONFIG, or None.
      replaced_servers: The addresses of the ps tasks that the workers replace.
    """

    model_dir: Any = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: Any = _UNSET
    save_checkpoints_secs: Any = _UNSET
    session_config: v1.ConfigProto | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    train_distribute: tf.distribute.Strategy | None = None
    device_fn: Callable[..., str] | None = None
    protocol: str | None = None
    eval_distribute: tf.distribute.Strategy | None = None
    experimental_distribute: Any = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: float = 7200
    checkpoint_save_graph_def: bool = True
    device: Any = None
    save_checkpoints_async: bool = True
    parameter_servers: Literal["replace"] | None = None
    save_input: bool = True
    save_snapshot_steps: int | None = None

    service: Any = field(default=None, init=False)
    replaced_servers: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        """Fills in the settings with defaults that depend on others or on the environment."""
        steps, secs = rules.decide_save_interval(
            self.save_checkpoints_steps, self.save_checkpoints_secs, _UNSET
        )
        vars(self).update(save_checkpoints_steps=steps, save_checkpoints_secs=secs)
        if self.parameter_servers is None and replaces_parameter_servers():
            vars(self)["parameter_servers"] = REPLACE
        if self.save_snapshot_steps is None:
            vars(self)["save_snapshot_steps"] = read_snapshot_steps() or 0


class RunConfig(RunSettings, TaskRole):
    """Settings of an Estimator; the arguments and read-only properties of tf.estimator's.

    Args:
      model_dir: Folder of checkpoints and event files; may be PathLike. None takes the "model_dir"
        of TF_CONFIG.
      tf_random_seed: Seed of every graph.
      save_summary_steps: Steps between summaries.
      save_checkpoints_steps: Steps between checkpoints. Excludes `save_checkpoints_secs`. With None
        for both, no checkpoints are saved.
      save_checkpoints_secs: Seconds between checkpoints; 600 if neither is given.
      session_config: A `tf.compat.v1.ConfigProto`.
      keep_checkpoint_max: The number of recent checkpoints to keep; None or 0 keeps all.
      keep_checkpoint_every_n_hours: Hours after which one checkpoint is kept permanently.
      log_step_count_steps: Steps between log lines of the loss and of global_step/sec.
      train_distribute: Strategy for training: `tfdist.strategies.MultiWorkerStrategy` or
        `HorovodStrategy`. A `tf.distribute.MultiWorkerMirroredStrategy` is replaced by the first.
      device_fn: A function of `op` that returns a device, for placing ops.
      protocol: None, "grpc" or "grpc+verbs".
      eval_distribute: Strategy for evaluation; its workers count for eval_batch_size only, as each
        process evaluates by itself.
      experimental_distribute: An object with the attributes `train_distribute` and
        `eval_distribute`: another way to give the two strategies.
      experimental_max_worker_delay_secs: Kept for compatibility; workers start together here.
      session_creation_timeout_secs: Limit for making a session, in seconds.
      checkpoint_save_graph_def: Whether the graph is written next to each checkpoint.
      device: A `DeviceConfig`; None is `DeviceConfig()`.
      save_checkpoints_async: Whether a step waits only for a copy of the values in host memory,
        while a thread writes the files. The next save, the end of the training, an error and
        SIGTERM wait for them; a failed write ends the training before the next step. Steps wait for
        the files with False, a listener that has its own `after_save`, a subclass of
        `CheckpointSaverHook`, too little memory or a remote folder (gs://...). Hooks that read
        files right after a save need False.
      parameter_servers: "replace" runs a program written for parameter servers: the workers hold
        the variables and train in step, and the ps tasks of TF_CONFIG end when the chief is done.
        None takes the environment variable TFDIST_PARAMETER_SERVERS, else refuses such a program.
      save_input: Whether the position of the input is saved with each checkpoint. After a call of
        `train` that has not returned (killed, stopped by a signal, or with an error) the next one
        goes on with the batch that follows: those before are read again and thrown away. Ops and
        datasets of the input without a seed get one of the run. After a call that has returned, and
        with False, the input begins at its start.
      save_snapshot_steps: Steps between snapshots, which the first worker of each host keeps in
        memory (/dev/shm), under `tfdist run` and `tfdist slurm` with --max-restarts only. A restart
        goes on from the newest one if that is newer than the checkpoint. None takes their
        --snapshot-steps; 0, the default without it, keeps none.

    Raises:
      ValueError: If an argument has a value that is not allowed.
      ClusterError: If TF_CONFIG describes no usable cluster.
    """

    def __init_subclass__(cls) -> None:
        """Takes a subclass's own value or property in place of a setting."""
        super().__init_subclass__()
        for name in _SETTINGS + _ROLE:
            own = inspect.getattr_static(cls, name)
            if not isinstance(own, _Stored):
                setattr(cls, name, _Stored(name, own))

    def __post_init__(self) -> None:
        endings.install()
        vars(self).update(vars(TaskRole()))
        super().__post_init__()
        given = self.train_distribute, self.eval_distribute, self.experimental_distribute
        train, evaluate = rules.decide_strategies(*given, self.parameter_servers)
        tf_config = read_tf_config()
        if tf_config.values:
            v1.logging.info("TF_CONFIG environment variable: %s", tf_config.values)
        self._change(
            model_dir=rules.decide_model_dir(self.model_dir, tf_config),
            train_distribute=train,
            eval_distribute=evaluate,
            service=tf_config.service,
        )
        if self.train_distribute is not None or self.eval_distribute is not None:
            v1.logging.info("Initializing RunConfig with distribution strategies.")
        self._find_role(tf_config)

    def _change(self, **settings: Any) -> None:
        """Stores settings, replaces strategies by those of this package, and checks everything."""
        vars(self).update(settings)
        if self.device is None:
            vars(self)["device"] = DeviceConfig()
        if self.parameter_servers == REPLACE:
            self._replace_parameter_servers()
        self._replace_stock_strategies()
        for name in _SETTINGS:
            rules.check_setting(name, getattr(self, name))
        if not isinstance(self.device, DeviceConfig):
            raise ValueError(f"device should be a DeviceConfig, got {self.device!r}.")
        strategy = self.train_distribute
        if strategy is not None and not is_usable(strategy):
            raise ValueError(f"train_distribute should be {_STRATEGIES}, got {strategy!r}.")

    def _replace_parameter_servers(self) -> None:
        """Takes MultiWorkerStrategy where the variables would be on parameter servers."""
        tf_config = read_tf_config()
        servers, train = tf_config.jobs.get(TaskType.PS, ()), self.train_distribute
        if rules.is_for_parameter_servers(self.eval_distribute):
            vars(self)["eval_distribute"] = None  # Evaluation has no other tasks here.
        if tf_config.task_type == TaskType.PS:
            vars(self)["train_distribute"] = None
        elif rules.is_for_parameter_servers(train) or (
            train is None and servers and tf_config.task_type != TaskType.EVALUATOR
        ):
            on_host = self.device.variables_on_host
            vars(self)["train_distribute"] = in_place_of_servers(train, variables_on_host=on_host)
            vars(self)["replaced_servers"] = servers

    def _replace_stock_strategies(self) -> None:
        """Takes ours for TensorFlow's strategy for several workers; the same one for both uses."""
        train, evaluate = self.train_distribute, self.eval_distribute
        if isinstance(train, _MULTI_WORKER):
            on_host = self.device.variables_on_host
            vars(self)["train_distribute"] = from_multi_worker_mirrored(
                train, variables_on_host=on_host
            )
        if isinstance(evaluate, _MULTI_WORKER):
            # Evaluation has no other workers here.
            vars(self)["eval_distribute"] = self.train_distribute if evaluate is train else None

    def _find_role(self, tf_config: TfConfig) -> None:
        """Stores the role of this process, and the jobs visible to its sessions by default."""
        replaces_servers = self.parameter_servers == REPLACE
        role = find_role(self.train_distribute, tf_config, replaces_servers=replaces_servers)
        vars(self).update(vars(role))
        filters = device_filters(role)
        has_none = self.session_config is None and self.train_distribute is None
        if has_none and role.cluster_spec and filters:  # A strategy sets its own filters.
            session_config = default_session_config()
            session_config.device_filters.extend(filters)
            vars(self)["session_config"] = session_config

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with some settings replaced; takes the constructor's names only.

        Setting one of save_checkpoints_steps and save_checkpoints_secs to a value clears the other.

        Args:
          **kwargs: The settings to replace, by the names of the constructor.
        """
        for name in kwargs:
            if name not in _SETTINGS:
                raise ValueError(
                    f"Replacing {name} is not supported. Allowed properties are {_SETTINGS}."
                )
        steps, secs = "save_checkpoints_steps", "save_checkpoints_secs"
        rules.refuse_two_intervals(kwargs.get(steps), kwargs.get(secs))
        if kwargs.get(steps) is not None:
            kwargs[secs] = None
        elif kwargs.get(secs) is not None:
            kwargs[steps] = None
        if "model_dir" in kwargs:
            kwargs["model_dir"] = rules.decide_model_dir(kwargs["model_dir"], TfConfig(values={}))
        train, evaluate = rules.decide_strategies(
            kwargs.get("train_distribute"),
            kwargs.get("eval_distribute"),
            kwargs.get("experimental_distribute"),
            kwargs.get("parameter_servers", self.parameter_servers),
        )
        decided = {"train_distribute": train, "eval_distribute": evaluate}
        kwargs |= {name: one for name, one in decided.items() if one is not None}
        new = copy.deepcopy(self)
        new._change(**kwargs)
        if {"train_distribute", "parameter_servers"} & kwargs.keys():
            new._find_role(read_tf_config())
        return new

    def in_this_process(self) -> RunConfig:
        """Returns a copy for a session of this process alone, without other processes.

        Its master is the session_master of TF_CONFIG or "", but not this task's own address.
        """
        new = copy.deepcopy(self)
        spec, task_type = self.cluster_spec, self.task_type
        if spec and self.master == f"grpc://{spec.task_address(task_type, self.task_id)}":
            vars(new)["master"] = ""
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        # A strategy has a server and cannot be copied; a subclass's attributes can.
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for name, value in vars(self).items():
            new.__dict__[name] = value if name in _SHARED else copy.deepcopy(value, memo)
        return new

    def __repr__(self) -> str:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        shown = ", ".join(f"{k}={v!r}" for k, v in settings.items() if v is not None)
        return f"{type(self).__name__}({shown}, task={self.task_type}:{self.task_id})"


class _Stored:
    """An attribute of RunConfig, which stores its value under its name, as a property.

    So a subclass may replace it by a value, or by a property that reads `super()`'s.
    """

    def __init__(self, name: str, replacement: Any = _UNSET) -> None:
        self._name = name
        self._replacement = replacement

    def __get__(self, config: RunConfig | None, owner: type[RunConfig]) -> Any:
        if config is None:
            return self
        if self._replacement is _UNSET:
            return vars(config)[self._name]
        if isinstance(self._replacement, cached_property):
            return self._replacement.func(config)
        read = getattr(self._replacement, "__get__", None)
        return read(config, owner) if read else self._replacement

    def __set__(self, config: RunConfig, value: Any) -> None:
        vars(config)[self._name] = value


_SETTINGS = [field_.name for field_ in fields(RunSettings) if field_.init]
_ROLE = [field_.name for field_ in fields(TaskRole)]
for _name in _SETTINGS + _ROLE:
    setattr(RunConfig, _name, _Stored(_name))

# Values that copies of a RunConfig share.
_SHARED = frozenset({"device_fn", "train_distribute", "eval_distribute", "experimental_distribute"})

_STRATEGIES = (
    "a strategy of tfdist.strategies (MultiWorkerStrategy or HorovodStrategy for several workers), "
    "or tf.distribute.MirroredStrategy or MultiWorkerMirroredStrategy"
)


def is_usable(strategy: object) -> bool:
    """Returns whether a RunConfig accepts a strategy: ours, and TensorFlow's for one machine."""
    return is_tfdist_strategy(strategy) or isinstance(strategy, _LOCAL) or is_default(strategy)


def is_default(strategy: object) -> bool:
    """Returns whether a strategy is the default that `tf.distribute.get_strategy()` returns."""
    return not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy()


def decide_model_dir(model_dir: str | os.PathLike[str] | None, config: RunConfig) -> str:
    """Returns the argument, else the config's folder, else a new one; ValueError if they differ."""
    given = os.fsdecode(model_dir) if model_dir else None
    if given and config.model_dir and given != config.model_dir:
        raise ValueError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values. "
            f"In constructor: '{given}', in `RunConfig`: '{config.model_dir}'. Give one of them."
        )
    chosen = given or config.model_dir
    if not chosen:
        chosen = tempfile.mkdtemp()
        v1.logging.warning("Using temporary folder as model directory: %s", chosen)
    return str(chosen)
