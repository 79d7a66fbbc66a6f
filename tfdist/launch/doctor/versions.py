"""Checks of installed packages: versions that fit each other, and optional engines and extras."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

import tfdist
from tfdist.launch.doctor.probes import Survey
from tfdist.launch.doctor.report import Finding, absent, broken, good, pip_install

_FIRST_PYTHON, _LAST_PYTHON = (3, 10), (3, 13)
_FIRST_TENSORFLOW = (2, 16)
_OFTEN_WRONG = ("protobuf", "numpy", "grpcio")

_COMMANDS = {
    "Slurm": ("sbatch", "srun", "scontrol"),
    "Kubernetes": ("kubectl",),
    "runs on other hosts": ("ssh",),
}
_NOT_FOR_USERS = ("test",)


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What the package metadata of this Python says.

    Attributes:
      python: For example "3.11.7".
      tfdist: Our own.
      tensorflow: TensorFlow's; None if it is not installed.
      tf_keras: That of tf-keras; None if it is not installed.
      unmet: What TensorFlow asks for and does not have: (requirement, version found or None).
      num_met: How many of its requirements are met.
      others: The versions of those that most often do not fit.
    """

    python: str
    tfdist: str
    tensorflow: str | None
    tf_keras: str | None
    unmet: tuple[tuple[str, str | None], ...] = ()
    num_met: int = 0
    others: tuple[tuple[str, str], ...] = ()


def look_at_versions() -> Versions:
    """Reads the installed packages' metadata."""
    met, unmet = _check_requirements(_requires("tensorflow"))
    return Versions(
        python=platform.python_version(),
        tfdist=tfdist.__version__,
        tensorflow=installed_version("tensorflow"),
        tf_keras=installed_version("tf-keras"),
        unmet=tuple(unmet),
        num_met=met,
        others=tuple(
            (name, found) for name in _OFTEN_WRONG if (found := installed_version(name)) is not None
        ),
    )


def judge_versions(versions: Versions, survey: Survey) -> list[Finding]:
    """Says which versions are here, and which do not fit.

    Args:
      versions: What is installed.
      survey: What a process that imported TensorFlow said.
    """
    findings = [_judge_python(versions.python), good(f"tfdist {versions.tfdist}")]
    findings.append(_judge_tensorflow(versions, survey))
    if versions.tensorflow is None and survey.tensorflow is None:
        return findings
    tensorflow = survey.tensorflow or versions.tensorflow or ""
    findings.append(_judge_tf_keras(tensorflow, versions.tf_keras))
    if survey.keras is not None:
        findings.append(_judge_keras(survey.keras))
    findings += [_judge_unmet(name, found) for name, found in versions.unmet]
    if not versions.unmet and versions.num_met:
        findings.append(good(_met_text(versions)))
    return findings


def installed_version(name: str) -> str | None:
    """Returns the version of an installed package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _judge_python(version: str) -> Finding:
    text = f"Python {version} ({sys.executable})"
    if not _FIRST_PYTHON <= _major_minor(version) <= _LAST_PYTHON:
        return broken(
            f"{text}: tfdist is made for 3.10 to 3.13",
            "Make a virtual environment with one of those: python3.13 -m venv .venv",
        )
    return good(text)


def _judge_tensorflow(versions: Versions, survey: Survey) -> Finding:
    if survey.tensorflow is None and versions.tensorflow is None:
        return broken(
            "TensorFlow is not installed for this Python", pip_install("tensorflow", "tf-keras")
        )
    if survey.tensorflow is None:
        return broken(
            f"TensorFlow {versions.tensorflow} cannot be imported: {survey.problem}",
            pip_install("--force-reinstall", f"tensorflow=={versions.tensorflow}"),
        )
    if _major_minor(survey.tensorflow) < _FIRST_TENSORFLOW:
        return broken(
            f"TensorFlow {survey.tensorflow} is older than 2.16",
            pip_install("--upgrade", "tensorflow", "tf-keras"),
        )
    return good(f"TensorFlow {survey.tensorflow}")


def _judge_tf_keras(tensorflow: str, tf_keras: str | None) -> Finding:
    major, minor = _major_minor(tensorflow)
    mend = pip_install(f"tf-keras=={major}.{minor}.*")
    if tf_keras is None:
        return broken("tf-keras, which is Keras 2, is not installed", mend)
    if _major_minor(tf_keras) != (major, minor):
        return broken(f"tf-keras {tf_keras} does not fit TensorFlow {tensorflow}", mend)
    return good(f"tf-keras {tf_keras} fits TensorFlow")


def _judge_keras(version: str) -> Finding:
    if _major_minor(version) < (3, 0):
        return good(f"tf.keras is Keras 2 ({version}): its layers build graphs")
    return absent(
        f"tf.keras is Keras {version}, since TF_USE_LEGACY_KERAS is set so: tf.compat.v1.layers "
        "and feature columns do not work with it",
        "For Keras 2 run: unset TF_USE_LEGACY_KERAS",
    )


def _judge_unmet(requirement: str, found: str | None) -> Finding:
    name = Requirement(requirement).name
    what = f"{name} {found} is installed" if found else f"{name} is not installed"
    return broken(f"{what}, TensorFlow asks for {requirement}", pip_install(requirement))


def _met_text(versions: Versions) -> str:
    found = ", ".join(f"{name} {version}" for name, version in versions.others)
    return f"the {versions.num_met} packages that TensorFlow asks for fit: {found}, ..."


def _check_requirements(texts: Sequence[str]) -> tuple[int, list[tuple[str, str | None]]]:
    met, unmet = 0, []
    for requirement in map(Requirement, texts):
        found = installed_version(requirement.name)
        if found is not None and requirement.specifier.contains(found, prereleases=True):
            met += 1
        else:
            unmet.append((f"{requirement.name}{requirement.specifier}", found))
    return met, unmet


def _requires(package: str) -> list[str]:
    """Returns what a package asks for on this Python and machine, without its extras."""
    try:
        texts = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []
    requirements = map(Requirement, texts)
    return [
        str(one) for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})
    ]


def _major_minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


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
