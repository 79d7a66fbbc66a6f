"""Runs of the examples' programs."""

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
    """The cache folder of the text of examples/bert, which is made once."""
    return tmp_path_factory.mktemp("cache")


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
