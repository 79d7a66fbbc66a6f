"""The command `tfdist kubernetes`: writes a run's manifests and submits them with kubectl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.checks import check, notices
from tfdist.launch.kubernetes.job_options import KUBERNETES, JobOptions, job_options
from tfdist.launch.options.declaration import options_of

_REQUEST_TIMEOUT_S = 60


def main(words: Sequence[str]) -> int:
    """Writes the manifests, and submits them if requested; returns 0 or kubectl's exit code.

    `words` are those after `tfdist kubernetes`.
    If the options are invalid, or need what is not installed, it raises a UsageError.
    """
    given = KUBERNETES.parse(words)
    if "write_dockerfile" in given:
        return _write_dockerfile(given)
    options = job_options(given)
    check(options)
    kubectl = _find_kubectl() if options.verb else ""
    text = _text(options)
    for notice in (*options.notices, *notices(options)):
        _say(notice)
    if options.output:
        _write("--output", options.output, text)
    if options.verb:
        code = _submit(kubectl, options, text)
        if code == 0 and not options.dry_run:
            _say_what_next(options)
        return code
    if not options.output:
        sys.stdout.write(text)
    return 0


def _write_dockerfile(given: Mapping[str, Any]) -> int:
    others = [name for name in given if name not in ("write_dockerfile", "notices")]
    if others:
        options = options_of(JobOptions)
        other = options[others[0]].long_name if others[0] in options else "a command"
        raise UsageError(f"--write-dockerfile stands alone, got {other} too. Leave one out.")
    path: Path = given["write_dockerfile"]
    text = Path(__file__).with_name("Dockerfile").read_text(encoding="utf-8")
    _write("--write-dockerfile", path, text, mode="x")
    _say(f"wrote {path}; its first lines say how to build the images")
    return 0


def _text(options: JobOptions) -> str:
    try:
        # Imported here, because the models take a second to load and may not be installed.
        from tfdist.launch.kubernetes.manifests import manifests, to_yaml
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kubeflow_trainer_api":
            raise
        raise UsageError(
            "the package kubeflow-trainer-api is not installed, from whose models manifests are "
            'made. Run: pip install "tfdist[kubernetes]"'
        ) from None
    return to_yaml(manifests(options))


def _write(option: str, path: Path, text: str, mode: str = "w") -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{option}={path} cannot be written: {error.strerror}. Name another file."
        ) from None


def _say_what_next(options: JobOptions) -> None:
    from tfdist.launch.kubernetes.pods import pod_selector

    if options.cluster_runtime:
        _say(f"submitted. TrainJobs use it with --runtime {options.name}")
        return
    where = f" --namespace {options.namespace}" if options.namespace else ""
    (*_, (label, value)) = pod_selector(options).items()
    which = f"{where} --selector {label}={value}"
    _say(f"submitted. Its output: kubectl logs --follow --prefix --max-log-requests 99{which}")


def _say(text: str) -> None:
    print(f"tfdist kubernetes: {text}", file=sys.stderr)


def _find_kubectl() -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UsageError(
            "there is no kubectl on PATH, which --apply and --create need. Install it, or leave "
            "them out and submit what is printed yourself."
        )
    return kubectl


def _submit(kubectl: str, options: JobOptions, text: str) -> int:
    assert options.verb is not None
    command = [
        *(kubectl, options.verb, "--filename=-", f"--request-timeout={_REQUEST_TIMEOUT_S}s"),
        *([f"--dry-run={options.dry_run}"] if options.dry_run else []),
    ]
    return subprocess.run(command, input=text.encode(), check=False).returncode
