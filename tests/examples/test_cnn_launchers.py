"""The example `cnn` under mpirun, in two terminals, under `tfdist run`, and on a cluster."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cnn_program
import pytest
import yaml
from cnn_program import NORMS, SMALL, TRAIN, assert_equal, read_rows, run_all
from forking_launcher import FORKING_LAUNCHER

from tfdist.launch import cli

ROOT = Path(__file__).parents[2]
# The program as the pages start it, and the options that a launcher might take for its own.
COMMAND = [
    *("python", "examples/cnn/train.py", "--config", "photos_resnet8", "--batch-size", "32"),
    *("--replicas", "2", "--name-suffix", "a b$(c)", "--dry-run", "--log-dir", "/mnt/runs"),
]
SAVES = [*SMALL, *NORMS["batch"], "--ckpts-per-epoch", "70"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, fake_cluster_server: Any) -> Path:
    """The folder of a training and validation in one process with the whole batch."""
    from tfdist.testing.fake_cluster import FakeCluster

    folder, cluster = tmp_path_factory.mktemp("alone"), FakeCluster(fake_cluster_server)
    options = [*SAVES, "--batch-size", "24", "--log-dir", str(folder)]
    try:
        cluster.run(run_all, TRAIN, [options], engine="none", timeout_s=120)
    finally:
        cluster.close()
    return folder


@pytest.mark.parametrize("engine", ["horovod", "grpc"])  # mpirun; two terminals
def test_two_processes_log_once_and_have_the_losses_of_one(
    alone: Path, fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    options = [*SAVES, "--batch-size", "12", "--log-dir", str(tmp_path)]
    how = {"engine": engine, "num_workers": 2, "forked": True}
    first, second = fake_cluster.run_script([TRAIN, *options], **how)
    assert (first.returncode, second.returncode) == (0, 0)
    assert second.stdout == ""
    [run] = tmp_path.iterdir()
    assert first.stdout == (run / "log.txt").read_text()
    starts = [line.partition(":")[0] for line in first.stdout.splitlines()]
    assert (starts.count("model"), starts.count("step"), starts.count("validation")) == (1, 5, 3)
    assert sorted(path.name for path in run.glob("*.csv")) == ["training.csv", "validation.csv"]
    assert_equal(read_rows(tmp_path), read_rows(alone))


@pytest.fixture
def launch(fake_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `tfdist run` to its end; it forks workers that have TensorFlow imported already."""
    monkeypatch.chdir(tmp_path)

    def launch(options: list[str], command: list[str]) -> Any:
        words = [FORKING_LAUNCHER, "run", *options, "--", sys.executable, *command]
        how = {"engine": "none", "forked": True, "check": False, "timeout_s": 240}
        [ended] = fake_cluster.run_script(words, **how)
        assert ended.returncode == 0, ended.stderr
        return ended

    return launch


def test_a_killed_worker_is_started_again_and_the_losses_stay(
    alone: Path, launch: Any, tmp_path: Path
) -> None:
    options = [*SAVES, "--batch-size", "12", "--no-validation", "--log-dir", str(tmp_path / "runs")]
    ended = launch(
        ["--num-instances", "2", "--max-restarts", "1"],
        [cnn_program.__file__, "1", "3", *options],
    )
    assert "restart 1 of 1" in ended.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert "going on after step 2\n" in (run / "log.txt").read_text()
    assert_equal(read_rows(tmp_path / "runs"), read_rows(alone))


def test_an_evaluator_validates_in_place_of_worker_0(
    alone: Path, launch: Any, tmp_path: Path
) -> None:
    options = [*SAVES, "--batch-size", "12", "--evaluator", "--log-dir", str(tmp_path / "runs")]
    launch(
        ["--num-instances", "2", "--evaluator", "--log-dir", str(tmp_path / "logs")],
        [TRAIN, *options],
    )
    validations = {
        log.stem: re.findall(r"^validation: iteration: +(\d+),", log.read_text(), re.MULTILINE)
        for log in (tmp_path / "logs").glob("*[0-9r].log")
    }
    assert validations == {"worker-0": [], "worker-1": [], "evaluator": ["2", "4", "5"]}
    names = ("iteration", "loss", "accuracy", "top_5_accuracy")
    assert_equal(
        read_rows(tmp_path / "runs", "validation", names), read_rows(alone, "validation", names)
    )


# Without TensorFlow: the command in the script and in the manifests.


def test_a_slurm_script_has_the_command_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code = cli.main(["slurm", "--nodes", "2", "--dry-run", "--", *COMMAND])
    assert code == 0
    script = capsys.readouterr().out
    # The shell itself says which words reach the worker.
    shown = script.replace('exec "$python"', "printf '%s\\n'")
    words = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    assert words.stdout.splitlines()[-len(COMMAND) :] == COMMAND


@pytest.mark.parametrize("kind", ["job", "tfjob", "mpijob", "trainjob"])
def test_manifests_have_the_command_unchanged(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    options = ["--kind", kind, "--name", "resnet", "--image", "resnet:1.0", "--num-instances", "2"]
    assert cli.main(["kubernetes", *options, "--", *COMMAND]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    commands = [
        [*container.get("command", ()), *container.get("args", ())]
        for container in _containers(documents)
    ]
    written = [word.replace("$", "$$") for word in COMMAND]  # Kubernetes makes one $ of two.
    assert written in [command[-len(COMMAND) :] for command in commands]


def _containers(value: Any) -> list[dict[str, Any]]:
    """Returns the objects of a manifest that have a command, at any depth."""
    if isinstance(value, list):
        return [found for one in value for found in _containers(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if "command" in value or "args" in value else []
    return own + [found for one in value.values() for found in _containers(one)]
