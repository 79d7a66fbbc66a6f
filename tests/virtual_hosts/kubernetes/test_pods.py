"""The pods of `tfdist kubernetes` manifests on virtual hosts: they train, or meet each other."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.testing.run import wait_until

_LIMIT_S = 120.0
_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 20.0
_USER = 1000  # the default of --run-as-user
_FOLDER = "/mnt/checkpoints"
_SIZE = (
    *("--num-instances=2", f"--volume=checkpoints:{_FOLDER}"),
    # To save time: no Keras 3, and no more threads than cores.
    *("--env=TF_USE_LEGACY_KERAS=1", "--env=OMP_NUM_THREADS=1"),
    f"--env=PYTHONPATH={os.environ['PYTHONPATH']}",
)
needs_horovod = pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))
needs_sshd = pytest.mark.skipif(
    not Path("/usr/sbin/sshd").exists(), reason="needs sshd and ssh (Debian: openssh-server)"
)

Make = Callable[..., list[dict[str, Any]]]
PodCommands = Callable[..., list[Any]]
Schedule = Callable[[Sequence[Any]], list[Any]]


def test_pods_of_a_job_train_over_grpc_as_one_process(
    make: Make,
    pod_commands: PodCommands,
    schedule: Schedule,
    train_linear: str,
    check_weights: Callable[[Path, int], None],
    tmp_path: Path,
) -> None:
    options = (f"--out={_FOLDER}", f"--model-dir={_FOLDER}/model")
    command = ("python", train_linear, "--strategy=grpc", *options)
    pods = schedule(pod_commands(make("--kind=job", *_SIZE, command=command)))
    said = _run(pods)
    check_weights(tmp_path / "checkpoints", 2)
    _check_who_is_done(pods, said, tmp_path)
    assert (tmp_path / "checkpoints" / "model" / "checkpoint").exists()


def test_pods_of_a_trainjob_meet(
    make: Make, pod_commands: PodCommands, schedule: Schedule, meet_others: str, tmp_path: Path
) -> None:
    command = ("python", meet_others, _FOLDER)
    pods = schedule(pod_commands(make("--kind=trainjob", *_SIZE, command=command)))
    _check_who_is_done(pods, _run(pods), tmp_path)


@needs_horovod
@needs_sshd
def test_pods_meet_over_mpi(
    make: Make,
    pod_commands: PodCommands,
    schedule: Schedule,
    image_mpirun: str,
    meet_others: str,
    tmp_path: Path,
) -> None:
    options = ("--kind=trainjob", "--engine=horovod", *_SIZE, f"--mpirun={image_mpirun}")
    pods = schedule(pod_commands(make(*options, command=("python", meet_others, _FOLDER))))
    said = _run_mpi(pods)
    _check_who_is_done(pods[:2], said, tmp_path)


@needs_horovod
@needs_sshd
def test_pods_of_root_reach_each_other(
    make: Make, pod_commands: PodCommands, schedule: Schedule, image_mpirun: str
) -> None:
    options = ("--kind=mpijob", "--run-as-user=0", *_SIZE, f"--mpirun={image_mpirun}")
    who = ("python", "-c", "import os; print(os.getuid(), 'on', os.uname().nodename)")
    pods = schedule(pod_commands(make(*options, command=who)))
    said = _run_mpi(pods)
    for pod in pods[:2]:
        assert f"0 on {pod.pod.hostname}" in said


def _run(pods: Sequence[Any]) -> str:
    """Runs pods without a launcher, and returns their output."""
    for pod in pods:
        pod.start()
    assert [pod.wait(_LIMIT_S) for pod in pods] == [0, 0], _logs(pods)
    return _logs(pods)


def _run_mpi(pods: Sequence[Any]) -> str:
    """Does the operators' work, and returns the launcher's output."""
    *workers, launcher = pods
    for pod in workers:
        pod.start()
    for pod in workers:
        assert wait_until(pod.is_ready, _START_LIMIT_S), _logs(pods)
    launcher.start()
    assert launcher.wait(_LIMIT_S) == 0, _logs(pods)
    # sshd does not end by itself.
    for pod in workers:
        pod.stop(_STOP_LIMIT_S)
    return launcher.log.read_text()


def _check_who_is_done(workers: Sequence[Any], said: str, folder: Path) -> None:
    for index, pod in enumerate(workers):
        assert f"worker {index} of 2 on {pod.pod.hostname} is done" in said
        assert (folder / "checkpoints" / str(index)).stat().st_uid == _USER


def _logs(pods: Sequence[Any]) -> str:
    return "\n".join(pod.log.read_text() for pod in pods if pod.log.exists())
