"""The example `mnist/pipeline.py` and its notebook, run as a user runs them."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "mnist"
SCRIPT = str(EXAMPLES / "pipeline.py")


def _epochs(stderr: str) -> list[str]:
    """Returns what the bars of the epochs said at last; each says it twice."""
    said = re.findall(r"(Loss:\d\.\d{4} \| Accuracy:\d+\.\d\d%): 100%", stderr)
    return list(dict.fromkeys(said))


def _accuracy(stdout: str) -> float:
    found = re.search(r"^Accuracy on test set: (\d+\.\d\d)%$", stdout, re.MULTILINE)
    assert found is not None, stdout
    return float(found[1])


def test_three_epochs_reach_90_percent_and_sharded_execution_has_the_same_first_one(
    run_program: Callable[..., list[Any]], tmp_path: Path
) -> None:
    smaller_calls = ["--device-iterations", "2", "--gradient-accumulation", "7"]
    profile = ["--profile", "--profile-dir", str(tmp_path), "--test-batch-size", "100"]
    [ran] = run_program([SCRIPT, *smaller_calls, *profile], engine="none")
    stdout, stderr = ran.stdout, ran.stderr
    assert "Digits to train: 3,920 of 4,000, 560 in a call" in stdout
    assert "Digits to test: 1,000 of 1,000" in stdout
    assert re.findall(r"^Epoch .*$", stdout, re.MULTILINE) == [
        "Epoch 1/3",
        "Epoch 2/3",
        "Epoch 3/3",
    ]
    assert len(_epochs(stderr)) == 3
    assert stderr.count("Graph compilation:") == 2  # Built once to train, and once to test.
    assert _accuracy(stdout) >= 90  # Of digits that it has never seen.
    assert stdout.splitlines()[-1].startswith(f"Profiles are in {tmp_path}")
    for name, count in (("training", 7), ("inference", 10)):
        _assert_each_device_is_at_work(tmp_path / name, count)

    # With the state on the host.
    options = ["--strategy", "sharded", "--offload-optimiser", "--debug", "--epochs", "1"]
    [ran] = run_program([SCRIPT, *smaller_calls, *options], engine="none")
    stdout = ran.stdout
    assert _epochs(ran.stderr) == _epochs(stderr)[:1]
    stages = re.findall(r"^Stage (\w+) is on /device:(\S+)\.$", stdout, re.MULTILINE)
    assert stages == [("B1", "CPU:1"), ("B2", "CPU:2"), ("B3", "CPU:3"), ("B4", "CPU:4")]
    assert "ShardedExecution(" in stdout
    slots = re.findall(r"^AdamW/\S+ \(.*\) is on device:(\S+)\.$", stdout, re.MULTILINE)
    assert slots == ["CPU:0"] * 16  # Two for each of eight weights.


def _assert_each_device_is_at_work(profile: Path, count: int) -> None:
    text = (profile / "timeline.txt").read_text()
    assert text.startswith(f"PipelinedExecution: 4 stages x {count} micro-batches in ")
    assert all(f"CPU:{number}" in text for number in (1, 2, 3, 4))
    assert (profile / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert (profile / "trace.json").exists()
    assert list(profile.glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gradient-accumulation", "6"], "7 does, or --strategy sharded"),
        (["--batch-size", "41"], "41 x 10 x 10 = 4,100 digits"),
        (["--test-batch-size", "251"], "250 is the largest that does"),
        (["--profile-dir", "here"], "add --profile"),
    ],
)
def test_bad_options_are_refused_in_a_line_before_tensorflow_is_imported(
    options: list[str], said: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", SCRIPT, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert not re.search(r"\| *tensorflow$", run.stderr, re.MULTILINE)
    lines = [line for line in run.stderr.splitlines() if not line.startswith("import time:")]
    usage, error = lines
    assert usage.startswith("usage: pipeline.py")
    assert said in error


def test_the_notebook_runs_from_top_to_bottom(
    run_notebook: Callable[[Any], None], tmp_path: Path
) -> None:
    import nbformat

    notebook = nbformat.read(EXAMPLES / "pipeline.ipynb", as_version=4)
    committed = _accuracy(_printed(notebook))
    run_notebook(notebook)
    accuracy = _accuracy(_printed(notebook))
    assert accuracy >= 90
    assert abs(accuracy - committed) <= 1  # What readers see is what comes out.
    assert (tmp_path / "profile" / "two_stages" / "timeline.png").exists()


def _printed(notebook: Any) -> str:
    streams = [one for cell in notebook.cells for one in cell.get("outputs", []) if "text" in one]
    return "".join(one["text"] for one in streams)
