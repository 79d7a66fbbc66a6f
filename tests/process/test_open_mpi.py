"""The environment variables that the Open MPI of this Python environment needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.process.open_mpi import is_in_environment, missing_variables, write_file

RANK = {"OMPI_COMM_WORLD_SIZE": "2"}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    for folder in ("bin", "share/openmpi"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin" / "mpirun").touch()
    return tmp_path


def test_a_process_gets_the_folder_and_a_rank_yields_too_unless_the_user_has_set_them(
    prefix: Path,
) -> None:
    folder, yields = {"OPAL_PREFIX": str(prefix)}, {"OMPI_MCA_mpi_yield_when_idle": "1"}
    assert missing_variables({}, prefix) == folder
    assert missing_variables(RANK, prefix) == folder | yields
    assert missing_variables({**RANK, "OPAL_PREFIX": "/opt/mpi"}, prefix) == yields
    (prefix / "share" / "openmpi").rmdir()  # As with an Open MPI of the system.
    assert not is_in_environment(prefix) and missing_variables(RANK, prefix) == {}


@pytest.mark.processes
def test_the_file_sets_them_when_python_starts(tmp_path: Path) -> None:
    write_file(tmp_path)
    program = (
        "import os, site, sys; before = dict(os.environ); site.addsitedir(sys.argv[1]); "
        "print(*sorted(set(os.environ.items()) - set(before.items())))"
    )
    command = [sys.executable, "-S", "-c", program, str(tmp_path)]
    for given, expected in (
        ({}, f"('OPAL_PREFIX', '{sys.prefix}')"),
        (
            RANK,
            f"('OMPI_MCA_mpi_yield_when_idle', '1') ('OPAL_PREFIX', '{sys.prefix}')",
        ),
        ({"OPAL_PREFIX": "/opt"}, ""),
    ):
        ran = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        # Without site, sys.prefix is that of the base installation.
        assert ran.stdout.strip().replace(sys.base_prefix, sys.prefix) == expected
