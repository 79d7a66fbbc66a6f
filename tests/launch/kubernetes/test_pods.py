"""The pods' commands, and the roles in their environment."""

import itertools
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.cluster import Cluster, Task, find_cluster, parse_tf_config
from tfdist.cluster.instance_variables import read_shape

Make = Callable[..., list[dict[str, Any]]]
PodCommands = Callable[..., list[Any]]


@pytest.mark.parametrize("kind", ["job", "trainjob"])
@pytest.mark.parametrize("namespace", [None, "team-a"])
def test_each_worker_gets_its_index_and_all_addresses(
    make: Make, pod_commands: PodCommands, kind: str, namespace: str | None
) -> None:
    options = [f"--namespace={namespace}"] if namespace else []
    documents = make("--kind", kind, "--num-instances=3", *options)
    # Where no namespace is asked for, it is the one into which kubectl puts the pods.
    pods = pod_commands(documents, namespace="elsewhere")
    home = namespace or "elsewhere"
    names = "train-{}" if kind == "job" else "train-node-0-{}"
    cluster = Cluster(
        jobs={"worker": tuple(f"{names.format(i)}.train.{home}.svc:2222" for i in range(3))}
    )
    for index, pod in enumerate(pods):
        config = pod.environment["TF_CONFIG"]
        assert parse_tf_config(config) == (cluster, Task(type="worker", index=index))
        assert json.loads(config)["task"] == {"type": "worker", "index": index}
        assert pod.hostname == names.format(index)
        assert cluster.address(Task(type="worker", index=index)) == f"{pod.dns_names[-1]}:2222"
    assert len(pods) == 3


def test_a_tf_job_has_a_chief_and_the_operator_sets_tf_config(
    make: Make, pod_commands: PodCommands
) -> None:
    pods = pod_commands(make("--kind=tfjob", "--num-instances=3", "--evaluator"))
    assert [pod.role for pod in pods] == ["chief", "worker", "worker", "evaluator"]
    for pod in pods:
        cluster, task = parse_tf_config(pod.environment["TF_CONFIG"])
        assert cluster.num_workers == 3
        assert pod.dns_names == (cluster.address(task).partition(":")[0],)
        assert cluster.is_chief(task) == (pod.role == "chief")


def test_a_tf_job_of_one_has_a_chief_only(make: Make, pod_commands: PodCommands) -> None:
    [pod] = pod_commands(make("--kind=tfjob"))
    assert pod.role == "chief"
    assert find_cluster(pod.environment) is None


@pytest.mark.parametrize("kind", ["job", "mpijob", "trainjob", "trainjob --engine=horovod"])
def test_the_evaluator_is_an_additional_pod(
    make: Make, pod_commands: PodCommands, kind: str
) -> None:
    words = ["--kind", *kind.split(), "--num-instances=2", "--env=A=1"]
    without = str(pod_commands(make(*words)))
    *others, evaluator = pod_commands(make(*words, "--evaluator"))
    # The workers are told, so that they do not evaluate themselves.
    assert "TFDIST_HAS_EVALUATOR" in str(others)
    reported = r"('-x', 'TFDIST_HAS_EVALUATOR'|'TFDIST_HAS_EVALUATOR': '1'), "
    assert re.sub(reported, "", str(others)) == without
    cluster, task = parse_tf_config(evaluator.environment["TF_CONFIG"])
    assert task == Task(type="evaluator", index=0)
    assert cluster.num_workers == 2
    assert evaluator.command == ("python", "train.py")
    # The evaluator is no instance of the run.
    assert not [name for name in evaluator.environment if name.startswith("TFDIST_")]
    assert evaluator.environment["A"] == "1"


