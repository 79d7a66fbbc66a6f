import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmarks" / "pipeline.py"
SMALL = ("--rounds=2", "--micro-batches=8", "--micro-batch-size=4", "--blocks=4", "--width=8")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    """The printed text and the file of one small run."""
    file = tmp_path_factory.mktemp("benchmark") / "figures.json"
    result = run(*SMALL, "--json", str(file))
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(file.read_text())


def test_each_target_stands_beside_what_was_measured_and_its_bound(
    measured: tuple[str, dict],
) -> None:
    text, _ = measured
    rows = [line for line in text.splitlines() if " / " in line]
    speedup, overhead, more_stages = rows[:3]
    assert speedup.startswith("sharded, 2 stages / pipelined, 2 stages ")
    assert ">= 1.8 " in speedup and " 1.778 " in speedup  # 2m/(m+1), m = 8
    assert overhead.startswith("sharded, 2 stages, one core / plain ")
    assert "<= 1.05 " in overhead and " 1.000 " in overhead
    assert more_stages.startswith("pipelined, 2 stages / pipelined, 4 stages ")
    assert ">= 1 " in more_stages and " 1.091 " in more_stages  # (m+1)/(m+1/4)
    outcomes = rows[-3:]
    assert all(row.endswith("reached") or ": missed by " in row for row in outcomes)


def test_the_cut_is_printed_with_how_uneven_it_is(measured: tuple[str, dict]) -> None:
    text, _ = measured
    blocks, *stages = text.splitlines()[:3]
    assert blocks.startswith("blocks, ms a micro-batch: ") and len(blocks.split()) == 4 + 4
    assert [line.split(",")[0] for line in stages] == ["2 stages", "4 stages"]
    assert all("slowest over mean +" in line for line in stages)


def test_the_file_has_every_round_of_every_contender(measured: tuple[str, dict]) -> None:
    text, found = measured
    assert all(len(seconds) == 2 for seconds in found["step_seconds"].values())
    assert all(name in text for name in found["step_seconds"])
    first, second = found["stages"]["2"]["cut"]
    assert [*first, *second] == [0, 1, 2, 3]
    for figure in found["figures"]:
        over, under = (found["step_seconds"][figure[side]] for side in ("over", "under"))
        assert figure["median"] == pytest.approx((over[0] / under[0] + over[1] / under[1]) / 2)


def test_one_core_is_refused() -> None:
    core = min(os.sched_getaffinity(0))
    result = subprocess.run(
        [sys.executable, "-c", ONE_CORE, str(core), str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "This needs two cores, and may run on 1." in result.stderr


ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.execv(sys.executable, [sys.executable, sys.argv[2]])
"""
