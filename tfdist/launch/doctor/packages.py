"""Installed packages: versions of Python, TensorFlow and Keras."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import metadata

from packaging.requirements import Requirement

import tfdist
from tfdist.launch.doctor.children import Children, Ended
from tfdist.launch.doctor.report import Finding, absent, broken, good, pip_install
from tfdist.launch.horovod.build import installed_version
from tfdist.launch.machine.processes import python_command
from tfdist.process.tried_versions import (
    OLDEST,
    VersionError,
    is_newer,
    major_minor,
    requirements,
    tried,
)

_IMPORT_LIMIT_S = 120.0  # TensorFlow is a gigabyte: a cold disk and a busy machine take long.
_FIRST_PYTHON, _LAST_PYTHON = (3, 10), (3, 13)
# It allows protobuf 7, and gives its text format an argument that protobuf 7 does not have.
_WITHOUT_PROTOBUF_7 = ((2, 20),)
_OFTEN_WRONG = ("protobuf", "numpy", "grpcio")


@dataclass(frozen=True, kw_only=True)
class TensorFlowFacts:
    """The answer of a child process that imports TensorFlow and Horovod."""

    problem: str = ""  # Why TensorFlow cannot be imported.
    tensorflow: str | None = None
    keras: str | None = None  # The version of `tf.keras` in a tfdist program.
    gpus: tuple[str, ...] = ()  # The names of those that TensorFlow sees.
    horovod: str | None = None  # None if it is not installed.
    horovod_problem: str = ""  # Why Horovod cannot be loaded.
    has_mpi: bool = False  # Whether Horovod was built with MPI.
    libmpi: str | None = None  # The MPI library that Horovod loads.
    mpi: str | None = None  # That library's own name and version.


def ask_tensorflow(children: Children, *, with_horovod: bool) -> TensorFlowFacts:
    """Imports TensorFlow in a child process, since the launcher does not import it."""
    words = ["horovod"] if with_horovod else []
    command = python_command("tfdist.strategies.build_info", *words)
    # Importing tfdist.estimator chooses Keras 2 unless the user has chosen.
    environ = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    return read_tensorflow_facts(children.run(command, environ, limit_s=_IMPORT_LIMIT_S))


def read_tensorflow_facts(ended: Ended) -> TensorFlowFacts:
    """Reads the last line of the child's output, or why there is none."""
    if ended.exit_code is None:
        return TensorFlowFacts(problem=f"it was not done after {ended.seconds:.0f} s")
    if ended.exit_code != 0:
        return TensorFlowFacts(problem=ended.last_line)
    answer = json.loads(ended.stdout.splitlines()[-1])
    names = {field.name for field in fields(TensorFlowFacts)}
    known = {name: value for name, value in answer.items() if name in names}
    return TensorFlowFacts(**{**known, "gpus": tuple(known["gpus"])})


def check_versions(facts: TensorFlowFacts) -> Iterator[Finding]:
    """Yields which versions are installed, and which do not fit each other."""
    wanted = [one for one in _requirements("tensorflow") if _applies(one)]
    names = ("tensorflow", "tf-keras", "keras", *_OFTEN_WRONG, *(one.name for one in wanted))
    versions = {name: installed_version(name) for name in names}
    return judge_versions({"python": platform.python_version(), **versions}, wanted, facts)


