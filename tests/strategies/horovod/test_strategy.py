"""HorovodStrategy in processes of mpirun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.launch.machine.mpi import find_mpirun, mpirun_command, mpirun_environment
from tfdist.testing import engine_problem

_TRAIN_TWICE = """
import os
from tfdist.strategies import HorovodStrategy
strategy = HorovodStrategy(device="/device:CPU:0")
with strategy.watch_peers() as watch:  # As an Estimator does while it trains.
    watch.start()
    watch.leave()
with strategy.scope():
    pass
from tfdist.strategies.eager import run
os.write(1, f"watched: {run._watched.watch.membership is watch.membership}\\n".encode())
"""


@pytest.mark.processes
@pytest.mark.skipif(engine_problem("horovod") is not None, reason=str(engine_problem("horovod")))
def test_a_program_of_tensorflow_2_is_watched_after_an_estimator_has_trained(
    tmp_path: Path,
) -> None:
    mpirun = find_mpirun()
    assert mpirun is not None
    script = tmp_path / "train.py"
    script.write_text(_TRAIN_TWICE)
    ended = subprocess.run(
        mpirun_command(mpirun, 2, [sys.executable, str(script)]),
        env=mpirun_environment(mpirun, {**os.environ, "OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("watched: True") == 2
