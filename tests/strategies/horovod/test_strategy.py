"""HorovodStrategy in processes of mpirun."""

import os
import re
import subprocess
from typing import Any

import pytest
from forking_launcher import rank_command

from tfdist.launch.machine.mpi import find_mpirun, mpirun_command, mpirun_environment
from tfdist.testing import engine_problem

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        engine_problem("horovod") is not None, reason=str(engine_problem("horovod"))
    ),
]

_PROGRAM = """
import os
from tfdist.strategies import HorovodStrategy
strategy = HorovodStrategy(device="/device:CPU:0")
import numpy as np, tensorflow as tf
hvd = strategy.extended.collectives._hvd
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    own = np.arange(1 << 20, dtype=np.float32) % 1000 * (hvd.rank() + 1)
    total = session.run(strategy.extended.collectives.sum([tf.constant(own)], "sum")[0])
assert np.array_equal(total, np.arange(1 << 20) % 1000 * 3), total
# At once: mpirun would mix the parts of two ranks' lines.
os.write(1, f"rank {hvd.rank()}: {strategy.describe_reductions()}\\n".encode())

with strategy.watch_peers() as watch:  # As an Estimator does while it trains.
    watch.start()
    watch.leave()
with strategy.scope():
    pass
from tfdist.strategies.eager import run
os.write(1, f"watched: {run._watched.watch.membership is watch.membership}\\n".encode())
"""


@pytest.fixture(scope="module")
def ended(
    fake_cluster_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> "subprocess.CompletedProcess[str]":
    """The program in two ranks, over TCP and with settings of the user's."""
    mpirun, folder = find_mpirun(), tmp_path_factory.mktemp("mpirun")
    assert mpirun is not None
    script = folder / "program.py"
    script.write_text(_PROGRAM)
    command = list(
        mpirun_command(mpirun, 2, rank_command([str(script)], folder, fake_cluster_server))
    )
    command[command.index("^tcp,ofi")] = "tcp,self"  # In place of shared memory.
    environ = mpirun_environment(mpirun, {**os.environ, "TMPDIR": str(folder)})
    own = {"HOROVOD_CYCLE_TIME": "1", "OMPI_MCA_btl_tcp_if_include": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env={**environ, **own}, capture_output=True, text=True, timeout=120
    )
    done.stdout += "".join(path.read_text() for path in folder.glob("*.stdout"))
    done.stderr += "".join(path.read_text() for path in folder.glob("*.stderr"))
    return done


def test_open_mpi_takes_the_settings_without_a_word_and_the_users_stay(
    ended: "subprocess.CompletedProcess[str]",
) -> None:
    assert ended.returncode == 0, ended.stderr
    said = (
        "Horovod, bucket size 1 MB, bucketing threshold 0.25 MB; HOROVOD_CYCLE_TIME=1 (yours), "
        "HOROVOD_FUSION_THRESHOLD=1048576, mpi_yield_when_idle=1, btl_tcp_flags=send, "
        "coll_tuned rings from 1 MB on"
    )
    for rank in (0, 1):
        assert f"rank {rank}: {said}\n" in ended.stdout
    of_tensorflow = re.compile(r"\.cc:\d+\]|absl::|^To enable the following instructions")
    lines = ended.stderr.splitlines()
    assert [line for line in lines if not of_tensorflow.search(line)] == []


def test_a_program_of_tensorflow_2_is_watched_after_an_estimator_has_trained(
    ended: "subprocess.CompletedProcess[str]",
) -> None:
    assert ended.stdout.count("watched: True") == 2, ended.stderr
