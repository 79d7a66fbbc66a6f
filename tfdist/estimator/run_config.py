"""How an Estimator runs: RunConfig and DeviceConfig."""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster, ClusterError, Task, find_cluster

_UNSET = object()


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """What runs on the device of one worker.

    Attributes:
      device: Where model_fn is computed while training without a strategy: "/device:GPU:0", say.
        None is the first GPU, or a second logical CPU. A strategy brings its own.
      variables_on_host: Whether variables live on the host while training without a strategy.
      iterations_per_loop: Steps in one session call. Their loss is reported as the mean over
        them; `steps` must be a multiple of it and `max_steps` is rounded up. Hooks run once a
        call, and summaries made inside model_fn are not written when it is above 1.
    """

    device: str | None = None
    variables_on_host: bool = True
    iterations_per_loop: int = 1

    def __post_init__(self) -> None:
        loops = self.iterations_per_loop
        if isinstance(loops, bool) or not isinstance(loops, int) or loops < 1:
            raise ValueError(
                f"iterations_per_loop must be an integer of at least 1, got {loops!r}. "
                "1 is a session call for each step."
            )


class RunConfig:
    """Settings of an Estimator; the arguments and read-only properties of tf.estimator's.

    Args:
      model_dir: Folder of checkpoints and event files; may be PathLike. TF_CONFIG's "model_dir" is
        taken where this is None.
      tf_random_seed: Seed of every graph.
      save_summary_steps: Steps between summaries.
      save_checkpoints_steps: Steps between checkpoints. Excludes `save_checkpoints_secs`; None for
        both saves none.
      save_checkpoints_secs: Seconds between checkpoints; 600 if neither is given.
      session_config: A `tf.compat.v1.ConfigProto`.
      keep_checkpoint_max: How many recent checkpoints stay; None or 0 keeps all.
      keep_checkpoint_every_n_hours: Hours after which one checkpoint is kept for good.
      log_step_count_steps: Steps between log lines of the loss and of global_step/sec.
      train_distribute: Strategy for training: `tfdist.strategies.MultiWorkerStrategy` or
        `HorovodStrategy`.
      device_fn: A function of `op` that returns a device, for placing ops.
      protocol: None, "grpc" or "grpc+verbs".
      eval_distribute: Strategy for evaluation.
      experimental_distribute: Not supported; give train_distribute and eval_distribute.
      experimental_max_worker_delay_secs: Kept for compatibility; workers start together here.
      session_creation_timeout_secs: Limit for making a session, in seconds.
      checkpoint_save_graph_def: Whether the graph is written beside each checkpoint.
      device: A `DeviceConfig`; None is `DeviceConfig()`.

    Raises:
      ValueError: If an argument has a value that is not allowed.
      ClusterError: If TF_CONFIG describes no usable cluster.
    """

    def __init__(
        self,
        model_dir: Any = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = _UNSET,
        save_checkpoints_secs: Any = _UNSET,
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
    ) -> None:
        settings = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        steps, secs = save_checkpoints_steps, save_checkpoints_secs
        if steps is _UNSET and secs is _UNSET:
            steps, secs = None, 600
        elif steps is not _UNSET and secs is not _UNSET:
            if steps is not None and secs is not None:
                raise ValueError(
                    f"save_checkpoints_steps ({steps}) and save_checkpoints_secs ({secs}) cannot "
                    "be both set. Give one of them."
                )
        else:
            steps, secs = (None if steps is _UNSET else steps), (None if secs is _UNSET else secs)
        settings["save_checkpoints_steps"], settings["save_checkpoints_secs"] = steps, secs
        settings["device"] = device if device is not None else DeviceConfig()
        tf_config = _read_tf_config()
        settings["model_dir"] = _model_dir(model_dir, tf_config)
        _check(settings)
        self._settings = settings
        self._init_cluster(tf_config)

    def _init_cluster(self, tf_config: dict[str, Any]) -> None:
        """Finds out who this task is: from the strategy, else from TF_CONFIG."""
        strategy = self._settings["train_distribute"]
        self._cluster: Cluster | None = getattr(strategy, "cluster", None)
        self._task: Task | None = getattr(strategy, "task", None)
        if self._cluster is None and "cluster" in tf_config:
            found = find_cluster()
            assert found is not None
            self._cluster, self._task = found
        elif self._cluster is None:
            self._task = _task_without_cluster(tf_config)
        extended = getattr(strategy, "extended", None)
        collectives = getattr(extended, "collectives", None)
        self._worker_index = collectives.worker_index if collectives is not None else None
        self._num_workers = collectives.num_workers if collectives is not None else None
        self._session_master = tf_config.get("session_master", "")
        self._eval_session_master = tf_config.get("eval_session_master", "")
        self._service = tf_config.get("service")

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with some settings replaced; takes the constructor's names only.

        Setting one of save_checkpoints_steps and save_checkpoints_secs to a value clears the other.
        """
        allowed = set(inspect.signature(RunConfig.__init__).parameters) - {"self"}
        for name in kwargs:
            if name not in allowed:
                raise ValueError(
                    f"Replacing {name} is not supported. Allowed properties are {sorted(allowed)}."
                )
        steps, secs = "save_checkpoints_steps", "save_checkpoints_secs"
        if kwargs.get(steps) is not None and kwargs.get(secs) is not None:
            raise ValueError(f"{steps} and {secs} cannot be both set. Give one of them.")
        if kwargs.get(steps) is not None:
            kwargs[secs] = None
        elif kwargs.get(secs) is not None:
            kwargs[steps] = None
        new = copy.deepcopy(self)
        new._settings = {**new._settings, **kwargs}
        if "model_dir" in kwargs:
            new._settings["model_dir"] = _model_dir(kwargs["model_dir"], {})
        if new._settings["device"] is None:
            new._settings["device"] = DeviceConfig()
        _check(new._settings)
        if "train_distribute" in kwargs:
            new._init_cluster(_read_tf_config())
        return new

    def __getattr__(self, name: str) -> Any:
        # The constructor's arguments, read-only.
        settings = self.__dict__.get("_settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_settings", {}):
            raise AttributeError(f"{name} of RunConfig cannot be set. Use replace({name}=...).")
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> RunConfig:
        # A strategy holds a server and cannot be copied; everything else here is a value.
        new = copy.copy(self)
        new.__dict__.update(self.__dict__)
        config = self._settings["session_config"]
        new.__dict__["_settings"] = {**self._settings, "session_config": copy.deepcopy(config)}
        return new

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster's training tasks; empty for an evaluator and without a cluster."""
        if self._cluster is None or self.task_type == "evaluator":
            return tf.train.ClusterSpec({})
        jobs = {job: list(a) for job, a in self._cluster.jobs.items() if job != "evaluator"}
        return tf.train.ClusterSpec(jobs)

    @property
    def task_type(self) -> str:
        return self._task.type if self._task is not None else "worker"

    @property
    def task_id(self) -> int:
        if self._task is not None:
            return self._task.index
        return self._worker_index or 0

    @property
    def is_chief(self) -> bool:
        """Whether this worker saves checkpoints and summaries."""
        if self.task_type == "evaluator":
            return False
        if self._cluster is not None and self._task is not None:
            return self._cluster.is_chief(self._task)
        return (self._worker_index or 0) == 0

    @property
    def num_worker_replicas(self) -> int:
        """How many workers train; 0 for an evaluator."""
        if self.task_type == "evaluator":
            return 0
        if self._cluster is not None:
            return self._cluster.num_workers
        return self._num_workers or 1

    @property
    def num_ps_replicas(self) -> int:
        if self._cluster is None or self.task_type == "evaluator":
            return 0
        return len(self._cluster.jobs.get("ps", ()))

    @property
    def global_id_in_cluster(self) -> int | None:
        if self.task_type == "evaluator":
            return None
        if self._cluster is not None and self._task is not None:
            if self._task.type == "ps":
                return self._cluster.num_workers + self._task.index
            return self._cluster.worker_index(self._task)
        return self._worker_index or 0

    @property
    def master(self) -> str:
        """The session's target as TF_CONFIG gives it; a strategy starts its own server."""
        if self._session_master or self._cluster is None or self._task is None:
            return str(self._session_master)
        if self.task_type == "evaluator" or self._cluster.num_workers == 1:
            return ""
        return f"grpc://{self._cluster.address(self._task)}"

    @property
    def evaluation_master(self) -> str:
        return str(self._eval_session_master)

    @property
    def service(self) -> dict[str, Any] | None:
        return self._service

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self._settings.items() if v is not None)
        return f"RunConfig({shown}, task={self.task_type}:{self.task_id})"


