"""Options that `run`, `slurm` and `kubernetes` share, and poprun's options without effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.launch.options.declaration import Group, flag, option
from tfdist.launch.options.values import VARIABLE, any_text, one_of, whole_number

SIZE = Group("size of the run")
WORKER = Group("each worker")
FAILURES = Group("when something goes wrong")
_POPRUN = Group("accepted for poprun's sake", "They change nothing; a line says why.", is_last=True)

NUM_INSTANCES = ("-n", "-np", "--num-instances")  # mpirun's names, too
START_TIMEOUT_HELP = "how long the workers wait for each other at the start"
START_TIMEOUT_DEFAULT = "TFDIST_START_TIMEOUT_S of the environment, or 300"
_ENGINE = (
    "what connects the workers: grpc (TensorFlow's own, through TF_CONFIG) or horovod (over Open "
    "MPI)"
)


def engine(**default: Any) -> Any:
    """Returns the field of --engine."""
    return option(one_of("grpc", "horovod"), _ENGINE, **default, group=SIZE)


def snapshot_steps() -> Any:
    """Returns the field of --snapshot-steps."""
    return option(
        whole_number(0),
        "with --max-restarts, how many steps of a training (an Estimator's, or Keras' fit with "
        "BackupAndRestore) lie between two snapshots of it, which each host keeps in memory: a "
        "restart goes on from the newest one",
        shown_default="none, or what the program says",
    )


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The command that every worker runs, and the numbers of workers, replicas and devices.

    A .py file and "-m MODULE" in `command` follow the path of this Python. `num_instances` does not
    count the evaluator; `num_replicas` is for the whole run. `notices` has a line for the user
    for each option without effect in this run.
    """

    command: tuple[str, ...]
    notices: tuple[str, ...] = ()
    engine: str = engine(default="grpc")
    num_instances: int = option(
        whole_number(1), "worker processes", *NUM_INSTANCES, default=1, group=SIZE
    )
    num_replicas: int = option(
        whole_number(1),
        "copies of the model in the whole run, divided evenly between the instances",
        default=1,
        shown_default="one per instance",
    )
    devices_per_replica: int = option(
        whole_number(1),
        "devices of each copy of the model",
        *("--devices-per-replica", "--ipus-per-replica"),
        default=1,
    )
    evaluator: bool = flag("add a process that evaluates each new checkpoint")

    @property
    def replicas_per_instance(self) -> int:
        """The number of replicas of each instance."""
        return self.num_replicas // self.num_instances


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The variables and the compute threads of each worker; None leaves the threads to tfdist."""

    environment: Mapping[str, str] = option(
        VARIABLE,
        "a variable for the workers, with this value or the one it has here (which keeps a secret "
        "out of files and of this command); workers on this machine get all variables of this "
        "environment anyway",
        *("-x", "--env"),
        default=dict,
        group=WORKER,
    )
    threads: int | None = option(
        whole_number(1),
        "threads that compute in each worker",
        shown_default="a machine's cores, divided between its workers",
    )


_NO_VIPU = "there is no V-IPU server: the devices are the machines' own"
_NO_PARTITION = "there are no partitions: each worker uses devices of the machine it runs on"


def _ignored(metavar: str, reason: str) -> Any:
    return option(any_text(metavar), "", ignored=reason, is_exported=False, group=_POPRUN)


@dataclass(frozen=True, kw_only=True)
class PoprunOptions:
    """Options of poprun that have no effect here."""

    num_ilds: int | None = option(
        whole_number(1), "link domains: a row of the topology table", group=_POPRUN
    )
    executable_cache_path: str | None = _ignored(
        "FOLDER", "TensorFlow compiles no executables to keep"
    )
    sync_type: str | None = _ignored(
        "TYPE", "the engine synchronises the workers, there are no sync groups"
    )
    vipu_server_host: str | None = _ignored("HOST", _NO_VIPU)
    vipu_server_port: str | None = _ignored("PORT", _NO_VIPU)
    vipu_server_timeout_s: str | None = _ignored("SECONDS", _NO_VIPU)
    vipu_partition: str | None = _ignored("NAME", _NO_PARTITION)
    vipu_partition_attempts: str | None = _ignored("N", _NO_PARTITION)
    vipu_allocation: str | None = _ignored("NAME", _NO_PARTITION)
    vipu_cluster: str | None = _ignored("NAME", _NO_PARTITION)
    update_partition: str | None = _ignored("BOOL", _NO_PARTITION)
    reset_partition: str | None = _ignored("BOOL", _NO_PARTITION)
    remove_partition: str | None = _ignored("BOOL", _NO_PARTITION)
