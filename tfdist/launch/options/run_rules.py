"""Rules between the options of `tfdist run`, and between them and the machine.

Each raises a UsageError for options that are wrong, contradict each other or cannot work here.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.environment import FOR_USERS, START_TIMEOUT
from tfdist.cluster.instance_variables import nearest_multiples
from tfdist.cluster.ranks import OF_OTHER_LAUNCHERS
from tfdist.cluster.tasks import is_loopback, split_address
from tfdist.launch.errors import UsageError
from tfdist.launch.options.hosts import THIS_MACHINE, Host, parse_host_list, read_hostfile
from tfdist.process.text import listed, shown

_LAST_PORT = 65535
# Variables that users cannot set with --env because a launcher sets them for each worker, each
# with the text that follows in the error message.
_MADE_HERE = {
    "TF_CONFIG": "tfdist run makes it for each worker",
    START_TIMEOUT: "use --start-timeout",
    "TFDIST_": "tfdist run makes it for each worker",
    "OMPI_COMM_WORLD_": "mpirun makes it for each worker",
    **dict.fromkeys(
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        "Horovod's own launcher makes it for each of its processes",
    ),
    **dict.fromkeys(
        OF_OTHER_LAUNCHERS, "another MPI's launcher makes it for each of its processes"
    ),
}


_NOT_ON_NODES = {
    "engine": "Horovod's workers are started by one mpirun for all nodes. Use --host.",
    "hosts": "it names the machines already. Use one of both.",
    "hostfile": "it names the machines already. Use one of both.",
    "evaluator": "one node alone could have it. Leave it out: worker 0 evaluates at the end.",
    "max_restarts": (
        "all nodes start again together, which needs one launcher for all. Use --host, tfdist "
        "slurm or tfdist kubernetes, or a service on each node that starts this command again."
    ),
}


def dry_run(dry_run: bool | None, offline_mode: bool | None) -> tuple[bool, list[str]]:
    """Returns whether this is a dry run, and notices."""
    if offline_mode is None:
        return bool(dry_run), []
    if dry_run is not None and dry_run != offline_mode:
        raise UsageError(
            f"--offline-mode is {_word(offline_mode)} and --dry-run is {_word(dry_run)}, but they "
            "mean the same. Leave --offline-mode out."
        )
    notice = (
        f"--offline-mode {_word(offline_mode)} is taken as --dry-run {_word(offline_mode)}: "
        "nothing is compiled ahead here"
    )
    return offline_mode, [notice]


def binding(bind: str | None, numa_aware: bool | None) -> str | None:
    """Returns --bind, or its equivalent for --numa-aware; None if neither is given."""
    if numa_aware is None:
        return bind
    if bind is not None and (bind == "numa") != numa_aware:
        raise UsageError(
            f"--numa-aware is {_word(numa_aware)} and --bind is {bind}, which contradict each "
            "other. Leave --numa-aware out: --bind numa is the same."
        )
    return "numa" if numa_aware else bind


def hosts(lists: Sequence[str] | None, hostfile: str | None) -> tuple[Host, ...]:
    """Returns the machines: those listed, those in the file, or this one."""
    if lists is not None and hostfile is not None:
        raise UsageError(
            f"got both --host {shown(','.join(lists))} and --hostfile {shown(hostfile)}, and one "
            "of them is allowed. Leave one out."
        )
    if lists is not None:
        return parse_host_list(",".join(lists))
    return (THIS_MACHINE,) if hostfile is None else read_hostfile(hostfile)


def environment(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of --env. One without a value gets its value from `environ`."""
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        for made, fix in _MADE_HERE.items():
            is_one = name == made or (made.endswith("_") and name.startswith(made))
            if is_one and name not in FOR_USERS:
                raise UsageError(
                    f"--env sets {name}, which is not for users to set: {fix}. Remove it."
                )
        if not equals and name not in environ:
            raise UsageError(
                f"--env {name} has no value, and {name} is not set here. Write --env {name}=VALUE, "
                "or set it first."
            )
        variables[name] = value if equals else environ[name]
    return variables


def shown_workers(
    lists: Sequence[str] | None, num_instances: int, has_evaluator: bool
) -> tuple[int, ...] | None:
    """Returns the indices of the workers to show; the evaluator's is `num_instances`.

    None shows all.
    """
    if lists is None:
        return None
    allowed = [str(index) for index in range(num_instances)]
    numbers = dict(zip(allowed, range(num_instances), strict=True))
    if has_evaluator:
        allowed.append("evaluator")
        numbers |= {"evaluator": num_instances, str(num_instances): num_instances}
    chosen: set[int] = set()
    for word in ",".join(lists).split(","):
        if word not in numbers:
            raise UsageError(
                f"--show is {word}, allowed here: {listed(allowed)}. Show one of these, or "
                f"{'add --evaluator' if word == 'evaluator' else 'raise --num-instances'}."
            )
        chosen.add(numbers[word])
    return tuple(sorted(chosen))


def split_words(texts: Sequence[str]) -> tuple[str, ...]:
    """Splits texts into words by the rules of a shell."""
    return tuple(word for text in texts for word in shlex.split(text))


