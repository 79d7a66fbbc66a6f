"""The command `tfdist kubernetes`: the manifests' destination, and the notices beside them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes import main

_WORDS = ["--name", "train", "--image", "train:1"]
_COMMAND = ["--", "python", "train.py"]


Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run() -> Run:
    return lambda *options: main([*_WORDS, *options, *_COMMAND])


def test_the_manifests_go_to_stdout(run: Run, capsys: Capture) -> None:
    assert run() == 0
    out, err = capsys.readouterr()
    kinds = [document["kind"] for document in yaml.safe_load_all(out)]
    assert kinds == ["NetworkPolicy", "Service", "Job"]
    assert err == ""


def test_the_manifests_go_into_a_file(run: Run, capsys: Capture, tmp_path: Path) -> None:
    assert run("--output", str(tmp_path / "train.yaml")) == 0
    assert capsys.readouterr() == ("", "")
    assert len(list(yaml.safe_load_all((tmp_path / "train.yaml").read_text()))) == 3


def test_a_file_that_cannot_be_written_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--output=.* cannot be written: Is a directory"):
        run("--output", str(tmp_path))


@pytest.mark.parametrize(
    "assignment",
    [
        "DB_PASSWORD=hunter2",
        "api_key=hunter2",
        "GITHUB_TOKEN=hunter2",
        "URL=https://me:hunter2@example.com",
        "X=-----BEGIN hunter2",
    ],
)
def test_a_value_that_looks_secret_gets_a_notice_that_does_not_repeat_it(
    run: Run,
    capsys: Capture,
    assignment: str,
) -> None:
    assert run("--env", assignment) == 0
    err = capsys.readouterr().err
    name = assignment.partition("=")[0]
    assert f"--env {name} looks like a secret" in err
    assert f"--secret-env {name}=SECRET:KEY" in err
    assert "hunter2" not in err


@pytest.mark.parametrize("assignment", ["LR=0.1", "TOKENIZERS=1", "KEYBOARD=x", "URL=https://a/b"])
def test_other_values_get_no_notice(run: Run, capsys: Capture, assignment: str) -> None:
    assert run("--env", assignment) == 0
    assert capsys.readouterr().err == ""


def test_restarts_without_a_place_for_checkpoints_get_a_notice(run: Run, capsys: Capture) -> None:
    run("--max-restarts", "1")
    assert "Keep checkpoints on a claim" in capsys.readouterr().err
    run("--max-restarts", "1", "--volume", "ckpt:/mnt/ckpt")
    assert capsys.readouterr().err == ""


def test_missing_models_are_reported_in_one_line_with_the_fix(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("tfdist.launch.kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubeflow_trainer_api", None)
    with pytest.raises(UsageError, match=r'pip install "tfdist\[kubernetes\]"'):
        run()


def test_without_kubectl_nothing_is_submitted(
    run: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no kubectl on PATH"):
        run("--apply")
    assert capsys.readouterr().out == ""


@pytest.mark.processes
def test_the_real_command_writes_the_manifests() -> None:
    command = [sys.executable, "-m", "tfdist", "kubernetes"]
    done = subprocess.run([*command, *_WORDS, *_COMMAND], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(yaml.safe_load_all(done.stdout))) == 3
    done = subprocess.run([*command, "--name", "A"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('tfdist kubernetes: error: --name: got "A"')
