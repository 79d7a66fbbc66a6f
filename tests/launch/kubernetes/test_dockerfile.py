"""`tfdist kubernetes --write-dockerfile`: a file that a linter accepts and that fits the pods."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.cli import main


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert main(["kubernetes", "--write-dockerfile"]) == 0
    return Path("Dockerfile").read_text()


@pytest.mark.processes
def test_the_linter_of_dockerfiles_and_of_their_shell_commands_accepts_it(written: str) -> None:
    linted = subprocess.run(
        ["hadolint", "-"], input=written, capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout) == (0, "")


def test_its_user_programs_and_targets_are_those_of_the_manifests(
    written: str, make: Callable[..., list[dict[str, Any]]]
) -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", written, re.M | re.S))
    *_, job = make("--kind=mpijob")
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    user = worker["securityContext"]["runAsUser"]
    assert f"useradd --uid {user} " in stages["packages"]
    for target in ("grpc", "horovod"):
        assert re.findall(r"^USER (.*)$", stages[target], re.M) == [str(user)]
        assert f"docker build --target {target} " in written
    assert worker["containers"][0]["command"] == ["/usr/sbin/sshd"]
    assert "openssh-server" in stages["horovod"]
    assert "tfdist horovod install" in stages["horovod-build"]
    assert "g++" not in stages["horovod"]


def test_it_stands_alone_and_overwrites_nothing(
    written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in [
        (["--write-dockerfile"], "File exists. Name another file."),
        (["--write-dockerfile=a/b"], "No such file or directory. Name another file."),
        (["--name", "train", "--write-dockerfile=x"], "got --name too"),
        (["--write-dockerfile=x", "--", "python"], "got a command too"),
    ]:
        assert main(["kubernetes", *words]) == 2
        assert message in capsys.readouterr().err
    assert Path("Dockerfile").read_text() == written
    assert not Path("x").exists()
