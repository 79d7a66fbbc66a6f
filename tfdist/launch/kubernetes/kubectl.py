"""Submission: the user's own kubectl, with its own configuration, gets the manifests."""

from __future__ import annotations

import shutil
import subprocess

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.options import Delivery

_REQUEST_TIMEOUT_S = 60


def find_kubectl() -> str:
    """Returns the path of kubectl.

    Raises:
      UsageError: If there is none on PATH.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UsageError(
            "there is no kubectl on PATH, which --apply and --create need. Install it, or leave "
            "them out and submit what is printed yourself."
        )
    return kubectl


def submit(kubectl: str, delivery: Delivery, text: str) -> int:
    """Runs kubectl with the manifests on its stdin, and returns its exit code."""
    assert delivery.verb is not None
    command = [
        *(kubectl, delivery.verb, "--filename=-", f"--request-timeout={_REQUEST_TIMEOUT_S}s"),
        *([f"--dry-run={delivery.dry_run}"] if delivery.dry_run else []),
    ]
    return subprocess.run(command, input=text.encode(), check=False).returncode