def test_command_and_variables_arrive_as_they_were_written(
    make: Make, pod_commands: PodCommands, kind: list[str]
) -> None:
    words = ["$(TF_CONFIG)", "$HOME", "$$", "a b", "", "*", '"', "'", "1e-3", "\n", "ä", "--", "$"]
    value = "$(JOB_COMPLETION_INDEX) $$(A) $"
    documents = make(*kind, f"--env=VALUE={value}", command=("/bin/x y", *words))
    [pod] = [pod for pod in pod_commands(documents) if "VALUE" in pod.environment]
    assert pod.command[-len(words) - 1 :] == ("/bin/x y", *words)
    assert pod.environment["VALUE"] == value


def test_replicas_and_the_start_timeout_reach_the_program(
    make: Make, pod_commands: PodCommands, kind: list[str]
) -> None:
    documents = make(*kind, "--num-instances=2", "--num-replicas=6", "--devices-per-replica=2")
    pods = [pod for pod in pod_commands(documents) if pod.environment]
    assert pods
    for pod in pods:
        assert read_shape(pod.environment) == (3, 2)
        assert pod.environment["TFDIST_GRACE_S"] == "30"
        if "TF_CONFIG" in pod.environment:
            assert pod.environment["TFDIST_START_TIMEOUT_S"] == "1800"


@pytest.mark.parametrize("kind", ["mpijob", "trainjob --engine=horovod"])
@pytest.mark.parametrize("mpirun", ["mpirun", "/opt/mpi/bin/mpirun"])
def test_the_launcher_starts_a_rank_in_each_worker_over_ssh(
    make: Make, pod_commands: PodCommands, kind: str, mpirun: str
) -> None:
    options = ["--num-instances=3", "--env=LR=1e-3", "--secret-env=TOKEN=s:k", "--grace=60"]
    documents = make("--kind", *kind.split(), *options, f"--mpirun={mpirun}")
    *workers, launcher = pod_commands(documents)
    assert [pod.role for pod in workers] == ["worker"] * 3
    command = list(launcher.command)
    assert command[0] == mpirun
    assert command[-2:] == ["python", "train.py"]
    assert _value(command, "-np") == "3"
    assert _value(command, "odls_base_sigkill_timeout") == "58"
    # mpirun exports the variables that sshd does not pass to the ranks.
    exported = {after for word, after in itertools.pairwise(command) if word == "-x"}
    assert exported >= {"PATH", "LR", "TOKEN", "TFDIST_NUM_LOCAL_REPLICAS"}
    assert exported - {"PATH"} <= launcher.environment.keys()
    hosts = [line.split() for line in launcher.files["/etc/mpi/hostfile"].splitlines()]
    assert [host for host, slots in hosts if slots == "slots=1"] == [
        pod.dns_names[0] for pod in workers
    ]
    # One port, one key: the launcher's ssh and the workers' sshd agree on them.
    ssh = _value(command, "plm_rsh_args").split()
    for worker in workers:
        assert worker.command[0] == "/usr/sbin/sshd"
        assert worker.key_folder == launcher.key_folder
        assert _value(ssh, "-p") == _value(worker.command, "-p")
        assert _value(ssh, "-i") == f"{launcher.key_folder}/id_rsa"
        assert f"AuthorizedKeysFile={worker.key_folder}/authorized_keys" in worker.command
        assert f"HostKey={worker.key_folder}/id_rsa" in worker.command


def test_mpirun_may_run_as_root_only_if_requested(make: Make, pod_commands: PodCommands) -> None:
    for options, expected in (([], False), (["--run-as-user=0"], True)):
        *_, launcher = pod_commands(make("--kind=mpijob", *options))
        assert ("--allow-run-as-root" in launcher.command) == expected
        # The operator protects the key for root in this folder alone.
        assert (launcher.key_folder == "/root/.ssh") == expected


def test_nothing_of_this_machine_gets_into_a_manifest(make: Make, kind: list[str]) -> None:
    assert sys.prefix not in json.dumps(make(*kind))


def _value(words: Any, name: str) -> str:
    value: str = words[list(words).index(name) + 1]
    return value


def test_a_grace_of_no_seconds_and_refused_tokens_are_written(make: Make) -> None:
    *_, job = make("--grace=0")
    pod = job["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 0
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
