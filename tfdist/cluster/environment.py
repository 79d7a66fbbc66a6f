"""The run that the environment describes: by TF_CONFIG, a Slurm step, MPI, Horovod or `tfdist run`.

No other package reads these variables. What is malformed, or contradicts itself, is a ClusterError
in each of these functions.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from tfdist.cluster.instance_variables import (
    INSTANCE_INDEX,
    LOCAL_INSTANCE_INDEX,
    NUM_INSTANCES,
    RUN,
    Instance,
    read_instance,
    read_shape,
)
from tfdist.cluster.ranks import HOROVODRUN, MPIRUN, check_launcher, find_mpi_rank, has_mpi_rank
from tfdist.cluster.rendezvous.membership import STALL_TIMEOUT
from tfdist.cluster.slurm import find_slurm_step
from tfdist.cluster.tasks import Cluster, ClusterError, Task, TaskType, read_integer
from tfdist.cluster.tf_config import is_tf_config_set, read_tf_config
from tfdist.process.text import shown

START_TIMEOUT = "TFDIST_START_TIMEOUT_S"
WEIGHT_CHECK = "TFDIST_WEIGHT_CHECK"
PROFILE = "TFDIST_PROFILE"
PROFILE_STEPS = "TFDIST_PROFILE_STEPS"
USUAL_PROFILE_STEPS = "10:12"
PARAMETER_SERVERS = "TFDIST_PARAMETER_SERVERS"
SNAPSHOT_STEPS = "TFDIST_SNAPSHOT_STEPS"
# The seconds that a stop by a signal may take.
GRACE = "TFDIST_GRACE_S"
# A file by which a machine says that it will be taken away; launchers look for it.
PREEMPTED = "TFDIST_PREEMPTED"
# The variables of tfdist that users may give to a run's processes. START_TIMEOUT has an option of
# the launchers, and they make all others.
FOR_USERS = (PREEMPTED, STALL_TIMEOUT, PROFILE, PROFILE_STEPS, WEIGHT_CHECK, PARAMETER_SERVERS)
REPLACE = "replace"


def find_cluster(environ: Mapping[str, str] = os.environ) -> tuple[Cluster, Task] | None:
    """Finds the cluster that this process was started in, by the variables in `environ`.

    TF_CONFIG has priority. Without it (or with a blank one) the tasks of a Slurm step are the
    workers, unless `mpirun` or `horovodrun` started this process: their daemon may pass on the
    variables of its own Slurm task.

    Where the workers replace the parameter servers (see `replaces_parameter_servers`), the cluster
    of a worker has no ps tasks.

    Returns:
      The cluster and this process's task, or None if the environment describes no cluster.

    Raises:
      ClusterError: If what is set is malformed or contradicts itself, or an MPI launcher that is
        not supported started this process as one of several.
    """
    if is_tf_config_set(environ):
        cluster, task = read_tf_config(environ).members()
        if task.type != TaskType.PS and replaces_parameter_servers(environ):
            cluster = cluster.without_parameter_servers()
        return cluster, task
    if has_mpi_rank(environ):
        return None
    check_launcher(environ)
    return find_slurm_step(environ)


def find_engine(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the engine that carries messages between the workers of this run.

    "grpc" if TF_CONFIG or a Slurm step lists the workers; "horovod" if `mpirun` or `horovodrun`
    started several processes without a TF_CONFIG; None for a process that is alone.
    """
    if find_cluster(environ) is not None:
        return "grpc"
    rank = find_mpi_rank(environ)
    if rank is not None and rank.size > 1:
        return "horovod"
    launched = read_instance(environ)
    if launched is not None and launched.num_instances > 1:
        raise ClusterError(
            f"{NUM_INSTANCES} is {launched.num_instances}, but the others cannot be reached: "
            "there is no TF_CONFIG, and no mpirun, horovodrun or srun started this process. Start "
            "the program with tfdist run, or unset all TFDIST variables."
        )
    return None


