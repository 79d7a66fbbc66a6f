"""Options that `tfdist kubernetes` refuses in one or two lines, before anything is written."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes import main

_GOOD = ["--name", "train", "--image", "train:1"]
_COMMAND = ["--", "python", "train.py"]


def _with(*options: str) -> list[str]:
    return [*_GOOD, *options, *_COMMAND]


# The command line, and phrases of the message.
REFUSALS: list[tuple[list[str], tuple[str, ...]]] = [
    (["--image", "i", *_COMMAND], ("--name is missing", "--name train")),
    (["--name", "train", *_COMMAND], ("--image is missing", "--image registry")),
    (_GOOD, ("no command", "-- python train.py")),
    ([*_GOOD, "--", ""], ("no command", "-- python train.py")),
    ([*_GOOD, "--", "python", "\udcff"], ("not UTF-8", "Rename")),
    (_with("--name", "Train_1"), ("--name", '"Train_1"', "a-z, 0-9 and -", "example train-1")),
    (_with("--name", "1st"), ("--name", '"1st"', "starts with a digit", "example run-1st")),
    (_with("--name", "-"), ("--name", '"-"', "no - first or last")),
    (_with("--name="), ("--name", '""', "1 to 63 characters", "example train")),
    (_with("--name", "a" * 64), ("--name", "1 to 63 characters")),
    (
        _with("--name", "a" * 62, "--num-instances", "11"),
        ("62 characters", '"-10"', "Use at most 60"),
    ),
    (
        _with("--kind", "trainjob", "--name", "a" * 48),
        ("48 characters", '"-launcher-0-0-abcde"', "Use at most 44"),
    ),
    (_with("--namespace", "team.a"), ("--namespace", '"team.a"', "example team-a")),
    (_with("--image", ""), ("--image", '""', "REGISTRY/NAME:TAG")),
    (_with("--image", "My/Train:1"), ("--image", '"My/Train:1"', "lower case")),
    (_with("--image", "train :1"), ("--image", '"train :1"', "without spaces")),
    (_with("--kind", "tfjobs"), ("--kind", '"tfjobs"', 'Did you mean "tfjob"?')),
    (
        _with("--kind", "job", "--engine", "horovod"),
        ("--kind job cannot start --engine horovod", "--kind mpijob or trainjob"),
    ),
    (
        _with("--kind", "mpijob", "--engine", "grpc"),
        ("--kind mpijob cannot start --engine grpc", "--kind job, tfjob or trainjob"),
    ),
    (_with("--num-instances", "0"), ("--num-instances", '"0"', "from 1")),
    (
        _with("--num-instances", "4", "--num-replicas", "6"),
        ("--num-replicas is 6", "--num-instances is 4", "4 or 8"),
    ),
    (_with("--cpu", "2 cores"), ("--cpu", '"2 cores"', "4, 0.5 or 500m")),
    (_with("--cpu", "0"), ("--cpu", '"0"', "above 0")),
    (_with("--cpu", "8Gi"), ("--cpu", '"8Gi"', "4, 0.5 or 500m")),
    (_with("--memory", "16GB"), ("--memory", '"16GB"', "Ki, Mi, Gi", "example 16Gi")),
    (_with("--memory", "16"), ("--memory", '"16"', "less than a megabyte", "example 16Gi")),
    (_with("--memory", "512m"), ("--memory", '"512m"', "Ki, Mi, Gi", "example 512Mi")),
    (_with("--memory", "-1Gi"), ("--memory needs a value", "-1Gi")),
    (_with("--shared-memory", "10gb"), ("--shared-memory", '"10gb"', "example 10Gi")),
    (_with("--gpus", "1.5"), ("--gpus", '"1.5"', "whole numbers")),
    (
        _with("--gpus", "2", "--num-replicas", "2", "--devices-per-replica", "2"),
        ("--gpus is 2", "2 replicas of 2 devices", "--gpus 4"),
    ),
    (_with("--env", "LR"), ("--env", '"LR"', "Write LR=VALUE")),
    (_with("--env", "1A=2"), ("--env", '"1A"', "no digit first")),
    (_with("--env", "TF_CONFIG={}"), ("--env sets TF_CONFIG", "Leave it out")),
    (_with("--env", "TFDIST_PREEMPTED=/f"), ("--env sets TFDIST_PREEMPTED", "no effect in pods")),
    (_with("--secret-env", "TF_CONFIG=s:k"), ("--secret-env sets TF_CONFIG", "Leave it out")),
    (_with("--env", "A=1", "--secret-env", "A=s:k"), ("A is set 2 times", "once")),
    (_with("--secret-env", "TOKEN=my-secret"), ("--secret-env", "API_TOKEN=my-secret:token")),
    (_with("--secret-env", "TOKEN=My:key"), ("--secret-env", '"My"', "example my")),
    (_with("--volume", "data"), ("--volume", '"data"', "checkpoints:/mnt/checkpoints")),
    (_with("--volume", "data:/mnt/../etc"), ("--volume", "absolute folder")),
    (_with("--volume", "data://"), ("--volume", "absolute folder")),
    (_with("--volume", "data:/dev/shm"), ("/dev/shm", "--shared-memory", "another folder")),
    (_with("--volume", "a:/mnt", "--volume", "b:/mnt"), ("/mnt", "another --volume")),
    (_with("--ipc-lock", "yes"), ("--ipc-lock", "is 1000", "--run-as-user 0")),
    (_with("--host-ipc", "maybe"), ("--host-ipc", '"maybe"', "yes or no")),
    (
        _with("--kind", "trainjob", "--engine", "horovod", "--run-as-user", "0"),
        ("--run-as-user 0", "SSH key", "--kind mpijob"),
    ),
    (_with("--run-as-user", "root"), ("--run-as-user", '"root"', "whole numbers")),
    (_with("--queue", "GPU"), ("--queue", '"GPU"', "example gpu")),
    (_with("--service-account", "a_b"), ("--service-account", '"a_b"', "example a-b")),
    (_with("--image-pull-secret", ""), ("--image-pull-secret", '""')),
    (_with("--active-deadline", "1h"), ("--active-deadline", '"1h"', "whole numbers")),
    (_with("--max-restarts", "-1"), ("--max-restarts", "-1", "from 0")),
    (_with("--mpirun", "mpirun -v"), ("--mpirun", '"mpirun -v"', "without spaces")),
    (_with("--apply", "--create"), ("--apply and --create", "Keep one")),
    (_with("--dry-run=here"), ("--dry-run", '"here"', "client and server")),
    (_with("--output", "/no/such/x.yaml"), ("--output", '"/no/such"', "no folder")),
    (_with("--replicas", "2"), ("--replicas", "unknown option", "--num-replicas")),
    (_with("--evaluator-gpus", "1"), ("--evaluator-gpus without --evaluator", "Add --evaluator")),
    (_with("--runtime", "shared"), ("--runtime is for --kind trainjob", "got job")),
    ([*_GOOD, "--cluster-runtime"], ("--cluster-runtime is for --kind trainjob", "got job")),
    (
        [*_GOOD, "--kind", "trainjob", "--cluster-runtime", "--runtime", "shared"],
        ("--cluster-runtime writes", "Write two commands"),
    ),
    (
        _with("--kind", "trainjob", "--cluster-runtime"),
        ("--cluster-runtime runs no command", '"python"', "with --runtime"),
    ),
    (
        [*_GOOD, "--kind", "trainjob", "--cluster-runtime", "--queue", "gpu"],
        ("--queue has no effect with --cluster-runtime", "with --runtime"),
    ),
    (
        _with("--kind", "trainjob", "--runtime", "shared", "--volume", "a:/a"),
        ("--volume has no effect with --runtime", "with --cluster-runtime"),
    ),
    (
        _with("--kind", "trainjob", "--runtime", "shared", "--evaluator"),
        ("--evaluator with --runtime", "Leave --runtime out"),
    ),
]


@pytest.mark.parametrize(("argv", "phrases"), REFUSALS, ids=lambda one: " ".join(one)[-60:])
def test_bad_options_are_refused_in_one_or_two_lines(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    phrases: tuple[str, ...],
) -> None:
    # The models take a second to load: a refusal must not need them.
    monkeypatch.setitem(sys.modules, "tfdist.launch.kubernetes.manifests", None)
    with pytest.raises(UsageError) as caught:
        main(argv)
    message = str(caught.value)
    for phrase in phrases:
        assert phrase in message
    assert len(message.splitlines()) <= 2
    assert all(len(line) < 200 for line in message.splitlines())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "options",
    [
        "--cpu 0.5 --memory 1.5Gi --shared-memory 0",
        "--cpu 500m --memory 64000M",
        "--image localhost:5000/a/b__c-d@sha256:" + "0" * 64,
        "--image gcr.io/team/train:V1_a",
        "--name a --namespace 0",
        "--volume data.set-1:/mnt/data/",
        "--secret-env A=my.secret:tls.crt",
        "--ipc-lock yes --run-as-user 0",
        "--max-restarts 0 --grace 0",
    ],
)
def test_values_that_kubernetes_allows_are_not_refused(
    make: Callable[..., list[dict[str, Any]]], options: str
) -> None:
    assert make(*options.split())
