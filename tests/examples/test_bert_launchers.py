"""Launches of `examples/bert/run_pretraining.py`: two terminals, mpirun, Slurm, Kubernetes."""

import contextlib
import io
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from bert_program import ONE_LAYER, SCRIPT, TINY, BertRun, run_bert, write_records

from tfdist.launch.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "bert.md"
STEPS = [*ONE_LAYER, "--training-steps", "5"]
PROGRAM = ["python", "examples/bert/run_pretraining.py", "--config", "sample_tiny"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for records that differ in their number of masked words."""
    path = tmp_path_factory.mktemp("records") / "part-0.tfrecord"
    write_records(path, 64)
    return ["--dataset", "pretraining", "--input-files", str(path)]


@pytest.fixture(scope="module")
def alone(data: list[str]) -> BertRun:
    """A run of one worker."""
    return run_bert(*TINY, *data, *STEPS)


def _log(lines: Sequence[str]) -> list[str]:
    """Returns the program's log without its times, which differ from run to run."""
    return [re.sub(r"(in|time:|throughput:) \d\S*", r"\1 N", line) for line in lines]


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_in_two_terminals_and_under_mpirun_two_workers_log_once_what_one_logs(
    alone: BertRun, data: list[str], fake_cluster: Any, engine: str
) -> None:
    arguments = [*TINY, *data, *STEPS, "--gradient-accumulation", "4"]
    options = {"engine": engine, "num_workers": 2, "forked": True}
    workers = fake_cluster.run_script([SCRIPT, *arguments], **options)
    assert [worker.returncode for worker in workers] == [0, 0]
    expected = _log(alone.lines)
    assert "global_batch_size: 16" in expected
    shown = [_log(worker.stderr.splitlines()) for worker in workers]
    assert [line for line in shown[0] if line in expected] == expected
    assert [line for line in shown[1] if line in expected] == []
    assert workers[1].stdout == ""
    figures = json.loads(workers[0].stdout.splitlines()[-1])
    assert figures["loss"] == pytest.approx(alone.figures["loss"], abs=5e-6)


def _printed(command: str) -> tuple[str, list[str]]:
    """Runs the command of tfdist in the page that starts with these words.

    Returns:
      The output, and the words of the program's own command.
    """
    [found] = re.findall(rf"^\$ ({command} (?:.*\\\n)*.*)$", PAGE.read_text(), re.MULTILINE)
    words = shlex.split(found.replace("\\\n", ""))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(words[1:]) == 0
    return printed.getvalue(), words[words.index("--") + 1 :]


def _plan(program: list[str], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the plan that the program prints in a worker with these variables."""
    assert program[: len(PROGRAM)] == PROGRAM
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    run = run_bert(*program[2:], "--dry-run", trains=False)
    assert run.code == 0
    return run.stdout


SHARED = "global_batch_size: 64 = micro-batch 32 x accumulation 1 x 1 replica(s) x 2 worker(s)"


def test_a_batch_script_of_slurm_starts_the_program_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, program = _printed("tfdist slurm")
    assert shlex.split(script)[-len(program) :] == program
    exported = dict(re.findall(r"^export (TFDIST_\w+)=(.*)$", script, re.MULTILINE))
    nodes = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    task = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", **nodes}
    assert SHARED in _plan(program, {**exported, **task}, monkeypatch)


def test_the_pods_of_a_manifest_start_the_program_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest, program = _printed("tfdist kubernetes")
    job = list(yaml.safe_load_all(manifest))[-1]
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert [*container["command"], *container["args"]] == program
    environ = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    for name, value in (("POD_NAMESPACE", "default"), ("JOB_COMPLETION_INDEX", "1")):
        environ = {key: text.replace(f"$({name})", value) for key, text in environ.items()}
    assert SHARED in _plan(program, environ, monkeypatch)