def check_horovod(environ: Mapping[str, str] = os.environ) -> None:
    """Refuses a worker that Horovod cannot join with the others of its run.

    It would train alone, or wait indefinitely. Under `mpirun` and `horovodrun` a TF_CONFIG is not
    used for training, so it may list any cluster. Its task must not be "evaluator": Horovod joins
    all processes.

    Raises:
      ClusterError: If several workers were started in another way, or an evaluator in this one.
    """
    has_tf_config = "cluster" in read_tf_config(environ).values  # A "model_dir" may stand alone.
    rank = find_mpi_rank(environ)
    if rank is not None and rank.size > 1:
        found = find_cluster(environ) if has_tf_config else None
        if found is not None and found[1].type == "evaluator":
            raise ClusterError(
                f"TF_CONFIG says {found[1].name}, which does not train, but {rank.launcher} made "
                f"it rank {rank.rank} of {rank.size}, and Horovod trains on all of these. Start "
                f"the evaluator without {rank.launcher}."
            )
        return
    place, _ = _place_by_engine(
        {name: environ[name] for name in environ if has_tf_config or name != "TF_CONFIG"}
    )
    place = place or read_instance(environ)
    if place is not None and place.num_instances > 1:
        raise ClusterError(
            f"Horovod joins the processes that mpirun or horovodrun started, but {place.source} "
            f"says that this is worker {place.index} of {place.num_instances}, over gRPC. Use "
            "MultiWorkerStrategy or strategy_for_run(), or start the program with tfdist run "
            "--engine horovod."
        )


def find_instance(environ: Mapping[str, str] = os.environ) -> Instance:
    """Finds this process among the training processes of the run, by the variables `environ`.

    The variables of `tfdist run` count if the engine (TF_CONFIG, `mpirun`, `horovodrun`, a Slurm
    step) agrees with them. Without them the engine alone gives the index, and each instance has
    one replica. A process that no launcher started is alone. So is an evaluator, which is not one
    of the instances.

    Returns:
      The instance; its `source` is "" for a process that is alone.

    Raises:
      ClusterError: If what is set is malformed or contradicts itself.
    """
    launched = read_instance(environ)
    place, trains = _place_by_engine(environ)
    if not trains:
        if launched is not None:
            raise ClusterError(
                f"{NUM_INSTANCES} is {launched.num_instances}, but this process's task in "
                "TF_CONFIG does not train, so it is no instance. Unset the TFDIST variables for it."
            )
        return Instance()
    if launched is None:
        return _with_shape(place or Instance(), environ)
    if place is None:
        return launched
    _check_agreement(launched, place)
    return replace(launched, num_local_instances=place.num_local_instances)


def find_launched_replicas(environ: Mapping[str, str] = os.environ) -> Instance | None:
    """Returns this instance if a launcher has set its replicas in `environ`, else None."""
    if read_instance(environ) is None and read_shape(environ) is None:
        return None
    instance = find_instance(environ)
    return instance if instance.source else None