def _read_tf_config() -> dict[str, Any]:
    """Reads TF_CONFIG as far as RunConfig itself needs it; {} when unset."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return {}
    try:
        tf_config = json.loads(text)
    except json.JSONDecodeError:
        tf_config = None
    if not isinstance(tf_config, dict):
        find_cluster()  # Says what is wrong with it.
        raise ClusterError(f"TF_CONFIG is not a JSON object: {text!r}.")
    service = tf_config.get("service")
    if service is not None and not isinstance(service, dict):
        raise TypeError(f'TF_CONFIG "service" must be a dict, got {service!r}.')
    return tf_config


def _task_without_cluster(tf_config: dict[str, Any]) -> Task | None:
    """Returns the evaluator, which needs no addresses; None for the only worker."""
    task = tf_config.get("task", {})
    if not isinstance(task, dict):
        raise ClusterError(f'TF_CONFIG "task" must be an object, got {task!r}. Remove it.')
    task_type, index = task.get("type", "worker"), task.get("index", 0)
    if task_type == "evaluator" and str(index) == "0":
        return Task(type="evaluator", index=0)
    if task_type != "worker" or str(index) != "0":
        raise ClusterError(
            f'TF_CONFIG has task {task_type}:{index} but no "cluster". Add the cluster\'s '
            "addresses, or remove the task."
        )
    return None


def _model_dir(model_dir: Any, tf_config: dict[str, Any]) -> str | None:
    given = None if model_dir is None else os.fspath(model_dir)
    from_tf_config = tf_config.get("model_dir")
    if given == "" or from_tf_config == "":
        raise ValueError("model_dir should be non-empty. Leave it out for a temporary folder.")
    if given is not None and from_tf_config is not None and given != from_tf_config:
        raise ValueError(
            f"model_dir is {given!r}, but TF_CONFIG says {from_tf_config!r}. Make them equal, or "
            "give one."
        )
    return given if given is not None else from_tf_config


def _check(settings: dict[str, Any]) -> None:
    """Refuses values that RunConfig does not allow; None skips a check."""

    def require(name: str, condition: Callable[[Any], bool], allowed: str) -> None:
        value = settings[name]
        if value is not None and not condition(value):
            raise ValueError(f"{name} should be {allowed}, got {value!r}.")

    def is_integer(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    for name in (
        "save_summary_steps",
        "save_checkpoints_steps",
        "save_checkpoints_secs",
        "keep_checkpoint_max",
    ):
        require(name, lambda v: v >= 0, "at least 0")
    for name in (
        "keep_checkpoint_every_n_hours",
        "log_step_count_steps",
        "session_creation_timeout_secs",
    ):
        require(name, lambda v: v > 0, "above 0")
    require("session_config", lambda v: isinstance(v, v1.ConfigProto), "a ConfigProto")
    require("tf_random_seed", is_integer, "an integer")
    require("experimental_max_worker_delay_secs", is_integer, "an integer")
    require("protocol", lambda v: v in ("grpc", "grpc+verbs"), "'grpc' or 'grpc+verbs'")
    require("device", lambda v: isinstance(v, DeviceConfig), "a DeviceConfig")
    require("device_fn", _takes_op, "a function of exactly one argument called op")
    require("train_distribute", _is_own_strategy, _STRATEGIES)
    require(
        "eval_distribute",
        lambda v: isinstance(v, tf.distribute.Strategy | v1.distribute.Strategy),
        "a strategy",
    )
    require(
        "experimental_distribute",
        lambda v: False,
        "None here: give the strategies as train_distribute and eval_distribute",
    )


_STRATEGIES = "a MultiWorkerStrategy or HorovodStrategy of tfdist.strategies"


def _is_own_strategy(strategy: Any) -> bool:
    return hasattr(getattr(strategy, "extended", None), "collectives")


def _takes_op(function: Any) -> bool:
    return callable(function) and list(inspect.signature(function).parameters) == ["op"]