def instance_words(texts: Sequence[str], num_instances: int) -> dict[int, tuple[str, ...]]:
    """Returns the words of each instance from texts of the form INDEX:"words"."""
    found: dict[int, tuple[str, ...]] = {}
    for text in texts:
        index, _, words = text.partition(":")
        if int(index) >= num_instances:
            indices = [str(instance) for instance in range(num_instances)]
            raise UsageError(
                f"--instance-mpi-local-args names instance {index}, but there are only "
                f"{listed(indices)}. Correct the index, or raise --num-instances."
            )
        found[int(index)] = (*found.get(int(index), ()), *split_words([words]))
    return found


def check_folder(option: str, folder: Path) -> None:
    """Checks that an option's folder can be made and written to."""
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        raise UsageError(
            f"{option} {shown(str(folder))} cannot be made: {shown(str(there))} is not a folder. "
            "Name a folder."
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(
            f"{option} {shown(str(folder))} cannot be used: you may not write to "
            f"{shown(str(there))}. Name a folder that you may write to."
        )


def check_profile(folder: Path) -> None:
    """Checks that a profile can be drawn and written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--profile draws a picture with matplotlib, which is not installed. Run: pip install "
            "'tfdist[pipeline]'"
        )
    check_folder("--profile", folder)


def check_port(port: int, num_instances: int) -> None:
    """Checks that all instances' ports are within 65535."""
    if port + num_instances - 1 > _LAST_PORT:
        raise UsageError(
            f"--port is {port}, but {num_instances} instances need ports up to "
            f"{port + num_instances - 1}, and the last is {_LAST_PORT}. "
            f"Use at most {_LAST_PORT - num_instances + 1}."
        )


def check_restarts(
    *, most: int, least: int | None, snapshot_steps: int | None, max_restarts: int
) -> None:
    """Checks the options that need restarts; `most` and `least` are numbers of instances."""
    if least is not None and least > most:
        raise UsageError(
            f"--min-instances is {least}, and --num-instances is {most}. Use at most {most}."
        )
    given = {"--min-instances": least, "--snapshot-steps": snapshot_steps}
    for name, number in given.items():
        if number and max_restarts == 0:
            raise UsageError(
                f"{name} is {number}, but --max-restarts is 0, so the run never starts again. "
                "Add for example --max-restarts 3."
            )


def nodes(
    lists: Sequence[str] | None, rank: int | None, given: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the addresses of --nodes; none without it.

    `given` has all options; some have no place in such a run.
    """
    if lists is None:
        if rank is not None:
            raise UsageError(
                f"--node-rank is {rank}, but --nodes is missing. Add --nodes a:3737,b:3737."
            )
        return ()
    found = tuple(",".join(lists).split(","))
    for address in found:
        try:
            split_address(address)
        except ValueError as error:
            raise UsageError(f"--nodes has {shown(address)}: {error}") from None
        if found.count(address) > 1:
            raise UsageError(f"--nodes has {shown(address)} twice, once is allowed. Remove one.")
    local = [address for address in found if is_loopback(split_address(address)[0])]
    if local and len(local) < len(found):
        raise UsageError(
            f"--nodes has {shown(local[0])}, which each machine takes for itself, beside other "
            "machines. Use names that all machines know each other by."
        )
    if rank is None or rank >= len(found):
        got = "is missing" if rank is None else f"is {rank}"
        raise UsageError(
            f"--node-rank {got}, and --nodes has {len(found)}. Write 0 on the first of them, "
            f"{len(found) - 1} on the last."
        )
    for name, reason in _NOT_ON_NODES.items():
        if given.get(name) not in (None, False, 0, "grpc"):
            option = "host" if name == "hosts" else name.replace("_", "-")
            raise UsageError(f"--nodes has no place for --{option}: {reason}")
    instances = given.get("num_instances") or len(found)
    if instances % len(found):
        near = " or ".join(nearest_multiples(instances, len(found)))
        raise UsageError(
            f"--num-instances is {instances}, of all {len(found)} nodes, and each gets equally "
            f"many. Use {near}."
        )
    return found


def check_root() -> None:
    """Refuses to run mpirun as root."""
    if os.geteuid() == 0:
        raise UsageError(
            "--allow-run-as-root is no, but you are root, and mpirun starts the workers. "
            "Set it to yes, or run as another user."
        )


def _word(value: bool) -> str:
    return "yes" if value else "no"


def total_replicas(num_instances: int, num_replicas: int | None) -> int:
    """Returns the number of replicas of the run, by default one per instance."""
    if num_replicas is None:
        return num_instances
    if num_replicas % num_instances:
        raise UsageError(
            f"--num-replicas is {num_replicas} and --num-instances is {num_instances}, and "
            "instances get equally many replicas each.\n"
            "The nearest that work: --num-replicas "
            f"{' or '.join(nearest_multiples(num_replicas, num_instances))}, or --num-instances "
            f"{_near_divisors(num_replicas, num_instances)}."
        )
    return num_replicas


def _near_divisors(of: int, number: int) -> str:
    divisors = [one for one in range(1, of + 1) if of % one == 0]
    below = [divisor for divisor in divisors if divisor < number][-1:]
    above = [divisor for divisor in divisors if divisor > number][:1]
    return " or ".join(str(one) for one in below + above)
