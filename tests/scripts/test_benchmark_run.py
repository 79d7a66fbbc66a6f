import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import growth_figures
import pytest
import record
import run
import step_figures
from results import Options, Part, Ratio, Table

pytestmark = pytest.mark.processes

SCRIPT = Path(run.__file__)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--only", "steps,sleep"],
            "'sleep' is unknown. Choose from steps, fit, applications, pipelines",
        ),
        (["--models", "cnn,"], "'' is unknown. Choose from cnn, mlp, resnet-20, embedding."),
        (["--rounds", "0"], "'0' is not a number of at least 1."),
        (["--workers", "4"], "'4' is not at least two numbers of 1 to 16. Write 1,2,3,4."),
        (["--output", "/nowhere/benchmarks.md"], "there is no folder /nowhere."),
        (["--from-json", "/nowhere.json"], "--from-json: there is no file /nowhere.json."),
        (["--from-json", os.devnull], "--from-json: there is no file /dev/null."),
        (["--round", "3"], "unrecognized arguments: --round 3"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run.main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert said in text and text.count("\n") == 1


def test_a_wrong_call_imports_nothing_heavy() -> None:
    result = call("--only", "sleep")
    assert result.returncode == 2
    assert "'sleep' is unknown" in result.stderr
    imported = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert not imported & {"tensorflow", "numpy", "matplotlib", "rich", "psutil"}


def test_one_core_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(SystemExit):
        run.main([])
    assert "this needs 2 cores and may run on 1." in capsys.readouterr().err


def test_a_missing_matplotlib_is_told_of_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        run.main([])
    assert 'matplotlib is not installed. Run: pip install -e ".[benchmark]"' in (
        capsys.readouterr().err
    )


def found(name: str, value: float) -> Part:
    return Part(
        name=name,
        title=f"About {name}",
        about="Made up.",
        tables=(Table(title="times", header=("a",), rows=(("1",),)),),
        ratios=(Ratio(name=f"{name} ratio", value=value, low=value, high=value, target=2.0),),
        missing=("A peer: not here. Fetch it.",),
        data={},
    )


class Measures:
    """Stands for the modules of the parts: `own-cost` can be measured, `slow-link` fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.value = 1.0
        self.asked: list[Options] = []
        for name, measure in (("own_cost", self.own_cost), ("slow_link", self.slow_link)):
            module = type(sys)(name)
            module.measure = measure  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, name, module)

    def own_cost(self, options: Options) -> Part:
        self.asked.append(options)
        return found("own-cost", self.value)

    def steps(self, options: Options) -> Part:
        self.asked.append(options)
        data = {"step_seconds": {"cnn": {step_figures.IDEAL: [0.004]}}}
        return replace(found("steps", self.value), data=data)

    def slow_link(self, options: Options) -> Part:
        raise RuntimeError("no root.\nRun it as root.")


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Measures:
    monkeypatch.setattr(run.sys, "path", list(sys.path))
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda pid: {3, 5, 4})
    monkeypatch.setattr(run.signal, "signal", lambda number, handler: None)
    return Measures(monkeypatch)


def files(folder: Path) -> list[str]:
    return [
        f"--output={folder / 'b.md'}", f"--json={folder / 'b.json'}", f"--plots={folder}",
    ]  # fmt: skip


def test_a_part_that_fails_is_told_of_and_the_others_go_on(
    measures: Measures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = "--only=own-cost,slow-link"
    assert run.main([only, "--rounds=3", "--models=mlp", *files(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert err == "slow-link failed: RuntimeError: no root. Run it as root.\n"
    assert "About own-cost" in out and "Left out: A peer: not here. Fetch it." in out
    (options,) = measures.asked
    assert options.rounds == 3 and options.models == ("mlp",) and options.cores == (3, 4)
    assert "## About own-cost" in (tmp_path / "b-appendix.md").read_text()


def test_parts_that_are_not_measured_are_kept(measures: Measures, tmp_path: Path) -> None:
    times = {size: {1: [0.011], 2: [0.012 + 1e-9 * size]} for size in growth_figures.SIZES}
    growth = growth_figures.make_part({"grpc": times}, 2, ())
    kept = record.Record(part=growth, date="then", rounds=1, machine={}, cores_taken=0.0)
    record.write_records(tmp_path / "b.json", {"growth": kept})
    assert run.main(["--only=own-cost", *files(tmp_path)]) == 0
    assert set(record.read_records(tmp_path / "b.json")) == {"growth", "own-cost"}
    text = (tmp_path / "b-appendix.md").read_text()
    assert text.index("## About own-cost") < text.index(f"## {growth.title}")
    assert "](benchmarks-growth.png)" in (tmp_path / "b.md").read_text()
    assert 0 < (tmp_path / "benchmarks-growth.png").stat().st_size < 80_000


def test_ctrl_c_ends_with_a_line(
    measures: Measures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(options: Options) -> Part:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["own_cost"], "measure", interrupt)
    assert run.main(["--only=own-cost", *files(tmp_path)]) == 130
    assert capsys.readouterr().err == (
        f"Interrupted. What was measured before is in {tmp_path / 'b.json'}.\n"
    )


def test_the_document_is_made_again_without_measuring(measures: Measures, tmp_path: Path) -> None:
    assert run.main(["--only=own-cost", *files(tmp_path)]) == 0
    pages = [tmp_path / "b.md", tmp_path / "b-appendix.md"]
    texts = [page.read_text() for page in pages]
    for page in pages:
        page.unlink()
    assert run.main([f"--from-json={tmp_path / 'b.json'}", *files(tmp_path)]) == 0
    assert [page.read_text() for page in pages] == texts
    assert len(measures.asked) == 1


def test_quick_measures_the_picture_alone_and_leaves_the_record(
    measures: Measures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = type(sys)("step_times")
    module.measure = measures.steps  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "step_times", module)
    monkeypatch.setattr(run, "QUICK", tmp_path / "quick")
    assert run.main(["--quick"]) == 0
    (options,) = measures.asked
    assert options.is_quick and options.rounds == run.QUICK_ROUNDS
    assert options.models == run.MODELS
    names = {path.name for path in (tmp_path / "quick").iterdir()}
    assert names == {
        "benchmarks.json",
        "benchmarks.md",
        "benchmarks-appendix.md",
        "benchmarks-steps.png",
    }


def test_quick_with_only_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--quick", "--only=growth"])
    assert "--quick measures the step times alone. Leave out --only" in capsys.readouterr().err
