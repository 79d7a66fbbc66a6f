"""How Horovod and Open MPI are set, where the user has not set them.

Environment variables: both read them when they are initialised. The times are a step's of two
workers with one core each (`docs/benchmarks.md`), in times of the step without reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Horovod reduces a bucket when its last gradient exists, and copies it into a buffer and back. A
# tensor alone is reduced where it is.
BUCKET_SIZE_BYTES = 1 << 20
THRESHOLD_BYTES = 256 << 10

_ENGINE = {
    "HOROVOD_CYCLE_TIME": "0.1",  # Milliseconds until it looks again for something to reduce.
    # Above this (bytes) Horovod reduces each tensor where it is; below, it copies several into one
    # buffer and back. 33 MB of gradients: 1.37 instead of 1.48.
    "HOROVOD_FUSION_THRESHOLD": str(BUCKET_SIZE_BYTES),
    # A rank that waits gives its core to the computation.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Over TCP, messages go in pieces of 128 KB. As one ("put"), an answer that the other rank waits
    # for goes behind a whole message: both directions take turns. 33 MB in tensors of 1 MB, a link
    # of 1 Gbit/s: 297 ms instead of 547.
    "OMPI_MCA_btl_tcp_flags": "send",
}
# Rings for large tensors, Open MPI's own choice for small ones. 33 MB: 1.33, not 1.37.
_TUNED = "OMPI_MCA_coll_tuned_"
_RULES = {
    f"{_TUNED}use_dynamic_rules": "1",
    f"{_TUNED}dynamic_rules_filename": str(Path(__file__).with_name("open_mpi_rules.txt")),
}


def missing_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to add to an environment, which keeps all that it has.

    The rules are left out where it has anything about Open MPI's algorithms: they would win over an
    algorithm that the user has chosen.
    """
    has_tuned = any(name.startswith(_TUNED) for name in environ)
    wanted = _ENGINE if has_tuned else {**_ENGINE, **_RULES}
    return {name: value for name, value in wanted.items() if name not in environ}


def describe_settings(environ: Mapping[str, str], *, over_mpi: bool = True) -> str:
    """Says what is set, with "(yours)" behind what the user has set otherwise.

    Args:
      environ: The environment variables.
      over_mpi: Whether Horovod uses MPI, so that Open MPI's settings have an effect.
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
