"""Ports, names and proxies of this machine, and variables that make a program part of a run."""

from __future__ import annotations

import difflib
import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence

from tfdist.cluster import ClusterError, find_cluster, find_mpi_rank
from tfdist.cluster.environment import FOR_USERS, START_TIMEOUT, read_start_timeout
from tfdist.cluster.instance_variables import read_instance, read_restart_count, read_shape
from tfdist.cluster.ranks import check_launcher
from tfdist.launch.doctor.children import answer_within
from tfdist.launch.doctor.report import Finding, absent, broken, good
from tfdist.launch.machine.ports import ADD_LOOPBACK, ReservedPorts

_LIMIT_S = 3.0
# All others are set by tfdist itself.
_FOR_USERS = (START_TIMEOUT, *FOR_USERS, "TFDIST_CACHE_DIR")


def check_network() -> Iterator[Finding]:
    """Yields whether workers can reach each other."""
    yield judge_ports(port_problem())
    name = socket.gethostname()
    # The system's look-up has no limit of its own.
    yield judge_name(name, answer_within(_LIMIT_S, lambda: _addresses(name), ()))


def port_problem(family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> str:
    """Returns why a worker cannot listen on this address and be reached; "" if it can."""
    try:
        with ReservedPorts(1) as reserved, socket.socket(family) as listener:
            listener.bind((host, reserved.ports[0]))
            listener.listen(1)
            with socket.create_connection((host, reserved.ports[0]), timeout=_LIMIT_S):
                return ""
    except OSError as error:
        return str(error)


def judge_ports(problem: str) -> Finding:
    """Returns whether workers on this machine can listen."""
    if problem:
        text = f"no port of 127.0.0.1 can be used: {problem}"
        is_missing = os.strerror(errno.EADDRNOTAVAIL) in problem
        return broken(text, ADD_LOOPBACK if is_missing else "Run as root: ip link set lo up")
    return good("ports of 127.0.0.1 can be used")


def judge_name(name: str, addresses: Sequence[str]) -> Finding:
    """Returns whether this machine's name has addresses."""
    if addresses:
        return good(f"this host's name, {name}, leads to {', '.join(addresses)}")
    return absent(
        f"this host's name, {name}, leads nowhere; runs over several hosts need it",
        f"Run as root: echo '127.0.1.1 {name}' >> /etc/hosts",
    )


def judge_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the run that a program started here would join, and variables that are invalid."""
    for judge, fix in (
        (_judge_tf_config, "Correct it, or run: unset TF_CONFIG"),
        (_judge_slurm, "Start programs with: srun COMMAND"),
        (_judge_rank, "Run: unset ${!PMI_@} ${!PMIX_@} ${!MV2_COMM_WORLD_@}"),
        (_judge_instance, "Run: unset ${!TFDIST_@}"),
    ):
        try:
            yield from judge(environ)
        except ClusterError as error:
            yield _invalid(error, fix)


def _judge_tf_config(environ: Mapping[str, str]) -> Iterator[Finding]:
    found = find_cluster({name: environ[name] for name in environ if name == "TF_CONFIG"})
    if found is None:
        yield absent("TF_CONFIG is not set: a program started here is on its own")
    else:
        place = f"{found[1].name} of a cluster with {found[0].num_workers} workers"
        yield good(f"TF_CONFIG is valid: a program started here is {place}")


def _judge_slurm(environ: Mapping[str, str]) -> Iterator[Finding]:
    variables = {name: environ[name] for name in environ if name.startswith("SLURM_")}
    found = find_cluster(variables)
    job = f"Slurm job {variables.get('SLURM_JOB_ID', 'without a number')}"
    if found is not None:
        cluster, task = found
        yield good(f"{job} has {cluster.num_workers} tasks in this step; this is {task.name}")
    elif variables:
        yield absent(f"this is {job}, outside of a step of several tasks")


def _judge_rank(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        rank = find_mpi_rank(environ)
    except ClusterError as error:
        prefix = "HOROVOD_" if "HOROVOD_" in str(error) else "OMPI_COMM_WORLD_"
        yield _invalid(error, f"Run: unset ${{!{prefix}@}}")
        return
    if rank is None:
        check_launcher(environ)
    else:
        yield good(f"{rank.launcher} started this as rank {rank.rank} of {rank.size}")


def _judge_instance(environ: Mapping[str, str]) -> Iterator[Finding]:
    instance = read_instance(environ)
    read_shape(environ)
    read_restart_count(environ)
    if instance is not None:
        place = f"instance {instance.index} of {instance.num_instances}"
        yield good(f"tfdist run started this as {place}")
    try:
        read_start_timeout(environ)
    except ClusterError as error:
        yield _invalid(error, f"Run: unset {START_TIMEOUT}")
    for name in environ:
        near = difflib.get_close_matches(name, _FOR_USERS, n=1, cutoff=0.8)
        if name.startswith("TFDIST") and near and name != near[0]:
            yield absent(f"{name} means nothing", f"Perhaps {near[0]} is meant")


def _invalid(error: ClusterError, fix: str) -> Finding:
    return broken(" ".join(str(error).split("\n")), fix)


def _addresses(name: str) -> tuple[str, ...]:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))
