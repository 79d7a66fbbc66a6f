"""One profile of three workers names the slow one; the launcher asks for it without a change."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elastic_training
import pytest
from forking_launcher import FORKING_LAUNCHER


@pytest.fixture
def train(train_briefly: Any, collect_log: Any) -> Callable[..., list[str]]:
    """Trains with a slow hook on the last worker; returns the log's lines about the profile."""

    def train(engine: str, folder: str, steps: int, num_workers: int) -> list[str]:
        def hooks(index: int) -> list[Any]:
            import time

            from brief_training import Steps

            from tfdist.monitoring import StepProfileHook

            slow = Steps(lambda *_: time.sleep(0.2 if index == num_workers - 1 else 0.0))
            return [StepProfileHook(folder, first_step=2, last_step=4), slow]

        lines = collect_log()
        end = train_briefly(engine, hooks=hooks, limits=lambda index: {"steps": steps})
        assert end["error"] is None
        return [line for line in lines if "rofile" in line]

    return train


@pytest.mark.parametrize(("engine", "num_workers"), [("grpc", 3), ("horovod", 2)])
def test_the_profile_names_the_slow_worker(
    fake_cluster: Any, train: Any, tmp_path: Path, engine: str, num_workers: int
) -> None:
    options = {"engine": engine, "num_workers": num_workers}
    given = (engine, str(tmp_path), 4, num_workers)
    said = fake_cluster.run(train, *given, **options)
    text = (tmp_path / "profile.txt").read_text()
    workers = f"{num_workers} workers, steps 2 to 4"
    assert re.match(rf"{workers}, \d+\.\d ms a step \(while traced\)\n", text)
    assert f"\nWorker {num_workers - 1} is the slowest: others wait for it " in text
    assert "It is in hooks and other Python " in text
    rows = [line for line in text.splitlines()[3:11]]
    for column in range(num_workers):
        shares = [float(re.findall(r"([\d.]+)%", row)[column]) for row in rows]
        assert sum(shares) == pytest.approx(100, abs=0.5)
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == set(range(num_workers))
    assert {event["cat"] for event in trace if event["ph"] == "X"} == {
        *("input", "forward", "backward", "update", "reduction")
    }
    advice = text.splitlines()[-1]
    line = f"Profile of {num_workers} worker(s): {tmp_path}/profile.txt. {advice}"
    assert said == [[line], *[[]] * (num_workers - 1)]


def test_a_training_that_ends_early_says_that_there_is_no_profile(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    said = fake_cluster.run(train, "grpc", str(tmp_path), 1, 1, num_workers=1)
    assert said == [
        [
            "No profile is written: training ended after 1 step(s), and step 2 was to be the first "
            "one."
        ]
    ]


def test_the_launcher_profiles_an_unchanged_program(
    fake_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        *(FORKING_LAUNCHER, "run", "--num-instances", "2", "--profile", "profiles"),
        *("--profile-steps", "3:4", "--log-dir", "logs"),
        *("--", sys.executable, elastic_training.__file__, "model"),
    ]
    fake_cluster.run_script(command, engine="none", forked=True)
    text = (tmp_path / "profiles" / "profile.txt").read_text()
    assert text.startswith("2 workers, steps 3 to 4, ")
    assert {path.name for path in (tmp_path / "profiles").iterdir()} == {
        *("profile.txt", "profile.png", "trace.json")
    }
