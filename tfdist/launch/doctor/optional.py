"""Engines and extras that a run may use and need not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

from tfdist.launch.doctor.finding import Finding, absent, good, pip_install
from tfdist.launch.doctor.versions import installed_version

_COMMANDS = {
    "Slurm": ("sbatch", "srun", "scontrol"),
    "Kubernetes": ("kubectl",),
    "runs on other hosts": ("ssh",),
}
_NOT_FOR_USERS = ("test",)


@dataclass(frozen=True, kw_only=True)
class Optional:
    """What is there of what is not needed.

    Attributes:
      commands: Each command's path; None if it is not on PATH.
      extras: What each of tfdist's extras asks for and does not have.
    """

    commands: Mapping[str, str | None]
    extras: Mapping[str, tuple[str, ...]]


def look_at_optional() -> Optional:
    """Looks at PATH and at the installed packages' metadata."""
    names = [name for commands in _COMMANDS.values() for name in commands]
    return Optional(
        commands={name: shutil.which(name) for name in names},
        extras={extra: _missing_of(extra) for extra in _extras() if extra not in _NOT_FOR_USERS},
    )


def judge_optional(optional: Optional) -> list[Finding]:
    """Says what is there."""
    return [
        *(_judge_commands(what, names, optional) for what, names in _COMMANDS.items()),
        *(_judge_extra(extra, wanted) for extra, wanted in optional.extras.items()),
    ]


def _judge_commands(what: str, names: tuple[str, ...], optional: Optional) -> Finding:
    missing = [name for name in names if optional.commands.get(name) is None]
    if missing:
        return absent(f"{what}: no {', '.join(missing)} on PATH")
    return good(f"{what}: {', '.join(str(optional.commands[name]) for name in names)}")


def _judge_extra(extra: str, missing: tuple[str, ...]) -> Finding:
    if missing:
        return absent(
            f"the extra {extra}: not installed ({', '.join(missing)})",
            pip_install(f"tfdist[{extra}]"),
        )
    return good(f"the extra {extra}: installed")


def _extras() -> list[str]:
    try:
        return metadata.metadata("tfdist").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []  # Run from its source folder.


def _missing_of(extra: str) -> tuple[str, ...]:
    requirements = map(Requirement, metadata.requires("tfdist") or [])
    return tuple(
        one.name
        for one in requirements
        if one.marker is not None
        and one.marker.evaluate({"extra": extra})
        and not one.marker.evaluate({"extra": ""})
        and installed_version(one.name) is None
    )
