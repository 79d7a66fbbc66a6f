"""RunConfig: settings of an Estimator, and the role of this process in a run."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.tasks import TaskType as TaskType
from tfdist.cluster.tf_config import TfConfig, read_tf_config
from tfdist.estimator.config import run_config_rules as rules
from tfdist.estimator.config.device_config import DeviceConfig
from tfdist.estimator.config.settings import (
    ROLE,
    SETTINGS,
    UNSET,
    Resolved,
    Settings,
    resolve,
    with_defaults,
)
from tfdist.estimator.config.task_role import TaskRole
from tfdist.process import endings


def _resolved(path: str) -> Any:
    """Returns a property that reads a part of `Resolved`; a subclass may have its own instead."""
    return property(attrgetter(f"_resolved.{path}"))


class RunConfig:
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

    def __init__(
        self,
        model_dir: Any = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = UNSET,
        save_checkpoints_secs: Any = UNSET,
        session_config: v1.ConfigProto | None = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: tf.distribute.Strategy | None = None,
        device_fn: Callable[..., str] | None = None,
        protocol: str | None = None,
        eval_distribute: tf.distribute.Strategy | None = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: float = 7200,
        checkpoint_save_graph_def: bool = True,
        device: DeviceConfig | None = None,
        save_checkpoints_async: bool = True,
        parameter_servers: Literal["replace"] | None = None,
        save_input: bool = True,
        save_snapshot_steps: int | None = None,
    ) -> None:
        endings.install()
        tf_config = read_tf_config()
        given = Settings(
            model_dir=model_dir,
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_steps=save_checkpoints_steps,
            save_checkpoints_secs=save_checkpoints_secs,
            session_config=session_config,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            train_distribute=train_distribute,
            device_fn=device_fn,
            protocol=protocol,
            eval_distribute=eval_distribute,
            experimental_distribute=experimental_distribute,
            experimental_max_worker_delay_secs=experimental_max_worker_delay_secs,
            session_creation_timeout_secs=session_creation_timeout_secs,
            checkpoint_save_graph_def=checkpoint_save_graph_def,
            device=device,
            save_checkpoints_async=save_checkpoints_async,
            parameter_servers=parameter_servers,
            save_input=save_input,
            save_snapshot_steps=save_snapshot_steps,
        )
        if tf_config.values:
            v1.logging.info("TF_CONFIG environment variable: %s", tf_config.values)
        self._resolve(given, tf_config, lambda seen: with_defaults(seen, tf_config))
        if self.train_distribute is not None or self.eval_distribute is not None:
            v1.logging.info("Initializing RunConfig with distribution strategies.")

    model_dir: Any = _resolved("settings.model_dir")
    tf_random_seed: int | None = _resolved("settings.tf_random_seed")
    save_summary_steps: int | None = _resolved("settings.save_summary_steps")
    save_checkpoints_steps: int | None = _resolved("settings.save_checkpoints_steps")
    save_checkpoints_secs: float | None = _resolved("settings.save_checkpoints_secs")
    session_config: v1.ConfigProto | None = _resolved("settings.session_config")
    keep_checkpoint_max: int | None = _resolved("settings.keep_checkpoint_max")
    keep_checkpoint_every_n_hours: float | None = _resolved(
        "settings.keep_checkpoint_every_n_hours"
    )
    log_step_count_steps: int | None = _resolved("settings.log_step_count_steps")
    train_distribute: tf.distribute.Strategy | None = _resolved("settings.train_distribute")
    device_fn: Callable[..., str] | None = _resolved("settings.device_fn")
    protocol: str | None = _resolved("settings.protocol")
    eval_distribute: tf.distribute.Strategy | None = _resolved("settings.eval_distribute")
    experimental_distribute: Any = _resolved("settings.experimental_distribute")
    experimental_max_worker_delay_secs: int | None = _resolved(
        "settings.experimental_max_worker_delay_secs"
    )
    session_creation_timeout_secs: float = _resolved("settings.session_creation_timeout_secs")
    checkpoint_save_graph_def: bool = _resolved("settings.checkpoint_save_graph_def")
    device: Any = _resolved("settings.device")
    save_checkpoints_async: bool = _resolved("settings.save_checkpoints_async")
    parameter_servers: str | None = _resolved("settings.parameter_servers")
    save_input: bool = _resolved("settings.save_input")
    save_snapshot_steps: int = _resolved("settings.save_snapshot_steps")

    # `TaskRole` describes these.
    cluster_spec: tf.train.ClusterSpec = _resolved("role.cluster_spec")
    task_type: str = _resolved("role.task_type")
    task_id: int = _resolved("role.task_id")
    master: str = _resolved("role.master")
    evaluation_master: str = _resolved("role.evaluation_master")
    is_chief: bool = _resolved("role.is_chief")
    num_ps_replicas: int = _resolved("role.num_ps_replicas")
    num_worker_replicas: int = _resolved("role.num_worker_replicas")
    global_id_in_cluster: int | None = _resolved("role.global_id_in_cluster")

    service: Any = _resolved("service")
    replaced_servers: tuple[str, ...] = _resolved("replaced_servers")

    def _resolve(
        self,
        given: Settings,
        tf_config: TfConfig,
        complete: Callable[[Settings], Settings],
    ) -> None:
        """Resolves settings, after `complete`. What a subclass has in a setting's place counts."""
        self._resolved = Resolved(settings=given, role=TaskRole(), tf_config=tf_config)
        seen = Settings(**{name: getattr(self, name) for name in SETTINGS})
        resolved = resolve(complete(seen), tf_config)
        decided = {name: getattr(resolved.settings, name) for name in SETTINGS}
        changed = {name: one for name, one in decided.items() if one is not getattr(seen, name)}
        self._resolved = replace(resolved, settings=replace(given, **changed))
        for name in SETTINGS:  # A cached property of a subclass reads what is resolved now.
            vars(self).pop(name, None)

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with some settings replaced; takes the constructor's names only.

        Setting one of save_checkpoints_steps and save_checkpoints_secs to a value clears the other.

        Args:
          **kwargs: The settings to replace, by the names of the constructor.
        """
        for name in kwargs:
            if name not in SETTINGS:
                raise ValueError(
                    f"Replacing {name} is not supported. Allowed properties are {SETTINGS}."
                )
        steps, secs = "save_checkpoints_steps", "save_checkpoints_secs"
        rules.refuse_two_intervals(kwargs.get(steps), kwargs.get(secs))
        if kwargs.get(steps) is not None:
            kwargs[secs] = None
        elif kwargs.get(secs) is not None:
            kwargs[steps] = None
        if "model_dir" in kwargs:
            kwargs["model_dir"] = rules.decide_model_dir(kwargs["model_dir"], TfConfig(values={}))
        if "device" in kwargs and kwargs["device"] is None:
            kwargs["device"] = DeviceConfig()
        train, evaluate = rules.decide_strategies(
            kwargs.get("train_distribute"),
            kwargs.get("eval_distribute"),
            kwargs.get("experimental_distribute"),
            kwargs.get("parameter_servers", self.parameter_servers),
        )
        decided = {"train_distribute": train, "eval_distribute": evaluate}
        kwargs |= {name: one for name, one in decided.items() if one is not None}
        new: RunConfig = copy.deepcopy(self)
        tf_config = new._resolved.tf_config
        if {"train_distribute", "parameter_servers"} & kwargs.keys():
            tf_config = read_tf_config()
        new._resolve(replace(new._resolved.settings, **kwargs), tf_config, lambda seen: seen)
        return new

    def in_this_process(self) -> RunConfig:
        """Returns a copy for a session of this process alone, without other processes.

        Its master is the session_master of TF_CONFIG or "", but not this task's own address.
        """
        new: RunConfig = copy.deepcopy(self)
        spec, task_type = self.cluster_spec, self.task_type
        if spec and self.master == f"grpc://{spec.task_address(task_type, self.task_id)}":
            new._resolved = replace(new._resolved, role=replace(new._resolved.role, master=""))
        return new

    def described(self) -> dict[str, Any]:
        """Returns all settings, the role, and a program's own attributes, by name."""
        names = [*SETTINGS, *ROLE, "service", "replaced_servers", *self._own_attributes()]
        return {name: getattr(self, name) for name in names}

    def _own_attributes(self) -> dict[str, Any]:
        """Returns the attributes of this object that a program or a subclass has set."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("_resolved", *SETTINGS, *ROLE)
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        settings = self._resolved.settings
        # A strategy has a server and cannot be copied.
        for one in (
            settings.device_fn,
            settings.train_distribute,
            settings.eval_distribute,
            settings.experimental_distribute,
        ):
            memo[id(one)] = one
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        copied = copy.deepcopy({"_resolved": self._resolved, **self._own_attributes()}, memo)
        vars(new).update(copied)
        return new

    def __repr__(self) -> str:
        settings = {name: getattr(self, name) for name in SETTINGS}
        shown = ", ".join(f"{k}={v!r}" for k, v in settings.items() if v is not None)
        return f"{type(self).__name__}({shown}, task={self.task_type}:{self.task_id})"


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
