"""`tfdist horovod install` in a virtual environment with an emulated pip."""

import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAKE_PIP = ROOT / "tests" / "programs" / "fake_pip.py"
PACKAGES = ("pip", "setuptools", "wheel", "packaging", "psutil", "pyyaml", "cloudpickle")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that seems to contain everything that a build needs."""
    folder = tmp_path / "an environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python3.*/site-packages")
    for name, version in [("tensorflow", "2.21.0"), *((name, "1.0") for name in PACKAGES)]:
        metadata = site_packages / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    shutil.copy(FAKE_PIP, site_packages / "pip.py")
    (folder / "share" / "openmpi").mkdir(parents=True)
    (site_packages / "tensorflow").mkdir()
    (site_packages / "tensorflow" / "__init__.py").touch()
    for name in ("mpirun", "cmake", "ninja", "g++"):
        program = folder / "bin" / name
        program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
        program.chmod(0o755)
    return folder


Process = subprocess.Popen[str]


@pytest.fixture
def start(environment: Path, tmp_path: Path) -> Callable[..., Process]:
    """Starts `tfdist horovod install` in the environment, with only its own programs on PATH."""

    def start(*options: str, **environ: str) -> Process:
        bare = {
            "PATH": str(environment / "bin"),
            "PYTHONPATH": str(ROOT),
            "TFDIST_CACHE_DIR": str(tmp_path / "cache"),
            "CALLS": str(tmp_path / "calls"),
            "HOME": os.environ.get("HOME", "/"),
        }
        return subprocess.Popen(
            [environment / "bin" / "python", "-m", "tfdist", "horovod", "install", *options],
            env={**bare, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def install(start: Callable[..., Process]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def run(*options: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        with start(*options, **environ) as process:
            output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return run


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], list[str]]:
    """Returns pip's calls and the files that it compiled since the last call of this function."""

    def look() -> list[str]:
        file = tmp_path / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    return look