def judge_versions(
    versions: Mapping[str, str | None], wanted: Sequence[Requirement], facts: TensorFlowFacts
) -> Iterator[Finding]:
    """Like `check_versions`, for the versions of "python" and of packages, None if not there."""
    text = f"Python {versions['python']} ({sys.executable})"
    if _FIRST_PYTHON <= major_minor(versions["python"]) <= _LAST_PYTHON:
        yield good(text)
    else:
        fix = "Make a virtual environment with one of those: python3.13 -m venv .venv"
        yield broken(f"{text}: tfdist is made for 3.10 to 3.13", fix)
    yield good(f"tfdist {tfdist.__version__}")
    yield _judge_tensorflow(versions["tensorflow"], facts)
    tensorflow = facts.tensorflow or versions["tensorflow"]
    if tensorflow is None:
        return
    yield _judge_tf_keras(tensorflow, versions["tf-keras"])
    if facts.keras is not None:
        yield _judge_keras(facts.keras)
    yield _judge_keras_3(versions["keras"])
    protobuf = versions["protobuf"]
    if major_minor(tensorflow) in _WITHOUT_PROTOBUF_7 and major_minor(protobuf) >= (7, 0):
        text = f"protobuf {protobuf} is installed, with which TensorFlow {tensorflow} cannot save"
        yield broken(text, pip_install("protobuf<7"))
    unmet = [one for one in wanted if not _is_met(one, versions[one.name])]
    for one in unmet:
        version, requested = versions[one.name], f"{one.name}{one.specifier}"
        what = f"{one.name} {version} is installed" if version else f"{one.name} is not installed"
        yield broken(f"{what}, TensorFlow asks for {requested}", pip_install(requested))
    if wanted and not unmet:
        shown = "".join(f"{name} {versions[name]}, " for name in _OFTEN_WRONG)
        yield good(f"the {len(wanted)} packages that TensorFlow asks for fit: {shown}...")


def _judge_tensorflow(installed: str | None, facts: TensorFlowFacts) -> Finding:
    imported = facts.tensorflow
    if imported is None and installed is None:
        text = "TensorFlow is not installed for this Python"
        return broken(text, pip_install("tensorflow", "tf-keras"))
    lacks_a_name = f"{VersionError.__name__}: "
    if imported is None and facts.problem.startswith(lacks_a_name):
        text, run, fix = facts.problem.removeprefix(lacks_a_name).partition(" Run: ")
        return broken(text, run.strip() + " " + fix)
    if imported is None:
        text = f"TensorFlow {installed} cannot be imported: {facts.problem}"
        return broken(text, pip_install("--force-reinstall", f"tensorflow=={installed}"))
    if major_minor(imported) < OLDEST["TensorFlow"]:
        text = f"TensorFlow {imported} is older than 2.16"
        return broken(text, pip_install("--upgrade", "tensorflow", "tf-keras"))
    return _judge_newer("TensorFlow", imported) or good(f"TensorFlow {imported}")


def _judge_newer(name: str, version: str) -> Finding | None:
    if not is_newer(name, version):
        return None
    text = f"{name} {version} is newer than {tried(name)}, the newest that tfdist was tried with"
    return absent(text, pip_install(*requirements(name)))


def _judge_tf_keras(tensorflow: str, tf_keras: str | None) -> Finding:
    major, minor = major_minor(tensorflow)
    fix = pip_install(f"tf-keras=={major}.{minor}.*")
    if tf_keras is None:
        return broken("tf-keras, which is Keras 2, is not installed", fix)
    if major_minor(tf_keras) != (major, minor):
        return broken(f"tf-keras {tf_keras} does not fit TensorFlow {tensorflow}", fix)
    return good(f"tf-keras {tf_keras} fits TensorFlow")


def _judge_keras(version: str) -> Finding:
    if major_minor(version) < (3, 0):
        return good(f"tf.keras is Keras 2 ({version}): its layers build graphs")
    return absent(
        f"tf.keras is Keras {version}, since TF_USE_LEGACY_KERAS is set so: tf.compat.v1.layers "
        "and feature columns do not work with it",
        "For Keras 2 run: unset TF_USE_LEGACY_KERAS",
    )


def _judge_keras_3(version: str | None) -> Finding:
    if version is not None and major_minor(version) >= (3, 0):
        text = f"Keras {version}: Estimators, fit and loops of TensorFlow 2 can be trained"
        return _judge_newer("Keras", version) or good(text)
    found = "is not installed" if version is None else f"is {version}"
    return absent(
        f"keras {found}: Estimators and tf_keras can be trained, and Keras 3 cannot",
        pip_install("--upgrade", "keras"),
    )


def _requirements(package: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires(package) or []]
    except metadata.PackageNotFoundError:
        return []  # Not installed; tfdist may run from its source folder.


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _is_met(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)
