"""Modules that `import tfdist.estimator` leaves for later, because most programs never need it."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

WITHOUT = [
    "tfdist.pipeline.graph.execution",
    "tfdist.estimator.pipelined.model",
    "rich",
    "matplotlib",
]


def _printed_by(code: str, environ: dict[str, str] | None = None) -> list[str]:
    """Returns the last two lines that a program prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-2:]


def test_importing_tfdist_imports_a_package_when_it_is_used_and_no_more_than_it_needs() -> None:
    code = (
        "import sys, tfdist; tfdist.cluster.find_cluster; early = sys.modules.copy()\n"
        "print('tfdist.estimator' in early, 'tensorflow' in early, 'numpy' in early)\n"
        f"tfdist.estimator.Estimator; print([m for m in {WITHOUT} if m in sys.modules])"
    )
    assert _printed_by(code) == ["False False False", "[]"]


def test_importing_hooks_leaves_the_choice_of_keras_to_the_program() -> None:
    code = (
        "import os, sys, tfdist.monitoring\n"
        "print('tfdist.estimator' in sys.modules, 'TF_USE_LEGACY_KERAS' in os.environ)\n"
        "print(tfdist.monitoring.StepProfileHook.__name__, os.environ['TF_USE_LEGACY_KERAS'])"
    )
    environ = {name: x for name, x in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    assert _printed_by(code, environ) == ["False False", "StepProfileHook 1"]
