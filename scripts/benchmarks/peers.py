"""The libraries that are compared: their names, and the Pythons that have them.

PyTorch may be in an environment of its own, which needs numpy as well:

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    TFDIST_BENCHMARK_TORCH=/tmp/torch/bin/python python scripts/benchmarks/run.py
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# As tables and pictures name them. The ideal is a bound: two workers that do not reduce.
IDEAL = "ideal"
OURS = {"gRPC": "tfdist, gRPC", "Horovod": "tfdist, Horovod"}
HOROVOD_TAPE = "Horovod, DistributedGradientTape"
HOROVOD_FIT = "Horovod, Keras fit with DistributedOptimizer"
MIRRORED_STEP = "MultiWorkerMirroredStrategy, tf.function"
MIRRORED_FIT = "MultiWorkerMirroredStrategy, Keras fit"
TORCH_DDP = "PyTorch DDP, gloo"
OLD_ESTIMATOR = "tf.estimator 2.15, MultiWorkerMirroredStrategy"

OLD_PYTHON = Path(sys.prefix, "tensorflow-2.15", "bin", "python")
TORCH_VARIABLE = "TFDIST_BENCHMARK_TORCH"

_PROBE = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def torch_python() -> str:
    """Returns the Python whose PyTorch is measured: that of the variable, else this one."""
    return os.environ.get(TORCH_VARIABLE) or sys.executable


@functools.cache
def version_in(python: str, package: str) -> str | None:
    """Returns the version of a package that a Python has; None if it has none."""
    if python == sys.executable:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
    try:
        command = [python, "-c", _PROBE, package]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def why_no_torch() -> str | None:
    """Says why PyTorch cannot be measured; None if it can."""
    python = torch_python()
    if version_in(python, "torch") is None:
        return (
            f'PyTorch is not installed for {python}. Install it with pip install ".[benchmark]", '
            f"or name a Python that has it in {TORCH_VARIABLE}."
        )
    return None


def why_no_old_tensorflow() -> str | None:
    """Says why tf.estimator cannot be measured; None if it can."""
    if not OLD_PYTHON.exists():
        return "TensorFlow 2.15 is not there. Run scripts/old_tensorflow.py."
    return None


def why_no_horovod() -> str | None:
    """Says why Horovod cannot be measured; None if it can."""
    if version_in(sys.executable, "horovod") is None:
        return "Horovod is not installed. Run: tfdist horovod install"
    return None


# By a word in a library's name.
_WHY_MISSING: dict[str, Callable[[], str | None]] = {
    "PyTorch": why_no_torch,
    "tf.estimator 2.15": why_no_old_tensorflow,
    "Horovod": why_no_horovod,
}


def why_missing(library: str) -> str | None:
    """Says in one line why a library cannot be measured, with the fix; None if it can.

    What follows a colon, as in "LIBRARY: one worker", does not count.
    """
    library = library.partition(":")[0]
    for word, why in _WHY_MISSING.items():
        if word in library:
            reason = why()
            return reason and f"{library}: {reason}"
    return None
