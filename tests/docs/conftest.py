"""Commands of a page, pasted into a shell."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def paste() -> Callable[[str, Path], str]:
    """Runs commands in a folder, one after the other in one shell; returns what they print."""

    def paste(script: str, folder: Path) -> str:
        ran = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{script}"],
            cwd=folder,
            env={
                **os.environ,
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return paste
