"""Horovod: installed, built for this TensorFlow, and with what."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.doctor.finding import Finding, absent, broken, good, missing
from tfdist.launch.doctor.survey import Survey
from tfdist.launch.doctor.versions import installed_version

_BUILD = "In tfdist's source folder run: scripts/setup.sh run"
_BUILD_AGAIN = "In tfdist's source folder run: TFDIST_BUILD_HOROVOD=1 scripts/setup.sh run"


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