def replaces_parameter_servers(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the workers hold the variables of a cluster that lists parameter servers."""
    text = environ.get(PARAMETER_SERVERS, "")
    if text not in ("", REPLACE):
        raise ClusterError(
            f'{PARAMETER_SERVERS} is {shown(text)}: only "{REPLACE}" is allowed. Set it to '
            f"{REPLACE}, or unset it."
        )
    return text == REPLACE


def read_start_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """Reads how long the workers wait for each other at the start: 300 seconds if it is not set."""
    return _read_seconds(START_TIMEOUT, environ.get(START_TIMEOUT, "300"), "Set it to 300, or")


def read_stall_timeout(environ: Mapping[str, str] = os.environ) -> float | None:
    """Reads how long workers wait for one that stands still; None, without a limit, if not set."""
    text = environ.get(STALL_TIMEOUT, "")
    return _read_seconds(STALL_TIMEOUT, text, "Set it to 600, or") if text else None


def read_grace(environ: Mapping[str, str] = os.environ) -> float | None:
    """Reads the seconds that a stop by a signal may take; None if no launcher has set a limit."""
    text = environ.get(GRACE, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise ClusterError(
            f"{GRACE} is {shown(text)}: a number of seconds is allowed. Leave it to the launcher."
        ) from None


def read_weight_check(environ: Mapping[str, str] = os.environ) -> bool:
    """Reads whether the workers of a training compare their weights: yes if it is not set."""
    text = environ.get(WEIGHT_CHECK) or "1"
    if text not in ("0", "1"):
        raise ClusterError(
            f"{WEIGHT_CHECK} is {shown(text)}: 0 and 1 are allowed. Unset it, and the workers "
            "compare their weights before each checkpoint."
        )
    return text == "1"


def read_snapshot_steps(environ: Mapping[str, str] = os.environ) -> int | None:
    """Reads the number of steps between snapshots that a launcher asks for; None without one."""
    if not environ.get(SNAPSHOT_STEPS):
        return None
    advice = "Use --snapshot-steps of tfdist run or tfdist slurm."
    return read_integer(environ, SNAPSHOT_STEPS, 0, advice=advice)


def read_run(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the name of the run, if a launcher may start it again; else None."""
    return environ.get(RUN) or None


def read_num_threads(environ: Mapping[str, str] = os.environ) -> int:
    """Returns how many threads compute inside TensorFlow's operations by default.

    The number in TF_NUM_INTRAOP_THREADS, or this process's cores: as TensorFlow reads it.
    """
    text = environ.get("TF_NUM_INTRAOP_THREADS", "")
    limit = int(text) if text.isdecimal() else 0
    return limit or len(os.sched_getaffinity(0))


def read_profile(environ: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """Reads the folder, the first and the last step of the profile that `tfdist run` asks for.

    None if it asks for none.
    """
    folder = environ.get(PROFILE, "")
    try:
        steps = parse_steps(environ.get(PROFILE_STEPS) or USUAL_PROFILE_STEPS)
    except ValueError as error:
        raise ClusterError(f"{PROFILE_STEPS}: {error}") from None
    return (folder, *steps) if folder else None


def parse_steps(text: str) -> tuple[int, int]:
    """Returns first and last step of a text FIRST:LAST, or raises a ValueError."""
    found = re.fullmatch(r"([1-9][0-9]{0,9}):([1-9][0-9]{0,9})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ValueError(
            f"got {shown(text)}, allowed are the first and the last step, in order. Write for "
            "example 10:12."
        )
    return int(found[1]), int(found[2])


def _read_seconds(name: str, text: str, advice: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ClusterError(
            f"{name} is {shown(text)}: a number of seconds above 0 is allowed. {advice} unset it."
        )
    return seconds


def _place_by_engine(environ: Mapping[str, str]) -> tuple[Instance | None, bool]:
    """Returns the place that the engine gives this process, and whether the process trains."""
    found = find_cluster(environ)
    if found is not None:
        cluster, task = found
        if task not in cluster.workers:
            return None, False
        index, size = cluster.worker_index(task), cluster.num_workers
        local = cluster.local_index(task), cluster.num_local_workers(task)
        source = "TF_CONFIG" if is_tf_config_set(environ) else "Slurm"
    else:
        rank = find_mpi_rank(environ)
        if rank is None:
            return None, True
        index, size, source = rank.rank, rank.size, rank.launcher
        local = rank.local_rank, rank.local_size
    place = Instance(
        index=index,
        num_instances=size,
        local_index=local[0],
        num_local_instances=local[1],
        num_total_replicas=size,
        replica_index_offset=index,
        source=source,
    )
    return place, True


def _with_shape(place: Instance, environ: Mapping[str, str]) -> Instance:
    """Adds the replicas and devices of every instance, from a batch script or a manifest."""
    shape = read_shape(environ)
    if shape is None:
        return place
    replicas, devices = shape
    return replace(
        place,
        num_local_replicas=replicas,
        num_total_replicas=replicas * place.num_instances,
        replica_index_offset=replicas * place.index,
        devices_per_replica=devices,
        source=place.source or "tfdist run",
    )


def _check_agreement(launched: Instance, place: Instance) -> None:
    checked = [
        (NUM_INSTANCES, launched.num_instances, place.num_instances, "instances"),
        (INSTANCE_INDEX, launched.index, place.index, "as this one's index"),
    ]
    # TF_CONFIG and Slurm may have several names for one machine.
    if place.source in (MPIRUN, HOROVODRUN):
        local = launched.local_index, place.local_index
        checked.append((LOCAL_INSTANCE_INDEX, *local, "as its local index"))
    for name, ours, theirs, what in checked:
        if ours != theirs:
            raise ClusterError(
                f"{name} is {ours}, but {place.source} says {theirs} {what}. Start the program "
                "with one of the two, and unset the other's variables."
            )
