"""Settings of Horovod and Open MPI, for what the user has not set.

They are environment variables, which both read when they are initialised. The figures below are
step times of two workers with one core each, in multiples of the step without reduction
(`docs/performance.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfdist.process.open_mpi import is_in_environment

# The bucket size and the bucketing threshold. Horovod copies the gradients of a bucket into a
# buffer and back; a gradient that is a message by itself is reduced in place.
BUCKET_SIZE_BYTES = 1 << 20
THRESHOLD_BYTES = 256 << 10

_ENGINE = {
    "HOROVOD_CYCLE_TIME": "0.1",  # Milliseconds between two looks for tensors to reduce.
    # In bytes. Above it Horovod reduces each tensor in place; below, it copies several into one
    # buffer and back. 33 MB of gradients: 1.37 instead of 1.48.
    "HOROVOD_FUSION_THRESHOLD": str(BUCKET_SIZE_BYTES),
    # A rank that waits gives its core to the computation.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Messages over TCP are sent in pieces of 128 KB. Sent whole ("put"), a message delays the
    # answer that the other rank waits for, and both directions of the link take turns. 33 MB in
    # tensors of 1 MB over 1 Gbit/s: 297 ms instead of 547.
    "OMPI_MCA_btl_tcp_flags": "send",
}
# PyPI's Open MPI would wait for a second at every end to close libfabric's transport for one-sided
# messages, which Horovod does not send. Another one may have transports that an administrator chose
# in a file, which a variable would replace.
_TRANSPORTS = {"OMPI_MCA_btl": "^ofi"}
_USERS_FILE = Path("~/.openmpi/mca-params.conf").expanduser()
# Rings for large tensors, Open MPI's own choice for small ones. 33 MB: 1.33 instead of 1.37.
_TUNED = "OMPI_MCA_coll_tuned_"
_RULES = {
    f"{_TUNED}use_dynamic_rules": "1",
    f"{_TUNED}dynamic_rules_filename": str(Path(__file__).with_name("open_mpi_rules.txt")),
}


def missing_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to add to an environment; those that it has stay.

    The rules for Open MPI's algorithms are left out if the environment has any setting of these:
    the rules would override an algorithm that the user has chosen.
    """
    wanted = dict(_ENGINE)
    if is_in_environment(Path(environ.get("OPAL_PREFIX", "/"))) and not _USERS_FILE.exists():
        wanted |= _TRANSPORTS
    if not any(name.startswith(_TUNED) for name in environ):
        wanted |= _RULES
    return {name: value for name, value in wanted.items() if name not in environ}


def describe_settings(environ: Mapping[str, str], *, over_mpi: bool = True) -> str:
    """Describes the settings, for the log; "(yours)" marks a value of the user.

    Where Horovod does not use MPI, Open MPI's settings have no effect.
    """
    if not over_mpi:
        return ", ".join(_say(name, environ[name]) for name in _ENGINE if "OMPI_" not in name)
    said = [_say(name, environ[name]) for name in _ENGINE]
    tuned = {name: value for name, value in environ.items() if name.startswith(_TUNED)}
    if tuned == _RULES:
        return ", ".join([*said, "coll_tuned rings from 1 MB on"])
    return ", ".join([*said, *(_say(name, tuned[name]) for name in sorted(tuned))])


def _say(name: str, value: str) -> str:
    said = f"{name.removeprefix('OMPI_MCA_')}={value}"
    return said if value == _ENGINE.get(name) else f"{said} (yours)"
