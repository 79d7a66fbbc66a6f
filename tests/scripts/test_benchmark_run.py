import subprocess
import sys
from pathlib import Path

import pytest
import results
import run
from results import Options, Part, Row

pytestmark = pytest.mark.processes

SCRIPT = Path(run.__file__)
ROW = Row(ms=(4.0, 4.2, 4.3), over=(1.0, 1.0, 1.0))


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line that a wrong call ends with."""
    with pytest.raises(SystemExit) as caught:
        run.main(arguments)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "steps,sleep"], "'sleep' is unknown. Choose from steps, fit, applications"),
        (["--models", "cnn,"], "'' is unknown. Choose from cnn, mlp, resnet-20, bert-mini"),
        (["--rounds", "0"], "'0' is not a number of at least 1."),
        (["--output", "/nowhere"], "there is no folder /nowhere."),
        (["--quick", "--only=fit"], "--quick measures the step times alone. Leave out --only"),
        (["--round", "3"], "unrecognized arguments: --round 3"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(arguments, capsys)


def test_a_folder_without_a_record_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(["--from-json", f"--output={tmp_path}"], capsys)
    assert f"--from-json: there is no file {tmp_path / run.JSON}." in said


def test_a_wrong_call_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", str(SCRIPT), "--only", "sleep"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "'sleep' is unknown" in result.stderr
    imported = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert not imported & {"tensorflow", "numpy", "matplotlib", "psutil"}


def test_one_core_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda pid: {0})
    assert "this needs 2 cores and may run on 1." in refusal([], capsys)


def test_a_missing_matplotlib_is_told_of_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    said = refusal([], capsys)
    assert 'matplotlib is not installed. Run: pip install -e ".[benchmark]"' in said


class Measures:
    """Stands for the modules of the parts: `slow-link` fails, the others can be measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requested: list[Options] = []
        for name in ("own_cost", "step_times", "fit_times", "slow_link"):
            module = type(sys)(name)
            measure = self.fail if name == "slow_link" else self.measure
            module.measure = measure  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, name, module)

    def measure(self, options: Options) -> Part:
        self.requested.append(options)
        title = f"Measured {len(self.requested)}"
        groups = {"CNN": {"ideal": ROW, "tfdist, gRPC": ROW}}
        missing = ("A peer: not here. Fetch it.",)
        return Part(title=title, about="Made up.", groups=groups, ratios={}, missing=missing)

    def fail(self, options: Options) -> Part:
        raise RuntimeError("no root.\nRun it as root.")


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Measures:
    monkeypatch.setattr(run.sys, "path", list(sys.path))
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda pid: {3, 5, 4})
    monkeypatch.setattr(run.signal, "signal", lambda number, handler: None)
    return Measures(monkeypatch)


def test_a_part_that_fails_is_told_of_and_the_others_go_on(
    measures: Measures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = "--only=own-cost,slow-link"
    assert run.main([only, "--rounds=3", "--models=mlp", f"--output={tmp_path}"]) == 1
    out, err = capsys.readouterr()
    assert err == "slow-link failed: RuntimeError: no root. Run it as root.\n"
    assert "## Measured 1" in out and "Left out: A peer: not here. Fetch it." in out
    (options,) = measures.requested
    assert options.rounds == 3 and options.models == ("mlp",) and options.cores == (3, 4)
    assert "## Measured 1" in (tmp_path / run.RECORD_PAGE).read_text()


def test_parts_that_are_not_measured_are_kept(measures: Measures, tmp_path: Path) -> None:
    assert run.main(["--only=own-cost", f"--output={tmp_path}"]) == 0
    assert run.main(["--only=steps", f"--output={tmp_path}"]) == 0
    assert set(results.read_records(tmp_path / run.JSON)) == {"own-cost", "steps"}
    text = (tmp_path / run.RECORD_PAGE).read_text()
    assert text.index("## Measured 2") < text.index("## Measured 1")


def test_ctrl_c_ends_with_a_line(
    measures: Measures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(options: Options) -> Part:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["own_cost"], "measure", interrupt)
    assert run.main(["--only=own-cost", f"--output={tmp_path}"]) == 130
    assert capsys.readouterr().err == (
        f"Interrupted. What was measured before is in {tmp_path / run.JSON}.\n"
    )


def test_the_pages_of_the_docs_are_those_of_their_record(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / run.JSON).write_bytes((run.DOCS / run.JSON).read_bytes())
    assert run.main(["--from-json", f"--output={tmp_path}"]) == 0
    for page in ("benchmarks.md", run.RECORD_PAGE):
        assert (tmp_path / page).read_text() == (run.DOCS / page).read_text()
    for picture in run.DOCS.glob("benchmarks-*.png"):
        assert (tmp_path / picture.name).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / picture.name).stat().st_size < 80_000


def test_quick_measures_the_picture_alone_and_leaves_the_record(
    measures: Measures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "QUICK", tmp_path / "quick")
    assert run.main(["--quick"]) == 0
    (options,) = measures.requested
    assert options.is_quick and options.rounds == run.QUICK_ROUNDS
    assert options.models == run.MODELS
    names = {path.name for path in (tmp_path / "quick").rglob("*.*")}
    assert names == {"benchmarks.json", "benchmarks.md", "record.md", "benchmarks-steps.png"}
