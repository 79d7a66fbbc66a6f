"""Runs of the examples' programs."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from script_run import run_script


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The output of a program: standard output, and standard error."""

    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def sample_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of the text of examples/bert, which pytest-xdist's processes share."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return shared / "bert-cache"


@pytest.fixture
def run_program(fake_cluster: Any) -> Callable[..., list[Ran]]:
    """Runs a script and its arguments in workers that have TensorFlow imported already.

    A test of how a program is started uses `fake_cluster.run_script`, which takes longer: a new
    Python imports TensorFlow in every worker.
    """

    def run_program(
        argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> list[Ran]:
        options = {"timeout_s": 240, **options}
        printed = fake_cluster.run(run_script, list(argv), env=env, **options)
        return [
            Ran(stdout=out, stderr=err)
            for out, err in zip(printed, fake_cluster.outputs, strict=True)
        ]

    return run_program


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Runs all cells of a notebook, whose outputs are then those of this run."""

    def run(notebook: Any) -> None:
        from nbclient import NotebookClient

        # The kernel is this Python's, and leaves no files in the home folder.
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            monkeypatch.setenv(name, str(tmp_path / "jupyter"))
        NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=200,
            startup_timeout=120,
            resources={"metadata": {"path": str(tmp_path)}},
        ).execute()

    return run
