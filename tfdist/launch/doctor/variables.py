"""Environment variables that decide what a program started here would be part of."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from tfdist.cluster import ClusterError, find_cluster, find_mpi_rank
from tfdist.cluster.instance_variables import read_instance, read_restart_count, read_shape
from tfdist.cluster.ranks import check_launcher
from tfdist.launch.doctor.report import Finding, absent, broken, good

# A user may set these; all others are for tfdist's own processes.
_FOR_USERS = ("TFDIST_START_TIMEOUT_S", "TFDIST_CACHE_DIR")
_FOR_SCRIPTS = ("TFDIST_BUILD_HOROVOD", "TFDIST_OLD_TENSORFLOW")


def judge_variables(environ: Mapping[str, str]) -> list[Finding]:
    """Says what the environment describes, and whether that is valid."""
    return [
        _judge_tf_config(environ),
        *_judge_slurm(environ),
        *_judge_mpi(environ),
        *_judge_ours(environ),
    ]


def _judge_tf_config(environ: Mapping[str, str]) -> Finding:
    only = {name: value for name, value in environ.items() if name == "TF_CONFIG"}
    try:
        found = find_cluster(only)
    except ClusterError as error:
        return broken(_one_line(error), "Correct it, or run: unset TF_CONFIG")
    if found is None:
        return absent("TF_CONFIG is not set: a program started here is on its own")
    cluster, task = found
    return good(
        f"TF_CONFIG is valid: a program started here is {task.name} of a cluster with "
        f"{cluster.num_workers} workers"
    )


def _judge_slurm(environ: Mapping[str, str]) -> list[Finding]:
    ours = {name: value for name, value in environ.items() if name.startswith("SLURM_")}
    if not ours:
        return []
    try:
        found = find_cluster(ours)
    except ClusterError as error:
        return [broken(_one_line(error), "Start programs with: srun COMMAND")]
    job = f"Slurm job {ours.get('SLURM_JOB_ID', 'without a number')}"
    if found is None:
        return [absent(f"this is {job}, outside of a step of several tasks")]
    return [good(f"{job} has {found[0].num_workers} tasks in this step; this is {found[1].name}")]


def _judge_mpi(environ: Mapping[str, str]) -> list[Finding]:
    try:
        rank = find_mpi_rank(environ)
    except ClusterError as error:
        kind = "HOROVOD_" if "HOROVOD_" in str(error) else "OMPI_COMM_WORLD_"
        return [broken(_one_line(error), f"Run: unset ${{!{kind}@}}")]
    if rank is not None:
        return [good(f"{rank.launcher} started this as rank {rank.rank} of {rank.size}")]
    try:
        check_launcher(environ)
    except ClusterError as error:
        return [broken(_one_line(error), "Run: unset ${!PMI_@} ${!PMIX_@} ${!MV2_COMM_WORLD_@}")]
    return []


def _judge_ours(environ: Mapping[str, str]) -> list[Finding]:
    try:
        instance = read_instance(environ)
        read_shape(environ)
        read_restart_count(environ)
    except ClusterError as error:
        return [broken(_one_line(error), "Run: unset ${!TFDIST_@}")]
    findings = []
    if instance is not None:
        place = f"instance {instance.index} of {instance.num_instances}"
        findings.append(good(f"tfdist run started this as {place}"))
    timeout = environ.get("TFDIST_START_TIMEOUT_S")
    if timeout is not None and not _is_positive(timeout):
        findings.append(
            broken(
                f'TFDIST_START_TIMEOUT_S is "{timeout}", expected seconds above 0',
                "Run: unset TFDIST_START_TIMEOUT_S",
            )
        )
    # Names alone: a value may be a secret.
    names = [name for name in (*_FOR_USERS, *_FOR_SCRIPTS) if name in environ]
    if names:
        findings.append(good(f"set: {', '.join(names)}"))
    return [*findings, *_judge_misspelled(environ)]


def _judge_misspelled(environ: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name in environ:
        near = difflib.get_close_matches(name, _FOR_USERS, n=1, cutoff=0.8)
        if name.startswith("TFDIST") and near and name != near[0]:
            findings.append(absent(f"{name} means nothing", f"Perhaps {near[0]} is meant"))
    return findings


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _one_line(error: ClusterError) -> str:
    return " ".join(str(error).split("\n"))
